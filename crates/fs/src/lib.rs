//! The file system as rows of ordered trees.
