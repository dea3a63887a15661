//! Upsert functions for tests: each of the shapes that real ones have.

use crate::{Folded, UpsertFn, UpsertRegistry};
use stitch_base::sync::Arc;

/// Number of [`Append`].
pub const APPEND: u32 = 0xf001;
/// Number of [`Add`].
pub const ADD: u32 = 0xf002;
/// Number of [`RemoveIf`].
pub const REMOVE_IF: u32 = 0xf003;
/// Number of [`Hash`].
pub const HASH: u32 = 0xf004;

/// The functions of this module.
#[must_use]
pub fn registry() -> UpsertRegistry {
    let mut registry = UpsertRegistry::default();
    registry.register(Arc::new(Append));
    registry.register(Arc::new(Add));
    registry.register(Arc::new(RemoveIf));
    registry.register(Arc::new(Hash));
    registry
}

/// Appends the delta to the value. Deltas can be joined.
#[derive(Debug)]
pub struct Append;

impl UpsertFn for Append {
    fn id(&self) -> u32 {
        APPEND
    }

    fn name(&self) -> &'static str {
        "append"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        out.extend_from_slice(old.unwrap_or_default());
        out.extend_from_slice(delta);
        Folded::Value
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(older);
        out.extend_from_slice(newer);
        true
    }
}

/// Adds a little-endian number of 64 bits, wrapping. A value or delta of another length is 0. Not
/// joined when the sum wraps, so that both answers of `join` occur.
#[derive(Debug)]
pub struct Add;

/// The number that [`Add`] sees in bytes.
#[must_use]
pub fn number(bytes: &[u8]) -> u64 {
    <[u8; 8]>::try_from(bytes).map_or(0, u64::from_le_bytes)
}

impl UpsertFn for Add {
    fn id(&self) -> u32 {
        ADD
    }

    fn name(&self) -> &'static str {
        "add"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        let sum = number(old.unwrap_or_default()).wrapping_add(number(delta));
        out.extend_from_slice(&sum.to_le_bytes());
        Folded::Value
    }

    fn commutes(&self) -> bool {
        true
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(sum) = number(older).checked_add(number(newer)) else {
            return false;
        };
        out.extend_from_slice(&sum.to_le_bytes());
        true
    }
}

/// Removes the key if its value begins with the delta; leaves it as it is otherwise. An absent key
/// stays absent. Cannot be joined.
#[derive(Debug)]
pub struct RemoveIf;

impl UpsertFn for RemoveIf {
    fn id(&self) -> u32 {
        REMOVE_IF
    }

    fn name(&self) -> &'static str {
        "remove-if"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        match old {
            Some(old) if !old.starts_with(delta) => {
                out.extend_from_slice(old);
                Folded::Value
            }
            _ => Folded::Absent,
        }
    }
}

/// A digest of key, old value and delta: wrong after any change of order or number of folds.
#[derive(Debug)]
pub struct Hash;

impl UpsertFn for Hash {
    fn id(&self) -> u32 {
        HASH
    }

    fn name(&self) -> &'static str {
        "hash"
    }

    fn fold(&self, key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        let mut state: u64 = if old.is_some() { 17 } else { 19 };
        for byte in key.iter().chain(old.unwrap_or_default()).chain(delta) {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        out.extend_from_slice(&state.to_le_bytes());
        Folded::Value
    }
}
