//! What a serializable transaction has read of a clone, and others have changed there: the commit
//! is refused. With snapshot isolation it is not.

use super::clones::shown;
use super::*;
use stitch_fs::{CloneSource, ReadKind, Taken, TransactionIsolation, TransactionLife, XattrMode};

const NAME: ConflictKind = ConflictKind::Read(ReadKind::Name);
const INODE: ConflictKind = ConflictKind::Read(ReadKind::Inode);
const XATTR: ConflictKind = ConflictKind::Read(ReadKind::Xattr);
const LIST: ConflictKind = ConflictKind::Read(ReadKind::List);
const UNKNOWN: ConflictKind = ConflictKind::Read(ReadKind::Unknown);

/// A directory of a file system: what is read, or changed, is below it.
struct Top<'a> {
    fs: &'a FileSystem,
    root: Ino,
}

impl Top<'_> {
    fn find(&self, path: &str) -> FsResult<Ino> {
        let mut at_ino = self.root;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at_ino = self.fs.lookup(at(at_ino, name))?.ino;
        }
        Ok(at_ino)
    }

    fn ino(&self, path: &str) -> Ino {
        self.find(path).expect("the path leads somewhere")
    }

    fn look(&self, path: &str) {
        self.ino(path);
    }

    fn read(&self, path: &str) -> Vec<u8> {
        contents_of(self.fs, self.ino(path))
    }

    fn list(&self, path: &str) -> Vec<String> {
        names_in(self.fs, self.ino(path))
    }

    fn missing(&self, path: &str) {
        assert!(matches!(self.find(path), Err(FsError::NotFound)), "{path}");
    }

    fn write(&self, path: &str, data: &[u8]) {
        write(self.fs, self.ino(path), data);
    }

    fn make(&self, dir: &str, name: &str) {
        file(self.fs, self.ino(dir), name, b"new");
    }

    fn set_xattr(&self, path: &str) {
        let (ino, name) = (self.ino(path), b"user.x");
        let set = self
            .fs
            .set_xattr(&SUPER, ino, name, b"1", XattrMode::Set, false);
        set.expect("it is known");
    }
}

fn clone_to(setup: &Setup, (fs, dir): (&FileSystem, Ino), name: &str) {
    let source = CloneSource {
        fs: &setup.fs,
        dir: ino(&setup.fs, "s"),
        snapshot: None,
    };
    let made = fs.make_clone(&SUPER, &source, at(dir, name));
    made.expect("a clone is made");
}

/// `/out`, `/s` with `f` (small), `g`, `big`, `sub/h`, and a clone of it at `/w/c`. In that lies
/// another clone, `inner`.
fn tree() -> Setup {
    let setup = setup();
    let s = dir(&setup.fs, ROOT, "s");
    file(&setup.fs, s, "f", b"small");
    file(&setup.fs, s, "g", b"other");
    file(&setup.fs, s, "big", &[1; 100_000]);
    let sub = dir(&setup.fs, s, "sub");
    file(&setup.fs, sub, "h", b"deep");
    let w = dir(&setup.fs, ROOT, "w");
    dir(&setup.fs, ROOT, "out");
    clone_to(&setup, (&setup.fs, w), "c");
    in_clone(&setup, "w/c", |top| {
        clone_to(&setup, (top.fs, top.root), "inner");
    });
    setup
}

