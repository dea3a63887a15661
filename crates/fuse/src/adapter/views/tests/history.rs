//! Moments of the history, without a kernel.

use super::*;
use crate::adapter::HISTORY_DIR;
use stitch_fs::FsOptions;

/// A file system with a history of an hour, as [`setup`] makes one without.
fn setup_with_history() -> Setup {
    let options = FsOptions {
        history_s: Some(3600),
        ..FsOptions::default()
    };
    setup_with(options)
}

impl Setup {
    fn history(&self) -> Ino {
        let control = self.lookup(ROOT, CONTROL_DIR.as_bytes()).unwrap().unwrap();
        let history = self.lookup(control.ino, HISTORY_DIR.as_bytes());
        history.unwrap().unwrap().ino
    }

    fn moment(&self) -> String {
        let round = self.fs.history().run().unwrap();
        round.created.expect("something was written").name()
    }
}

#[test]
fn a_moment_is_read_by_its_path_and_goes_with_its_pin() {
    let setup = setup_with_history();
    let dir = setup.dir(b"d");
    let file = setup.file(dir, b"f", b"one");
    let name = setup.moment();
    setup
        .fs
        .write(file, 0, b"two", WriteOptions::default())
        .unwrap();
    let history = setup.history();
    assert!(holds(&setup.list(history).unwrap(), &name));
    let root = setup.lookup(history, name.as_bytes()).unwrap().unwrap().ino;
    let then = setup.lookup(root, b"d").unwrap().unwrap().ino;
    let then = setup.lookup(then, b"f").unwrap().unwrap().ino;
    assert_eq!(setup.read(then).unwrap(), b"one");
    assert_eq!(
        setup.views.mkdir(&context(0), history, &new_dir(b"x")),
        Err(Errno::EROFS)
    );
    assert_eq!(
        setup.lookup(history, b"2000-01-01T00-00-00Z"),
        Err(Errno::ENOENT)
    );
    let all = setup.lookup(setup.snapshots(), name.as_bytes());
    assert_eq!(all, Err(Errno::ENOENT), "it is no snapshot");
    setup.fs.engine().drop_pin("history/1").unwrap();
    let gone = setup.views.table.take_gone();
    assert_eq!((gone.len(), setup.open_snapshots()), (1, 0));
    assert_eq!(setup.list(root), Err(Errno::ESTALE));
}

#[test]
fn changes_are_told_and_undone_for_the_owner() {
    let setup = setup_with_history();
    let dir = setup.dir(b"d");
    let file = setup.file(dir, b"f", b"one");
    let name = setup.moment();
    let changed = |uid| setup.ask(uid, dir, "changed", &format!("{name}\0now"));
    assert_eq!(changed(0), Err(Errno::ENODATA));
    setup
        .fs
        .write(file, 0, b"two", WriteOptions::default())
        .unwrap();
    assert_eq!(changed(0), Ok(()));
    assert_eq!(changed(OTHER), Err(Errno::EPERM));
    assert_eq!(
        setup.ask(0, dir, "changed", "never\0now"),
        Err(Errno::ENOENT)
    );
    let undo =
        |uid, name: &str| setup.ask(uid, dir, "go back", &format!("{name}\0before\0keep clones"));
    assert_eq!(undo(OTHER, &name), Err(Errno::EPERM));
    assert_eq!(undo(0, "never"), Err(Errno::ENOENT));
    undo(0, &name).unwrap();
    let kernel = Arc::new(Kernel::default());
    let notifier = crate::notify::Notifier::new(Arc::clone(&kernel) as _, 45);
    setup.run_rollback(&notifier);
    assert_eq!(setup.ask(0, dir, "rolled back", "before"), Ok(()));
    assert_eq!(setup.read(file).unwrap(), b"one");
    assert_eq!(changed(0), Err(Errno::ENODATA), "another undo finds this");
    let kept = setup.enter(b"before").unwrap().ino;
    let kept = setup.lookup(kept, b"f").unwrap().unwrap().ino;
    assert_eq!(setup.read(kept).unwrap(), b"two");
}

#[test]
fn a_directory_in_a_clone_goes_back_in_time() {
    let setup = setup_with_history();
    let (source, copy) = super::clones::cloned(&setup);
    let file = setup.found(copy.ino, b"f").ino;
    let name = setup.moment();
    let changed = |dir| setup.ask(0, dir, "changed", &format!("{name}\0now"));
    assert_eq!(changed(copy.ino), Err(Errno::ENODATA));
    setup.write(file, b"AFTER!").unwrap();
    assert_eq!(changed(copy.ino), Ok(()));
    assert_eq!(changed(source), Err(Errno::ENODATA));
    let undo = format!("{name}\0before\0keep clones");
    setup.ask(0, copy.ino, "go back", &undo).unwrap();
    let kernel = Arc::new(Kernel::default());
    let notifier = crate::notify::Notifier::new(Arc::clone(&kernel) as _, 45);
    setup.run_rollback(&notifier);
    assert_eq!(setup.ask(0, copy.ino, "rolled back", "before"), Ok(()));
    assert_eq!(setup.read(file).unwrap(), b"before");
}
