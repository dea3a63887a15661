//! Memory orderings: engine sources that rely on them, compiled with the atomics of a checker
//! (`loom`), which explores everything that weak memory allows, in all interleavings of a few
//! threads.
//!
//! The memtable's arena, list and marks are included unchanged. Their `stitch_base` is this crate:
//! locks and atomics of the checker, and the rest of the real one. A link of a node carries a cell
//! that is written when the node is made and read when the link is. So a reader that reaches a
//! node without being ordered after its creation is a data race, which the checker finds.
//!
//! The same sources show that the check can fail: `sync::weakened` makes their stores or their
//! loads relaxed. See ADR 0074.
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
    mod key_filter;
    #[expect(dead_code, reason = "no memtable is asked whether it is empty")]
    mod key_marks;
    mod node_index;
    mod skiplist;
    mod tree_marks;

    #[path = "../../../../testing/orders/src/list.rs"]
    mod list;
    #[path = "../../../../testing/orders/src/marks.rs"]
    mod marks;
}
