//! What a serializable transaction has read, and mainline has changed: the commit is refused. With
//! snapshot isolation it is not.

use super::*;
use stitch_base::TreeId;
use stitch_fs::{ReadKind, SetTime, Taken, TransactionIsolation, XattrMode};
use stitch_kv::{Batch, CommitOptions, Direction, Engine, KeyRange, TreeOptions};

const NAME: ConflictKind = ConflictKind::Read(ReadKind::Name);
const INODE: ConflictKind = ConflictKind::Read(ReadKind::Inode);
const XATTR: ConflictKind = ConflictKind::Read(ReadKind::Xattr);
const LIST: ConflictKind = ConflictKind::Read(ReadKind::List);
const UNKNOWN: ConflictKind = ConflictKind::Read(ReadKind::Unknown);

fn begin_as(setup: &Setup, name: &str, isolation: TransactionIsolation) -> Arc<TransactionView> {
    let options = BeginOptions {
        isolation,
        ..BeginOptions::default()
    };
    let begun = setup.fs.transactions().begin(name, &options);
    begun.expect("it begins")
}

fn begin_ser(setup: &Setup, name: &str) -> Arc<TransactionView> {
    begin_as(setup, name, TransactionIsolation::Serializable)
}

type Act = fn(&FileSystem);

/// Builds `d/f` (small), `d/big`, `d/sub`, `f` with a second name `g`, `e` (empty), `out`.
fn tree(setup: &Setup) {
    let fs = &setup.fs;
    let d = dir(fs, ROOT, "d");
    file(fs, d, "f", b"small");
    file(fs, d, "big", &[1; 100_000]);
    dir(fs, d, "sub");
    let linked = file(fs, ROOT, "f", b"linked");
    fs.link(&SUPER, linked, at(ROOT, "g")).expect("free");
    dir(fs, ROOT, "e");
    dir(fs, ROOT, "out");
    fs.make_symlink(&SUPER, at(ROOT, "s"), b"d/f")
        .expect("free");
}

/// Runs `reads` in a transaction of either isolation, `writes` in mainline meanwhile, and commits.
fn refused(what: &str, reads: Act, writes: Act, expected: &[(&str, ConflictKind)]) {
    for isolation in [
        TransactionIsolation::Snapshot,
        TransactionIsolation::Serializable,
    ] {
        let setup = setup();
        tree(&setup);
        let view = begin_as(&setup, "work", isolation);
        assert_eq!(view.info().isolation, isolation);
        reads(view.fs());
        file(view.fs(), ino(view.fs(), "out"), "result", b"");
        writes(&setup.fs);
        let is_serializable = isolation == TransactionIsolation::Serializable;
        println!("{what}, {isolation:?}");
        match is_serializable && !expected.is_empty() {
            true => expect_conflicts(&setup, &view, expected),
            false => commit(&setup, &view),
        }
    }
}

fn list(fs: &FileSystem, path: &str) {
    names_in(fs, ino(fs, path));
}

fn list_plus(fs: &FileSystem, path: &str) {
    let listed = fs.read_dir_plus(ino(fs, path), 0, &mut |_| Taken::More);
    listed.expect("it is a directory");
}

fn set_xattr(fs: &FileSystem, path: &str, value: &[u8]) {
    let set = fs.set_xattr(
        &SUPER,
        ino(fs, path),
        b"user.x",
        value,
        XattrMode::Set,
        false,
    );
    set.expect("it is known");
}

fn make(fs: &FileSystem, dir: &str, name: &str) {
    file(fs, ino(fs, dir), name, b"new");
}

fn missing(fs: &FileSystem, path: &str) {
    assert!(matches!(find(fs, path), Err(FsError::NotFound)), "{path}");
}

