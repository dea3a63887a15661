//! Approximate membership filters over 64-bit key hashes.
//!
//! A filter tells whether a key is certainly absent, without reading the keys. It never misses a
//! key that it was built from, and reports a small share of other keys as present.

mod bits;
mod quotient;
mod words;

pub use quotient::{FilterError, Precision, QuotientFilter, QuotientFilterRef};
pub use words::{WordFilter, word_bits, word_of};
