//! Transactions of files: isolation, commit, conflicts, abort, differences.

mod clone_reads;
mod clones;
mod commits;
mod conflicts;
mod costs;
mod differences;
mod histories;
mod lives;
mod nested;
mod random;
mod reads;
mod rebases;
mod records;
mod resolutions;
mod serializable;

use crate::common::*;
use std::sync::Arc;
use stitch_base::Ino;
use stitch_fs::{
    Attr, BeginOptions, Conflict, ConflictKind, FileSystem, FsError, FsResult, RenameMode, SetAttr,
    TransactionView, WriteOptions,
};

fn begin(setup: &Setup, name: &str) -> Arc<TransactionView> {
    let options = BeginOptions::default();
    setup
        .fs
        .transactions()
        .begin(name, &options)
        .expect("it begins")
}

fn file(fs: &FileSystem, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let made = fs.create(&SUPER, at(dir, name), &new(0o644));
    let ino = made.expect("the name is free").ino;
    write(fs, ino, data);
    ino
}

fn dir(fs: &FileSystem, parent: Ino, name: &str) -> Ino {
    let made = fs.make_dir(&SUPER, at(parent, name), &new(0o755));
    made.expect("the name is free").ino
}

fn write(fs: &FileSystem, ino: Ino, data: &[u8]) {
    let options = WriteOptions::default();
    fs.write(ino, 0, data, options).expect("the file is known");
}

/// Copies a file; if it is long, the copy shares its contents.
fn copy(fs: &FileSystem, from: Ino, name: &str) {
    let made = fs.create(&SUPER, at(ROOT, name), &new(0o644));
    let to = made.expect("the name is free").ino;
    let copied = fs.copy_range((from, 0), (to, 0), 1 << 30);
    copied.expect("the file is known");
}

fn find(fs: &FileSystem, path: &str) -> FsResult<Attr> {
    let mut attr = fs.get_attr(ROOT)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        attr = fs.lookup(at(attr.ino, name))?;
    }
    Ok(attr)
}

fn ino(fs: &FileSystem, path: &str) -> Ino {
    find(fs, path).expect("the path leads somewhere").ino
}

fn contents(fs: &FileSystem, path: &str) -> Vec<u8> {
    contents_of(fs, ino(fs, path))
}

fn unlink(fs: &FileSystem, dir: Ino, name: &str) {
    let gone = fs.unlink(&SUPER, at(dir, name));
    gone.expect("the name is there");
}

fn rename(fs: &FileSystem, source: (Ino, &str), target: (Ino, &str)) {
    let (source, target) = (at(source.0, source.1), at(target.0, target.1));
    let moved = fs.rename(&SUPER, source, target, RenameMode::Replace);
    moved.expect("the name is there");
}

fn chmod(fs: &FileSystem, ino: Ino, perm: u32) {
    let set = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.set_attr(&SUPER, ino, &set).expect("it is known");
}

fn commit(setup: &Setup, view: &TransactionView) {
    let committed = setup.fs.transactions().commit(view);
    committed.expect("nothing conflicts");
    setup.check();
}

/// Expects these conflicts, and that neither side changes by them.
fn expect_conflicts(setup: &Setup, view: &TransactionView, expected: &[(&str, ConflictKind)]) {
    let before = (setup.engine.dump(), view.changes().expect("it is open"));
    let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(view) else {
        panic!("it conflicts");
    };
    let plain = |conflict: &Conflict| {
        let path = String::from_utf8_lossy(&conflict.path).into_owned();
        (path, conflict.kind)
    };
    let found: Vec<_> = found.iter().map(plain).collect();
    let expected = expected
        .iter()
        .map(|(path, kind)| ((*path).to_owned(), *kind));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let after = (setup.engine.dump(), view.changes().expect("it is open"));
    assert!(before == after, "a conflict changes nothing");
    setup.check();
}