#[test]
fn names_that_were_looked_up() {
    let makes: Act = |fs| make(fs, "d", "new");
    refused("made", |fs| missing(fs, "d/new"), makes, &[("d/new", NAME)]);
    let unlinks: Act = |fs| unlink(fs, ino(fs, "d"), "f");
    let reads: Act = |fs| drop(find(fs, "d/f"));
    refused("removed", reads, unlinks, &[("d/f", NAME)]);
    let renames: Act = |fs| rename(fs, (ino(fs, "d"), "f"), (ROOT, "moved"));
    refused("moved away", reads, renames, &[("d/f", NAME)]);
    let renames: Act = |fs| rename(fs, (ROOT, "d"), (ROOT, "moved"));
    refused("a directory above", reads, renames, &[("d", NAME)]);
    let replaces: Act = |fs| {
        make(fs, "", "other");
        rename(fs, (ROOT, "other"), (ino(fs, "d"), "f"));
    };
    refused("replaced", reads, replaces, &[("d/f", NAME)]);
    let again: Act = |fs| {
        make(fs, "d", "new");
        unlink(fs, ino(fs, "d"), "new");
    };
    refused("made and removed", |fs| missing(fs, "d/new"), again, &[]);
    refused("elsewhere", |fs| missing(fs, "d/other"), makes, &[]);
}

#[test]
fn inodes_that_were_looked_up_or_read() {
    let looks: Act = |fs| drop(find(fs, "d/f"));
    let chmods: Act = |fs| chmod(fs, ino(fs, "d/f"), 0o600);
    refused("attributes", looks, chmods, &[("d/f", INODE)]);
    let writes: Act = |fs| write(fs, ino(fs, "d/f"), b"other");
    refused("small contents", looks, writes, &[("d/f", INODE)]);
    // The clock stands still: the row of the inode is as before.
    let reads: Act = |fs| drop(contents(fs, "d/big"));
    let writes: Act = |fs| write(fs, ino(fs, "d/big"), &[2; 8192]);
    refused("large contents", reads, writes, &[("d/big", INODE)]);
    let reads: Act = |fs| drop(find(fs, "f"));
    let writes: Act = |fs| write(fs, ino(fs, "g"), b"by another name");
    refused("several names", reads, writes, &[("f", INODE)]);
    let reads: Act = |fs| {
        let ino = ino(fs, "d/f");
        let all = contents_of(fs, ino);
        fs.forget(ino, u64::MAX);
        assert!(fs.get_attr(ino).is_err() && all == b"small");
    };
    refused("forgotten since", reads, chmods, &[("d/f", INODE)]);
    let targets: Act = |fs| drop(fs.read_link(ino(fs, "s")));
    let others: Act = |fs| write(fs, ino(fs, "d/big"), &[2; 8192]);
    refused("another file", targets, others, &[]);
    let looks: Act = |fs| drop(fs.get_attr(ROOT));
    refused(
        "the root",
        looks,
        |fs| chmod(fs, ROOT, 0o700),
        &[("", INODE)],
    );
}

#[test]
fn times_of_access_are_no_change() {
    let reads: Act = |fs| drop(contents(fs, "d/f"));
    let touches: Act = |fs| {
        let set = SetAttr {
            atime: Some(SetTime::At(stitch_base::clock::Timestamp(77))),
            ctime: Some(fs.get_attr(ino(fs, "d/f")).expect("known").ctime),
            ..SetAttr::default()
        };
        fs.set_attr(&SUPER, ino(fs, "d/f"), &set).expect("known");
    };
    refused("read by others", reads, touches, &[]);
}

