//! Upsert functions with easy arithmetic, one of which can be joined and one of which removes.

use std::sync::Arc;
use stitch_kv::{Folded, UpsertFn, UpsertRegistry};

/// Adds a number to the first eight bytes.
pub(super) const ADD: u32 = 900;
/// Appends bytes, up to [`APPEND_MAX`].
pub(super) const APPEND: u32 = 901;
/// Cuts a byte off; removes the key when nothing is left.
pub(super) const SHRINK: u32 = 902;

/// Longest value that [`APPEND`] makes, in bytes.
const APPEND_MAX: usize = 300;

struct Add;
struct Append;
struct Shrink;

fn number(bytes: Option<&[u8]>) -> u64 {
    let first = bytes.and_then(|b| b.first_chunk::<8>());
    first.map_or(0, |b| u64::from_le_bytes(*b))
}

impl UpsertFn for Add {
    fn id(&self) -> u32 {
        ADD
    }

    fn name(&self) -> &'static str {
        "sim add"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        let sum = number(old).wrapping_add(number(Some(delta)));
        out.extend_from_slice(&sum.to_le_bytes());
        Folded::Value
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        let sum = number(Some(older)).wrapping_add(number(Some(newer)));
        out.extend_from_slice(&sum.to_le_bytes());
        true
    }
}

impl UpsertFn for Append {
    fn id(&self) -> u32 {
        APPEND
    }

    fn name(&self) -> &'static str {
        "sim append"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        out.extend_from_slice(old.unwrap_or_default());
        out.extend_from_slice(delta);
        out.truncate(APPEND_MAX);
        Folded::Value
    }
}

impl UpsertFn for Shrink {
    fn id(&self) -> u32 {
        SHRINK
    }

    fn name(&self) -> &'static str {
        "sim shrink"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, _delta: &[u8], out: &mut Vec<u8>) -> Folded {
        match old {
            Some([rest @ .., _]) if !rest.is_empty() => {
                out.extend_from_slice(rest);
                Folded::Value
            }
            _ => Folded::Absent,
        }
    }
}

/// All of them, for opening a store.
#[must_use]
pub fn registry() -> UpsertRegistry {
    let mut registry = UpsertRegistry::default();
    registry.register(Arc::new(Add));
    registry.register(Arc::new(Append));
    registry.register(Arc::new(Shrink));
    registry
}
