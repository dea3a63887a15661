//! Space that is on its way when a store is full.

use crate::common::*;
use std::sync::Arc;
use stitch_base::Ino;
use stitch_base::clock::Clock;
use stitch_fs::{
    AtomicWriter, BeginOptions, CloneSource, FallocateMode, FileSystem, FsError, FsResult,
    LiveView, MemFiles, WriteOptions, Writer,
};
use stitch_kv::{Engine, ModelEngine};

const BIG: usize = 400_000;

fn write(setup: &Setup, ino: Ino, at: u64, bytes: &[u8]) -> FsResult<()> {
    let options = WriteOptions::default();
    setup.fs.write(ino, at, bytes, options).map(drop)
}

/// A store of 1 MiB with a file of [`BIG`] bytes, and full.
fn full() -> (Setup, Ino) {
    let engine = Arc::new(ModelEngine::with_space(registry(), 1 << 20));
    let setup = setup_on(engine, |_| {});
    let big = setup.file(ROOT, "big").ino;
    write(&setup, big, 0, &[1; BIG]).expect("there is space");
    let rest = setup.file(ROOT, "rest").ino;
    let mut at = 0;
    let error = loop {
        match write(&setup, rest, at, &[2; 4096]) {
            Ok(()) => at += 4096,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FsError::NoSpace), "{error}");
    (setup, big)
}

fn unlink(setup: &Setup, name: &str) {
    setup.fs.unlink(&SUPER, at(ROOT, name)).expect("it goes");
}

#[test]
fn a_write_has_the_space_of_a_file_that_was_just_forgotten() {
    let (setup, big) = full();
    let next = setup.fs.create(&SUPER, at(ROOT, "next"), &new(0o644));
    let next = next.expect("a name finds space").ino;
    unlink(&setup, "big");
    let refused = write(&setup, next, 0, &[3; BIG / 2]);
    assert!(matches!(refused, Err(FsError::NoSpace)), "it is in use");
    setup.fs.forget(big, 1);
    write(&setup, next, 0, &[3; BIG / 2]).expect("no wait for the thread that reclaims");
    assert_eq!(setup.contents(next), [3; BIG / 2]);
    setup.check();
}

#[test]
fn so_has_an_allocation() {
    let (setup, big) = full();
    let next = setup.fs.create(&SUPER, at(ROOT, "next"), &new(0o644));
    let next = next.expect("a name finds space").ino;
    unlink(&setup, "big");
    setup.fs.forget(big, 1);
    let mode = FallocateMode::Allocate { keep_size: false };
    let allocate = |len: usize| setup.fs.fallocate(next, mode, 0, len as u64);
    allocate(BIG / 2).expect("there is room");
    assert!(matches!(allocate(3 * BIG), Err(FsError::NoSpace)));
}

#[test]
fn new_inode_numbers_are_set_aside_with_such_space() {
    let (setup, big) = full();
    // To the last byte.
    let mut count = 0;
    let mut make = |setup: &Setup| {
        count += 1;
        let name = format!("{count:0200}");
        setup.fs.create(&SUPER, at(ROOT, &name), &new(0o644))
    };
    while make(&setup).is_ok() {}
    let mut setup = setup.reopened();
    assert!(matches!(make(&setup), Err(FsError::NoSpace)));
    setup.lookup(ROOT, "big").expect("it is there");
    unlink(&setup, "big");
    setup.fs.forget(big, 1);
    make(&setup).expect("there is space");
    setup = setup.reopened();
    setup.check();
}

