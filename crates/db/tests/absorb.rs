//! Branch trees of the VT-tree engine that are absorbed: what others wrote stays, and what both
//! wrote is listed or settled.

use bytes::Bytes;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, TreeId};
use stitch_db::{
    Clash, CommitOptions, ConflictPolicy, DbError, Resolution, TreeOptions, absorb_branches,
};
use stitch_device::MemDevice;
use stitch_kv::{Batch, Engine, NewBranch, Snapshot, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

struct Store {
    engine: Arc<VtEngine>,
    tree: TreeId,
}

impl Store {
    fn new() -> Self {
        let device = Arc::new(MemDevice::new(32 << 20));
        let format = FormatOptions::default();
        Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
        let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
        let options = VtOptions {
            memory_bytes: 16 << 20,
            upserts: UpsertRegistry::default(),
            ..VtOptions::default()
        };
        let engine = VtEngine::open(opened, options).expect("the store opens");
        let tree = engine.create_tree("tree", &TreeOptions::default());
        let tree = tree.expect("the tree is made");
        let store = Self { engine, tree };
        store.put(tree, b"k", b"base");
        store
    }

    fn commit(&self, fill: impl FnOnce(&mut Batch<'_>)) {
        let mut batch = Batch::new();
        fill(&mut batch);
        let done = self.engine.commit(&batch, CommitOptions::default());
        done.expect("there is room");
    }

    fn put(&self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.commit(|batch| batch.put(tree, key, value));
    }

    fn branch(&self, of: TreeId, name: &str, at: Option<&Snapshot>) -> TreeId {
        let made = self.engine.branch_trees(&[NewBranch::new(of, name)], at);
        made.expect("the branch is made")[0]
    }

    fn get(&self, tree: TreeId, key: &[u8]) -> Option<Bytes> {
        self.engine.get(tree, key, None).expect("it reads")
    }

    fn absorb(&self, branch: TreeId, conflicts: &ConflictPolicy) -> Result<(), DbError> {
        let options = CommitOptions::default();
        absorb_branches(self.engine.as_ref(), &[branch], conflicts, options).map(drop)
    }
}

#[track_caller]
fn conflicts(result: Result<(), DbError>) -> Vec<Vec<u8>> {
    match result.expect_err("it is refused") {
        DbError::Conflict { keys } => keys.into_iter().map(|changed| changed.key).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn what_others_wrote_stays_and_what_both_wrote_is_listed() {
    let store = Store::new();
    let make = |name| store.branch(store.tree, name, None);
    let (apart, both, range) = (make("apart"), make("both"), make("range"));
    store.put(apart, b"new", b"1");
    store.put(both, b"k", b"branch");
    store.commit(|batch| batch.delete_range(range, b"x", b"z"));
    store.put(store.tree, b"k", b"tree");
    store.put(store.tree, b"y", b"tree");
    let refuse = ConflictPolicy::Refuse;
    store.absorb(apart, &refuse).expect("the keys are others");
    assert_eq!(store.get(store.tree, b"k").as_deref(), Some(&b"tree"[..]));
    assert!(store.get(store.tree, b"new").is_some());
    let gone = store.absorb(apart, &refuse).expect_err("it was absorbed");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(conflicts(store.absorb(both, &refuse)), [b"k"]);
    assert_eq!(conflicts(store.absorb(range, &refuse)), [b"y"]);
    assert_eq!(store.get(both, b"k").as_deref(), Some(&b"branch"[..]));
    let join = |clash: &Clash<'_>| {
        let all = [&clash.base, &clash.ours, &clash.theirs];
        let text = |value: &Option<Bytes>| value.clone().unwrap_or_default();
        Resolution::Put(Bytes::from(all.map(text).join(&b'|')))
    };
    let settle = ConflictPolicy::Resolve(Arc::new(join));
    store.absorb(both, &settle).expect("it is settled");
    let joined = store.get(store.tree, b"k");
    assert_eq!(joined.as_deref(), Some(&b"base|branch|tree"[..]));
    store
        .absorb(range, &ConflictPolicy::Ignore)
        .expect("nothing is compared");
    assert_eq!(store.get(store.tree, b"y"), None);
    assert_eq!(store.engine.trees().len(), 1);
}

#[test]
fn a_branch_that_cannot_be_absorbed_is_as_it_was() {
    let store = Store::new();
    let branch = store.branch(store.tree, "branch", None);
    store.put(branch, b"k", b"branch");
    let inner = store.branch(branch, "inner", None);
    let refuse = ConflictPolicy::Refuse;
    let has_a_branch = store.absorb(branch, &refuse).expect_err("it has one");
    assert_eq!(has_a_branch.kind(), ErrorKind::Invalid);
    let none = store.absorb(store.tree, &refuse).expect_err("it is none");
    assert_eq!(none.kind(), ErrorKind::Invalid);
    assert_eq!(store.get(inner, b"k").as_deref(), Some(&b"branch"[..]));
    store.engine.drop_tree(inner).expect("it goes");
    store
        .absorb(branch, &refuse)
        .expect("nothing is in the way");
    assert_eq!(store.get(store.tree, b"k").as_deref(), Some(&b"branch"[..]));
}

#[test]
fn a_branch_of_a_pin_begins_with_what_the_pin_holds() {
    let store = Store::new();
    store
        .engine
        .create_pin("db/monday", b"")
        .expect("it is made");
    store.put(store.tree, b"k", b"later");
    let then = store.engine.open_pin("db/monday").expect("it is there");
    let branch = store.branch(store.tree, "branch", Some(&then));
    store.engine.drop_pin("db/monday").expect("it goes");
    assert_eq!(store.get(branch, b"k").as_deref(), Some(&b"base"[..]));
    store.put(branch, b"new", b"branch");
    store
        .absorb(branch, &ConflictPolicy::Refuse)
        .expect("the keys are others");
    assert_eq!(store.get(store.tree, b"k").as_deref(), Some(&b"later"[..]));
    assert!(store.get(store.tree, b"new").is_some());
}
