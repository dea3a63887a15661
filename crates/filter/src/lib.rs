//! Approximate membership filters over 64-bit key hashes.
//!
//! A filter answers "is this key certainly absent?" without reading the keys. It never misses a key
//! that it was built from, and says "maybe" for few others.

mod bits;
mod quotient;

pub use quotient::{FilterError, Precision, QuotientFilter, QuotientFilterRef};
