//! Requests that make, change and remove clones.

use super::*;
use crate::adapter::{CLONE_XATTR, REMOVE_TREE_XATTR};
use crate::wire::args::{SetXattr, Write};

impl Setup {
    fn announce(&self, uid: u32, source: Ino, parent: Ino, name: &[u8]) -> Answer<()> {
        let input = [&crate::clones::to_bytes(parent.0)[..], name, &[0]].concat();
        let args = Ioctl {
            fh: Fh(0),
            flags: 0,
            command: crate::clones::ANNOUNCE,
            arg: 0,
            input: &input,
            output_size: 0,
        };
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, 0);
        let answer = self.views.ioctl(&context(uid), source, &args, &mut sink);
        answer.map(drop)
    }

    pub(super) fn clone_to(&self, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        self.announce(0, source, parent, name)?;
        self.mkdir(0, parent, name)
    }

    pub(super) fn write(&self, ino: Ino, data: &[u8]) -> Answer<u32> {
        let write = Write {
            fh: Fh(0),
            offset: 0,
            flags: 0,
            write_flags: WriteFlags::default(),
            lock_owner: None,
            data,
        };
        self.views.write(&context(0), ino, &write)
    }

    pub(super) fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Answer<()> {
        let args = Rename {
            target_parent: to.0,
            flags: 0,
            source_name: from.1,
            target_name: to.1,
        };
        self.views.rename(&context(0), from.0, &args)
    }

    pub(super) fn announce_removal(&self, uid: u32, ino: Ino) -> Answer<()> {
        let args = SetXattr {
            name: REMOVE_TREE_XATTR.as_bytes(),
            value: b"1",
            flags: 0,
            kill_sgid: false,
        };
        self.views.setxattr(&context(uid), ino, &args)
    }

    pub(super) fn found(&self, parent: Ino, name: &[u8]) -> Entry {
        self.lookup(parent, name).unwrap().expect("it is there")
    }
}

/// A directory with a file, and a clone of it.
pub(super) fn cloned(setup: &Setup) -> (Ino, Entry) {
    let source = setup.dir(b"src");
    setup.file(source, b"f", b"before");
    let copy = setup.clone_to(source, ROOT, b"copy").unwrap();
    (source, copy)
}

#[test]
fn a_clone_is_written_apart_from_its_source() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    assert_eq!(setup.found(ROOT, b"copy").ino, copy.ino);
    let file = setup.found(copy.ino, b"f");
    assert_eq!((file.attr.ino, file.attr.size), (file.ino, 6));
    assert_ne!(file.ino, setup.found(source, b"f").ino);
    assert_eq!(setup.write(file.ino, b"AFTER!"), Ok(6));
    assert_eq!(setup.read(file.ino).unwrap(), b"AFTER!");
    let original = setup.found(source, b"f").ino;
    assert_eq!(setup.read(original).unwrap(), b"before");
    let made = setup.mkdir(0, copy.ino, b"d").unwrap();
    assert!(holds(&setup.list(copy.ino).unwrap(), "d"));
    assert!(!holds(&setup.list(source).unwrap(), "d"));
    let inner = setup.found(copy.ino, b"d").ino;
    assert_eq!((made.ino, made.attr.ino), (inner, inner));
    let attr = setup.views.getattr(&context(0), inner).unwrap().attr;
    assert_eq!(attr.ino, inner);
}

#[test]
fn the_listing_has_the_number_of_the_clones_directory() {
    let setup = setup();
    let (_, copy) = cloned(&setup);
    let listed = setup.list(ROOT).unwrap();
    let number = crate::clones::to_bytes(copy.ino.0);
    assert!(listed.windows(8).any(|part| part == number));
}

#[test]
fn only_the_mkdir_that_was_announced_makes_a_clone() {
    let setup = setup();
    let source = setup.dir(b"src");
    setup.file(source, b"f", b"");
    setup.announce(0, source, ROOT, b"copy").unwrap();
    let other = setup.mkdir(0, ROOT, b"other").unwrap().ino;
    assert!(!holds(&setup.list(other).unwrap(), "f"));
    let plain = setup.mkdir(0, ROOT, b"copy").unwrap().ino;
    assert!(!holds(&setup.list(plain).unwrap(), "f"));
    let refused = setup.announce(OTHER, source, ROOT, b"copy");
    assert_eq!(refused, Err(Errno::EPERM));
    let file = setup.found(source, b"f").ino;
    let refused = setup.announce(0, file, ROOT, b"copy");
    assert_eq!(refused, Err(Errno::ENOTDIR));
    setup.announce(0, source, ROOT, b"copy").unwrap();
    let taken = setup.mkdir(0, ROOT, b"copy").map(|entry| entry.ino);
    assert_eq!(taken, Err(Errno::EEXIST));
}

