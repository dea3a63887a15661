//! Each request is served by one daemon, which dies before it replies, and is sent again to the
//! next.

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{DirName, FileSystem, FsOptions, Ledger, register_upserts};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

use super::super::{Adapter, AdapterOptions, convert};
use crate::errno::Errno;
use crate::handler::{Answer, Caller, Context, Handler};
use crate::survive::RESENT;
use crate::survive::ledger::SharedLedger;
use crate::wire::args::{Fh, Groups, MkDir, MkNod, Rename, SetXattr, Write};
use crate::wire::flags::WriteFlags;
use crate::wire::reply::Lookup;

const ROOT: Ino = Ino::ROOT;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

struct Life {
    engine: Arc<dyn Engine>,
    ledger: Arc<dyn Ledger>,
    adapter: Adapter,
}

impl Life {
    fn first() -> Self {
        let mut registry = UpsertRegistry::default();
        register_upserts(&mut registry);
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(registry));
        FileSystem::format(&engine, &FsOptions::default(), (0, 0)).unwrap();
        Self::new(engine, Arc::new(SharedLedger::create().unwrap()))
    }

    fn new(engine: Arc<dyn Engine>, ledger: Arc<dyn Ledger>) -> Self {
        let options = FsOptions {
            ledger: Some(Arc::clone(&ledger)),
            ..FsOptions::default()
        };
        let fs = FileSystem::open(Arc::clone(&engine), options).unwrap();
        let adapter = Adapter::new(Arc::new(fs), AdapterOptions::default());
        Self {
            engine,
            ledger,
            adapter,
        }
    }

    fn next(self) -> Self {
        drop(self.adapter);
        Self::new(self.engine, self.ledger)
    }

    fn file(&self, name: &[u8]) -> Ino {
        mknod(&self.adapter, &context(1), name).unwrap()
    }

    fn ino(&self, name: &[u8]) -> Option<Ino> {
        self.adapter.fs().peek(DirName::new(ROOT, name)).unwrap()
    }
}

fn context(unique: u64) -> Context<'static> {
    let caller = Caller {
        uid: 0,
        gid: 0,
        pid: 1,
    };
    Context {
        caller,
        unique,
        groups: Groups::default(),
    }
}

fn mknod(h: &Adapter, c: &Context<'_>, name: &[u8]) -> Answer<Ino> {
    let args = MkNod {
        name,
        mode: libc::S_IFREG | 0o644,
        umask: 0,
        rdev: 0,
    };
    h.mknod(c, ROOT, &args).map(|entry| entry.ino)
}

fn rename(h: &Adapter, c: &Context<'_>, from: &[u8], to: &[u8], flags: u32) -> Answer<()> {
    let args = Rename {
        source_name: from,
        target_parent: ROOT,
        target_name: to,
        flags,
    };
    h.rename(c, ROOT, &args)
}

fn setxattr(h: &Adapter, c: &Context<'_>, ino: Ino, value: &[u8]) -> Answer<()> {
    let args = SetXattr {
        name: b"user.a",
        value,
        flags: convert::XATTR_CREATE,
        kill_sgid: false,
    };
    h.setxattr(c, ino, &args)
}

fn append(h: &Adapter, c: &Context<'_>, ino: Ino, offset: u64, data: &[u8]) -> Answer<u32> {
    let args = Write {
        fh: Fh(0),
        offset,
        data,
        flags: convert::O_APPEND,
        write_flags: WriteFlags(0),
        lock_owner: None,
    };
    h.write(c, ino, &args)
}

type Act = fn(&Adapter, &Context<'_>) -> Answer<()>;

fn file_of(h: &Adapter) -> Ino {
    h.fs().peek(DirName::new(ROOT, b"file")).unwrap().unwrap()
}

/// Operations that may not be done twice. Each works on the files `file` and `other`, and the
/// directory `dir`.
const ACTS: [(&str, Act); 14] = [
    ("mknod", |h, c| mknod(h, c, b"new").map(drop)),
    ("mkdir", |h, c| {
        let (mode, umask) = (0o755, 0);
        h.mkdir(
            c,
            ROOT,
            &MkDir {
                name: b"new",
                mode,
                umask,
            },
        )
        .map(drop)
    }),
    ("symlink", |h, c| {
        h.symlink(c, ROOT, b"new", b"target").map(drop)
    }),
    ("link", |h, c| h.link(c, file_of(h), ROOT, b"new").map(drop)),
    ("unlink", |h, c| h.unlink(c, ROOT, b"other")),
    ("rmdir", |h, c| h.rmdir(c, ROOT, b"dir")),
    ("rename", |h, c| rename(h, c, b"other", b"new", 0)),
    ("rename over", |h, c| rename(h, c, b"other", b"file2", 0)),
    ("rename dir", |h, c| rename(h, c, b"dir", b"new", 0)),
    ("noreplace", |h, c| rename(h, c, b"other", b"new", 1)),
    ("exchange", |h, c| rename(h, c, b"other", b"dir", EXCHANGE)),
    ("whiteout", |h, c| rename(h, c, b"other", b"new", WHITEOUT)),
    ("setxattr", |h, c| setxattr(h, c, file_of(h), b"value")),
    ("append", |h, c| {
        append(h, c, file_of(h), 5, b"more").map(drop)
    }),
];

fn prepared() -> Life {
    let life = Life::first();
    for name in [&b"file"[..], b"other", b"file2"] {
        life.file(name);
    }
    append(
        &life.adapter,
        &context(1),
        file_of(&life.adapter),
        0,
        b"start",
    )
    .unwrap();
    let (name, mode, umask) = (&b"dir"[..], 0o755, 0);
    life.adapter
        .mkdir(&context(1), ROOT, &MkDir { name, mode, umask })
        .unwrap();
    life
}

/// All names with their inodes, and the size of the file that is appended to.
fn picture(life: &Life) -> (Vec<(Vec<u8>, Ino)>, u64) {
    let fs = life.adapter.fs();
    let mut names = Vec::new();
    let mut take = |entry: &stitch_fs::DirEntry<'_>| {
        names.push((entry.name.to_vec(), entry.ino));
        stitch_fs::Taken::More
    };
    fs.read_dir(ROOT, 0, &mut take).unwrap();
    let size = fs.get_attr(file_of(&life.adapter)).unwrap().size;
    (names, size)
}