#[test]
fn a_removed_tree_gives_its_space_to_a_request_that_is_served_again() {
    let engine = Arc::new(ModelEngine::with_space(registry(), 1 << 20));
    let setup = setup_on(engine, |_| {});
    let dir = setup.dir(ROOT, "tree").ino;
    let inner = setup.dir(dir, "inner").ino;
    let other = setup.file(ROOT, "other").ino;
    for number in 0.. {
        let name = format!("f{number}");
        let made = setup.fs.create(&SUPER, at(inner, &name), &new(0o644));
        let Ok(file) = made else { break };
        let written = write(&setup, file.ino, 0, &[1; 20_000]);
        setup.fs.forget(file.ino, 1);
        if written.is_err() {
            break;
        }
    }
    setup.fs.forget(inner, 1);
    let mark = setup.fs.room_mark();
    assert!(!setup.fs.make_room(mark).expect("no failure"));
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "tree"), None)
        .unwrap();
    setup.fs.forget(dir, 1);
    let mut tries = 0;
    loop {
        let mark = setup.fs.room_mark();
        match write(&setup, other, 0, &[3; 500_000]) {
            Ok(()) => break,
            Err(FsError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(setup.fs.make_room(mark).expect("no failure"), "more comes");
        tries += 1;
    }
    assert!((1..5).contains(&tries), "{tries} tries");
    setup.check();
}

#[test]
fn a_full_store_refuses_at_once_and_waits_once_for_a_file_in_use() {
    let (setup, big) = full();
    let waited = |setup: &Setup| {
        let before = setup.clock.monotonic();
        let commits = setup.engine.counters().get("commits");
        let mark = setup.fs.room_mark();
        let rest = setup.lookup(ROOT, "rest").expect("it is there");
        setup.fs.forget(rest.ino, 1);
        let refused = write(setup, rest.ino, 1 << 20, &[2; 20_000]);
        assert!(matches!(refused, Err(FsError::NoSpace)));
        assert!(!setup.fs.make_room(mark).expect("no failure"));
        assert_eq!(setup.engine.counters().get("commits"), commits);
        (setup.clock.monotonic() - before).as_millis()
    };
    assert_eq!(waited(&setup), 0, "nothing is on its way");
    unlink(&setup, "big");
    assert_eq!(waited(&setup), 100, "it may be forgotten soon");
    assert_eq!(waited(&setup), 0, "it is in use");
    setup.fs.forget(big, 1);
    let mark = setup.fs.room_mark();
    assert!(setup.fs.make_room(mark).expect("no failure"));
}

#[test]
fn what_another_thread_gave_back_counts() {
    let (setup, big) = full();
    let mark = setup.fs.room_mark();
    unlink(&setup, "big");
    setup.fs.forget(big, 1);
    assert_eq!(setup.fs.reclaim().unwrap(), 1);
    assert!(setup.fs.make_room(mark).unwrap(), "since the mark");
    let mark = setup.fs.room_mark();
    assert!(!setup.fs.make_room(mark).unwrap(), "nothing since then");
}

#[test]
fn plain_files_of_a_removed_tree_make_room_on_the_host() {
    let setup = external_on(Arc::new(ModelEngine::new(registry())), MemFiles::new());
    let dir = setup.dir(ROOT, "tree").ino;
    let file = setup.file(dir, "f").ino;
    setup.write(file, 0, &[7; 200_000]);
    let other = setup.file(ROOT, "other").ino;
    setup.write(other, 0, &[8; 10_000]);
    files(&setup).set_room(Some(220_000));
    setup.fs.forget(file, 1);
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "tree"), None)
        .unwrap();
    setup.fs.forget(dir, 1);
    let mark = setup.fs.room_mark();
    let refused = write(&setup, other, 0, &[8; 150_000]);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert!(setup.fs.make_room(mark).unwrap());
    write(&setup, other, 0, &[8; 150_000]).expect("there is room");
    assert_eq!(setup.contents(other), [8; 150_000]);
    setup.check();
}

#[test]
fn a_commit_of_an_atomic_write_leaves_the_file_and_works_after_room_was_made() {
    let (setup, big) = full();
    let writer = AtomicWriter {
        process: 10,
        thread: 10,
    };
    let stage = |len: usize| {
        let started = setup.fs.start_atomic_write(&SUPER, big, writer);
        started.expect("it has none");
        let own = Writer::Process(writer.process);
        let options = WriteOptions::default();
        let staged = setup.fs.write_by(own, big, 5000, &vec![3; len], options);
        staged.expect("of memory there is enough");
    };
    stage(200_000);
    let refused = setup.fs.commit_atomic_write(big, writer.process);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert!(setup.fs.end_atomic_write(big), "it is open");
    setup.fs.remove_atomic_write(big);
    assert!(setup.contents(big) == [1; BIG]);
    setup.check();
    let rest = setup.lookup(ROOT, "rest").expect("it is there").ino;
    unlink(&setup, "rest");
    setup.fs.forget(rest, 2);
    stage(200_000);
    let done = setup.fs.commit_atomic_write(big, writer.process);
    done.expect("there is space");
    let setup = setup.reopened();
    let big = setup.lookup(ROOT, "big").expect("it is there").ino;
    let mut expected = vec![1; BIG];
    expected[5000..205_000].fill(3);
    assert!(setup.contents(big) == expected);
    setup.check();
}
/// A store of 1 MiB with two clones, open.
fn with_clones() -> (Setup, [Arc<LiveView>; 2]) {
    let engine = Arc::new(ModelEngine::with_space(registry(), 1 << 20));
    let setup = setup_on(engine, |_| {});
    let dir = setup.dir(ROOT, "dir").ino;
    let clones = ["one", "two"].map(|name| {
        let source = CloneSource {
            fs: &setup.fs,
            dir,
            snapshot: None,
        };
        let made = setup.fs.make_clone(&SUPER, &source, at(ROOT, name));
        let number = made.expect("there is space").number;
        setup.fs.open_clone(number).expect("it opens")
    });
    (setup, clones)
}

