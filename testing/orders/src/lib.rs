//! Orders of memory: sources of the engine that rely on them, compiled with the atomics of a checker
//! (`loom`) that goes through all that weak memory allows, in all orders of a few threads.
//!
//! The memtable's arena and list are included as they are. Where they look for `stitch_base` they find this
//! crate: locks and atomics of the checker, all else from the real one. A link of a node carries a cell that
//! is written when the node is made and read when the link is, so that a reader that comes to a node
//! without being ordered after its making is a race, and found.
//!
//! That it can fail is shown with the same sources: `sync::weakened` makes their stores or their loads
//! relaxed. See ADR 0074.
#![cfg(test)]

extern crate self as stitch_base;

mod entry;
mod sync;

use real_base::{Seqno, TreeId, random};

/// The beginnings of keys, by which the list compares.
#[path = "../../../crates/vt/src/prefix.rs"]
mod prefix;

/// The memtable's own sources.
#[path = "../../../crates/vt/src/memtable"]
mod memtable {
    mod arena;
    #[expect(dead_code, reason = "no store is quiet here")]
    mod chunks;
    mod posts;
    mod skiplist;

    #[path = "../../../../testing/orders/src/list.rs"]
    mod list;
}
