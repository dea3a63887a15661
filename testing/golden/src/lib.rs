//! Stored images that every later version must open, and hostile bytes that must do no harm.
//!
//! [`sample`] is a store with something of every feature; `images/` keeps one for every version of
//! the format, cleanly closed and killed, with its contents as text. [`hostile`] holds every
//! decoder as a function of arbitrary bytes, for fuzzers (`fuzz/`) and for the bounded test here;
//! [`mutate`] makes such bytes from seeds; [`seeds`] holds valid ones to start from.

pub mod hostile;
pub mod image;
pub mod mutate;
pub mod sample;
pub mod seeds;
pub mod store;