#[test]
fn what_was_done_is_answered_and_not_done_again() {
    for (name, act) in ACTS {
        let life = prepared();
        let before = picture(&life);
        assert_eq!(act(&life.adapter, &context(8)), Ok(()), "{name}");
        let after = picture(&life);
        assert!(
            after != before || name == "setxattr",
            "{name} does something"
        );
        let life = life.next();
        assert_eq!(act(&life.adapter, &context(8 | RESENT)), Ok(()), "{name}");
        assert_eq!(picture(&life), after, "{name}");
    }
}

#[test]
fn what_was_not_done_is_done() {
    for (name, act) in ACTS {
        let life = prepared();
        let before = picture(&life);
        let life = life.next();
        assert_eq!(act(&life.adapter, &context(8 | RESENT)), Ok(()), "{name}");
        assert!(picture(&life) != before || name == "setxattr", "{name}");
    }
}

#[test]
fn refusals_that_are_not_our_own_doing_stay() {
    let life = prepared();
    let (h, again) = (&life.adapter, context(9 | RESENT));
    let file = file_of(h);
    assert_eq!(mknod(h, &context(10), b"file"), Err(Errno::EEXIST));
    assert_eq!(h.unlink(&context(10), ROOT, b"no"), Err(Errno::ENOENT));
    assert_eq!(
        mknod(h, &again, b"dir"),
        Err(Errno::EEXIST),
        "of another kind"
    );
    let linked = h.link(&again, file, ROOT, b"other").map(drop);
    assert_eq!(linked, Err(Errno::EEXIST), "another inode");
    assert_eq!(rename(h, &again, b"no", b"nor this", 0), Err(Errno::ENOENT));
    setxattr(h, &context(10), file, b"old").unwrap();
    assert_eq!(setxattr(h, &again, file, b"new"), Err(Errno::EEXIST));
}

#[test]
fn an_exchange_after_the_same_exchange_is_another_one() {
    let life = prepared();
    let (file, other) = (life.ino(b"file"), life.ino(b"other"));
    rename(&life.adapter, &context(10), b"file", b"other", EXCHANGE).unwrap();
    let life = life.next();
    // The first daemon read this request and did not start it.
    let again = context(12 | RESENT);
    rename(&life.adapter, &again, b"file", b"other", EXCHANGE).unwrap();
    assert_eq!((life.ino(b"file"), life.ino(b"other")), (file, other));
}

#[test]
fn a_name_that_was_made_is_known_by_one_lookup_more() {
    let life = prepared();
    mknod(&life.adapter, &context(8), b"new").unwrap();
    let life = life.next();
    let ino = mknod(&life.adapter, &context(8 | RESENT), b"new").unwrap();
    let Lookup::Found(found) = life.adapter.lookup(&context(9), ROOT, b"new").unwrap() else {
        panic!("it is there");
    };
    assert_eq!(found.ino, ino);
    // The kernel knows of two lookups, and not of the first daemon's third.
    life.adapter.forget(ino, 2);
    assert!(life.adapter.fs().get_attr(ino).is_ok());
}

#[test]
fn an_attribute_that_was_there_or_missing_before_is_refused_again() {
    let life = prepared();
    let file = life.ino(b"file").unwrap();
    setxattr(&life.adapter, &context(10), file, b"value").unwrap();
    let make = |life: &Life, unique| setxattr(&life.adapter, &context(unique), file, b"value");
    let remove = |life: &Life, unique| life.adapter.removexattr(&context(unique), file, b"user.b");
    assert_eq!(make(&life, 12), Err(Errno::EEXIST));
    assert_eq!(remove(&life, 14), Err(Errno::ENODATA));
    let life = life.next();
    assert_eq!(make(&life, 12 | RESENT), Err(Errno::EEXIST));
    assert_eq!(remove(&life, 14 | RESENT), Err(Errno::ENODATA));
    // The first daemon read it and did not start it.
    assert_eq!(make(&life, 16 | RESENT), Err(Errno::EEXIST));
    assert_eq!(remove(&life, 18 | RESENT), Err(Errno::ENODATA));
}
