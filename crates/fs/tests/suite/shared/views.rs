//! Shared contents in snapshots, clones and transactions, and after a rollback.

use super::*;
use std::sync::Arc;
use stitch_fs::{
    BeginOptions, CloneSource, LiveView, RollbackRights, TransactionView, WriteOptions,
};

fn find(fs: &FileSystem, name: &str) -> Ino {
    fs.lookup(at(ROOT, name)).expect("it is there").ino
}

fn write(fs: &FileSystem, ino: Ino, offset: u64, bytes: &[u8]) {
    let written = fs.write(ino, offset, bytes, WriteOptions::default());
    written.expect("it writes");
}

fn begin(setup: &Setup) -> Arc<TransactionView> {
    let begun = setup
        .fs
        .transactions()
        .begin("work", &BeginOptions::default());
    begun.expect("it begins")
}

fn forget_all(setup: &Setup) {
    for ino in setup.fs.known_numbers() {
        setup.fs.forget(ino, u64::MAX);
    }
    setup.fs.reclaim().expect("there is room");
}

/// Removes all files of the root, and expects that nothing of them is left.
fn expect_no_chunks_after_removal(setup: &Setup) {
    for name in setup.names(ROOT) {
        setup.fs.unlink(&SUPER, at(ROOT, &name)).expect("is there");
    }
    forget_all(setup);
    setup.check();
    assert_eq!(setup.rows("data"), 0);
}

#[test]
fn a_snapshot_shows_what_was_shared() {
    let setup = setup();
    let a = source(&setup);
    let plain = setup.fs.snapshots().create(ROOT, "plain").expect("creates");
    let b = copy(&setup, a, "b");
    setup
        .fs
        .snapshots()
        .create(ROOT, "shared")
        .expect("creates");
    setup.write(a, 0, &[1; LEN]);
    setup.write(b, 0, &[2; 100]);
    remove(&setup, a, "a");
    remove(&setup, b, "b");
    assert_eq!(setup.rows("data"), 0);
    assert_eq!(plain.root, ROOT);
    for (name, files) in [("plain", &["a"][..]), ("shared", &["a", "b"])] {
        let view = setup.fs.snapshots().open(name).expect("opens");
        assert_eq!(names_in(view.fs(), ROOT), files);
        for file in files {
            let ino = find(view.fs(), file);
            assert!(contents_of(view.fs(), ino) == pattern(LEN), "{name} {file}");
        }
    }
}

#[test]
fn a_rollback_restores_what_was_shared() {
    let setup = setup();
    let a = source(&setup);
    let small = setup.file(ROOT, "small").ino;
    setup.write(small, 0, b"inline");
    setup.fs.snapshots().create(ROOT, "plain").expect("creates");
    let b = copy(&setup, a, "b");
    setup.write(b, 0, &[1; 10]);
    setup.tick();
    setup
        .fs
        .snapshots()
        .create(ROOT, "shared")
        .expect("creates");
    let mut in_b = pattern(LEN);
    in_b[..10].fill(1);
    setup.tick();
    setup.write(a, 4096, &[2; 50_000]);
    setup.write(b, 8192, &[3; 50_000]);
    setup.write(small, 0, &[4; LEN]);
    copy(&setup, small, "c");
    setup
        .fs
        .roll_back("shared", ROOT, RollbackRights::default())
        .expect("rolls back");
    setup.check();
    assert_eq!(setup.names(ROOT), ["a", "b", "small"]);
    assert!(setup.contents(a) == pattern(LEN) && setup.contents(b) == in_b);
    assert_eq!(setup.contents(small), b"inline");
    // Removed, with a copy that still has its contents.
    let c = copy(&setup, a, "c");
    remove(&setup, a, "a");
    setup
        .fs
        .roll_back("plain", ROOT, RollbackRights::default())
        .expect("rolls back");
    setup.check();
    assert_eq!(setup.names(ROOT), ["a", "small"]);
    assert!(setup.contents(c) == pattern(LEN), "it is open");
    let setup = setup.reopened();
    assert!(setup.contents(find(&setup.fs, "a")) == pattern(LEN));
    setup.write(find(&setup.fs, "small"), 0, &[5; 5000]);
    setup.check();
    expect_no_chunks_after_removal(&setup);
}

