//! A directory is rolled back, and compared with what it was.

mod clones;
mod in_clone;
mod interrupted;
mod recent;
mod shared;

use crate::{
    Caller, DirName, FileKind, FileSystem, FsError, FsOptions, LaterClones, NewNode, RenameMode,
    RollbackRights, SetAttr, Taken, WriteOptions, XattrMode, fsck,
};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_kv::{CommitFault, Engine, ModelEngine};

const ROOT: Ino = Ino::ROOT;
const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const LARGE: usize = 12 << 20;
/// The rights to change files of any owner, and to destroy no clone.
const ANY: RollbackRights = RollbackRights {
    owner: None,
    later_clones: LaterClones::Keep,
};

/// The rights to change files of one owner, and to destroy the owner's clones.
const fn owned_by(owner: u32) -> RollbackRights {
    RollbackRights {
        owner: Some(owner),
        later_clones: LaterClones::Destroy,
    }
}

struct Tester {
    fs: Arc<FileSystem>,
    model: Arc<ModelEngine>,
}

/// All that a program sees of a file.
type Seen = (crate::Attr, Vec<u8>, Vec<Vec<u8>>);

fn tester() -> Tester {
    open(&crate::testing::formatted(&FsOptions::default()))
}

fn open(model: &Arc<ModelEngine>) -> Tester {
    open_with(model, FsOptions::default())
}

fn open_with(model: &Arc<ModelEngine>, options: FsOptions) -> Tester {
    let engine: Arc<dyn Engine> = Arc::clone(model) as _;
    let fs = FileSystem::open(engine, options).expect("it opens");
    let (fs, model) = (Arc::new(fs), Arc::clone(model));
    Tester { fs, model }
}

/// Names in a directory but for `.` and `..`, as they are listed.
fn names_in(fs: &FileSystem, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let read = fs.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        Taken::More
    });
    read.expect("it is known");
    names.retain(|name| !matches!(&name[..], b"." | b".."));
    names
}

impl Tester {
    /// A new directory, which is not known.
    fn dir(&self, parent: Ino, name: &str) -> Ino {
        let at = DirName::new(parent, name.as_bytes());
        let ino = self.fs.make_dir(&SUPER, at, &NEW).expect("it is made").ino;
        self.fs.forget(ino, 1);
        self.fs.lookup(at).expect("it is there").ino
    }

    /// A new file with contents, which is not known.
    fn file(&self, parent: Ino, name: &str, bytes: &[u8]) -> Ino {
        let at = DirName::new(parent, name.as_bytes());
        let ino = self.fs.create(&SUPER, at, &NEW).expect("it is made").ino;
        self.write(ino, bytes);
        self.fs.forget(ino, 1);
        ino
    }

    fn write(&self, ino: Ino, bytes: &[u8]) {
        let written = self.fs.write(ino, 0, bytes, WriteOptions::default());
        written.expect("it is written");
    }

    fn overwrite(&self, parent: Ino, name: &str, bytes: &[u8]) {
        let at = DirName::new(parent, name.as_bytes());
        let ino = self.fs.lookup(at).expect("it is there").ino;
        self.write(ino, bytes);
        self.fs.forget(ino, 1);
    }

    /// Copies a file, which shares its contents from then on.
    fn copy(&self, parent: Ino, name: &str, to: &str) {
        if self.find(parent, to).is_none() {
            self.file(parent, to, b"");
        }
        let find = |name: &str| {
            let found = self.fs.lookup(DirName::new(parent, name.as_bytes()));
            found.expect("it is there").ino
        };
        let (from, to) = (find(name), find(to));
        let copied = self.fs.copy_range((from, 0), (to, 0), 1 << 40);
        assert_eq!(copied.expect("it is copied"), LARGE as u64);
        self.fs.forget(from, 1);
        self.fs.forget(to, 1);
    }

    fn link(&self, (from, source): (Ino, &str), (to, target): (Ino, &str)) {
        let source = DirName::new(from, source.as_bytes());
        let ino = self.fs.lookup(source).expect("it is there").ino;
        let target = DirName::new(to, target.as_bytes());
        self.fs.link(&SUPER, ino, target).expect("it is linked");
        self.fs.forget(ino, 2);
    }

    fn remove(&self, parent: Ino, name: &str) {
        let at = DirName::new(parent, name.as_bytes());
        self.fs.unlink(&SUPER, at).expect("it is there");
    }

    fn rename(&self, (from, source): (Ino, &str), (to, target): (Ino, &str)) {
        let source = DirName::new(from, source.as_bytes());
        let target = DirName::new(to, target.as_bytes());
        let renamed = self.fs.rename(&SUPER, source, target, RenameMode::Replace);
        renamed.expect("it is there");
    }

