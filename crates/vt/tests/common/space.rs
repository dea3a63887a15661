//! What stores of tests own, and what of it is garbage.

use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_kv::{Direction, Engine, Holder, KeyRange, Snapshot};
use stitch_vt::VtEngine;

const KIB: u64 = 1 << 10;
/// Bytes of tables that sweeps looked through, and bytes of garbage that they found.
pub const SWEPT_BYTES: &str = "vt.swept_bytes";
pub const GARBAGE_BYTES: &str = "vt.garbage_bytes";
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn owned(engine: &VtEngine) -> u64 {
    engine.quiesce().expect("background work succeeds");
    engine.holdings().owned_bytes()
}

pub fn counter(engine: &VtEngine, name: &str) -> u64 {
    engine.counters().get(name)
}

pub fn garbage(engine: &VtEngine) -> u64 {
    let found = engine.exclusive_space(&[Holder::Garbage], &mut |_, _| true);
    found.expect("it reads").expect("it is not cancelled")[0]
}

/// What the comparison of two stores lets pass: in each table, less than a block of garbage is not
/// worth rewriting it, and the last block and the index are rounded. What replaces garbage in a
/// deeper level is not taken down for less than a sixteenth of what that rewrites, and both stores
/// have some of that kind.
pub fn slack(live_bytes: u64) -> u64 {
    live_bytes / 50 + 64 * KIB
}

pub fn rows(engine: &VtEngine, tree: TreeId, at: Option<&Snapshot>) -> Rows {
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, at);
    let mut scan = scan.expect("it begins");
    let mut rows = Rows::new();
    while let Some((key, value)) = scan.next().expect("it reads") {
        rows.insert(key.to_vec(), value.to_vec());
    }
    rows
}
