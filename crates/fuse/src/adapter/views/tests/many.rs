//! Stores with many snapshots.

use super::{context, model, setup_on};
use crate::adapter::SNAPSHOT_XATTR;
use crate::handler::Handler as _;
use crate::wire::codec::Sink;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_fs::FsOptions;
use stitch_kv::{Engine, KvError, ModelEngine, PinInfo, WrappedEngine};

/// An engine that counts the lists of all pins.
struct ListCounter {
    inner: ModelEngine,
    lists: AtomicU64,
}

impl WrappedEngine for ListCounter {
    fn inner(&self) -> &dyn Engine {
        &self.inner
    }

    fn pins(&self) -> Result<Vec<PinInfo>, KvError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.pins()
    }
}

/// What `stitchfs snapshot list` does for each snapshot: a lookup, and the question what it is of.
#[test]
fn a_snapshot_is_found_and_described_without_a_list_of_all() {
    let engine = Arc::new(ListCounter {
        inner: model(),
        lists: AtomicU64::new(0),
    });
    let setup = setup_on(Arc::clone(&engine) as _, FsOptions::default());
    let dir = setup.dir(b"d");
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    for name in &names {
        setup.create(0, dir, name).unwrap();
    }
    let before = engine.lists.load(Ordering::Relaxed);
    for name in &names {
        let found = setup.lookup(setup.snapshots(), name.as_bytes()).unwrap();
        let root = found.unwrap().ino;
        let mut out = Vec::new();
        let asked = SNAPSHOT_XATTR.as_bytes();
        let mut sink = Sink::new(&mut out, 4096);
        let told = setup.views.getxattr(&context(0), root, asked, &mut sink);
        told.unwrap();
        assert_eq!(out, b"d", "what it is of");
    }
    assert_eq!(engine.lists.load(Ordering::Relaxed), before);
}