    fn find(&self, parent: Ino, name: &str) -> Option<Ino> {
        let at = DirName::new(parent, name.as_bytes());
        self.fs.peek(at).expect("it can be read")
    }

    fn contents(&self, ino: Ino) -> Vec<u8> {
        let mut out = Vec::new();
        let read = self.fs.read(ino, 0, 2 * LARGE, &mut out);
        read.expect("it is known");
        out
    }

    /// Everything below a directory by its path.
    fn listing(&self, top: Ino) -> BTreeMap<String, Seen> {
        let mut out = BTreeMap::new();
        let mut waiting = vec![(top, String::new())];
        while let Some((dir, path)) = waiting.pop() {
            for name in names_in(&self.fs, dir) {
                let at = DirName::new(dir, &name);
                let mut attr = self.fs.lookup(at).expect("it is listed");
                // Reading changes it.
                attr.atime = stitch_base::clock::Timestamp(0);
                let shown = String::from_utf8_lossy(&name).into_owned();
                let path = format!("{path}/{shown}");
                let bytes = match attr.kind {
                    FileKind::Regular => self.contents(attr.ino),
                    FileKind::Symlink => self.fs.read_link(attr.ino).expect("a link").to_vec(),
                    _ => Vec::new(),
                };
                let xattrs = self.fs.list_xattr(&SUPER, attr.ino).expect("it is known");
                let xattrs = xattrs.split(|byte| *byte == 0).map(<[u8]>::to_vec);
                out.insert(path.clone(), (attr, bytes, xattrs.collect()));
                if attr.kind == FileKind::Directory {
                    waiting.push((attr.ino, path));
                }
            }
        }
        out
    }

    /// Everything is as a check wants it once the space of what went is given back.
    fn check(self) {
        while self.fs.detached_dirs() > 0 {
            self.fs.empty_detached(100).expect("it goes");
        }
        self.fs.close().expect("it closes");
        let engine: Arc<dyn Engine> = self.model;
        let issues = fsck::check(&engine, &mut |_| ()).expect("it can be read");
        assert!(issues.is_empty(), "{issues:?}");
    }
}

/// Files, links, attributes and directories below `d`.
fn grow(tester: &Tester) -> Ino {
    let dir = tester.dir(ROOT, "d");
    tester.file(dir, "small", b"before");
    tester.file(dir, "gone", b"was here");
    tester.file(dir, "large", &[1; 100_000]);
    let linked = tester.file(dir, "linked", b"two names");
    let inner = tester.dir(dir, "inner");
    tester.file(inner, "moved", b"by name");
    tester.dir(inner, "empty");
    let again = DirName::new(inner, b"again");
    let at = DirName::new(dir, b"linked");
    tester.fs.lookup(at).expect("it is there");
    tester.fs.link(&SUPER, linked, again).expect("it is linked");
    let name = b"user.a";
    let mode = XattrMode::Set;
    let set = tester.fs.set_xattr(&SUPER, linked, name, b"1", mode, false);
    set.expect("it is set");
    let symlink = DirName::new(dir, b"symlink");
    let made = tester.fs.make_symlink(&SUPER, symlink, b"small");
    made.expect("it is made");
    dir
}

/// Changes, replaces, renames, removes and adds.
fn change_all(tester: &Tester, dir: Ino) {
    let inner = tester.find(dir, "inner").expect("it is there");
    tester.overwrite(dir, "small", b"AFTER, and longer");
    tester.overwrite(dir, "large", &[2; 50_000]);
    tester.remove(dir, "gone");
    tester.file(dir, "gone", b"another file");
    tester.rename((inner, "moved"), (dir, "new name"));
    tester.remove(dir, "linked");
    let linked = tester.find(inner, "again").expect("it is there");
    let removed = tester.fs.remove_xattr(&SUPER, linked, b"user.a");
    removed.expect("it was set");
    tester.remove(dir, "symlink");
    let new = tester.dir(dir, "new dir");
    tester.file(new, "inside", &[3; 10_000]);
    tester.rename((inner, "empty"), (new, "empty"));
    tester.rename((dir, "inner"), (new, "inner"));
    let mode = SetAttr {
        perm: Some(0o700),
        ..SetAttr::default()
    };
    tester.fs.set_attr(&SUPER, dir, &mode).expect("it is known");
}

