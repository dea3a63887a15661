//! Conflicts that are resolved: every pair of changes, for both sides.

use super::random::{Shown, shown};
use super::*;
use std::collections::BTreeMap;
use stitch_fs::{FallocateMode, FileKind, Side, XattrMode};

type Paths = BTreeMap<String, Shown>;

/// A file system that most changes find something in.
fn stage() -> Setup {
    let setup = setup();
    let fs = &setup.fs;
    file(fs, ROOT, "f", b"before");
    file(fs, ROOT, "big", &[1; 100_000]);
    let lent = file(fs, ROOT, "lent", &[3; 100_000]);
    copy(fs, lent, "shared");
    write(fs, lent, &[4; 5000]);
    let top = dir(fs, ROOT, "d");
    file(fs, top, "x", b"before");
    let below = dir(fs, top, "y");
    file(fs, below, "z", b"before");
    dir(fs, below, "w");
    dir(fs, ROOT, "e");
    setup.tick();
    setup
}

fn remove_all(fs: &FileSystem, parent: Ino, name: &str) {
    let top = fs.lookup(at(parent, name)).expect("it is there").ino;
    for name in names_in(fs, top) {
        match fs.unlink(&SUPER, at(top, &name)) {
            Err(FsError::IsDir) => remove_all(fs, top, &name),
            gone => gone.expect("it is there"),
        }
    }
    fs.remove_dir(&SUPER, at(parent, name))
        .expect("it is empty");
    fs.forget(top, 1);
}

fn resize(fs: &FileSystem, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(&SUPER, ino, &set).expect("it is known");
}

fn exchange(fs: &FileSystem, source: (Ino, &str), target: (Ino, &str)) {
    let (source, target) = (at(source.0, source.1), at(target.0, target.1));
    let moved = fs.rename(&SUPER, source, target, RenameMode::Exchange);
    moved.expect("both are there");
}

/// A change by one side; the byte is the side's.
type ChangeBy = fn(&FileSystem, u8);

