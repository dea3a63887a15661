//! The orders in which operations on names can meet, gone through by a model checker (ADR 0072):
//! `cargo test -p stitch-fs --features shuttle --lib interleavings`.
//!
//! It finds rings of locks, and names that are read while they move.

use crate::{
    Attr, Caller, DirName, FileSystem, FsError, FsOptions, FsResult, NewNode, RenameMode, SetAttr,
    WriteOptions, fsck,
};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::explored::{explore, join, start};
use stitch_base::thread::JoinHandle;
use stitch_kv::Engine;

const CALLER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

/// A file system with the directories `/a`, `/b`, `/a/x` and `/b/y`, and a file in each.
struct Setup {
    engine: Arc<dyn Engine>,
    fs: FileSystem,
    a: Ino,
    b: Ino,
    x: Ino,
    y: Ino,
}

fn at(parent: Ino, name: &'static str) -> DirName<'static> {
    DirName::new(parent, name.as_bytes())
}

fn setup() -> Arc<Setup> {
    let engine: Arc<dyn Engine> = crate::testing::formatted(&FsOptions::default());
    let fs = FileSystem::open(Arc::clone(&engine), FsOptions::default()).expect("opens");
    let dir = |parent, name| fs.make_dir(&CALLER, at(parent, name), &NEW).expect("makes");
    let (a, b) = (dir(Ino::ROOT, "a").ino, dir(Ino::ROOT, "b").ino);
    let (x, y) = (dir(a, "x").ino, dir(b, "y").ino);
    for parent in [a, b, x, y] {
        let file = fs.create(&CALLER, at(parent, "f"), &NEW).expect("makes");
        fs.forget(file.ino, 1);
    }
    Arc::new(Setup {
        engine,
        fs,
        a,
        b,
        x,
        y,
    })
}

impl Setup {
    fn rename(&self, source: DirName<'_>, target: DirName<'_>) -> FsResult<()> {
        self.fs.rename(&CALLER, source, target, RenameMode::Replace)
    }

    /// What a path along directories says, forgotten at once.
    fn step(&self, at: DirName<'_>) -> FsResult<Attr> {
        let found = self.fs.step(at)?;
        self.fs.forget(found.ino, 1);
        Ok(found)
    }

    fn check(&self) {
        let issues = fsck::check(&self.engine, &mut |_| {}).expect("reads");
        assert!(issues.is_empty(), "{issues:?}");
    }
}

fn thread(setup: &Arc<Setup>, body: impl FnOnce(&Setup) + Send + 'static) -> JoinHandle<()> {
    let setup = Arc::clone(setup);
    start("user", move || body(&setup))
}

#[test]
fn of_two_directories_that_move_into_each_other_one_does() {
    explore(300, || {
        let setup = setup();
        let inner = |parent| {
            let made = setup.fs.make_dir(&CALLER, at(parent, "d"), &NEW);
            made.expect("makes").ino
        };
        let (in_x, in_y) = (inner(setup.x), inner(setup.y));
        let moved = Arc::new(AtomicU64::new(0));
        let count = |result: FsResult<()>, moved: &AtomicU64| match result {
            Ok(()) => {
                moved.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => assert!(
                matches!(error, FsError::Invalid(_) | FsError::NotFound),
                "{error}"
            ),
        };
        let (one, two) = (Arc::clone(&moved), Arc::clone(&moved));
        join([
            thread(&setup, move |s| {
                count(s.rename(at(s.a, "x"), at(in_y, "x")), &one);
            }),
            // It locks nothing that the one above does: only the tree's lock is between them.
            thread(&setup, move |s| {
                count(s.rename(at(s.b, "y"), at(in_x, "y")), &two);
            }),
            // A name within its directory, above what moves.
            thread(&setup, |s| {
                s.rename(at(Ino::ROOT, "a"), at(Ino::ROOT, "c"))
                    .expect("moves");
            }),
        ]);
        assert_eq!(moved.load(Ordering::SeqCst), 1);
        setup.check();
    });
}

#[test]
fn what_is_known_of_a_file_is_right_where_its_name_goes() {
    explore(300, || {
        let setup = setup();
        let known = setup.fs.lookup(at(setup.a, "f")).expect("is there").ino;
        join([
            thread(&setup, |s| {
                s.rename(at(s.a, "f"), at(s.b, "g")).expect("moves");
                s.rename(at(s.b, "g"), at(s.a, "h")).expect("moves");
            }),
            thread(&setup, move |s| {
                let options = WriteOptions::default();
                s.fs.write(known, 0, b"12345", options).expect("writes");
            }),
            thread(&setup, move |s| {
                s.fs.link(&CALLER, known, at(s.x, "g")).expect("links");
                s.fs.unlink(&CALLER, at(s.x, "g")).expect("removes");
                s.fs.forget(known, 1);
            }),
        ]);
        let there = setup.fs.lookup(at(setup.a, "h")).expect("is there");
        assert_eq!((there.ino, there.size, there.nlink), (known, 5, 1));
        setup.check();
    });
}

#[test]
fn files_and_directories_move_both_ways() {
    explore(300, || {
        let setup = setup();
        join([
            thread(&setup, |s| {
                s.rename(at(s.a, "f"), at(s.b, "g")).expect("moves");
                s.rename(at(s.x, "f"), at(s.b, "g")).expect("replaces");
            }),
            thread(&setup, |s| {
                s.rename(at(s.b, "f"), at(s.a, "g")).expect("moves");
                s.rename(at(s.b, "y"), at(s.a, "y")).expect("moves");
            }),
            thread(&setup, |s| {
                let swapped = s.fs.rename(
                    &CALLER,
                    at(s.a, "x"),
                    at(Ino::ROOT, "b"),
                    RenameMode::Exchange,
                );
                swapped.expect("swaps");
            }),
        ]);
        let is_there = |place| setup.fs.peek(place).expect("reads").is_some();
        assert!(is_there(at(setup.b, "g")) && is_there(at(setup.a, "g")));
        assert!(is_there(at(setup.a, "y")) && !is_there(at(setup.x, "f")));
        setup.check();
    });
}

/// Replacing an empty directory, removing it and filling it: each sees the others before or after.
#[test]
fn a_directory_is_removed_only_while_it_is_empty() {
    explore(300, || {
        let setup = setup();
        let fs = &setup.fs;
        let empty = fs
            .make_dir(&CALLER, at(Ino::ROOT, "e"), &NEW)
            .expect("makes");
        join([
            thread(&setup, |s| drop(s.rename(at(s.a, "x"), at(Ino::ROOT, "e")))),
            thread(&setup, |s| {
                drop(s.fs.remove_dir(&CALLER, at(Ino::ROOT, "e")))
            }),
            thread(&setup, move |s| {
                if let Ok(made) = s.fs.create(&CALLER, at(empty.ino, "n"), &NEW) {
                    s.fs.forget(made.ino, 1);
                }
            }),
        ]);
        setup.check();
    });
}

#[test]
fn changes_by_name_are_not_lost() {
    explore(300, || {
        let setup = setup();
        let set = |s: &Setup, set: SetAttr| {
            let changed = s.fs.set_attr_at(&CALLER, at(s.a, "f"), &set);
            assert!(changed.expect("changes").is_some());
        };
        join([
            thread(&setup, move |s| {
                let perm = Some(0o600);
                set(
                    s,
                    SetAttr {
                        perm,
                        ..SetAttr::default()
                    },
                );
            }),
            thread(&setup, move |s| {
                let uid = Some(7);
                set(
                    s,
                    SetAttr {
                        uid,
                        ..SetAttr::default()
                    },
                );
            }),
            thread(&setup, |s| {
                let found = s.fs.lookup(at(s.a, "f")).expect("is there");
                s.fs.forget(found.ino, 1);
                s.rename(at(s.b, "f"), at(s.a, "g")).expect("moves");
            }),
        ]);
        let found = setup.fs.stat(at(setup.a, "f")).expect("is there");
        assert_eq!((found.perm, found.uid), (0o600, 7));
        setup.check();
    });
}

#[test]
fn steps_lead_to_what_has_the_name() {
    explore(300, || {
        let setup = setup();
        let walk = |s: &Setup| {
            for _ in 0..3 {
                if let Ok(found) = s.step(at(Ino::ROOT, "a")) {
                    assert!(found.ino != s.b, "that was never its name");
                }
                drop(s.step(at(s.a, "x")));
            }
        };
        join([
            thread(&setup, walk),
            thread(&setup, walk),
            thread(&setup, |s| {
                s.fs.unlink(&CALLER, at(s.x, "f")).expect("removes");
                s.fs.remove_dir(&CALLER, at(s.a, "x")).expect("removes");
                s.rename(at(Ino::ROOT, "a"), at(Ino::ROOT, "c"))
                    .expect("moves");
                let made = s.fs.make_dir(&CALLER, at(Ino::ROOT, "a"), &NEW);
                s.fs.forget(made.expect("makes").ino, 1);
                assert!(s.step(at(Ino::ROOT, "a")).expect("is there").ino != s.a);
                s.fs.remove_dir(&CALLER, at(Ino::ROOT, "a"))
                    .expect("removes");
            }),
        ]);
        assert_eq!(
            setup.step(at(Ino::ROOT, "c")).expect("is there").ino,
            setup.a
        );
        setup.step(at(Ino::ROOT, "a")).expect_err("is gone");
        for ino in [setup.a, setup.b, setup.x, setup.y] {
            setup.fs.forget(ino, 1);
        }
        setup
            .fs
            .remove_tree(&CALLER, at(Ino::ROOT, "c"), None)
            .expect("removes");
        setup.fs.empty_detached(u64::MAX).expect("removes");
        assert_eq!(
            setup.fs.known_inodes(),
            1,
            "nothing that was removed is kept"
        );
        setup.check();
    });
}

#[test]
fn a_name_that_moves_beside_the_pass_of_back_rows_is_found_by_number() {
    explore(300, || {
        let setup = setup();
        let number = |parent| {
            let found = setup.fs.lookup(at(parent, "f")).expect("is there").ino;
            setup.fs.forget(found, 1);
            found
        };
        let (moved, linked) = (number(setup.x), number(setup.a));
        let found = move |s: &Setup| {
            for ino in [moved, linked] {
                let attr = s.fs.look_up_number(ino).expect("has a name all the time");
                s.fs.forget(attr.ino, 1);
            }
        };
        join([
            thread(&setup, move |s| found(s)),
            thread(&setup, |s| {
                s.rename(at(s.x, "f"), at(s.y, "g")).expect("moves");
            }),
            thread(&setup, move |s| {
                let file = s.fs.lookup(at(s.a, "f")).expect("is there");
                let made = s.fs.link(&CALLER, file.ino, at(s.b, "l"));
                s.fs.forget(made.expect("links").ino, 2);
            }),
        ]);
        setup.check();
        found(&setup);
    });
}
