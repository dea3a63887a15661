//! The upsert functions of the file system, as an engine takes them. What they do is in `format`.

use crate::locator::Tree;
use stitch_base::sync::Arc;
use stitch_format::fs_sys::{UPSERT_ADD, UPSERT_ATTR, UPSERT_CHUNK};
use stitch_format::{fs_chunk, fs_inode, fs_sys};
use stitch_kv::{Folded, UpsertFn, UpsertRegistry};

struct ChunkUpsert;
struct AttrUpsert;
struct AddUpsert;

/// Returns the tree whose rows a function folds.
pub(crate) const fn tree_of(function: u32) -> Option<Tree> {
    match function {
        UPSERT_CHUNK => Some(Tree::Data),
        UPSERT_ATTR => Some(Tree::Meta),
        UPSERT_ADD => Some(Tree::Sys),
        _ => None,
    }
}

const fn folded(is_left: bool) -> Folded {
    if is_left {
        Folded::Value
    } else {
        Folded::Absent
    }
}

impl UpsertFn for ChunkUpsert {
    fn id(&self) -> u32 {
        UPSERT_CHUNK
    }

    fn name(&self) -> &'static str {
        "chunk"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        let before = out.len();
        let is_left = fs_chunk::fold(old, delta, out);
        debug_assert!(out.len() >= before, "it adds to what is there");
        folded(is_left)
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let is_joined = fs_chunk::join(older, newer, out);
        debug_assert!(
            !is_joined || fs_chunk::ChunkDelta::decode(&out[before..]).is_some(),
            "two deltas are one"
        );
        is_joined
    }
}

impl UpsertFn for AttrUpsert {
    fn id(&self) -> u32 {
        UPSERT_ATTR
    }

    fn name(&self) -> &'static str {
        "attr"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        let before = out.len();
        let is_left = fs_inode::fold(old, delta, out);
        debug_assert!(out.len() >= before, "it adds to what is there");
        folded(is_left)
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let is_joined = fs_inode::join(older, newer, out);
        debug_assert!(
            !is_joined || fs_inode::AttrDelta::decode(&out[before..]).is_ok(),
            "two deltas are one"
        );
        is_joined
    }
}

impl UpsertFn for AddUpsert {
    fn id(&self) -> u32 {
        UPSERT_ADD
    }

    fn name(&self) -> &'static str {
        "add"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        let before = out.len();
        fs_sys::fold_add(old, delta, out);
        debug_assert!(
            fs_sys::decode_number(&out[before..]).is_ok(),
            "a sum is a number"
        );
        Folded::Value
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let is_joined = fs_sys::join_add(older, newer, out);
        debug_assert!(
            !is_joined || fs_sys::decode_number(&out[before..]).is_ok(),
            "two deltas are one"
        );
        is_joined
    }
}

/// Registers the upsert functions that the rows of a file system need. Every engine that is to hold
/// one is opened with them.
pub fn register_upserts(registry: &mut UpsertRegistry) {
    registry.register(Arc::new(ChunkUpsert));
    registry.register(Arc::new(AttrUpsert));
    registry.register(Arc::new(AddUpsert));
    debug_assert!(
        [UPSERT_CHUNK, UPSERT_ATTR, UPSERT_ADD]
            .iter()
            .all(|id| registry.get(*id).is_some_and(|found| found.id() == *id)),
        "functions are found under their numbers"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_under_their_numbers() {
        let mut registry = UpsertRegistry::default();
        register_upserts(&mut registry);
        for (id, name) in [(16, "chunk"), (17, "attr"), (18, "add")] {
            let function = registry.get(id).expect("registered");
            assert_eq!((function.id(), function.name()), (id, name));
        }
    }
}
