//! Policies of directories in clones.

use super::*;
use crate::{CloneInfo, CloneSource, WriteOptions, fsck};
use stitch_format::fs_sys::FsHeader;
use stitch_kv::Engine;

const EVERY: u64 = 15 * MINUTE;

impl Tester {
    /// A clone of `d`, with a file in it, at a directory that is not known afterwards.
    fn clone(&self, name: &'static [u8]) -> CloneInfo {
        let source = CloneSource {
            fs: &self.fs,
            dir: self.dir,
            snapshot: None,
        };
        let at = DirName::new(Ino::ROOT, name);
        let made = self.fs.make_clone(&SUPER, &source, at);
        made.expect("it is made")
    }

    fn set_in(&self, clone: &CloneInfo, dir: Ino) {
        let view = self.fs.open_clone(clone.number).expect("it opens");
        let rule = rule(EVERY, Keep::default());
        let set = self.fs.policies().set_in(&view, dir, &rule);
        set.expect("it is set");
    }

    /// Makes a file in the directory of a clone.
    fn change_in(&self, clone: &CloneInfo, name: &[u8]) {
        let view = self.fs.open_clone(clone.number).expect("it opens");
        let at = DirName::new(clone.root, name);
        let made = view.fs().create(&SUPER, at, &NewNode::default());
        let ino = made.expect("it is made").ino;
        let written = view.fs().write(ino, 0, b"new", WriteOptions::default());
        written.expect("it is written");
        view.fs().forget(ino, 1);
    }

    fn later(&self) -> PolicyRound {
        self.clock.set(self.clock.second() + EVERY.cast_signed());
        self.run()
    }

    fn is_open(&self) -> bool {
        !self.fs.standing.views.opened().is_empty()
    }

    fn check(self) -> FileSystem {
        self.fs.close().expect("it closes");
        let issues = fsck::check(self.fs.engine(), &mut |_| ()).expect("it can be read");
        assert_eq!(issues, []);
        self.fs
    }
}

#[test]
fn its_snapshots_are_created_where_something_changed_and_deleted_by_age() {
    let tester = tester();
    let clone = tester.clone(b"copy");
    tester.set_in(&clone, clone.root);
    assert!(!tester.is_open());
    let round = tester.run();
    let [first] = &round.created[..] else {
        panic!("{round:?}");
    };
    assert_eq!((first.view, first.root), (clone.number, clone.root));
    assert!(first.is_automatic && first.path == b"copy");
    assert_eq!(round.next_s, Some(EVERY));
    assert!(!tester.is_open(), "it is open for a round alone");
    tester.touch();
    assert_eq!(tester.later().created, [], "the source has changed alone");
    tester.change_in(&clone, b"a");
    let round = tester.later();
    assert_eq!((round.created.len(), round.deleted.len()), (1, 1));
    assert_eq!(round.deleted[0], *first);
    // The next life goes on, and opens no clone before it is due.
    let tester = tester.reopened();
    assert_eq!(
        tester.run(),
        PolicyRound {
            next_s: Some(EVERY),
            ..PolicyRound::default()
        }
    );
    let policies = tester.fs.policies().list().expect("they are read");
    assert_eq!(
        (policies[0].view, policies[0].dir),
        (clone.number, clone.root)
    );
    assert_eq!(policies[0].path, b"copy");
    assert!(!tester.is_open());
    tester.change_in(&clone, b"b");
    assert_eq!(tester.later().created.len(), 1);
    tester.check();
}

#[test]
fn directories_of_one_number_have_policies_of_their_own() {
    let tester = tester();
    let (one, two) = (tester.clone(b"one"), tester.clone(b"two"));
    tester.set(EVERY, Keep::default());
    tester.set_in(&one, one.root);
    tester.set_in(&two, two.root);
    assert_eq!((one.root, two.root), (tester.dir, tester.dir));
    let round = tester.run();
    let views: Vec<u64> = round.created.iter().map(|info| info.view).collect();
    assert_eq!(views, [0, one.number, two.number]);
    tester.change_in(&two, b"a");
    let round = tester.later();
    assert_eq!(
        (round.created.len(), round.created[0].view),
        (1, two.number)
    );
    let (fs, dir) = (&tester.fs, tester.dir);
    fs.policies()
        .delete_in(one.number, dir)
        .expect("it has one");
    let again = fs.policies().delete_in(one.number, dir);
    assert!(matches!(again, Err(FsError::NotFound)), "{again:?}");
    let left = fs.policies().list().expect("they are read");
    let left: Vec<u64> = left.iter().map(|policy| policy.view).collect();
    assert_eq!(left, [0, two.number]);
    tester.check();
}

