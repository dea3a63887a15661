//! Requests in several views, without a kernel.

mod clones;
mod differences;
mod handles;
mod history;
mod many;
mod parts;
mod places;
mod policies;
mod transactions;

use super::{CONTROL_DIR, ControlDir, SNAPSHOTS_DIR, Views};
use crate::adapter::{Adapter, AdapterOptions};
use crate::errno::Errno;
use crate::handler::{Answer, Caller, Context, Handler as _};
use crate::wire::args::{Fh, ForgetList, Groups, Ioctl, MkDir, Open, Read, Rename, Write};
use crate::wire::codec::Sink;
use crate::wire::flags::WriteFlags;
use crate::wire::reply::{DirSink, Entry, Lookup};
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{DirName, FileSystem, FsOptions, NewNode, SetAttr, WriteOptions, register_upserts};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

/// A kernel that records notices.
#[derive(Debug, Default)]
struct Kernel {
    taken: Mutex<Vec<Vec<u8>>>,
}

impl crate::transport::ReplySender for Kernel {
    fn send(&self, message: &[u8]) -> std::io::Result<()> {
        self.taken.lock().push(message.to_vec());
        Ok(())
    }
}

const ROOT: Ino = Ino::ROOT;
const SUPER: stitch_fs::Caller<'static> = stitch_fs::Caller::ROOT;
const OTHER: u32 = 70_000;

struct Setup {
    fs: Arc<FileSystem>,
    views: Views,
}

fn context(uid: u32) -> Context<'static> {
    Context {
        caller: Caller {
            uid,
            gid: uid,
            pid: 0,
        },
        unique: 2,
        groups: Groups::default(),
    }
}

fn setup() -> Setup {
    setup_with(FsOptions::default())
}

fn model() -> ModelEngine {
    let mut registry = UpsertRegistry::default();
    register_upserts(&mut registry);
    ModelEngine::new(registry)
}

fn setup_with(options: FsOptions) -> Setup {
    setup_on(Arc::new(model()), options)
}

fn setup_on(engine: Arc<dyn Engine>, options: FsOptions) -> Setup {
    FileSystem::format(&engine, &options, (0, 0)).unwrap();
    let fs = Arc::new(FileSystem::open(engine, options).unwrap());
    let mainline = Adapter::new(Arc::clone(&fs), AdapterOptions::default());
    let describe =
        |info: &stitch_fs::SnapshotInfo| [&info.path, info.tags.join(",").as_bytes()].concat();
    let views = Views::new(mainline, Arc::new(describe));
    Setup { fs, views }
}

fn new_dir(name: &[u8]) -> MkDir<'_> {
    MkDir {
        name,
        mode: 0o755,
        umask: 0,
    }
}

impl Setup {
    fn mkdir(&self, uid: u32, parent: Ino, name: &[u8]) -> Answer<Entry> {
        let args = new_dir(name);
        self.views.mkdir(&context(uid), parent, &args)
    }

    /// Runs the rollback that was begun, as the thread does.
    fn run_rollback(&self, notifier: &crate::notify::Notifier) {
        let runner = self.views.rollback_runner(notifier);
        self.views.rollbacks.run_now(&runner);
    }

    fn snapshots(&self) -> Ino {
        ControlDir::Snapshots.number()
    }

    fn dir(&self, name: &[u8]) -> Ino {
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        let made = self.fs.make_dir(&SUPER, DirName::new(ROOT, name), &new);
        made.unwrap().ino
    }

    /// A file with contents in a directory.
    fn file(&self, dir: Ino, name: &[u8], contents: &[u8]) -> Ino {
        let new = NewNode {
            perm: 0o644,
            umask: 0,
        };
        let made = self.fs.create(&SUPER, DirName::new(dir, name), &new);
        let ino = made.unwrap().ino;
        self.fs
            .write(ino, 0, contents, WriteOptions::default())
            .unwrap();
        ino
    }

