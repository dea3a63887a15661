//! Snapshots that show clones, and snapshots of directories in clones.

use super::clones::cloned;
use super::*;
use crate::adapter::SNAPSHOT_XATTR;

impl Setup {
    fn path_told(&self, ino: Ino) -> Answer<String> {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, 4096);
        let name = SNAPSHOT_XATTR.as_bytes();
        let told = self.views.getxattr(&context(0), ino, name, &mut sink);
        told.map(|()| String::from_utf8_lossy(&out).into_owned())
    }

    pub(super) fn list_plus(&self, ino: Ino) -> Vec<u8> {
        let mut out = Vec::new();
        let mut sink = crate::wire::reply::DirPlusSink::new(Sink::new(&mut out, 4096));
        let args = read_at(0);
        let listed = self.views.readdirplus(&context(0), ino, &args, &mut sink);
        listed.unwrap();
        out
    }
}

pub(super) fn has_number(listed: &[u8], ino: Ino) -> bool {
    let number = crate::clones::to_bytes(ino.0);
    listed.windows(8).any(|part| part == number)
}

#[test]
fn a_snapshot_shows_a_clone_that_was_changed_and_removed_since() {
    let setup = setup();
    let (_, copy) = cloned(&setup);
    let file = setup.found(copy.ino, b"f").ino;
    setup.write(file, b"second").unwrap();
    setup.create(0, ROOT, "mon").unwrap();
    setup.write(file, b"later!").unwrap();
    let root = setup.enter(b"mon").unwrap().ino;
    let past = setup.found(root, b"copy");
    assert_eq!(past.attr.ino, past.ino);
    for listed in [setup.list(root).unwrap(), setup.list_plus(root)] {
        assert!(has_number(&listed, past.ino), "of the clone's directory");
    }
    let shown = setup.found(past.ino, b"f").ino;
    let source = setup.found(setup.found(root, b"src").ino, b"f").ino;
    let numbers = std::collections::BTreeSet::from([file, shown, source, past.ino, root]);
    assert_eq!(numbers.len(), 5, "each has a number of its own");
    assert_eq!(setup.read(shown).unwrap(), b"second");
    assert_eq!(setup.read(source).unwrap(), b"before");
    assert_eq!(setup.write(shown, b"x"), Err(Errno::EROFS));
    let above = setup.lookup(past.ino, b"..");
    assert_eq!(
        above,
        Err(Errno::ESTALE),
        "what is above is in another part"
    );
    setup.announce_removal(0, copy.ino).unwrap();
    setup.views.rmdir(&context(0), ROOT, b"copy").unwrap();
    setup.fs.reclaim().unwrap();
    assert_eq!(setup.read(shown).unwrap(), b"second");
    assert_eq!(setup.found(root, b"copy").ino, past.ino);
    setup.delete(0, "mon").unwrap();
    assert_eq!(setup.read(shown), Err(Errno::ESTALE));
}

#[test]
fn it_closes_with_the_last_inode_of_the_clone_that_is_forgotten() {
    let setup = setup();
    cloned(&setup);
    setup.create(0, ROOT, "mon").unwrap();
    let root = setup.enter(b"mon").unwrap().ino;
    let past = setup.found(root, b"copy").ino;
    let file = setup.found(past, b"f").ino;
    setup.views.forget(root, 1);
    setup.views.forget(past, 1);
    assert_eq!(setup.open_snapshots(), 1);
    setup.views.forget(file, 1);
    assert_eq!(setup.open_snapshots(), 0);
    // The directory of the clone is known by its number alone.
    let again = setup.found(past, b"f");
    assert_eq!(again.ino, file);
    assert_eq!(setup.read(file).unwrap(), b"before");
}

#[test]
fn a_directory_in_a_clone_has_snapshots_with_the_path_through_the_clone() {
    let setup = setup();
    let (source, copy) = cloned(&setup);
    let dir = setup.mkdir(0, copy.ino, b"d").unwrap().ino;
    setup.create(0, dir, "mon").unwrap();
    setup.rename((ROOT, b"copy"), (source, b"moved")).unwrap();
    setup.create(0, copy.ino, "tue").unwrap();
    setup.mkdir(0, dir, b"later").unwrap();
    let mon = setup.enter(b"mon").unwrap().ino;
    assert_eq!(setup.path_told(mon).unwrap(), "copy/d");
    assert_eq!(setup.lookup(mon, b"later"), Ok(None));
    let tue = setup.enter(b"tue").unwrap().ino;
    assert_eq!(setup.path_told(tue).unwrap(), "src/moved");
    let file = setup.found(tue, b"f").ino;
    assert_eq!(setup.read(file).unwrap(), b"before");
    // It is in the list of all, with the number of its directory, and in none of mainline's.
    let listed = setup.list(setup.snapshots()).unwrap();
    assert!(holds(&listed, "tue") && has_number(&listed, tue));
    let of_source = setup.list(ControlDir::snapshots_of(source).number());
    assert!(!holds(&of_source.unwrap(), "tue"));
    let back = setup.clone_to(tue, ROOT, b"back").unwrap().ino;
    let file = setup.found(back, b"f").ino;
    assert_eq!(setup.read(file).unwrap(), b"before");
}

#[test]
fn the_owner_of_a_directory_is_told_what_it_needs() {
    let mut setup = setup();
    setup.views = setup.views.with_usage(Arc::new(|dir, is_interrupted| {
        assert!(!is_interrupted());
        Ok(dir.0.to_string().into_bytes())
    }));
    let (source, copy) = cloned(&setup);
    let theirs = SetAttr {
        uid: Some(OTHER),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, source, &theirs).unwrap();
    let ask = |uid, ino: Ino, words: &[u8]| {
        let args = Ioctl {
            fh: Fh(0),
            flags: 0,
            command: crate::usage::ASK,
            arg: 0,
            input: words,
            output_size: 4096,
        };
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, 4096);
        setup.views.ioctl(&context(uid), ino, &args, &mut sink)?;
        Ok(crate::report::unframed(&out).unwrap().to_vec())
    };
    let words = b"usage\0directory\0";
    for (uid, dir) in [(OTHER, source), (0, source), (0, copy.ino), (0, ROOT)] {
        assert_eq!(ask(uid, dir, words), Ok(dir.0.to_string().into_bytes()));
    }
    for dir in [ROOT, copy.ino] {
        assert_eq!(ask(OTHER, dir, words), Err(Errno::EPERM));
    }
    let file = setup.found(source, b"f").ino;
    assert_eq!(ask(0, file, words), Err(Errno::ENOTDIR));
    assert_eq!(ask(0, setup.snapshots(), words), Err(Errno::ENOTSUP));
    assert_eq!(ask(0, source, b"usage\0"), Err(Errno::EINVAL));
}

#[test]
fn in_a_clone_others_are_refused() {
    let setup = setup();
    let (_, copy) = cloned(&setup);
    assert_eq!(setup.create(OTHER, copy.ino, "mon"), Err(Errno::EPERM));
    let file = setup.found(copy.ino, b"f").ino;
    assert_eq!(setup.create(0, file, "mon"), Err(Errno::ENOTDIR));
    setup.create(0, copy.ino, "mon").unwrap();
    assert_eq!(setup.create(0, copy.ino, "mon"), Err(Errno::EEXIST));
    let refused = setup.ask(OTHER, copy.ino, "roll back", "mon\0before\0keep clones");
    assert_eq!(refused, Err(Errno::EPERM));
    assert!(
        setup.fs.snapshots().get("before").is_err(),
        "nothing was created"
    );
}