#[test]
fn a_policy_finds_its_directory_after_renames() {
    let tester = tester();
    let clone = tester.clone(b"copy");
    let view = tester.fs.open_clone(clone.number).expect("it opens");
    let inner = DirName::new(clone.root, b"inner");
    let made = view.fs().make_dir(&SUPER, inner, &NewNode::default());
    let dir = made.expect("it is made").ino;
    tester.set_in(&clone, dir);
    assert_eq!(tester.run().created[0].path, b"copy/inner");
    let moved = DirName::new(clone.root, b"moved");
    let renamed = view.fs().rename(&SUPER, inner, moved, RenameMode::Replace);
    renamed.expect("it is renamed");
    let [old, new] = [&b"copy"[..], b"else"].map(|name| DirName::new(Ino::ROOT, name));
    let renamed = tester.fs.rename(&SUPER, old, new, RenameMode::Replace);
    renamed.expect("it is renamed");
    tester.clock.set(tester.clock.second() + 1);
    let touch = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let touched = view.fs().set_attr(&SUPER, dir, &touch);
    touched.expect("it is known");
    let round = tester.later();
    assert_eq!(round.created[0].path, b"else/moved");
    let policies = tester.fs.policies().list().expect("they are read");
    assert_eq!(policies[0].path, b"else/moved");
    view.fs().forget(dir, 1);
    let removed = view.fs().remove_dir(&SUPER, moved);
    removed.expect("it is empty");
    assert_eq!(tester.later().created, []);
    assert!(
        tester
            .fs
            .policies()
            .list()
            .expect("they are read")
            .is_empty()
    );
}

#[test]
fn it_goes_with_the_clone() {
    let tester = tester();
    let (one, two) = (tester.clone(b"one"), tester.clone(b"two"));
    tester.set_in(&one, one.root);
    tester.set_in(&two, two.root);
    // Its number is that of the next clone.
    assert_eq!(tester.run().created.len(), 2);
    let at = DirName::new(Ino::ROOT, b"one");
    let removed = tester.fs.remove_tree(&SUPER, at, Some(one.graft));
    removed.expect("it is removed");
    let left = || {
        let left = tester.fs.policies().list().expect("they are read");
        left.iter().map(|policy| policy.view).collect::<Vec<_>>()
    };
    assert_eq!(left(), [two.number]);
    // Before its trees are dropped, and after.
    assert!(tester.later().created.is_empty());
    tester.fs.reclaim().expect("it is dropped");
    assert_eq!(left(), [two.number]);
    let stored = tester.fs.policies().stored().expect("they are read");
    assert_eq!(stored.len(), 1);
    assert_eq!(tester.names().len(), 2, "its snapshots stay");
    tester.check();
}

#[test]
fn a_clone_has_none_of_its_source_and_sets_none_itself() {
    let tester = tester();
    tester.set(EVERY, Keep::default());
    let clone = tester.clone(b"copy");
    let view = tester.fs.open_clone(clone.number).expect("it opens");
    let rule = rule(EVERY, Keep::default());
    let direct = view.fs().policies().set(clone.root, &rule);
    assert!(matches!(direct, Err(FsError::Unsupported)), "{direct:?}");
    let none = view.fs().policies().run().expect("there are none");
    assert_eq!(none, PolicyRound::default());
    assert_eq!(tester.run().created.len(), 1);
    tester.check();
}

#[test]
fn a_check_finds_policies_of_no_directory() {
    let tester = tester();
    let clone = tester.clone(b"copy");
    tester.change_in(&clone, b"file");
    tester.set_in(&clone, clone.root);
    let view = tester.fs.open_clone(clone.number).expect("it opens");
    let file = view.fs().lookup(DirName::new(clone.root, b"file"));
    let file = file.expect("it is there").ino;
    drop(view);
    let row = rule(EVERY, Keep::default()).row(0, Vec::new());
    let planted = [(clone.number, file), (77, Ino(2))];
    for (number, ino) in planted {
        let put = tester
            .fs
            .policies()
            .put((number, ino), &row, SpaceClass::Normal);
        put.expect("it is put");
    }
    tester.fs.close().expect("it closes");
    let engine = Arc::clone(tester.fs.engine());
    let check = |engine: &Arc<dyn Engine>| fsck::check(engine, &mut |_| ()).expect("it is read");
    let issues = check(&engine);
    let expected =
        [planted[1], planted[0]].map(|(number, ino)| fsck::Issue::FalseClonePolicy { number, ino });
    assert_eq!(issues, expected);
    assert_eq!(fsck::repair(&engine, &issues).expect("it can"), 2);
    assert_eq!(check(&engine), []);
    assert_eq!(
        tester.fs.policies().stored().expect("they are read").len(),
        1
    );
    // Without the feature the row is none that the store may have.
    let mut batch = tester.fs.store.batch();
    let header = FsHeader {
        has_clone_policies: false,
        ..*tester.fs.header.lock()
    };
    batch.put(&tester.fs.store.keys.header(), &header.encode());
    let put = tester.fs.store.commit(&batch, SpaceClass::Normal);
    put.expect("it is put");
    let issues = check(&engine);
    let is_bad = |issue: &fsck::Issue| matches!(issue, fsck::Issue::BadRow { tree: "sys", .. });
    assert!(issues.iter().any(is_bad), "{issues:?}");
}