    fn ask(&self, uid: u32, ino: Ino, verb: &str, name: &str) -> Answer<()> {
        let input = format!("{verb}\0{name}\0");
        let args = Ioctl {
            fh: Fh(0),
            flags: 0,
            command: crate::snapshots::CHANGE,
            arg: 0,
            input: input.as_bytes(),
            output_size: 0,
        };
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, 0);
        let answer = self.views.ioctl(&context(uid), ino, &args, &mut sink);
        answer.map(drop)
    }

    fn create(&self, uid: u32, dir: Ino, name: &str) -> Answer<()> {
        self.ask(uid, dir, "create", name)
    }

    fn delete(&self, uid: u32, name: &str) -> Answer<()> {
        self.ask(uid, ControlDir::Snapshots.number(), "delete", name)
    }

    fn hold(&self, uid: u32, verb: &str, name: &str) -> Answer<()> {
        self.ask(uid, ROOT, verb, &format!("{name}\0audit"))
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Option<Entry>> {
        match self.views.lookup(&context(0), parent, name)? {
            Lookup::Found(entry) => Ok(Some(entry)),
            Lookup::Missing { .. } => Ok(None),
        }
    }

    /// The directory of a snapshot, by its path.
    fn enter(&self, name: &[u8]) -> Answer<Entry> {
        let top = self.lookup(ROOT, CONTROL_DIR.as_bytes())?.unwrap();
        let list = self.lookup(top.ino, SNAPSHOTS_DIR.as_bytes())?.unwrap();
        self.lookup(list.ino, name).map(Option::unwrap)
    }

    fn read(&self, ino: Ino) -> Answer<Vec<u8>> {
        let mut out = Vec::new();
        let args = read_at(0);
        let mut sink = Sink::new(&mut out, 4096);
        self.views.read(&context(0), ino, &args, &mut sink)?;
        Ok(out)
    }

    fn list(&self, ino: Ino) -> Answer<Vec<u8>> {
        let mut out = Vec::new();
        let mut sink = DirSink::new(Sink::new(&mut out, 4096));
        self.views
            .readdir(&context(0), ino, &read_at(0), &mut sink)?;
        Ok(out)
    }

    fn open_snapshots(&self) -> usize {
        self.views.table.all().len()
    }
}

fn read_at(offset: u64) -> Read {
    Read {
        fh: Fh(0),
        offset,
        size: 4096,
        flags: 0,
        lock_owner: None,
    }
}