/// Changes something in the clone at a path of mainline.
fn in_clone(setup: &Setup, path: &str, change: impl FnOnce(&Top<'_>)) {
    let info = setup.fs.clone_at(ino(&setup.fs, path)).expect("a clone");
    let clone = setup.fs.open_clone(info.number).expect("it opens");
    change(&Top {
        fs: clone.fs(),
        root: info.root,
    });
}

fn in_inner(setup: &Setup, change: impl FnOnce(&Top<'_>)) {
    in_clone(setup, "w/c", |top| {
        let graft = top.ino("inner");
        let info = top.fs.clone_at(graft).expect("a clone lies there");
        let inner = setup.fs.open_clone(info.number).expect("it opens");
        change(&Top {
            fs: inner.fs(),
            root: info.root,
        });
    });
}

/// Reads something in the clone that a transaction shows at a path.
fn read_at(setup: &Setup, view: &TransactionView, path: &str, read: impl FnOnce(&Top<'_>)) {
    let (_past, part) = shown(setup, view, path);
    read(&Top {
        fs: part.fs(),
        root: part.root(),
    });
}

fn read_inner(setup: &Setup, view: &TransactionView, read: impl FnOnce(&Top<'_>)) {
    let (past, part) = shown(setup, view, "w/c");
    let graft = part.fs().lookup(at(part.root(), "inner")).expect("a name");
    let inner = past.clone_in(&part, graft.ino).expect("it opens");
    let inner = inner.expect("a clone lies there");
    read(&Top {
        fs: inner.fs(),
        root: inner.root(),
    });
}

fn begin_as(
    setup: &Setup,
    outer: Option<&TransactionView>,
    name: &str,
    isolation: TransactionIsolation,
) -> Arc<TransactionView> {
    let options = BeginOptions {
        isolation,
        outer: outer.map(|outer| outer.info().number),
        ..BeginOptions::default()
    };
    let begun = setup.fs.transactions().begin(name, &options);
    begun.expect("it begins")
}

fn begin_ser(setup: &Setup, name: &str) -> Arc<TransactionView> {
    begin_as(setup, None, name, TransactionIsolation::Serializable)
}

/// Writes something, so that there is something to commit.
fn put_result(view: &TransactionView) {
    file(view.fs(), ino(view.fs(), "out"), "result", b"");
}

type Read = fn(&Setup, &TransactionView);

/// Runs `reads` in a transaction of either isolation, `writes` outside meanwhile, and commits.
fn refused(what: &str, reads: Read, writes: fn(&Setup), expected: &[(&str, ConflictKind)]) {
    for isolation in [
        TransactionIsolation::Snapshot,
        TransactionIsolation::Serializable,
    ] {
        let setup = tree();
        let view = begin_as(&setup, None, "work", isolation);
        reads(&setup, &view);
        put_result(&view);
        writes(&setup);
        println!("{what}, {isolation:?}");
        let is_serializable = isolation == TransactionIsolation::Serializable;
        match is_serializable && !expected.is_empty() {
            true => expect_conflicts(&setup, &view, expected),
            false => commit(&setup, &view),
        }
    }
}

#[test]
fn names_in_a_clone_that_were_looked_up() {
    let reads: Read = |setup, view| read_at(setup, view, "w/c", |top| top.missing("new"));
    let makes = |setup: &Setup| in_clone(setup, "w/c", |top| top.make("", "new"));
    refused("made", reads, makes, &[("w/c/new", NAME)]);
    let clones = |setup: &Setup| {
        in_clone(setup, "w/c", |top| {
            clone_to(setup, (top.fs, top.root), "new")
        });
    };
    refused("a clone is made", reads, clones, &[("w/c/new", NAME)]);
    let other = |setup: &Setup| in_clone(setup, "w/c", |top| top.make("", "more"));
    refused("another one is made", reads, other, &[]);
    let again = |setup: &Setup| {
        in_clone(setup, "w/c", |top| {
            top.make("", "new");
            unlink(top.fs, top.root, "new");
        });
    };
    refused("made and removed", reads, again, &[]);
    let reads: Read = |setup, view| read_at(setup, view, "w/c", |top| top.look("sub/h"));
    let unlinks = |setup: &Setup| in_clone(setup, "w/c", |top| unlink(top.fs, top.ino("sub"), "h"));
    refused("removed", reads, unlinks, &[("w/c/sub/h", NAME)]);
    let moves = |setup: &Setup| {
        in_clone(setup, "w/c", |top| {
            rename(top.fs, (top.root, "sub"), (top.root, "moved"))
        });
    };
    refused("a directory above", reads, moves, &[("w/c/sub", NAME)]);
}

#[test]
fn lists_of_directories_in_a_clone() {
    let reads: Read = |setup, view| {
        read_at(setup, view, "w/c", |top| assert_eq!(top.list("sub"), ["h"]));
    };
    let makes = |setup: &Setup| in_clone(setup, "w/c", |top| top.make("sub", "new"));
    refused("made", reads, makes, &[("w/c/sub", LIST)]);
    let writes = |setup: &Setup| in_clone(setup, "w/c", |top| top.write("sub/h", b"more"));
    refused("contents", reads, writes, &[]);
    let reads: Read = |setup, view| {
        read_at(setup, view, "w/c", |top| {
            let listed = top.fs.read_dir_plus(top.root, 0, &mut |_| Taken::More);
            listed.expect("it is a directory");
        });
    };
    let makes = |setup: &Setup| in_clone(setup, "w/c", |top| top.make("", "new"));
    refused("with attributes", reads, makes, &[("w/c", LIST)]);
    let writes = |setup: &Setup| in_clone(setup, "w/c", |top| chmod(top.fs, top.ino("g"), 0o600));
    refused("an owner", reads, writes, &[("w/c/g", INODE)]);
}

#[test]
fn attributes_and_contents_in_a_clone() {
    let reads: Read = |setup, view| {
        read_at(setup, view, "w/c", |top| {
            assert_eq!(top.read("f"), b"small")
        });
    };
    let writes = |setup: &Setup| in_clone(setup, "w/c", |top| top.write("f", b"later"));
    refused("contents", reads, writes, &[("w/c/f", INODE)]);
    let modes = |setup: &Setup| in_clone(setup, "w/c", |top| chmod(top.fs, top.ino("f"), 0o600));
    refused("a mode", reads, modes, &[("w/c/f", INODE)]);
    let other = |setup: &Setup| in_clone(setup, "w/c", |top| top.write("g", b"later"));
    refused("another file", reads, other, &[]);
    let source = |setup: &Setup| write(&setup.fs, ino(&setup.fs, "s/f"), b"later");
    refused("the source", reads, source, &[]);
    let root = |setup: &Setup| in_clone(setup, "w/c", |top| chmod(top.fs, top.root, 0o700));
    refused("the directory of the clone", reads, root, &[("w/c", INODE)]);
    let reads: Read = |setup, view| read_at(setup, view, "w/c", |top| drop(top.read("big")));
    let writes = |setup: &Setup| in_clone(setup, "w/c", |top| top.write("big", b"x"));
    refused("large contents", reads, writes, &[("w/c/big", INODE)]);
    let reads: Read = |setup, view| {
        read_at(setup, view, "w/c", |top| {
            let found = top.fs.get_xattr(&SUPER, top.ino("f"), b"user.x");
            assert!(matches!(found, Err(FsError::NoData)), "{found:?}");
        });
    };
    let sets = |setup: &Setup| in_clone(setup, "w/c", |top| top.set_xattr("f"));
    refused("an attribute", reads, sets, &[("w/c/f", XATTR)]);
    let reads: Read = |setup, view| {
        read_at(setup, view, "w/c", |top| {
            top.fs.list_xattr(&SUPER, top.root).expect("it is known");
        });
    };
    let sets = |setup: &Setup| in_clone(setup, "w/c", |top| top.set_xattr(""));
    refused(
        "attributes of its directory",
        reads,
        sets,
        &[("w/c", XATTR)],
    );
}

#[test]
fn a_clone_in_a_clone_is_checked_with_its_own_paths() {
    let reads: Read = |setup, view| {
        read_inner(setup, view, |top| assert_eq!(top.read("sub/h"), b"deep"));
    };
    let writes = |setup: &Setup| in_inner(setup, |top| top.write("sub/h", b"late"));
    refused("contents", reads, writes, &[("w/c/inner/sub/h", INODE)]);
    let above = |setup: &Setup| in_clone(setup, "w/c", |top| top.write("sub/h", b"late"));
    refused("that which it lies in", reads, above, &[]);
    let moves = |setup: &Setup| {
        in_clone(setup, "w/c", |top| {
            rename(top.fs, (top.root, "inner"), (top.root, "moved"))
        });
    };
    refused("renamed", reads, moves, &[("w/c/inner", NAME)]);
    let destroys = |setup: &Setup| {
        in_clone(setup, "w/c", |top| {
            let gone = top.fs.remove_tree(&SUPER, at(top.root, "inner"), None);
            gone.expect("the clone goes");
        });
        setup.fs.reclaim().expect("there is room");
    };
    refused("destroyed", reads, destroys, &[("w/c/inner", NAME)]);
}

fn destroy(setup: &Setup) {
    let gone = setup
        .fs
        .remove_tree(&SUPER, at(ino(&setup.fs, "w"), "c"), None);
    gone.expect("the clone goes");
    while setup.fs.detached_dirs() > 0 {
        setup.fs.empty_detached(64).expect("there is room");
    }
    setup.fs.reclaim().expect("there is room");
}

#[test]
fn a_clone_that_was_read_and_is_destroyed_or_made_again() {
    let reads: Read = |setup, view| read_at(setup, view, "w/c", |top| drop(top.list("")));
    refused("destroyed", reads, destroy, &[("w/c", NAME)]);
    let again = |setup: &Setup| {
        destroy(setup);
        clone_to(setup, (&setup.fs, ino(&setup.fs, "w")), "c");
    };
    refused("made again", reads, again, &[("w/c", NAME)]);
    let reads: Read = |_, view| assert!(find(view.fs(), "w/late").is_err());
    let makes = |setup: &Setup| clone_to(setup, (&setup.fs, ino(&setup.fs, "w")), "late");
    refused("made", reads, makes, &[("w/late", NAME)]);
    let reads: Read = |_, view| drop(names_in(view.fs(), ino(view.fs(), "out")));
    let writes = |setup: &Setup| in_clone(setup, "w/c", |top| top.write("f", b"later"));
    refused("a clone that was not read", reads, writes, &[]);
}

/// One puts a mark where the other has looked: with snapshot isolation both do.
#[test]
fn write_skew_between_a_clone_and_mainline_is_refused() {
    let reads: Read = |setup, view| {
        read_at(setup, view, "w/c", |top| {
            assert_eq!(top.read("f"), b"small")
        });
        write(view.fs(), ino(view.fs(), "s/g"), b"taken");
    };
    let skews = |setup: &Setup| {
        assert_eq!(contents(&setup.fs, "s/g"), b"other");
        in_clone(setup, "w/c", |top| top.write("f", b"taken"));
    };
    refused("skew", reads, skews, &[("w/c/f", INODE)]);
}

#[test]
fn a_conflict_has_the_path_that_the_clone_has_in_the_transaction() {
    let setup = tree();
    let view = begin_ser(&setup, "work");
    rename(view.fs(), (ino(view.fs(), "w"), "c"), (ROOT, "moved"));
    read_at(&setup, &view, "moved", |top| drop(top.read("f")));
    in_clone(&setup, "w/c", |top| top.write("f", b"later"));
    expect_conflicts(&setup, &view, &[("moved/f", INODE)]);
    let listed = setup
        .fs
        .transactions()
        .conflicts(&view)
        .expect("it is open");
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0].0.path[..], listed[0].1),
        (&b"moved/f"[..], None)
    );
    let refused = setup
        .fs
        .transactions()
        .resolve(&view, b"moved/f", stitch_fs::Side::Theirs);
    assert!(
        matches!(refused, Err(FsError::Unresolvable(_))),
        "{refused:?}"
    );
}

#[test]
fn what_was_read_of_a_clone_before_a_rebase_is_checked_by_it_and_after_it() {
    let setup = tree();
    let view = begin_ser(&setup, "work");
    read_at(&setup, &view, "w/c", |top| {
        top.read("f");
        top.missing("new");
    });
    put_result(&view);
    in_clone(&setup, "w/c", |top| top.write("g", b"later"));
    let rebased = setup.fs.transactions().rebase(&view).expect("all holds");
    read_at(&setup, &rebased, "w/c", |top| {
        assert_eq!(top.read("g")[..], b"later"[..]);
    });
    in_clone(&setup, "w/c", |top| top.make("", "new"));
    expect_conflicts(&setup, &rebased, &[("w/c/new", NAME)]);
    let refused = setup.fs.transactions().rebase(&rebased);
    assert!(
        matches!(refused, Err(FsError::Conflict(_))),
        "as the commit"
    );
    in_clone(&setup, "w/c", |top| unlink(top.fs, top.root, "new"));
    let rebased = setup
        .fs
        .transactions()
        .rebase(&rebased)
        .expect("it is as it was");
    in_clone(&setup, "w/c", |top| top.write("g", b"again"));
    expect_conflicts(&setup, &rebased, &[("w/c/g", INODE)]);
}

/// A file system of a clone that was opened before a rebase adds nothing to what is checked, so it
/// reads nothing.
#[test]
fn a_clone_that_is_open_ends_with_a_rebase() {
    let setup = tree();
    let view = begin_ser(&setup, "work");
    let (_past, part) = shown(&setup, &view, "w/c");
    drop(setup.fs.transactions().rebase(&view).expect("all holds"));
    let read = part.fs().lookup(at(part.root(), "f"));
    assert!(matches!(read, Err(FsError::Stale(_))), "{read:?}");
}

#[test]
fn after_a_close_all_of_a_clone_that_was_read_counts() {
    for (is_read, closes) in [(true, true), (false, true), (false, false)] {
        let setup = tree();
        let view = begin_ser(&setup, "work");
        if is_read {
            read_at(&setup, &view, "w/c", |top| drop(top.read("f")));
        }
        put_result(&view);
        setup.fs.sync().expect("it is on the medium");
        drop(view);
        if closes {
            setup.fs.close().expect("closes");
        }
        let setup = setup.reopened();
        in_clone(&setup, "w/c", |top| top.make("sub", "new"));
        let view = setup.fs.transactions().open("work").expect("it is named");
        match (is_read, closes) {
            (true, _) => expect_conflicts(&setup, &view, &[("w/c/sub", LIST)]),
            (false, true) => commit(&setup, &view),
            // After a crash it is not known that it was not.
            (false, false) => {
                let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(&view) else {
                    panic!("what was read is not known");
                };
                let is_new = |it: &Conflict| it.path == b"w/c/sub/new" || it.path == b"w/c";
                let found = found.iter().find(|it| is_new(it));
                assert_eq!(found.map(|it| it.kind), Some(UNKNOWN));
            }
        }
    }
}

/// A pin that is opened before its transaction, as a daemon does that has taken over a mount, notes
/// reads all the same.
#[test]
fn reads_of_a_pin_are_noted_also_if_its_transaction_is_not_open_yet() {
    let setup = tree();
    let view = begin_ser(&setup, "work");
    let pin = view.fs().shown_clone_at(ino(view.fs(), "w/c"));
    let (pin, graft) = (pin.expect("it is shown").pin, ino(view.fs(), "w/c"));
    put_result(&view);
    drop(view);
    setup.fs.close().expect("closes");
    let setup = setup.reopened();
    let past = setup.fs.history().open_pinned(pin).expect("it is there");
    let (part, _) = past.part(past.info().root).expect("it is known");
    let clone = past.clone_in(&part, graft).expect("it opens");
    let clone = clone.expect("a clone lies there");
    let found = clone.fs().lookup(at(clone.root(), "f")).expect("a file");
    assert_eq!(contents_of(clone.fs(), found.ino), b"small");
    in_clone(&setup, "w/c", |top| top.write("f", b"later"));
    let view = setup.fs.transactions().open("work").expect("it is named");
    expect_conflicts(&setup, &view, &[("w/c/f", INODE)]);
}

#[test]
fn reads_of_an_inner_one_count_for_the_outermost_one() {
    let setup = tree();
    let outer = begin_ser(&setup, "outer");
    for (name, is_committed) in [("one", true), ("two", false)] {
        let inner = begin_as(&setup, Some(&outer), name, TransactionIsolation::Snapshot);
        let file = if is_committed { "f" } else { "g" };
        read_at(&setup, &inner, "w/c", |top| drop(top.read(file)));
        in_clone(&setup, "w/c", |top| top.write(file, b"later"));
        match is_committed {
            true => {
                put_result(&inner);
                commit(&setup, &inner);
            }
            false => {
                let number = inner.info().number;
                let aborted = setup.fs.transactions().abort_number(number);
                aborted.expect("it is open");
            }
        }
    }
    expect_conflicts(&setup, &outer, &[("w/c/f", INODE), ("w/c/g", INODE)]);
}

/// To the outer one, the clone does not change: it shows that of its own moment.
#[test]
fn a_serializable_one_in_one_with_snapshot_isolation_reads_what_does_not_change() {
    let setup = tree();
    let outer = begin(&setup, "outer");
    let inner = begin_as(
        &setup,
        Some(&outer),
        "inner",
        TransactionIsolation::Serializable,
    );
    read_at(&setup, &inner, "w/c", |top| drop(top.read("f")));
    in_clone(&setup, "w/c", |top| top.write("f", b"later"));
    put_result(&inner);
    commit(&setup, &inner);
    commit(&setup, &outer);
}

#[test]
fn without_writes_nothing_is_checked() {
    let setup = tree();
    let run = BeginOptions {
        life: TransactionLife::Run,
        isolation: TransactionIsolation::Serializable,
        ..BeginOptions::default()
    };
    let view = setup.fs.transactions().begin("work", &run).expect("begins");
    read_at(&setup, &view, "w/c", |top| drop(top.read("f")));
    in_clone(&setup, "w/c", |top| top.write("f", b"later"));
    commit(&setup, &view);
}

/// Many names come and go in a clone whose directory was looked at: nothing that was read changes,
/// and the commit gets its turn.
#[test]
fn a_commit_gets_its_turn_while_others_write_to_a_clone() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let setup = tree();
    let (is_done, setup) = (AtomicBool::new(false), &setup);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            in_clone(setup, "w/c", |top| {
                let sub = top.ino("sub");
                while !is_done.load(Ordering::Relaxed) {
                    file(top.fs, sub, "new", b"new");
                    unlink(top.fs, sub, "new");
                }
            });
        });
        for round in 0..20 {
            let view = begin_ser(setup, "work");
            read_at(setup, &view, "w/c", |top| top.look("sub"));
            let result = format!("result{round}");
            file(view.fs(), ino(view.fs(), "out"), &result, b"");
            let committed = setup.fs.transactions().commit(&view);
            is_done.store(committed.is_err() || round == 19, Ordering::Relaxed);
            committed.expect("nothing that was read is changed");
        }
    });
    setup.check();
}
