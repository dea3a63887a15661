//! What was stored once must open for ever, and what was never stored must not hurt.
//!
//! [`hostile`] holds every decoder as a function of any bytes, for fuzzers (`fuzz/`) and for the
//! bounded test here; [`mutate`] makes such bytes from seeds; [`seeds`] holds valid ones to begin with.

pub mod hostile;
pub mod mutate;
pub mod seeds;
