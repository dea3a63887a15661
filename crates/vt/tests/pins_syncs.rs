//! Syncs of the device that changes of pins and trees take.

mod common;

use common::{MIB, format, open};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_device::{Device, MemDevice};
use stitch_kv::{Batch, CommitOptions, Engine, KeyRanges, KvError, PinRanges, TreeOptions};
use stitch_vt::{VtEngine, VtOptions};

struct Store {
    device: Arc<MemDevice>,
    engine: Arc<VtEngine>,
    tree: TreeId,
}

/// A store in which every feature is marked that is used below.
fn store() -> Store {
    let device = Arc::new(MemDevice::new(32 * MIB));
    format(&*device, None);
    let options = VtOptions {
        memory_bytes: 16 * MIB,
        background: false,
        ..VtOptions::default()
    };
    let engine = open(device.clone(), options);
    let tree = engine.create_tree("tree", &TreeOptions::default());
    let tree = tree.expect("it is made");
    let store = Store {
        device,
        engine,
        tree,
    };
    store.put();
    store
        .engine
        .create_pin_of("first", b"", &|_| true)
        .expect("it is made");
    store.narrow("first").expect("it is there");
    store.engine.drop_pin("first").expect("it is there");
    store
}

impl Store {
    fn put(&self) {
        let mut batch = Batch::new();
        batch.put(self.tree, b"a", b"1");
        let done = self.engine.commit(&batch, CommitOptions::default());
        done.expect("there is room");
    }

    fn narrow(&self, name: &str) -> Result<(), KvError> {
        let ranges = KeyRanges::new([(b"a".to_vec(), Some(b"b".to_vec()))]);
        let ranges = PinRanges::from([(self.tree, ranges)]);
        self.engine.narrow_pin(name, &ranges).map(drop)
    }

    /// Syncs of a change, when all was durable before it, and right after a commit that was not.
    fn syncs<T>(&self, change: impl Fn(&VtEngine, &str) -> Result<T, KvError>) -> [u64; 2] {
        ["quiet", "busy"].map(|name| {
            self.engine.sync().expect("the device syncs");
            if name == "busy" {
                self.put();
            }
            let before = self.device.counters().syncs;
            change(&self.engine, name).expect("it is done");
            self.device.counters().syncs - before
        })
    }
}

/// One for the edit, and one for commits that are not durable yet.
const ONE_AND_TWO: [u64; 2] = [1, 2];

#[test]
fn a_change_of_pins_syncs_the_log_only_if_it_has_to() {
    let store = store();
    let created = store.syncs(|engine, name| engine.create_pin(name, b"user"));
    assert_eq!(created, ONE_AND_TWO);
    let altered = store.syncs(|engine, name| engine.alter_pin(name, b"other"));
    assert_eq!(altered, ONE_AND_TWO);
    let narrowed = store.syncs(|_, name| store.narrow(name));
    assert_eq!(narrowed, ONE_AND_TWO);
    let dropped = store.syncs(|engine, name| engine.drop_pin(name));
    assert_eq!(dropped, ONE_AND_TWO);
}

#[test]
fn so_does_a_change_of_trees() {
    let store = store();
    let options = TreeOptions::default();
    let created = store.syncs(|engine, name| engine.create_tree(name, &options));
    assert_eq!(created, ONE_AND_TWO);
    let dropped = store.syncs(|engine, name| {
        let trees = engine.trees();
        let tree = trees.iter().find(|tree| tree.name == name);
        engine.drop_tree(tree.expect("it is there").id)
    });
    assert_eq!(dropped, ONE_AND_TWO);
}