#[test]
fn nothing_is_moved_or_linked_across_the_edge() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let across = setup.rename((source, b"f"), (copy.ino, b"g"));
    assert_eq!(across, Err(Errno::EXDEV));
    let back = setup.rename((copy.ino, b"f"), (ROOT, b"g"));
    assert_eq!(back, Err(Errno::EXDEV));
    let file = setup.found(copy.ino, b"f").ino;
    let linked = setup.views.link(&context(0), file, ROOT, b"g");
    assert_eq!(linked.map(|entry| entry.ino), Err(Errno::EXDEV));
    setup.rename((copy.ino, b"f"), (copy.ino, b"g")).unwrap();
    assert_eq!(setup.found(copy.ino, b"g").ino, file);
    let linked = setup.views.link(&context(0), file, copy.ino, b"h");
    assert_eq!(linked.unwrap().attr.nlink, 2);
    setup.rename((ROOT, b"copy"), (source, b"moved")).unwrap();
    assert_eq!(setup.found(source, b"moved").ino, copy.ino);
}

#[test]
fn clones_of_snapshots_and_of_clones() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let file = setup.found(copy.ino, b"f").ino;
    setup.write(file, b"second").unwrap();
    let second = setup.clone_to(copy.ino, source, b"second").unwrap();
    let file = setup.found(second.ino, b"f").ino;
    assert_eq!(setup.read(file).unwrap(), b"second");
    setup.create(0, source, "mon").unwrap();
    let original = setup.found(source, b"f").ino;
    setup.write(original, b"third!").unwrap();
    let past = setup.enter(b"mon").unwrap().ino;
    let old = setup.clone_to(past, copy.ino, b"old").unwrap();
    let file = setup.found(old.ino, b"f").ino;
    assert_eq!(setup.read(file).unwrap(), b"before");
    setup.write(file, b"fourth").unwrap();
    assert_eq!(setup.read(file).unwrap(), b"fourth");
    let none = setup.mkdir(0, past, b"x").map(|entry| entry.ino);
    assert_eq!(none, Err(Errno::EROFS));
}

#[test]
fn a_clone_goes_with_rmdir_once_it_is_empty() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let me = context(0);
    let refused = setup.views.rmdir(&me, ROOT, b"copy");
    assert_eq!(refused, Err(Errno::ENOTEMPTY));
    let file = setup.found(copy.ino, b"f").ino;
    setup.views.unlink(&me, copy.ino, b"f").unwrap();
    setup.views.rmdir(&me, ROOT, b"copy").unwrap();
    assert_eq!(setup.lookup(ROOT, b"copy"), Ok(None));
    assert_eq!(setup.read(file), Err(Errno::ESTALE));
    assert_eq!(setup.views.clones.count(), 0);
    assert!(holds(&setup.list(source).unwrap(), "f"));
}

#[test]
fn an_announced_removal_takes_a_clone_with_all_in_it() {
    let setup = setup();
    let (_, copy) = cloned(&setup);
    assert_eq!(setup.announce_removal(OTHER, copy.ino), Err(Errno::EPERM));
    setup.announce_removal(0, copy.ino).unwrap();
    setup.views.rmdir(&context(0), ROOT, b"copy").unwrap();
    let gone = setup.views.getattr(&context(0), copy.ino);
    assert_eq!(gone.map(|reply| reply.attr.ino), Err(Errno::ESTALE));
    assert!(setup.fs.clones().is_empty());
}

#[test]
fn a_clone_closes_when_the_kernel_has_forgotten_it_and_is_the_same_after_that() {
    let setup = setup();
    let (_, copy) = cloned(&setup);
    let file = setup.found(copy.ino, b"f").ino;
    setup.write(file, b"AFTER!").unwrap();
    setup.views.forget(file, 1);
    setup.mkdir(0, copy.ino, b"d").unwrap();
    setup.views.clones.close_idle();
    assert_eq!(setup.views.clones.count(), 1, "a directory in it is known");
    setup.views.forget(setup.found(copy.ino, b"d").ino, 2);
    setup.views.clones.close_idle();
    assert_eq!(setup.views.clones.count(), 0);
    // Its directory may be named by a number from before.
    let file = setup.found(copy.ino, b"f").ino;
    assert_eq!(setup.read(file).unwrap(), b"AFTER!");
    assert_eq!(setup.found(ROOT, b"copy").ino, copy.ino);
    assert_eq!(setup.views.clones.count(), 1);
}

#[test]
fn a_clone_tells_about_itself() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let input = [CLONE_XATTR.as_bytes(), &[0]].concat();
    let asked = |ino| {
        let args = Ioctl {
            fh: Fh(0),
            flags: 0,
            command: crate::report::READ,
            arg: 0,
            input: &input,
            output_size: 4096,
        };
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, 4096);
        let answer = setup.views.ioctl(&context(0), ino, &args, &mut sink);
        answer.map(|_| String::from_utf8_lossy(&out).into_owned())
    };
    assert!(
        asked(copy.ino)
            .unwrap()
            .contains("\"number\":1,\"owner\":0")
    );
    assert!(asked(source).is_err());
    let file = setup.found(copy.ino, b"f").ino;
    assert_eq!(asked(file), Err(Errno::ENOTTY));
}

