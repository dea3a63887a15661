//! What opening a store with many shared contents reads, and when those go that a crash has left.

#[path = "../../tests/common/vt_store.rs"]
mod vt_store;

use super::*;
use crate::change::Changes;
use crate::{FileSystem, FsOptions, register_upserts};
use stitch_db::SpaceClass;
use stitch_format::fs_sys::encode_number;
use stitch_kv::UpsertRegistry;
use stitch_vt::counters::DATA_BLOCKS_READ;
use vt_store::VtStore;

const FIRST: u64 = 1_000_000;

/// A store with contents, on the VT-tree.
struct ContentsStore(VtStore);

impl ContentsStore {
    fn new() -> Self {
        let mut upserts = UpsertRegistry::default();
        register_upserts(&mut upserts);
        let store = VtStore::new(upserts);
        FileSystem::format(&store.engine(), &FsOptions::default(), (0, 0)).expect("formats");
        Self(store)
    }

    /// Opens the file system. Returns the blocks that this reads, too.
    fn open(&self) -> (FileSystem, u64) {
        let engine = self.0.engine();
        let before = engine.counters().get(DATA_BLOCKS_READ);
        let fs = FileSystem::open(engine, FsOptions::default()).expect("it opens");
        let after = fs.engine().counters().get(DATA_BLOCKS_READ);
        (fs, after - before)
    }

    /// Puts rows of contents. Each has `users`, but one in a thousand, which a crash has left.
    fn put_contents(&self, count: u64, users: u64) {
        let (fs, _) = self.open();
        Changes::of(&fs)
            .mark_header(|header| header.has_shared = true)
            .expect("there is room");
        let keys = fs.store.keys;
        let mut batch = fs.store.batch();
        for number in FIRST..FIRST + count {
            batch.put(&keys.contents(Ino(number)), &encode_number(1));
            let users = if number % 1000 == 999 { 0 } else { users };
            for user in 0..users {
                batch.put(&keys.contents_user(Ino(number), Ino(2 * FIRST + user)), b"");
            }
            if batch.len_bytes() > 100_000 || number + 1 == FIRST + count {
                fs.store
                    .commit(&batch, SpaceClass::Normal)
                    .expect("there is room");
                batch = fs.store.batch();
            }
        }
        fs.engine().quiesce().expect("background work succeeds");
    }
}

/// Returns the contents that a scan of all finds without users.
fn left(fs: &FileSystem) -> usize {
    let mut unused = BTreeSet::new();
    let mut scan = fs
        .store
        .scan(&fs.store.keys.all_contents())
        .expect("it reads");
    while let Some((key, _)) = scan.next().expect("it reads") {
        match Locator::sys_row(key) {
            Some(SysRow::Contents(number)) => unused.insert(number),
            Some(SysRow::ContentsUser(number, _)) => unused.remove(&number),
            _ => false,
        };
    }
    unused.len()
}

#[test]
fn an_open_looks_at_some_contents_and_reclaims_look_at_the_rest() {
    for (count, users) in [(100_000, 1), (10, 50_000)] {
        let store = ContentsStore::new();
        store.put_contents(count, users);
        let (fs, blocks) = store.open();
        assert!(blocks <= 40, "{count} with {users}: {blocks} blocks");
        let mut rounds = 0;
        while fs.has_more_to_reclaim() {
            rounds += 1;
            assert!(rounds < 1_000, "it comes to an end");
            fs.reclaim().expect("there is room");
        }
        assert_eq!(left(&fs), 0, "{count} with {users}");
    }
}

#[test]
fn a_store_that_is_full_looks_at_all_of_them() {
    let store = ContentsStore::new();
    store.put_contents(20_000, 1);
    let (fs, _) = store.open();
    assert!(left(&fs) > 0, "the first ones are gone");
    let mark = fs.room_mark();
    assert!(fs.make_room(mark).expect("it is read"));
    assert_eq!(left(&fs), 0);
}