/// Reports whether a listing has a name. Numbers and offsets of its entries can have any bytes.
fn holds(listed: &[u8], name: &str) -> bool {
    const HEAD: usize = 24;
    let mut rest = listed;
    while let Some((head, names)) = rest.split_at_checked(HEAD) {
        let len: [u8; 4] = head[16..20].try_into().unwrap();
        let len = u32::from_le_bytes(len) as usize;
        if &names[..len] == name.as_bytes() {
            return true;
        }
        rest = names.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    assert!(rest.is_empty(), "entries are whole");
    false
}

#[test]
fn a_snapshot_is_read_by_its_path_and_keeps_what_it_has() {
    let setup = setup();
    let dir = setup.dir(b"d");
    let file = setup.file(dir, b"f", b"before");
    setup.create(0, dir, "mon").unwrap();
    setup
        .fs
        .write(file, 0, b"AFTER!", WriteOptions::default())
        .unwrap();
    setup.file(dir, b"new", b"");
    let root = setup.enter(b"mon").unwrap();
    let past = setup.lookup(root.ino, b"f").unwrap().unwrap();
    assert_ne!(past.ino, file, "no two files of a mount have one number");
    assert_eq!(past.attr.ino, past.ino);
    assert_eq!(setup.read(past.ino).unwrap(), b"before");
    assert_eq!(setup.read(file).unwrap(), b"AFTER!");
    assert_eq!(setup.lookup(root.ino, b"new").unwrap(), None);
    let listed = setup.list(root.ino).unwrap();
    assert!(holds(&listed, "f") && !holds(&listed, "new"));
}

#[test]
fn the_control_directory_is_found_and_not_listed() {
    let setup = setup();
    setup.create(0, ROOT, "mon").unwrap();
    assert!(!holds(&setup.list(ROOT).unwrap(), CONTROL_DIR));
    assert!(holds(
        &setup.list(ControlDir::Top.number()).unwrap(),
        SNAPSHOTS_DIR
    ));
    assert!(holds(
        &setup.list(ControlDir::Snapshots.number()).unwrap(),
        "mon"
    ));
    assert_eq!(setup.lookup(ControlDir::Top.number(), b"x"), Ok(None));
    let missing = setup.lookup(ControlDir::Snapshots.number(), b"tue");
    assert_eq!(missing, Err(Errno::ENOENT));
    let elsewhere = setup.dir(b"d");
    let below = setup.lookup(elsewhere, CONTROL_DIR.as_bytes()).unwrap();
    let below = below.map(|entry| entry.ino);
    assert_eq!(below, Some(ControlDir::TopOf(elsewhere).number()));
}

#[test]
fn its_name_is_taken_unless_the_root_directory_has_it() {
    let free = setup();
    let name = CONTROL_DIR.as_bytes();
    let args = new_dir(name);
    let made = free.views.mkdir(&context(0), ROOT, &args);
    assert_eq!(made.map(|entry| entry.ino), Err(Errno::EEXIST));
    assert_eq!(free.views.rmdir(&context(0), ROOT, name), Err(Errno::EBUSY));
    free.dir(b"d");
    let rename = Rename {
        target_parent: ROOT,
        flags: 0,
        source_name: b"d",
        target_name: name,
    };
    let renamed = free.views.rename(&context(0), ROOT, &rename);
    assert_eq!(renamed, Err(Errno::EBUSY));

    let taken = setup();
    let own = taken.dir(name);
    assert_eq!(taken.lookup(ROOT, name).unwrap().unwrap().ino, own);
    assert_eq!(taken.views.rmdir(&context(0), ROOT, name), Ok(()));
    let found = taken.lookup(ROOT, name).unwrap().unwrap();
    assert_eq!(found.ino, ControlDir::Top.number());
}

#[test]
fn changes_are_refused() {
    let setup = setup();
    let dir = setup.dir(b"d");
    setup.file(dir, b"f", b"before");
    setup.create(0, dir, "mon").unwrap();
    let root = setup.enter(b"mon").unwrap().ino;
    let file = setup.lookup(root, b"f").unwrap().unwrap().ino;
    let write = Write {
        fh: Fh(0),
        offset: 0,
        flags: 0,
        write_flags: WriteFlags::default(),
        lock_owner: None,
        data: b"x",
    };
    let (me, views) = (context(0), &setup.views);
    assert_eq!(views.write(&me, file, &write), Err(Errno::EROFS));
    assert_eq!(views.unlink(&me, root, b"f"), Err(Errno::EROFS));
    assert_eq!(views.removexattr(&me, file, b"user.a"), Err(Errno::EROFS));
    let args = new_dir(b"x");
    for parent in [
        root,
        ControlDir::Top.number(),
        ControlDir::Transactions.number(),
    ] {
        let made = views.mkdir(&me, parent, &args).map(|entry| entry.ino);
        assert_eq!(made, Err(Errno::EROFS));
    }
    let linked = views.link(&me, file, ROOT, b"x").map(|entry| entry.ino);
    assert_eq!(linked, Err(Errno::EXDEV));
    let rename = Rename {
        target_parent: ROOT,
        flags: 0,
        source_name: b"f",
        target_name: b"x",
    };
    assert_eq!(views.rename(&me, root, &rename), Err(Errno::EXDEV));
    let open = |flags: i32| Open {
        flags: flags.cast_unsigned(),
        kill_suidgid: false,
    };
    assert_eq!(
        views.open(&me, file, &open(libc::O_RDWR)).err(),
        Some(Errno::EROFS)
    );
    assert_eq!(
        views.open(&me, file, &open(libc::O_RDONLY)).err(),
        Some(Errno::ENOSYS)
    );
    assert_eq!(setup.create(0, root, "again"), Err(Errno::EROFS));
    let probed = views.probed_xattr_size(file, b"security.capability");
    assert_eq!(probed, Some(1), "so that write(2) fails at once");
    assert_eq!(views.probed_xattr_size(file, b"user.a"), None);
    assert_eq!(setup.read(file).unwrap(), b"before");
}

#[test]
fn a_deleted_one_is_stale_for_a_process_in_it() {
    let setup = setup();
    let dir = setup.dir(b"d");
    setup.file(dir, b"f", b"before");
    setup.create(0, dir, "mon").unwrap();
    let root = setup.enter(b"mon").unwrap().ino;
    let file = setup.lookup(root, b"f").unwrap().unwrap().ino;
    setup.delete(0, "mon").unwrap();
    assert_eq!(setup.open_snapshots(), 0, "its space is free");
    assert_eq!(setup.read(file), Err(Errno::ESTALE));
    assert_eq!(setup.list(root), Err(Errno::ESTALE));
    assert_eq!(setup.lookup(root, b"f"), Err(Errno::ESTALE));
    assert_eq!(
        setup.views.getattr(&context(0), root).err(),
        Some(Errno::ESTALE)
    );
    assert_eq!(setup.enter(b"mon"), Err(Errno::ENOENT));
    setup.views.forget(root, 1);
    assert_eq!(setup.delete(0, "mon"), Err(Errno::ENOENT));
    setup.create(0, dir, "mon").unwrap();
    let again = setup.enter(b"mon").unwrap().ino;
    assert_ne!(again, root, "it is another one");
    assert_eq!(setup.read(file), Err(Errno::ESTALE));
}

#[test]
fn one_is_open_as_long_as_the_kernel_knows_something_of_it() {
    let setup = setup();
    let dir = setup.dir(b"d");
    setup.file(dir, b"f", b"");
    setup.create(0, dir, "mon").unwrap();
    setup.create(0, dir, "tue").unwrap();
    assert_eq!(setup.open_snapshots(), 0);
    let root = setup.enter(b"mon").unwrap().ino;
    let file = setup.lookup(root, b"f").unwrap().unwrap().ino;
    setup.enter(b"tue").unwrap();
    assert_eq!(setup.open_snapshots(), 2);
    setup.views.forget(root, 1);
    assert_eq!(setup.open_snapshots(), 2, "a file of it is known");
    let pairs = [file.0.to_le_bytes(), 1u64.to_le_bytes()].concat();
    setup.views.batch_forget(ForgetList::from_bytes(&pairs));
    assert_eq!(setup.open_snapshots(), 1);
    assert_eq!(setup.enter(b"mon").unwrap().ino, root, "its numbers stay");
}

#[test]
fn root_and_the_owner_create_and_delete_them() {
    let setup = setup();
    let dir = setup.dir(b"d");
    let set = SetAttr {
        uid: Some(OTHER),
        ..SetAttr::default()
    };
    assert_eq!(setup.create(OTHER, dir, "mine"), Err(Errno::EPERM));
    setup.fs.set_attr(&SUPER, dir, &set).unwrap();
    setup.create(OTHER, dir, "mine").unwrap();
    setup.create(0, dir, "roots").unwrap();
    assert_eq!(setup.create(0, dir, "roots"), Err(Errno::EEXIST));
    assert_eq!(setup.create(OTHER, ROOT, "all"), Err(Errno::EPERM));
    setup.create(0, ROOT, "all").unwrap();
    assert_eq!(setup.delete(OTHER, "all"), Err(Errno::EPERM));
    assert_eq!(setup.delete(OTHER + 1, "mine"), Err(Errno::EPERM));
    setup.delete(OTHER, "roots").unwrap();
    setup.delete(OTHER, "mine").unwrap();
    assert_eq!(setup.ask(0, ROOT, "other", "x"), Err(Errno::EINVAL));
    let file = setup.file(ROOT, b"f", b"");
    assert_eq!(setup.create(0, file, "x"), Err(Errno::ENOTDIR));
}

#[test]
fn a_private_one_is_its_owners_alone() {
    let setup = setup();
    let above = setup.dir(b"above");
    let new = NewNode {
        perm: 0o755,
        umask: 0,
    };
    let dir = setup.fs.make_dir(&SUPER, DirName::new(above, b"d"), &new);
    let dir = dir.unwrap().ino;
    let closed = SetAttr {
        perm: Some(0o700),
        ..SetAttr::default()
    };
    setup.create(0, dir, "open").unwrap();
    setup.fs.set_attr(&SUPER, above, &closed).unwrap();
    setup.create(0, dir, "closed").unwrap();
    let mode = |name| setup.enter(name).unwrap().attr.mode & 0o777;
    assert_eq!((mode(b"open"), mode(b"closed")), (0o755, 0o700));
}

#[test]
fn a_held_one_stays_and_only_its_owner_holds_it() {
    let setup = setup();
    let dir = setup.dir(b"d");
    setup.create(0, dir, "mon").unwrap();
    let root = setup.enter(b"mon").unwrap().ino;
    assert_eq!(setup.hold(OTHER, "hold", "mon"), Err(Errno::EPERM));
    assert_eq!(setup.hold(0, "hold", "tue"), Err(Errno::ENOENT));
    setup.hold(0, "hold", "mon").unwrap();
    assert_eq!(setup.hold(0, "hold", "mon"), Err(Errno::EEXIST));
    assert_eq!(setup.delete(0, "mon"), Err(Errno::EBUSY));
    let mut told = Vec::new();
    let mut sink = Sink::new(&mut told, 4096);
    let name = super::SNAPSHOT_XATTR.as_bytes();
    let asked = setup.views.getxattr(&context(0), root, name, &mut sink);
    asked.unwrap();
    assert_eq!(told, b"daudit", "it was open before it was held");
    assert_eq!(setup.hold(OTHER, "release", "mon"), Err(Errno::EPERM));
    setup.hold(0, "release", "mon").unwrap();
    assert_eq!(setup.hold(0, "release", "mon"), Err(Errno::ENODATA));
    setup.delete(0, "mon").unwrap();
}

#[test]
fn a_rollback_is_begun_run_and_told_to_the_kernel() {
    let setup = setup();
    let dir = setup.dir(b"d");
    let file = setup.file(dir, b"f", b"before");
    setup.create(0, dir, "mon").unwrap();
    setup
        .fs
        .write(file, 0, b"AFTER!", WriteOptions::default())
        .unwrap();
    setup.file(dir, b"later", b"");
    let ask = |uid, ino, words| setup.ask(uid, ino, "roll back", &format!("{words}\0keep clones"));
    assert_eq!(ask(OTHER, dir, "mon\0undo"), Err(Errno::EPERM));
    assert_eq!(ask(0, dir, "tue\0undo"), Err(Errno::ENOENT));
    assert_eq!(ask(0, ROOT, "mon\0undo"), Err(Errno::EINVAL));
    assert_eq!(ask(0, dir, "mon\0mon"), Err(Errno::EEXIST));
    ask(0, dir, "mon\0undo").unwrap();
    assert_eq!(ask(0, dir, "mon\0again"), Err(Errno::EBUSY));
    let outcome = |before| setup.ask(0, ROOT, "rolled back", before);
    assert_eq!(outcome("undo"), Err(Errno::EAGAIN));
    assert_eq!(outcome("other"), Err(Errno::ENOENT));
    let kernel = Arc::new(Kernel::default());
    let notifier = crate::notify::Notifier::new(Arc::clone(&kernel) as _, 45);
    setup.run_rollback(&notifier);
    assert_eq!(outcome("undo"), Ok(()));
    assert_eq!(setup.read(file).unwrap(), b"before");
    assert_eq!(setup.lookup(dir, b"later").unwrap(), None);
    let undo = setup.enter(b"undo").unwrap().ino;
    assert!(setup.lookup(undo, b"later").unwrap().is_some());
    let taken = kernel.taken.lock();
    let has = |code: u8, part: &[u8]| {
        let is_it = |notice: &Vec<u8>| notice[4] == code && holds_bytes(notice, part);
        taken.iter().any(is_it)
    };
    assert!(has(3, b"later"), "the name is dropped");
    assert!(has(2, &file.0.to_le_bytes()), "the pages are dropped");
}

fn holds_bytes(message: &[u8], part: &[u8]) -> bool {
    message.windows(part.len()).any(|at| at == part)
}
