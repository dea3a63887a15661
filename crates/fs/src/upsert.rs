//! The upsert functions of the file system, as an engine takes them. What they do is in `format`.

use crate::locator::Tree;
use stitch_base::sync::Arc;
use stitch_format::fs_sys::{UPSERT_ADD, UPSERT_ATTR, UPSERT_CHUNK, decode_number};
use stitch_format::{fs_chunk, fs_inode, fs_sys};
use stitch_kv::{Folded, UpsertFn, UpsertRegistry};

/// Folds a delta over the value of a row and writes the new one. Reports whether there is one.
type FoldRow = fn(Option<&[u8]>, &[u8], &mut Vec<u8>) -> bool;

/// An upsert function: how the rows of a tree take deltas.
#[derive(Clone, Copy)]
pub(crate) struct RowUpsert {
    id: u32,
    name: &'static str,
    /// Where the rows are that it folds.
    pub(crate) tree: Tree,
    /// Reports whether bytes are one of its deltas.
    pub(crate) is_delta: fn(&[u8]) -> bool,
    fold: FoldRow,
    /// Writes one delta with the effect of two. Reports whether there is one.
    join: fn(&[u8], &[u8], &mut Vec<u8>) -> bool,
}

const ALL: [RowUpsert; 3] = [
    RowUpsert {
        id: UPSERT_CHUNK,
        name: "chunk",
        tree: Tree::Data,
        is_delta: |delta| fs_chunk::ChunkDelta::decode(delta).is_some(),
        fold: fs_chunk::fold,
        join: fs_chunk::join,
    },
    RowUpsert {
        id: UPSERT_ATTR,
        name: "attr",
        tree: Tree::Meta,
        is_delta: |delta| fs_inode::AttrDelta::decode(delta).is_ok(),
        fold: fs_inode::fold,
        join: fs_inode::join,
    },
    RowUpsert {
        id: UPSERT_ADD,
        name: "add",
        tree: Tree::Sys,
        is_delta: |delta| decode_number(delta).is_ok(),
        fold: |old, delta, out| {
            fs_sys::fold_add(old, delta, out);
            debug_assert!(decode_number(out).is_ok(), "a sum is a number");
            true
        },
        join: fs_sys::join_add,
    },
];

impl RowUpsert {
    /// Returns the function of a number.
    pub(crate) fn find(function: u32) -> Option<&'static Self> {
        debug_assert_ne!(function, 0, "0 is never a function");
        ALL.iter().find(|found| found.id == function)
    }
}

impl UpsertFn for RowUpsert {
    fn id(&self) -> u32 {
        self.id
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        debug_assert!(out.is_empty(), "it takes the new value alone");
        match (self.fold)(old, delta, out) {
            true => Folded::Value,
            false => Folded::Absent,
        }
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let is_joined = (self.join)(older, newer, out);
        debug_assert!(
            !is_joined || (self.is_delta)(&out[before..]),
            "two deltas are one"
        );
        is_joined
    }
}

/// Registers the upsert functions that the rows of a file system need. Every engine that is to hold
/// one is opened with them.
pub fn register_upserts(registry: &mut UpsertRegistry) {
    for function in ALL {
        registry.register(Arc::new(function));
    }
    debug_assert!(
        ALL.iter().all(|one| registry
            .get(one.id)
            .is_some_and(|found| found.id() == one.id)),
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
