//! Clones lie in the directory.

mod lost;

use super::{ANY, NEW, ROOT, SUPER, Tester, grow, owned_by, tester};
use crate::{
    Caller, CloneInfo, CloneSource, DirName, FsError, FsResult, KeptClones, Notices, RenameMode,
    RollbackRights, WriteOptions,
};
use stitch_base::Ino;
use stitch_kv::CommitFault;

impl Tester {
    /// Makes a clone of a directory.
    fn clone(&self, of: Ino, (parent, name): (Ino, &str), owner: u32) -> CloneInfo {
        let source = CloneSource {
            fs: &self.fs,
            dir: of,
            snapshot: None,
        };
        let caller = Caller {
            uid: owner,
            ..Caller::ROOT
        };
        let at = DirName::new(parent, name.as_bytes());
        let made = self.fs.make_clone(&caller, &source, at);
        made.expect("it is made")
    }

    fn write_in(&self, clone: &CloneInfo, name: &str, bytes: &[u8]) {
        let live = self.fs.open_clone(clone.number).expect("it opens");
        let at = DirName::new(clone.root, name.as_bytes());
        let ino = live.fs().lookup(at).expect("it is there").ino;
        let written = live.fs().write(ino, 0, bytes, WriteOptions::default());
        written.expect("it is written");
        live.fs().forget(ino, 1);
    }

    fn read_in(&self, clone: &CloneInfo, name: &str) -> Vec<u8> {
        let live = self.fs.open_clone(clone.number).expect("it opens");
        let at = DirName::new(clone.root, name.as_bytes());
        let (ino, mut out) = (live.fs().lookup(at).expect("it is there").ino, Vec::new());
        let read = live.fs().read(ino, 0, 100, &mut out);
        read.expect("it is read");
        out
    }
}

/// A directory, another one beside it, and a clone of that in the first one.
fn with_clone(tester: &Tester) -> (Ino, Ino, CloneInfo) {
    let dir = grow(tester);
    let source = tester.dir(ROOT, "source");
    tester.file(source, "file", b"v1");
    let clone = tester.clone(source, (dir, "clone"), 0);
    (dir, source, clone)
}

#[test]
fn one_that_the_snapshot_has_stays_as_it_is_under_its_old_name() {
    let tester = tester();
    let (dir, _, clone) = with_clone(&tester);
    let before = tester.listing(dir);
    tester
        .fs
        .snapshots()
        .create(dir, "mon")
        .expect("it is created");
    tester.write_in(&clone, "file", b"v2");
    let new = tester.dir(dir, "new");
    tester.rename((dir, "clone"), (new, "moved"));
    tester.overwrite(dir, "small", b"AFTER!");
    tester
        .fs
        .roll_back("mon", dir, ANY)
        .expect("it is rolled back");
    assert_eq!(tester.listing(dir), before);
    assert_eq!(tester.find(dir, "clone"), Some(clone.graft));
    assert_eq!(tester.fs.clone_at(clone.graft), Some(clone.clone()));
    assert_eq!(tester.read_in(&clone, "file"), b"v2");
    tester.check();
}

#[test]
fn one_that_was_made_later_is_removed_with_those_in_it() {
    let tester = tester();
    let dir = grow(&tester);
    let before = tester.listing(dir);
    tester
        .fs
        .snapshots()
        .create(dir, "mon")
        .expect("it is created");
    let new = tester.dir(dir, "new dir");
    let deep = tester.clone(dir, (new, "deep"), 0);
    let top = tester.clone(new, (dir, "top"), 0);
    let open = tester.fs.open_clone(top.number).expect("it opens");
    assert_eq!(tester.fs.clones().len(), 3, "`top` has a clone of `deep`");
    tester
        .fs
        .roll_back("mon", dir, RollbackRights::ALL)
        .expect("it is rolled back");
    assert_eq!(tester.listing(dir), before);
    while tester.fs.detached_dirs() > 0 {
        tester.fs.empty_detached(100).expect("it goes");
    }
    assert_eq!(tester.fs.clones(), []);
    for number in [top.number, deep.number] {
        let gone = tester.fs.open_clone(number);
        assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
    }
    drop(open);
    tester.check();
}

