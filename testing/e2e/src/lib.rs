//! Tests of the whole: e2e.
