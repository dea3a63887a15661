//! Commits that conflict, and commits of which the engine does not know whether they are done.

use crate::common::*;
use stitch_base::ErrorKind;
use stitch_fs::{RenameMode, WriteOptions, XattrMode};
use stitch_kv::CommitFault;

/// All faults after which an operation goes on, and how many commits meet them.
const FAULTS: [(CommitFault, u32); 5] = [
    (CommitFault::Conflict, 1),
    (CommitFault::Conflict, 3),
    (CommitFault::Unknown, 1),
    (CommitFault::Unknown, 3),
    (CommitFault::UnknownDone, 1),
];

/// Runs operations of every kind. The first commit of each meets `before`.
fn work(setup: &Setup, before: impl Fn()) {
    let fs = &setup.fs;
    let step = || {
        setup.tick();
        before();
    };
    step();
    let dir = setup.dir(ROOT, "d").ino;
    step();
    let file = setup.file(dir, "f").ino;
    step();
    setup.write(file, 0, &[7; 100]);
    // The inline contents become a chunk, which is patched and cut.
    step();
    setup.write(file, 100, &[8; 9000]);
    step();
    setup.write(file, 10, &[9; 50]);
    step();
    cut(setup, file, 6000).expect("it is cut");
    step();
    fs.set_xattr(&SUPER, file, b"user.a", b"b", XattrMode::Set, false)
        .expect("it is set");
    step();
    fs.link(&SUPER, file, at(ROOT, "g")).expect("it is linked");
    step();
    let mode = RenameMode::Replace;
    fs.rename(&SUPER, at(dir, "f"), at(ROOT, "h"), mode)
        .expect("it is renamed");
    step();
    let gone = setup.file(dir, "gone").ino;
    step();
    fs.unlink(&SUPER, at(dir, "gone")).expect("it is removed");
    fs.forget(gone, 1);
    step();
    fs.sync().expect("it is synced");
}

#[test]
fn operations_go_on_as_if_nothing_had_happened() {
    let undisturbed = setup();
    work(&undisturbed, || ());
    for (fault, count) in FAULTS {
        let setup = setup();
        work(&setup, || setup.engine.fail_commits(fault, count));
        setup.engine.mend_commits();
        setup.fs.sync().unwrap();
        let (found, expected) = (setup.engine.dump(), undisturbed.engine.dump());
        assert!(found == expected, "other rows after {fault:?} x {count}");
        setup.check();
        let setup = setup.reopened();
        let file = setup.lookup(ROOT, "h").unwrap();
        assert_eq!((file.size, file.nlink), (6000, 2), "{fault:?} x {count}");
        assert_eq!(setup.read(file.ino, 8, 4), [7, 7, 9, 9]);
    }
}

#[test]
fn an_operation_gives_up_after_some_conflicts_and_changes_nothing() {
    for (fault, kind) in [
        (CommitFault::Conflict, ErrorKind::Conflict),
        (CommitFault::Unknown, ErrorKind::Io),
    ] {
        let setup = setup();
        let before = setup.engine.dump();
        setup.engine.fail_commits(fault, u32::MAX);
        let refused = setup.fs.create(&SUPER, at(ROOT, "f"), &new(0o644));
        assert_eq!(refused.unwrap_err().kind(), kind);
        setup.engine.mend_commits();
        assert!(setup.engine.dump() == before, "nothing is left of it");
        assert!(setup.lookup(ROOT, "f").is_err());
        setup.file(ROOT, "f");
        setup.check();
    }
}

#[test]
fn other_errors_are_final() {
    let setup = setup();
    let file = setup.file(ROOT, "f").ino;
    setup.engine.fail_commits(CommitFault::Refused, 1);
    let refused = setup.fs.write(file, 0, b"x", WriteOptions::default());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(setup.attr(file).size, 0);
    setup.write(file, 0, b"y");
    assert_eq!(setup.contents(file), b"y");
}