#[test]
fn directories_that_were_listed_and_those_that_were_not() {
    let lists: Act = |fs| list(fs, "d");
    let makes: Act = |fs| make(fs, "d", "new");
    refused("a new name", lists, makes, &[("d", LIST)]);
    let unlinks: Act = |fs| unlink(fs, ino(fs, "d"), "f");
    refused("a name less", lists, unlinks, &[("d", LIST)]);
    let writes: Act = |fs| write(fs, ino(fs, "d/f"), b"other");
    refused("names alone", lists, writes, &[]);
    let plus: Act = |fs| list_plus(fs, "d");
    refused("with attributes", plus, writes, &[("d/f", INODE)]);
    let passes: Act = |fs| drop(find(fs, "d/sub"));
    refused("on the way", passes, makes, &[]);
    let makes_dir: Act = |fs| {
        dir(fs, ino(fs, "d"), "b");
    };
    let makes_own: Act = |fs| {
        dir(fs, ino(fs, "d"), "a");
    };
    refused("mkdir", makes_own, makes_dir, &[]);
    let fails: Act = |fs| {
        ino(fs, "d");
        let full = fs.remove_dir(&SUPER, at(ROOT, "d"));
        assert!(matches!(full, Err(FsError::NotEmpty)));
    };
    refused("rmdir that failed", fails, makes, &[("d", LIST)]);
    let chmods: Act = |fs| chmod(fs, ino(fs, "d"), 0o700);
    refused("rights on the way", passes, chmods, &[("d", INODE)]);
}

#[test]
fn extended_attributes() {
    let reads: Act = |fs| {
        let none = fs.get_xattr(&SUPER, ino(fs, "d"), b"user.x");
        assert!(matches!(none, Err(FsError::NoData)));
    };
    let sets: Act = |fs| set_xattr(fs, "d", b"1");
    refused("none before", reads, sets, &[("d", INODE), ("d", XATTR)]);
    let setup = setup();
    tree(&setup);
    set_xattr(&setup.fs, "d", b"1");
    for reads in [true, false] {
        let view = begin_ser(&setup, "work");
        let d = ino(view.fs(), "d");
        if reads {
            view.fs().list_xattr(&SUPER, d).expect("known");
        }
        make(view.fs(), "out", &format!("r{reads}"));
        set_xattr(&setup.fs, "d", if reads { b"2" } else { b"3" });
        match reads {
            true => expect_conflicts(&setup, &view, &[("d", XATTR)]),
            false => commit(&setup, &view),
        }
        if reads {
            setup.fs.transactions().abort("work").expect("open");
        }
    }
}

#[test]
fn one_that_has_written_nothing_is_as_if_run_when_it_began() {
    let setup = setup();
    tree(&setup);
    let view = begin_ser(&setup, "work");
    list_plus(view.fs(), "d");
    write(&setup.fs, ino(&setup.fs, "d/f"), b"other");
    commit(&setup, &view);
}

#[test]
fn a_path_that_both_changed_is_told_of_once() {
    let setup = setup();
    tree(&setup);
    let view = begin_ser(&setup, "work");
    contents(view.fs(), "d/f");
    write(view.fs(), ino(view.fs(), "d/f"), b"inside");
    contents(view.fs(), "f");
    write(&setup.fs, ino(&setup.fs, "d/f"), b"outside");
    write(&setup.fs, ino(&setup.fs, "f"), b"outside");
    let expected = [("d/f", ConflictKind::Inode), ("f", INODE)];
    expect_conflicts(&setup, &view, &expected);
    let texts = expected.map(|(_, kind)| kind.to_string());
    assert_eq!(
        texts,
        ["attributes or contents", "read attributes or contents"]
    );
}

/// The oncall example of Cahill, SIGMOD 2008: each goes because the other one stays.
#[test]
fn write_skew() {
    let skew = |isolation| {
        let setup = setup();
        for name in ["ada", "bob"] {
            file(&setup.fs, ROOT, name, b"on call");
        }
        let views = ["first", "second"].map(|name| begin_as(&setup, name, isolation));
        for (view, (other, own)) in views.iter().zip([("ada", "bob"), ("bob", "ada")]) {
            assert_eq!(contents(view.fs(), other), b"on call");
            write(view.fs(), ino(view.fs(), own), b"at home");
        }
        commit(&setup, &views[0]);
        (setup, views)
    };
    let (setup, views) = skew(TransactionIsolation::Snapshot);
    commit(&setup, &views[1]);
    let (setup, views) = skew(TransactionIsolation::Serializable);
    expect_conflicts(&setup, &views[1], &[("bob", INODE)]);
}

