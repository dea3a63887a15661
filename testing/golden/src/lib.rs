//! What was stored once must open for ever, and what was never stored must not hurt.
//!
//! [`sample`] is a store with something of everything; `images/` keeps one for every version of the
//! format, closed in good order and killed, with what it holds as text.
//! [`hostile`] holds every decoder as a function of any bytes, for fuzzers (`fuzz/`) and for the
//! bounded test here; [`mutate`] makes such bytes from seeds; [`seeds`] holds valid ones to begin with.

pub mod hostile;
pub mod image;
pub mod mutate;
pub mod sample;
pub mod seeds;
pub mod store;