#[test]
fn everything_below_is_as_it_was() {
    let tester = tester();
    let dir = grow(&tester);
    let (before, top) = (tester.listing(dir), tester.fs.get_attr(dir).unwrap());
    tester.fs.snapshots().create(dir, "mon").unwrap();
    change_all(&tester, dir);
    assert_ne!(tester.listing(dir), before);
    let done = tester.fs.roll_back("mon", dir, ANY).unwrap();
    assert_eq!(tester.listing(dir), before);
    assert_eq!(tester.fs.get_attr(dir).unwrap().ctime, top.ctime);
    assert_eq!(tester.fs.get_attr(dir).unwrap().perm, top.perm);
    assert!(done.names.contains(&(dir, Box::from(&b"gone"[..]))));
    assert!(done.names.contains(&(dir, Box::from(&b"new dir"[..]))));
    assert!(done.inodes.contains(&dir));
    // Another life, which has nothing in memory, reads the same.
    tester.fs.sync().unwrap();
    let again = open(&tester.model);
    let found = again.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
    assert_eq!(again.listing(found), before);
    drop(again);
    tester.check();
}

#[test]
fn nothing_changes_where_nothing_changed() {
    let tester = tester();
    let dir = grow(&tester);
    let before = tester.listing(dir);
    tester.fs.snapshots().create(dir, "mon").unwrap();
    let done = tester.fs.roll_back("mon", dir, owned_by(0)).unwrap();
    assert!(done.names.is_empty() && done.inodes.is_empty(), "{done:?}");
    assert_eq!(tester.listing(dir), before);
    tester.check();
}

#[test]
fn open_files_and_directories_come_back_under_their_numbers() {
    let tester = tester();
    let dir = grow(&tester);
    let look_up = |parent, name: &[u8]| tester.fs.lookup(DirName::new(parent, name)).unwrap();
    let (gone, large) = (look_up(dir, b"gone").ino, look_up(dir, b"large").ino);
    let inner = look_up(dir, b"inner").ino;
    let empty = look_up(inner, b"empty").ino;
    tester.fs.snapshots().create(dir, "mon").unwrap();
    tester.remove(dir, "gone");
    tester.remove(dir, "large");
    tester.write(gone, b"WAS");
    let rmdir = tester.fs.remove_dir(&SUPER, DirName::new(inner, b"empty"));
    rmdir.unwrap();
    let later = tester.file(dir, "later", b"");
    let late = look_up(dir, b"later").ino;
    assert_eq!(late, later);
    tester.write(late, b"kept while it is open");
    tester.fs.roll_back("mon", dir, ANY).unwrap();
    assert_eq!(tester.contents(gone), b"was here");
    assert_eq!(tester.contents(large), vec![1; 100_000]);
    assert_eq!(tester.find(dir, "gone"), Some(gone));
    assert_eq!(tester.find(inner, "empty"), Some(empty));
    assert_eq!(tester.fs.get_attr(gone).unwrap().nlink, 1);
    assert!(
        tester
            .fs
            .make_dir(&SUPER, DirName::new(empty, b"x"), &NEW)
            .is_ok()
    );
    assert_eq!(tester.find(dir, "later"), None);
    assert_eq!(tester.contents(late), b"kept while it is open");
    assert_eq!(tester.fs.get_attr(late).unwrap().nlink, 0);
    // What was forgotten before the rollback is not reclaimed after it.
    tester.fs.forget(gone, 1);
    tester.fs.forget(large, 1);
    tester.fs.forget(late, 1);
    tester.fs.reclaim().unwrap();
    assert_eq!(look_up(dir, b"large").ino, large);
    assert_eq!(tester.contents(large), vec![1; 100_000]);
    tester.check();
}