#[test]
fn what_it_made_itself_is_not_read_of_mainline() {
    let setup = setup();
    let view = begin_ser(&setup, "work");
    let fs = view.fs();
    let top = dir(fs, ROOT, "top");
    for index in 0..600 {
        make(fs, "top", &format!("f{index}"));
    }
    list_plus(fs, "top");
    for index in 0..600 {
        unlink(fs, top, &format!("f{index}"));
    }
    // Mainline makes inodes of neighbouring numbers.
    for index in 0..10 {
        make(&setup.fs, "", &format!("g{index}"));
    }
    commit(&setup, &view);
}

#[test]
fn many_reads_are_kept_coarsely_and_none_is_lost() {
    let setup = setup();
    let d = dir(&setup.fs, ROOT, "d");
    dir(&setup.fs, ROOT, "out");
    for index in 0..400 {
        file(&setup.fs, d, &format!("f{index}"), b"");
    }
    let view = begin_ser(&setup, "work");
    for index in 0..400 {
        ino(view.fs(), &format!("d/f{index}"));
    }
    make(view.fs(), "out", "result");
    write(&setup.fs, ino(&setup.fs, "d/f377"), b"other");
    expect_conflicts(&setup, &view, &[("d/f377", INODE)]);
    write(&setup.fs, ino(&setup.fs, "d/f377"), b"");
    make(&setup.fs, "d", "new");
    expect_conflicts(&setup, &view, &[("d", LIST), ("d/f377", INODE)]);
}

#[test]
fn names_that_are_removed_together_are_all_seen() {
    let setup = setup();
    let d = dir(&setup.fs, ROOT, "d");
    dir(&setup.fs, ROOT, "out");
    for index in 0..300 {
        file(&setup.fs, d, &format!("f{index}"), b"");
    }
    for index in [0, 150, 299] {
        let name = format!("work{index}");
        let view = begin_ser(&setup, &name);
        let path = format!("d/f{index}");
        ino(view.fs(), &path);
        make(view.fs(), "out", &name);
        unlink(&setup.fs, ino(&setup.fs, "d"), &path[2..]);
        expect_conflicts(&setup, &view, &[(&path, NAME)]);
        setup.fs.transactions().abort(&name).expect("open");
    }
    let view = begin_ser(&setup, "work");
    ino(view.fs(), "d/f77");
    make(view.fs(), "out", "work");
    for index in (1..299).filter(|index| *index != 150) {
        unlink(&setup.fs, d, &format!("f{index}"));
    }
    crate::engine::dynamic(&setup.engine)
        .quiesce()
        .expect("no fault");
    expect_conflicts(&setup, &view, &[("d/f77", NAME)]);
}

#[test]
fn reads_survive_a_close_and_all_counts_as_read_after_a_crash() {
    for closes in [true, false] {
        let setup = setup();
        tree(&setup);
        let view = begin_ser(&setup, "work");
        contents(view.fs(), "d/f");
        make(view.fs(), "out", "result");
        drop(view);
        // Another handle of the same life knows of it, too.
        let view = setup.fs.transactions().open("work").expect("open");
        contents(view.fs(), "f");
        view.fs().sync().expect("syncs");
        drop(view);
        if closes {
            setup.fs.close().expect("closes");
        }
        setup.check();
        let setup = setup.reopened();
        let view = setup.fs.transactions().open("work").expect("it is named");
        assert_eq!(view.info().isolation, TransactionIsolation::Serializable);
        chmod(&setup.fs, ino(&setup.fs, "e"), 0o700);
        match closes {
            true => {
                write(&setup.fs, ino(&setup.fs, "d/f"), b"other");
                expect_conflicts(&setup, &view, &[("d/f", INODE)]);
            }
            false => expect_conflicts(&setup, &view, &[("e", UNKNOWN)]),
        }
        drop(view);
        // What was closed and not opened again is as known as before.
        setup.fs.close().expect("closes");
        let setup = setup.reopened();
        setup.fs.close().expect("closes");
        let setup = setup.reopened();
        let view = setup.fs.transactions().open("work").expect("it is named");
        let Err(FsError::Conflict(found)) = setup.fs.transactions().commit(&view) else {
            panic!("it conflicts");
        };
        assert_eq!(found[0].kind == UNKNOWN, !closes);
        setup.fs.transactions().abort("work").expect("open");
        assert_eq!(setup.rows_of_reads(), 0);
        setup.check();
    }
}