const CHANGES: &[(&str, ChangeBy)] = &[
    ("write f", |fs, byte| write(fs, ino(fs, "f"), &[byte; 7])),
    ("chmod f", |fs, byte| {
        chmod(fs, ino(fs, "f"), 0o400 + u32::from(byte));
    }),
    ("xattr f", |fs, byte| {
        let f = ino(fs, "f");
        fs.set_xattr(&SUPER, f, b"user.x", &[byte], XattrMode::Set, false)
            .expect("it is known");
    }),
    ("unlink f", |fs, _| {
        ino(fs, "f");
        unlink(fs, ROOT, "f");
    }),
    ("rename f", |fs, byte| {
        ino(fs, "f");
        rename(fs, (ROOT, "f"), (ROOT, &format!("g{byte}")));
    }),
    ("move f", |fs, _| {
        ino(fs, "f");
        rename(fs, (ROOT, "f"), (ino(fs, "d"), "f"));
    }),
    ("replace f", |fs, byte| {
        ino(fs, "f");
        file(fs, ROOT, "tmp", &[byte; 9]);
        rename(fs, (ROOT, "tmp"), (ROOT, "f"));
    }),
    ("f becomes a tree", |fs, byte| {
        ino(fs, "f");
        unlink(fs, ROOT, "f");
        let inner = dir(fs, dir(fs, ROOT, "f"), "inner");
        file(fs, inner, "leaf", &[byte; 20_000]);
    }),
    ("write big", |fs, byte| {
        write(fs, ino(fs, "big"), &[byte; 9000]);
    }),
    ("shorten big", |fs, byte| {
        resize(fs, ino(fs, "big"), 5000 + u64::from(byte));
    }),
    ("extend big", |fs, byte| {
        let big = ino(fs, "big");
        let options = WriteOptions::default();
        let at = 150_000 + u64::from(byte) * 10_000;
        fs.write(big, at, &[byte; 9000], options).expect("known");
    }),
    ("copy big", |fs, byte| {
        copy(fs, ino(fs, "big"), &format!("copy{byte}"));
    }),
    ("make and copy", |fs, byte| {
        file(fs, ROOT, "made", &[byte; 100_000]);
        copy(fs, ino(fs, "made"), &format!("copy{byte}"));
        write(fs, ino(fs, "made"), &[7; 100]);
    }),
    ("copy and write big", |fs, byte| {
        copy(fs, ino(fs, "big"), &format!("copy{byte}"));
        write(fs, ino(fs, "big"), &[byte; 9000]);
    }),
    ("copy and unlink big", |fs, byte| {
        copy(fs, ino(fs, "big"), &format!("copy{byte}"));
        unlink(fs, ROOT, "big");
    }),
    ("write shared", |fs, byte| {
        write(fs, ino(fs, "shared"), &[byte; 9000]);
    }),
    ("write shared whole", |fs, byte| {
        write(fs, ino(fs, "lent"), &[byte; 100_000]);
    }),
    ("copy shared", |fs, byte| {
        copy(fs, ino(fs, "shared"), &format!("copy{byte}"));
    }),
    ("unlink shared", |fs, _| {
        ino(fs, "shared");
        ino(fs, "lent");
        unlink(fs, ROOT, "shared");
        unlink(fs, ROOT, "lent");
    }),
    ("unlink big", |fs, _| {
        ino(fs, "big");
        unlink(fs, ROOT, "big");
    }),
    ("allocate big", |fs, byte| {
        let mode = FallocateMode::Allocate { keep_size: false };
        let len = 4096 * (100 + u64::from(byte));
        fs.fallocate(ino(fs, "big"), mode, 0, len).expect("room");
    }),
    ("unlink d/x", |fs, _| {
        ino(fs, "d/x");
        unlink(fs, ino(fs, "d"), "x");
    }),
    ("write d/y/z", |fs, byte| {
        write(fs, ino(fs, "d/y/z"), &[byte; 8]);
    }),
    ("create d/new", |fs, byte| {
        file(fs, ino(fs, "d"), "new", &[byte; 3]);
    }),
    ("make d/y/w/sub", |fs, byte| {
        let made = dir(fs, ino(fs, "d/y/w"), &format!("sub{byte}"));
        file(fs, made, "leaf", &[byte; 3]);
    }),
    ("remove d", |fs, _| remove_all(fs, ROOT, "d")),
    ("rename d", |fs, byte| {
        ino(fs, "d");
        rename(fs, (ROOT, "d"), (ROOT, &format!("dd{byte}")));
    }),
    ("move d", |fs, _| {
        ino(fs, "d");
        rename(fs, (ROOT, "d"), (ino(fs, "e"), "d"));
    }),
    ("move d/y", |fs, _| {
        ino(fs, "d/y");
        rename(fs, (ino(fs, "d"), "y"), (ino(fs, "e"), "y"));
    }),
    ("move e", |fs, _| {
        ino(fs, "e");
        rename(fs, (ROOT, "e"), (ino(fs, "d/y"), "e"));
    }),
    ("remove e", |fs, _| {
        ino(fs, "e");
        fs.remove_dir(&SUPER, at(ROOT, "e")).expect("it is empty");
    }),
    ("chmod d", |fs, byte| {
        chmod(fs, ino(fs, "d"), 0o500 + u32::from(byte));
    }),
    ("make a directory", |fs, byte| {
        file(fs, dir(fs, ROOT, "made"), "leaf", &[byte; 3]);
    }),
    ("make a file", |fs, byte| {
        file(fs, ROOT, "made", &[byte; 30]);
    }),
    ("make a symlink", |fs, byte| {
        let target = [byte + b'a'; 4];
        let made = fs.make_symlink(&SUPER, at(ROOT, "made"), &target);
        made.expect("a free name");
    }),
    ("link f", |fs, byte| {
        let name = format!("link{byte}");
        fs.link(&SUPER, ino(fs, "f"), at(ROOT, &name))
            .expect("a free name");
    }),
    ("exchange f", |fs, _| {
        ino(fs, "f");
        ino(fs, "d/x");
        exchange(fs, (ROOT, "f"), (ino(fs, "d"), "x"));
    }),
    ("exchange directories", |fs, _| {
        ino(fs, "e");
        ino(fs, "d/y");
        exchange(fs, (ROOT, "e"), (ino(fs, "d"), "y"));
    }),
];

