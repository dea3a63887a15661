//! Files and directories as a program has them, without a mount.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use stitchfs::fs::{Dir, FileKind, Files, SetTime, Timestamp};
use stitchfs::{ErrorKind, MakeOptions, StoreError, StoreOptions};

fn files() -> Files {
    Files::in_memory(32 << 20, &StoreOptions::default()).unwrap()
}

fn kind<T: std::fmt::Debug>(result: Result<T, StoreError>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn names(dir: &Dir, path: &str) -> BTreeSet<String> {
    let entries = dir.entries(path).unwrap();
    entries
        .map(|entry| entry.unwrap().name().to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn files_outlive_their_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let make = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    let data: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let files = Files::open_or_create(&path, &make, &StoreOptions::default()).unwrap();
    files.root().make_dir("a").unwrap();
    files.root().write("a/large", &data).unwrap();
    files.close().unwrap();
    drop(files);
    let files = Files::open_or_create(&path, &make, &StoreOptions::default()).unwrap();
    assert_eq!(files.root().read("/a/large").unwrap(), data);
    let checked = files.store().check(&mut |_, _| ()).unwrap();
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

#[test]
fn contents_are_written_in_place_appended_and_cut() {
    let files = files();
    let root = files.root();
    let file = root.create("file").unwrap();
    file.write_at(b"hello", 3).unwrap();
    file.append(b" world").unwrap();
    let mut out = b">".to_vec();
    assert_eq!(file.read_at(0, 100, &mut out).unwrap(), 14);
    assert_eq!(out, b">\0\0\0hello world");
    file.set_len(5).unwrap();
    file.sync().unwrap();
    assert_eq!(root.read("file").unwrap(), b"\0\0\0he");
    root.write("file", b"new").unwrap();
    assert_eq!(file.stat().unwrap().size, 3);
    assert_eq!(kind(root.create("file")), ErrorKind::Exists);
}

#[test]
fn names_are_made_moved_and_removed() {
    let files = files();
    let root = files.root();
    root.make_dir("a").unwrap();
    root.make_dir("a/b").unwrap();
    let inner = root.open_dir("a/b").unwrap();
    inner.write("file", b"1").unwrap();
    root.link("a/b/file", "a/other").unwrap();
    assert_eq!(root.stat("a/other").unwrap().nlink, 2);
    inner.rename("file", "../moved").unwrap();
    assert_eq!(
        names(&root, "a"),
        ["b", "moved", "other"].map(str::to_owned).into()
    );
    root.write("victim", b"2").unwrap();
    root.rename("a/moved", "victim").unwrap();
    assert_eq!(root.read("victim").unwrap(), b"1");
    assert_eq!(kind(root.remove_dir("a")), ErrorKind::Exists);
    assert_eq!(kind(root.remove_file("a")), ErrorKind::Invalid);
    root.remove_dir("a/b").unwrap();
    root.remove_file("a/other").unwrap();
    root.remove_dir("/a/").unwrap();
    assert_eq!(kind(root.stat("a")), ErrorKind::NotFound);
    assert!(names(&inner, ".").is_empty());
    assert_eq!(kind(inner.create("late")), ErrorKind::NotFound);
    assert_eq!(kind(root.remove_dir("/")), ErrorKind::Invalid);
}

#[test]
fn links_are_followed_where_they_should_be() {
    let files = files();
    let root = files.root();
    root.make_dir("real").unwrap();
    root.write("real/file", b"x").unwrap();
    root.make_symlink("real", "link").unwrap();
    root.make_symlink("../link/file", "real/deep").unwrap();
    root.make_symlink("round", "round").unwrap();
    assert_eq!(root.read("link/deep").unwrap(), b"x");
    assert_eq!(root.stat("real/deep").unwrap().kind, FileKind::Regular);
    assert_eq!(root.stat_link("real/deep").unwrap().kind, FileKind::Symlink);
    assert_eq!(root.read_link("link").unwrap().to_str(), Some("real"));
    assert_eq!(kind(root.stat("round")), ErrorKind::Invalid);
    root.remove_file("link").unwrap();
    assert_eq!(kind(root.stat("real/deep")), ErrorKind::NotFound);
    assert_eq!(root.read("real/file").unwrap(), b"x");
}

#[test]
fn attributes_are_set() {
    let files = files();
    let root = files.root();
    root.write("file", b"x").unwrap();
    root.set_perm("file", 0o600).unwrap();
    root.set_owner("file", (7, 8)).unwrap();
    let time = Timestamp::from_parts(1_000, 5);
    let attr = root
        .set_times("file", SetTime::At(time), SetTime::At(time))
        .unwrap();
    assert_eq!((attr.perm, attr.uid, attr.gid), (0o600, 7, 8));
    assert_eq!((attr.atime, attr.mtime), (time, time));
    assert_eq!(root.stat("file").unwrap(), attr);
    root.set_xattr("file", "user.colour", b"red").unwrap();
    assert_eq!(root.xattr("file", "user.colour").unwrap(), b"red");
}

#[test]
fn a_long_listing_comes_in_pieces_and_whole() {
    let files = files();
    let root = files.root();
    root.make_dir("many").unwrap();
    let dir = root.open_dir("many").unwrap();
    let made: BTreeSet<String> = (0..1_000).map(|n| format!("file-{n}")).collect();
    for name in &made {
        dir.create(name).unwrap();
    }
    assert_eq!(names(&dir, ""), made);
    for entry in dir.entries("").unwrap() {
        dir.remove_file(entry.unwrap().name()).unwrap();
    }
    assert!(names(&root, "many").is_empty());
}

#[test]
fn an_open_file_outlives_its_name_and_its_space_comes_back() {
    let files = files();
    let root = files.root();
    let inodes = || files.space().unwrap().inodes - files.space().unwrap().inodes_free;
    let before = inodes();
    let file = root.create("file").unwrap();
    file.write_at(&[7; 100_000], 0).unwrap();
    root.remove_file("file").unwrap();
    let mut out = Vec::new();
    assert_eq!(file.read_at(99_999, 10, &mut out).unwrap(), 1);
    drop(file);
    assert_eq!(inodes(), before);
    let checked = files.store().check(&mut |_, _| ()).unwrap();
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

#[test]
fn threads_share_a_directory() {
    let files = files();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let root = files.root();
            scope.spawn(move || {
                for number in 0..100 {
                    let path = format!("{thread}-{number}");
                    root.write(&path, path.as_bytes()).unwrap();
                    if number % 2 == 0 {
                        root.remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    let left = names(&files.root(), "/");
    assert_eq!(left.len(), 200);
    for name in left {
        assert_eq!(files.root().read(&name).unwrap(), name.as_bytes());
    }
}

#[test]
fn trees_are_removed_with_all_that_is_in_them() {
    let files = files();
    let root = files.root();
    let used = |files: &Files| {
        let stat = files.space().unwrap();
        stat.inodes - stat.inodes_free
    };
    let before = used(&files);
    root.make_dir("top").unwrap();
    root.make_dir("top/in").unwrap();
    root.write("top/in/file", &[7; 100_000]).unwrap();
    let open = root.open("top/in/file").unwrap();
    assert_eq!(kind(root.remove_tree("top/in/file")), ErrorKind::Invalid);
    root.remove_tree("top").unwrap();
    assert_eq!(kind(root.stat("top")), ErrorKind::NotFound);
    let mut out = Vec::new();
    assert_eq!(open.read_at(0, 200_000, &mut out).unwrap(), 100_000);
    drop(open);
    files.sync().unwrap();
    assert_eq!(used(&files), before);
    let checked = files.store().check(&mut |_, _| ()).unwrap();
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}