#[test]
fn what_lies_outside_stays() {
    let tester = tester();
    let dir = grow(&tester);
    let before = tester.listing(dir);
    tester.fs.snapshots().create(dir, "mon").unwrap();
    let other = tester.dir(ROOT, "other");
    tester.rename((dir, "small"), (other, "small"));
    tester.overwrite(other, "small", b"my own");
    tester.rename((dir, "inner"), (other, "inner"));
    let small = tester.find(other, "small");
    tester.fs.roll_back("mon", dir, ANY).unwrap();
    assert_eq!(tester.find(other, "small"), small);
    let kept = tester.fs.lookup(DirName::new(other, b"small")).unwrap().ino;
    assert_eq!(tester.contents(kept), b"my own");
    assert!(tester.find(other, "inner").is_some());
    let after = tester.listing(dir);
    assert_eq!(
        after.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    for (path, (attr, bytes, _)) in &after {
        assert_eq!(*bytes, before[path].1, "{path}");
        assert_eq!(attr.mtime, before[path].0.mtime, "{path}");
    }
    assert_ne!(after["/small"].0.ino, before["/small"].0.ino, "a copy");
    assert_eq!(after["/large"].0.ino, before["/large"].0.ino);
    tester.check();
}

#[test]
fn names_outside_lead_to_what_is_restored() {
    let tester = tester();
    let dir = grow(&tester);
    tester.fs.snapshots().create(dir, "mon").unwrap();
    let small = tester.fs.lookup(DirName::new(dir, b"small")).unwrap().ino;
    let out = DirName::new(ROOT, b"out");
    tester.fs.link(&SUPER, small, out).unwrap();
    tester.overwrite(dir, "small", b"AFTER");
    tester.fs.roll_back("mon", dir, ANY).unwrap();
    assert_eq!(tester.find(ROOT, "out"), Some(small));
    assert_eq!(tester.contents(small), b"before");
    assert_eq!(tester.fs.get_attr(small).unwrap().nlink, 2);
    tester.check();
}

/// A directory with changes that need several batches, and its listing before them.
fn with_much_to_restore(tester: &Tester) -> (Ino, BTreeMap<String, Seen>) {
    let dir = grow(tester);
    tester.file(dir, "huge", &vec![7; LARGE]);
    let before = tester.listing(dir);
    tester.fs.snapshots().create(dir, "mon").unwrap();
    change_all(tester, dir);
    tester.overwrite(dir, "huge", &vec![8; LARGE]);
    tester.copy(dir, "huge", "shared");
    (dir, before)
}

#[test]
fn a_rollback_of_several_batches_is_finished_however_often_it_is_interrupted() {
    let mut tester = tester();
    let (dir, before) = with_much_to_restore(&tester);
    tester.model.fail_commits(CommitFault::Done, 1);
    assert!(tester.fs.roll_back("mon", dir, ANY).is_err());
    let mut interruptions = 1;
    loop {
        let shared: Arc<dyn Engine> = Arc::clone(&tester.model) as _;
        let reads = FsOptions {
            read_only: true,
            ..FsOptions::default()
        };
        tester.model.mend_commits();
        let read_only = FileSystem::open(Arc::clone(&shared), reads);
        let is_whole = read_only.is_ok();
        drop(read_only);
        tester.model.fail_commits(CommitFault::Done, 1);
        let opened = FileSystem::open(shared, FsOptions::default());
        tester.model.mend_commits();
        if let Ok(fs) = opened {
            assert!(is_whole, "a part of a rollback is not shown");
            tester.fs = Arc::new(fs);
            break;
        }
        interruptions += 1;
        assert!(interruptions < 20, "it comes to an end");
    }
    assert!(
        interruptions > 2,
        "{interruptions}: it takes several batches"
    );
    let found = tester.fs.lookup(DirName::new(ROOT, b"d")).unwrap().ino;
    assert_eq!(tester.listing(found), before);
    tester.check();
}

#[test]
fn nothing_is_done_where_the_first_batch_fails() {
    let tester = tester();
    let (dir, _) = with_much_to_restore(&tester);
    let changed = tester.listing(dir);
    tester.model.fail_commits(CommitFault::Full, u32::MAX);
    let refused = tester.fs.roll_back("mon", dir, ANY);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    tester.model.mend_commits();
    assert_eq!(tester.listing(dir), changed);
    tester.fs.roll_back("mon", dir, ANY).unwrap();
    tester.check();
}

#[test]
fn what_cannot_be_rolled_back_is_refused() {
    let tester = tester();
    let dir = grow(&tester);
    tester.fs.snapshots().create(dir, "mon").unwrap();
    tester.overwrite(dir, "small", b"AFTER!");
    let roll_back = |name, dir, rights| tester.fs.roll_back(name, dir, rights).unwrap_err();
    assert!(matches!(roll_back("tue", dir, ANY), FsError::NotFound));
    assert!(matches!(roll_back("mon", ROOT, ANY), FsError::Invalid(_)));
    assert!(matches!(roll_back("mon", dir, owned_by(7)), FsError::Perm));
    let small = tester.find(dir, "small").unwrap();
    assert_eq!(
        tester.fs.lookup(DirName::new(dir, b"small")).unwrap().ino,
        small
    );
    assert_eq!(tester.contents(small), b"AFTER!", "nothing was done");
    tester.check();
}

/// A crash comes before the removed directories are emptied.
#[test]
fn a_directory_that_goes_counts_no_directory_that_was_taken_out_of_it() {
    let tester = tester();
    tester.dir(ROOT, "one");
    tester.dir(ROOT, "two");
    let made = tester.fs.snapshots().create(ROOT, "mon");
    made.expect("it is made");
    let outer = tester.dir(ROOT, "outer");
    let inner = tester.dir(outer, "inner");
    tester.dir(inner, "goes");
    tester.rename((ROOT, "one"), (inner, "one"));
    tester.rename((ROOT, "two"), (inner, "two"));
    let done = tester.fs.roll_back("mon", ROOT, ANY);
    done.expect("it is rolled back");
    assert!(tester.fs.detached_dirs() > 0, "`outer` is not emptied yet");
    let engine = Arc::clone(&tester.model) as Arc<dyn Engine>;
    let issues = fsck::check(&engine, &mut |_| ()).expect("it can be read");
    assert!(issues.is_empty(), "{issues:?}");
    tester.check();
}