fn conflicts_of(setup: &Setup, view: &TransactionView) -> Vec<(Conflict, Option<Side>)> {
    let all = setup.fs.transactions().conflicts(view);
    all.expect("it is open")
}

/// What came of a pair.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    NoConflict,
    Refused(&'static str),
    /// At these paths it is not as on the side that was taken.
    Resolved(Vec<String>),
}

/// Resolves all conflicts, and returns their paths.
fn resolve_all(
    setup: &Setup,
    view: &TransactionView,
    side: Side,
) -> Result<Vec<String>, &'static str> {
    let mut paths = Vec::new();
    for (conflict, _) in conflicts_of(setup, view) {
        match setup.fs.transactions().resolve(view, &conflict.path, side) {
            Ok(count) => assert!(count > 0),
            Err(FsError::Unresolvable(why)) => return Err(why),
            Err(error) => panic!("{error}"),
        }
        let path = String::from_utf8_lossy(&conflict.path).into_owned();
        paths.push(format!("/{path}"));
    }
    Ok(paths)
}

/// A directory's links are those of both sides.
fn without_links(shown: Option<&Shown>) -> Option<Shown> {
    let (kind, perm, nlink, data, xattr) = shown.cloned()?;
    let nlink = match kind {
        FileKind::Directory => 0,
        _ => nlink,
    };
    Some((kind, perm, nlink, data, xattr))
}

fn try_pair(ours: ChangeBy, theirs: ChangeBy, side: Side) -> Outcome {
    let setup = stage();
    let view = begin(&setup, "work");
    ours(view.fs(), 1);
    setup.tick();
    theirs(&setup.fs, 2);
    setup.tick();
    let (inside, outside) = (shown(view.fs()), shown(&setup.fs));
    let paths = resolve_all(&setup, &view, side);
    let committed = paths.and_then(|paths| match setup.fs.transactions().commit(&view) {
        Ok(_) => Ok(paths),
        Err(FsError::Unresolvable(why)) => Err(why),
        Err(error) => panic!("{error}"),
    });
    setup.check();
    let paths = match committed {
        Ok(paths) => paths,
        Err(why) => {
            assert_eq!(shown(view.fs()), inside, "nothing has changed");
            assert_eq!(shown(&setup.fs), outside, "nothing has changed");
            return Outcome::Refused(why);
        }
    };
    let after = shown(&setup.fs);
    for ino in setup.fs.known_numbers() {
        setup.fs.forget(ino, u64::MAX);
    }
    setup.fs.reclaim().expect("there is room");
    setup.check();
    let setup = setup.reopened();
    assert_eq!(shown(&setup.fs), after, "memory is as the rows");
    setup.check();
    if paths.is_empty() {
        return Outcome::NoConflict;
    }
    let expected: &Paths = match side {
        Side::Ours => &inside,
        Side::Theirs => &outside,
    };
    let is_other =
        |path: &&String| without_links(after.get(*path)) != without_links(expected.get(*path));
    Outcome::Resolved(paths.iter().filter(is_other).cloned().collect())
}

#[test]
fn every_pair_of_changes_is_resolved_or_refused_for_both_sides() {
    let (mut resolved, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    let pairs = CHANGES
        .iter()
        .flat_map(|ours| CHANGES.iter().map(move |theirs| (ours, theirs)));
    let pairs = pairs.step_by(crate::engine::PAIRS_STEP);
    for ((ours_name, ours), (theirs_name, theirs)) in pairs {
        for side in [Side::Ours, Side::Theirs] {
            let pair = format!("{ours_name} against {theirs_name}, {side:?}");
            match try_pair(*ours, *theirs, side) {
                Outcome::NoConflict => {}
                Outcome::Refused(why) => refused.push(format!("{pair}: {why}")),
                Outcome::Resolved(paths) => {
                    resolved += 1;
                    wrong.extend(paths.iter().map(|path| format!("{pair}: {path}")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        resolved * crate::engine::PAIRS_STEP > 200,
        "{resolved}: {refused:#?}"
    );
    assert!(refused.len() < 100, "{refused:#?}");
}
