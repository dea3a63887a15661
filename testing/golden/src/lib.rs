//! Tests of the whole: golden.