/// Returns the clones because of which a rollback was refused.
fn kept(refused: FsResult<Notices>) -> KeptClones {
    match refused {
        Err(FsError::LaterClones(kept)) => kept,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_that_was_made_later_is_kept_without_the_right_to_destroy_it() {
    let tester = tester();
    let (dir, source, shown) = with_clone(&tester);
    let fs = &tester.fs;
    fs.snapshots().create(dir, "mon").expect("it is created");
    tester.overwrite(dir, "small", b"AFTER!");
    let new = tester.dir(dir, "new dir");
    let later = tester.clone(source, (new, "later"), 0);
    let pinned = fs.snapshots().list().expect("it is read").len();
    let changed = tester.listing(dir);
    let refused = fs.roll_back("mon", dir, ANY);
    let error = refused.as_ref().expect_err("it is refused").to_string();
    assert!(error.ends_with("destroyed: new dir/later"), "{error}");
    let of_later = |count: usize, paths: &[&[u8]]| KeptClones {
        paths: paths.iter().map(|path| path.to_vec()).collect(),
        count,
    };
    assert_eq!(kept(refused), of_later(1, &[b"new dir/later"]));
    assert_eq!(tester.listing(dir), changed, "nothing was done");
    // Another one is made between the refusal and what the caller does next.
    tester.clone(source, (dir, "also"), 0);
    let refused = fs.roll_back("mon", dir, ANY);
    assert_eq!(kept(refused), of_later(2, &[b"also", b"new dir/later"]));
    assert_eq!(fs.clones().len(), 3);
    assert_eq!(tester.read_in(&later, "file"), b"v1");
    let left = fs.snapshots().list().expect("it is read").len();
    assert_eq!(left, pinned, "no snapshot is left");
    fs.roll_back("mon", dir, RollbackRights::ALL)
        .expect("all is allowed");
    while fs.detached_dirs() > 0 {
        fs.empty_detached(100).expect("it goes");
    }
    assert_eq!(fs.clones(), [shown]);
    tester.check();
}

#[test]
fn one_that_was_moved_in_is_kept_and_the_error_names_some_of_many() {
    let tester = tester();
    let (dir, source, moved) = with_clone(&tester);
    tester.rename((dir, "clone"), (ROOT, "outside"));
    let fs = &tester.fs;
    fs.snapshots().create(dir, "mon").expect("it is created");
    tester.rename((ROOT, "outside"), (dir, "n\u{e9}w"));
    let name = |number: u32| format!("later {number:02}");
    for number in 0..20 {
        tester.clone(source, (dir, &name(number)), 0);
    }
    let kept = kept(fs.roll_back("mon", dir, ANY));
    assert_eq!((kept.count, kept.paths.len()), (21, 16));
    assert!(kept.paths.is_sorted());
    let text = kept.to_string();
    assert!(text.starts_with("later 00, later 01, "), "{text}");
    assert!(
        text.ends_with("later 14, n\\xc3\\xa9w, and 5 more"),
        "{text}"
    );
    assert_eq!(fs.clone_at(moved.graft), Some(moved));
    tester.check();
}

/// The part that was done has destroyed a clone with that right. To repeat it needs no right.
#[test]
fn an_interrupted_rollback_that_destroys_clones_is_finished_without_the_right() {
    let tester = tester();
    let (dir, before) = super::with_much_to_restore(&tester);
    let source = tester.dir(ROOT, "source");
    tester.clone(source, (dir, "later"), 0);
    let fail = |after| {
        tester
            .model
            .fail_commits_after(after, CommitFault::Full, u32::MAX)
    };
    fail(1);
    let refused = tester.fs.roll_back("mon", dir, ANY);
    assert_eq!(
        kept(refused).count,
        1,
        "it is refused before the first batch"
    );
    tester.model.mend_commits();
    fail(1);
    let failed = tester.fs.roll_back("mon", dir, RollbackRights::ALL);
    assert!(matches!(failed, Err(FsError::NoSpace)), "{failed:?}");
    tester.model.mend_commits();
    tester
        .fs
        .roll_back("mon", dir, ANY)
        .expect("it is repeated");
    assert_eq!(tester.listing(dir), before);
    assert_eq!(tester.fs.clones(), []);
    tester.check();
}

#[test]
fn a_user_removes_no_clone_of_another_one() {
    let tester = tester();
    let dir = grow(&tester);
    let mode = crate::SetAttr {
        perm: Some(0o777),
        ..crate::SetAttr::default()
    };
    tester.fs.set_attr(&SUPER, dir, &mode).expect("it is set");
    tester
        .fs
        .snapshots()
        .create(dir, "mon")
        .expect("it is created");
    let clone = tester.clone(dir, (dir, "clone"), 7);
    let refused = tester.fs.roll_back("mon", dir, owned_by(0));
    assert!(matches!(refused, Err(FsError::Perm)), "{refused:?}");
    assert_eq!(tester.fs.clone_at(clone.graft), Some(clone));
    tester
        .fs
        .roll_back("mon", dir, RollbackRights::ALL)
        .expect("root may");
    assert_eq!(tester.fs.clones(), []);
    tester.check();
}

/// Behind a clone no walk and no rollback would find it.
#[test]
fn no_name_is_put_behind_one_in_the_file_system_that_has_it() {
    let tester = tester();
    let dir = grow(&tester);
    tester
        .fs
        .snapshots()
        .create(dir, "mon")
        .expect("it is created");
    let source = tester.dir(dir, "source");
    let clone = tester.clone(source, (dir, "clone"), 0);
    let behind = |name| DirName::new(clone.graft, name);
    let small = DirName::new(dir, b"small");
    let ino = tester.fs.lookup(small).expect("it is there").ino;
    let (fs, replace) = (&tester.fs, RenameMode::Replace);
    fs.lookup(DirName::new(dir, b"clone")).expect("it is there");
    let tried = [
        fs.rename(&SUPER, small, behind(b"moved"), replace),
        fs.link(&SUPER, ino, behind(b"linked")).map(drop),
        fs.create(&SUPER, behind(b"new"), &NEW).map(drop),
        fs.make_dir(&SUPER, behind(b"dir"), &NEW).map(drop),
    ];
    fs.forget(ino, 1);
    fs.forget(clone.graft, 1);
    fs.roll_back("mon", dir, RollbackRights::ALL)
        .expect("it is rolled back");
    tester.check();
    for tried in tried {
        assert!(matches!(tried, Err(FsError::Invalid(_))), "{tried:?}");
    }
}
