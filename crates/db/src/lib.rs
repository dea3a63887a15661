//! Schemas of trees: the database between an engine and its users.