#[test]
fn a_rollback_in_a_clone_is_begun_run_and_told_to_the_kernel() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let file = setup.found(copy.ino, b"f").ino;
    setup.create(0, copy.ino, "mon").unwrap();
    setup.create(0, source, "other").unwrap();
    setup.write(file, b"AFTER!").unwrap();
    setup.mkdir(0, copy.ino, b"later").unwrap();
    let inner = setup.clone_to(source, copy.ino, b"inner").unwrap().ino;
    let ask = |uid, ino, words| setup.ask(uid, ino, "roll back", &format!("{words}\0keep clones"));
    assert_eq!(ask(OTHER, copy.ino, "mon\0undo"), Err(Errno::EPERM));
    assert_eq!(ask(0, copy.ino, "other\0undo"), Err(Errno::EINVAL));
    assert_eq!(ask(0, source, "mon\0undo"), Err(Errno::EINVAL));
    let kernel = Arc::new(Kernel::default());
    let notifier = crate::notify::Notifier::new(Arc::clone(&kernel) as _, 45);
    let words = "mon\0undo\0destroy clones";
    setup.ask(0, copy.ino, "roll back", words).unwrap();
    setup.run_rollback(&notifier);
    assert_eq!(setup.ask(0, ROOT, "rolled back", "undo"), Ok(()));
    assert_eq!(setup.read(file).unwrap(), b"before");
    assert_eq!(setup.lookup(copy.ino, b"later").unwrap(), None);
    assert_eq!(setup.list(inner), Err(Errno::ESTALE), "made after it");
    assert!(setup.lookup(source, b"f").unwrap().is_some());
    let undo = setup.enter(b"undo").unwrap().ino;
    assert!(setup.lookup(undo, b"later").unwrap().is_some());
    let taken = kernel.taken.lock();
    let has = |code: u8, ino: Ino, name: &[u8]| {
        let number = ino.0.to_le_bytes();
        let is_it = |notice: &&Vec<u8>| notice[4] == code && holds_bytes(notice, &number);
        taken
            .iter()
            .filter(is_it)
            .any(|notice| name.is_empty() || holds_bytes(notice, name))
    };
    assert!(has(3, copy.ino, b"later"), "the name is dropped");
    assert!(has(2, file, b""), "the pages are dropped");
}

/// Without the right to destroy clones nothing is done, and nothing is left.
#[test]
fn a_rollback_that_would_destroy_clones_is_refused_and_deletes_the_snapshot_before_it() {
    let setup = setup();
    let source = setup.dir(b"source");
    let top = setup.dir(b"top");
    let file = setup.file(top, b"f", b"before");
    setup.create(0, top, "mon").unwrap();
    let inner = setup.clone_to(source, top, b"inner").unwrap().ino;
    let after = setup.fs.write(file, 0, b"AFTER!", WriteOptions::default());
    after.unwrap();
    setup
        .ask(0, top, "roll back", "mon\0old\0keep clones")
        .unwrap();
    let before = setup.enter(b"old").unwrap().ino;
    let kernel = Arc::new(Kernel::default());
    let notifier = crate::notify::Notifier::new(Arc::clone(&kernel) as _, 45);
    setup.run_rollback(&notifier);
    let outcome = setup.ask(0, ROOT, "rolled back", "old");
    assert_eq!(outcome, Err(Errno::ENOTEMPTY));
    assert_eq!(setup.read(file).unwrap(), b"AFTER!");
    assert!(setup.list(inner).is_ok(), "the clone is there");
    assert_eq!(setup.enter(b"old"), Err(Errno::ENOENT), "it is deleted");
    assert_eq!(setup.list(before), Err(Errno::ESTALE), "it was open");
    setup.enter(b"mon").unwrap();
    let taken = kernel.taken.lock();
    let list = setup.snapshots().0.to_le_bytes();
    let is_list = |notice: &Vec<u8>| notice[4] == 2 && holds_bytes(notice, &list);
    assert!(taken.iter().any(is_list), "the list is dropped");
    drop(taken);
    // A held one stays.
    setup
        .ask(0, top, "roll back", "mon\0old\0keep clones")
        .unwrap();
    setup.hold(0, "hold", "old").unwrap();
    setup.run_rollback(&notifier);
    setup.enter(b"old").unwrap();
}

#[test]
fn a_directory_in_a_clone_has_a_policy() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let set = |uid, words: &str| setup.ask(uid, copy.ino, "policy", words);
    assert_eq!(set(OTHER, "auto\x0060 last=1"), Err(Errno::EPERM));
    set(0, "auto\x0060 last=1").unwrap();
    assert_eq!(setup.ask(0, source, "no policy", "-"), Err(Errno::ENOENT));
    let round = setup.fs.policies().run().unwrap();
    let name = round.created[0].name.as_bytes();
    let root = setup.enter(name).unwrap().ino;
    assert!(setup.lookup(root, b"f").unwrap().is_some());
    setup.ask(0, copy.ino, "no policy", "-").unwrap();
    assert!(setup.fs.policies().list().unwrap().is_empty());
}
