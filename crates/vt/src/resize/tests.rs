use super::*;
use crate::testing::{MIB, Small};
use stitch_device::Device;
use stitch_kv::{Direction, Engine, KeyRange};

/// A store of 64 MiB with 12 MiB all over it.
fn spread() -> Small {
    let mut store = Small::new(64 * MIB);
    for first in (0..12_288).step_by(512) {
        store.put(first, 512, 4000);
    }
    store.engine.quiesce().unwrap();
    store.delete((0..12_288).filter(|key| key % 4 != 0));
    store.engine.quiesce().unwrap();
    // In a zone of its own, and in the log only.
    store.put(20_000, 64, 4000);
    store
}

#[test]
fn what_is_at_the_end_moves_and_the_end_is_cut_off() {
    let mut store = spread();
    let end = store.engine.volume().zones().candidates();
    assert!(end.iter().any(|c| c.zone.addr > 32 * MIB), "{end:?}");
    let mut seen = Vec::new();
    let is_done = store.engine.shrink(32 * MIB, &mut |done, total| {
        seen.push((done, total));
        true
    });
    assert!(is_done.unwrap());
    assert!(seen.len() > 1 && seen.iter().all(|(done, total)| done <= total));
    assert_eq!(store.engine.volume().device_bytes(), 32 * MIB);
    assert_eq!(store.device.geometry().len_bytes, 32 * MIB);
    store.check();
    store.scatter(500, 30_000, 2000);
    store.reopen();
    store.check();
    let before = store.engine.space();
    store.engine.grow(128 * MIB).unwrap();
    let after = store.engine.space();
    assert!(after.free_bytes > before.free_bytes + 90 * MIB, "{after:?}");
    assert!(after.total_bytes > before.total_bytes + 90 * MIB);
    store.put(40_000, 4096, 4000);
    store.put(50_000, 4096, 4000);
    store.check();
    store.reopen();
    store.check();
}

#[test]
fn a_store_that_holds_too_much_stays_as_it_is() {
    let mut store = spread();
    store.put(30_000, 2048, 4000);
    store.engine.quiesce().unwrap();
    let before = store.engine.space();
    let error = store.engine.shrink(20 * MIB, &mut |_, _| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("are the least"), "{error}");
    assert_eq!(store.engine.space(), before);
    let error = store.engine.shrink(64 * MIB, &mut |_, _| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!store.engine.shrink(32 * MIB, &mut |_, _| false).unwrap());
    assert_eq!(store.engine.space(), before);
    store.check();
}

#[test]
fn a_reader_of_what_was_moved_is_waited_for() {
    let store = spread();
    let mut scan = store
        .engine
        .scan(store.tree, KeyRange::all(), Direction::Forward, None)
        .unwrap();
    scan.next().unwrap();
    let error = store.engine.shrink(32 * MIB, &mut |_, _| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let mut rows = 1;
    while scan.next().unwrap().is_some() {
        rows += 1;
    }
    assert_eq!(
        rows,
        store.rows.len(),
        "the reader reads what it began with"
    );
    drop(scan);
    assert!(store.engine.shrink(32 * MIB, &mut |_, _| true).unwrap());
    store.check();
}

#[test]
fn what_cannot_be_read_is_not_cut_off() {
    let store = spread();
    store.engine.quiesce().unwrap();
    let version = store.engine.store.version();
    let runs = version.tables().flat_map(|(_, t)| t.meta().runs.clone());
    let last = runs.max_by_key(|run| run.addr).unwrap();
    assert!(last.addr > 33 * MIB);
    store
        .device
        .write_at(last.addr + 100, &[&[0xee; 300]])
        .unwrap();
    drop(version);
    // Nothing of it may be in the cache.
    let mut store = store;
    store.reopen();
    let error = store.engine.shrink(32 * MIB, &mut |_, _| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("a check says whose"), "{error}");
    assert_eq!(store.engine.volume().device_bytes(), 64 * MIB);
    store.put(1, 64, 1000);
    store.engine.quiesce().unwrap();
}