#[test]
fn nothing_is_unknown_if_nothing_was_changed() {
    let setup = setup();
    tree(&setup);
    let view = begin_ser(&setup, "work");
    contents(view.fs(), "d/f");
    make(view.fs(), "out", "result");
    view.fs().sync().expect("syncs");
    drop(view);
    let setup = setup.reopened();
    let view = setup.fs.transactions().open("work").expect("it is named");
    commit(&setup, &view);
}

/// Puts one record.
fn put_record(engine: &dyn Engine, tree: TreeId, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(tree, key, value);
    let put = engine.commit(&batch, CommitOptions::default());
    put.expect("it is taken");
}

/// The outcome of a transaction that reads `read` (all, if that is empty), writes the record `own`,
/// and is committed after mainline has written the record `b`.
fn commit_records(isolation: TransactionIsolation, read: &[u8]) -> FsResult<()> {
    let setup = setup();
    let engine = crate::engine::dynamic(&setup.engine);
    let tree = engine.create_tree("stock", &TreeOptions::default());
    let tree = tree.expect("the name is free");
    for key in [b"a", b"b"] {
        put_record(&*engine, tree, key, b"1");
    }
    let view = begin_as(&setup, "work", isolation);
    let records = view.records();
    match read {
        b"" => {
            let all = records.scan(tree, KeyRange::all(), Direction::Forward, None);
            let mut all = all.expect("the tree is there");
            while all.next().expect("it is read").is_some() {}
        }
        key => drop(records.get(tree, key, None).expect("the tree is there")),
    }
    put_record(&**records, tree, b"own", b"1");
    put_record(&*engine, tree, b"b", b"2");
    let committed = setup.fs.transactions().commit(&view).map(drop);
    setup.check();
    committed
}

/// Its path is found, although the file is not known any more, and its row is as it was.
#[test]
fn contents_of_a_file_that_is_forgotten() {
    let reads: Act = |fs| {
        contents(fs, "d/big");
        fs.forget(ino(fs, "d/big"), u64::MAX);
    };
    let writes: Act = |fs| write(fs, ino(fs, "d/big"), b"other");
    refused("contents", reads, writes, &[("d/big", INODE)]);
}

#[test]
fn records_that_were_read() {
    use TransactionIsolation::{Serializable, Snapshot};
    for read in [&b"b"[..], b""] {
        assert!(commit_records(Snapshot, read).is_ok(), "{read:?}");
        let Err(FsError::Conflict(found)) = commit_records(Serializable, read) else {
            panic!("{read:?} is changed");
        };
        let record = found[0].record.as_ref().expect("it is about a record");
        let kind = ConflictKind::Read(ReadKind::Record);
        assert_eq!((found.len(), found[0].kind), (1, kind));
        assert_eq!((&*record.tree, &*record.key), ("stock", &b"b"[..]));
    }
    assert!(
        commit_records(Serializable, b"a").is_ok(),
        "it is as before"
    );
    assert!(
        commit_records(Serializable, b"missing").is_ok(),
        "so is this"
    );
}

impl Setup {
    /// Rows with reads of transactions.
    fn rows_of_reads(&self) -> usize {
        let rows = self.engine.dump().remove("fs/sys").expect("it is there");
        rows.iter()
            .filter(|(key, _)| key.first() == Some(&b's'))
            .count()
    }
}