#[test]
fn a_clone_and_its_source_share_apart() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d").ino;
    let a = setup.file(dir, "a").ino;
    setup.write(a, 0, &pattern(LEN));
    copy_in(&setup.fs, a, dir, "b");
    let source = CloneSource {
        fs: &setup.fs,
        dir,
        snapshot: None,
    };
    let info = setup.fs.make_clone(&SUPER, &source, at(ROOT, "clone"));
    let info = info.expect("makes a clone");
    let view: Arc<LiveView> = setup.fs.open_clone(info.number).expect("opens");
    let fs = view.fs();
    let root = info.root;
    let inside = fs.lookup(at(root, "b")).expect("it is there").ino;
    let c = copy_in(fs, inside, root, "c");
    write(fs, inside, 0, &[1; 10]);
    assert!(contents_of(fs, c) == pattern(LEN));
    setup.check();
    for name in ["a", "b"] {
        setup.fs.unlink(&SUPER, at(dir, name)).expect("is there");
    }
    forget_all(&setup);
    assert!(contents_of(fs, c) == pattern(LEN));
    for name in ["a", "b"] {
        fs.lookup(at(root, name)).expect("it is there");
        fs.unlink(&SUPER, at(root, name)).expect("is there");
        for ino in fs.known_numbers() {
            if ino != c && ino != root {
                fs.forget(ino, u64::MAX);
            }
        }
        fs.reclaim().expect("reclaims");
        assert!(contents_of(fs, c) == pattern(LEN));
        setup.check();
    }
}

#[test]
fn copies_of_a_transaction_are_committed() {
    let setup = setup();
    let a = source(&setup);
    copy(&setup, a, "first");
    let rows = setup.rows("data");
    let view = begin(&setup);
    let fs = view.fs();
    let b = copy_in(fs, find(fs, "a"), ROOT, "b");
    write(fs, b, 0, &[1; 10]);
    copy_in(fs, b, ROOT, "c");
    let made = fs.create(&SUPER, at(ROOT, "made"), &new(0o644));
    let made = made.expect("the name is free").ino;
    write(fs, made, 0, &[5; LEN]);
    copy_in(fs, made, ROOT, "copy");
    setup.fs.transactions().commit(&view).expect("no conflict");
    drop(view);
    setup.check();
    let own = 2;
    assert_eq!(
        setup.rows("data"),
        rows + own + CHUNKS,
        "the first chunks of b and c"
    );
    for name in ["b", "c"] {
        let found = setup.contents(find(&setup.fs, name));
        assert!(found[..10] == [1; 10] && found[10..] == pattern(LEN)[10..]);
    }
    assert!(setup.contents(a) == pattern(LEN));
    assert!(setup.contents(find(&setup.fs, "copy")) == [5; LEN]);
    expect_no_chunks_after_removal(&setup);
}

/// Mainline deletes the file that a transaction has copied.
#[test]
fn contents_stay_while_a_transaction_may_use_them() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    let view = begin(&setup);
    let fs = view.fs();
    copy_in(fs, find(fs, "a"), ROOT, "c");
    remove(&setup, a, "a");
    remove(&setup, b, "b");
    assert_eq!(setup.rows("data"), CHUNKS);
    setup.fs.transactions().commit(&view).expect("no conflict");
    drop(view);
    setup.check();
    assert!(setup.contents(find(&setup.fs, "c")) == pattern(LEN));
    setup.fs.reclaim().expect("reclaims");
    expect_no_chunks_after_removal(&setup);
}

#[test]
fn contents_go_after_the_last_transaction() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    let view = begin(&setup);
    remove(&setup, a, "a");
    remove(&setup, b, "b");
    assert_eq!(setup.rows("data"), CHUNKS);
    setup.fs.transactions().abort("work").expect("aborts");
    drop(view);
    setup.fs.reclaim().expect("reclaims");
    assert_eq!(setup.rows("data"), 0);
    setup.check();
}

#[test]
fn users_that_both_sides_remove_leave_nothing() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    let view = begin(&setup);
    find(view.fs(), "a");
    view.fs().unlink(&SUPER, at(ROOT, "a")).expect("is there");
    remove(&setup, b, "b");
    setup.fs.transactions().commit(&view).expect("no conflict");
    drop(view);
    setup.fs.forget(a, u64::MAX);
    setup.fs.reclaim().expect("reclaims");
    setup.check();
    assert_eq!(setup.rows("data"), 0);
}

#[test]
fn a_copy_is_no_conflict_with_a_write() {
    let setup = setup();
    let plain = source(&setup);
    let shared = setup.file(ROOT, "shared").ino;
    setup.write(shared, 0, &pattern(LEN));
    copy(&setup, shared, "copy");
    let rows = setup.rows("data");
    let view = begin(&setup);
    let fs = view.fs();
    for (ino, name) in [(plain, "a"), (shared, "shared")] {
        copy_in(fs, find(fs, name), ROOT, &format!("{name}-inside"));
        copy(&setup, ino, &format!("{name}-outside"));
        setup.write(ino, 0, &[1; 10]);
    }
    assert_eq!(setup.rows("data"), rows + CHUNKS + 1, "of the plain file");
    setup.fs.transactions().commit(&view).expect("no conflict");
    drop(view);
    setup.check();
    for name in ["a", "shared"] {
        for side in ["inside", "outside"] {
            let copied = find(&setup.fs, &format!("{name}-{side}"));
            assert!(setup.contents(copied) == pattern(LEN), "{name} {side}");
        }
    }
    expect_no_chunks_after_removal(&setup);
}