fn make(fs: &FileSystem, dir: Ino, name: &str) -> Ino {
    let made = fs.create(&SUPER, at(dir, name), &new(0o644));
    made.expect("a name finds space").ino
}

fn put(fs: &FileSystem, ino: Ino, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, 0, bytes, WriteOptions::default()).map(drop)
}

/// Fills a store, removes a big file in one file system of it, and writes in another.
fn replace_across(removed_in: usize, written_in: usize) {
    let (setup, clones) = with_clones();
    let [one, two] = &clones;
    let all: [(&FileSystem, Ino); 3] = [
        (&setup.fs, ROOT),
        (one.fs(), one.info().root),
        (two.fs(), two.info().root),
    ];
    let ((remover, from), (writer, to)) = (all[removed_in], all[written_in]);
    let big = make(remover, from, "big");
    put(remover, big, &[1; BIG]).expect("there is space");
    let next = make(writer, to, "next");
    let rest = setup.file(ROOT, "rest").ino;
    let mut end = 0;
    while write(&setup, rest, end, &[2; 4096]).is_ok() {
        end += 4096;
    }
    // As a front end does, which asks mainline.
    let mark = setup.fs.room_mark();
    remover.unlink(&SUPER, at(from, "big")).expect("it goes");
    let refused = put(writer, next, &[3; BIG / 2]);
    assert!(matches!(refused, Err(FsError::NoSpace)), "it is in use");
    remover.forget(big, 1);
    if put(writer, next, &[3; BIG / 2]).is_err() {
        assert!(setup.fs.make_room(mark).expect("no failure"), "it waits");
        put(writer, next, &[3; BIG / 2]).expect("the space is there");
    }
    assert_eq!(contents_of(writer, next), [3; BIG / 2]);
    let mark = setup.fs.room_mark();
    assert!(!setup.fs.make_room(mark).expect("no failure"), "no more");
    setup.check();
}

#[test]
fn what_is_removed_in_one_view_makes_room_in_all() {
    for removed_in in 0..3 {
        for written_in in 0..3 {
            replace_across(removed_in, written_in);
        }
    }
}

#[test]
fn a_file_in_use_that_is_removed_in_a_clone_is_waited_for() {
    let (setup, [clone, _]) = with_clones();
    let (fs, root) = (clone.fs(), clone.info().root);
    let big = make(fs, root, "big");
    let waited = || {
        let before = setup.clock.monotonic();
        let mark = setup.fs.room_mark();
        assert!(!setup.fs.make_room(mark).expect("no failure"));
        (setup.clock.monotonic() - before).as_millis()
    };
    assert_eq!(waited(), 0, "nothing is on its way");
    fs.unlink(&SUPER, at(root, "big")).expect("it goes");
    assert_eq!(waited(), 100, "it may be forgotten soon");
    assert_eq!(waited(), 0, "it is in use");
    fs.forget(big, 1);
}

/// Mainline goes on to write beside a transaction that has filled the store, and after its end.
#[test]
fn a_transaction_that_fills_the_store_leaves_room_to_mainline() {
    let engine = ModelEngine::with_space(registry(), 4 << 20);
    let setup = setup_on(Arc::new(engine), |_| {});
    let free = || setup.fs.engine().space().free_bytes;
    let total = setup.fs.engine().space().total_bytes;
    let begun = setup
        .fs
        .transactions()
        .begin("work", &BeginOptions::default());
    let view = begun.expect("it begins");
    let large = view.fs().create(&SUPER, at(ROOT, "large"), &new(0o644));
    let large = large.expect("is made").ino;
    let mut offset = 0;
    let put = |offset| {
        view.fs()
            .write(large, offset, &[7; 4096], WriteOptions::default())
    };
    let full = loop {
        match put(offset) {
            Ok(_) => offset += 4096,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, FsError::NoSpace), "{full}");
    assert!(free() + 20_000 >= stitch_kv::kept_from_uncommitted(total));
    let other = setup.file(ROOT, "other").ino;
    for block in 0..16 {
        setup.write(other, block * 4096, &[8; 4096]);
    }
    assert!(
        matches!(put(offset), Err(FsError::NoSpace)),
        "it is mainline's"
    );
    let ended = setup.fs.transactions().abort("work");
    ended.expect("it is open");
    setup.write(other, 0, &[9; 1 << 20]);
}
