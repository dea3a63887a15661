//! Approximate membership filters (quotient filter).
