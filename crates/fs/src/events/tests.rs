use crate::system::FileSystem;
use crate::{
    Caller, DirName, FsOptions, NewNode, Notices, RenameMode, RollbackRights, WriteOptions,
};
use std::collections::BTreeSet;
use std::sync::{Barrier, mpsc};
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_kv::{CommitFault, Engine};

const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

fn opened() -> FileSystem {
    let engine = crate::testing::formatted(&FsOptions::default());
    FileSystem::open(engine, FsOptions::default()).expect("opens")
}

fn at(parent: Ino, name: &'static str) -> DirName<'static> {
    DirName::new(parent, name.as_bytes())
}

fn hinted(fs: &FileSystem, name: &'static str) -> Option<Ino> {
    let known = fs.residents.hinted(at(Ino::ROOT, name));
    known.map(|inode| inode.head.ino)
}

#[test]
fn hints_follow_a_name_that_is_made_moved_swapped_and_removed() {
    let fs = opened();
    let make = |name| fs.create(&Caller::ROOT, at(Ino::ROOT, name), &NEW);
    let (one, two) = (
        make("one").expect("makes").ino,
        make("two").expect("makes").ino,
    );
    assert_eq!(
        (hinted(&fs, "one"), hinted(&fs, "two")),
        (Some(one), Some(two))
    );
    let rename = |from, to, mode| {
        let (from, to) = (at(Ino::ROOT, from), at(Ino::ROOT, to));
        fs.rename(&Caller::ROOT, from, to, mode).expect("moves");
    };
    rename("one", "two", RenameMode::Exchange);
    assert_eq!(
        (hinted(&fs, "one"), hinted(&fs, "two")),
        (Some(two), Some(one))
    );
    rename("two", "one", RenameMode::Replace);
    assert_eq!((hinted(&fs, "one"), hinted(&fs, "two")), (Some(one), None));
    fs.unlink(&Caller::ROOT, at(Ino::ROOT, "one"))
        .expect("removes");
    assert_eq!(hinted(&fs, "one"), None);
}

#[test]
fn a_name_is_missing_before_it_is_made_and_after_it_is_removed() {
    let fs = opened();
    let dir = fs.make_dir(&Caller::ROOT, at(Ino::ROOT, "d"), &NEW);
    let dir = dir.expect("makes").ino;
    let is_missing = || {
        let key = fs.store.keys.dentry(dir, b"f");
        fs.residents.names.is_missing(&key)
    };
    assert!(is_missing(), "a new directory is whole");
    let file = fs.create(&Caller::ROOT, at(dir, "f"), &NEW).expect("makes");
    assert!(!is_missing());
    fs.forget(file.ino, 1);
    fs.unlink(&Caller::ROOT, at(dir, "f")).expect("removes");
    assert!(is_missing() && fs.residents.names.is_empty(dir));
    fs.remove_dir(&Caller::ROOT, at(Ino::ROOT, "d"))
        .expect("removes");
    assert!(!fs.residents.names.is_empty(dir), "it is given up");
}

#[test]
fn counts_follow_first_and_last_names() {
    let fs = opened();
    let count = || fs.residents.inode_count();
    assert_eq!(count(), 1);
    let file = fs.make_temp_file(&Caller::ROOT, Ino::ROOT, &NEW);
    let ino = file.expect("makes").ino;
    assert_eq!(count(), 1, "it has no name");
    fs.link(&Caller::ROOT, ino, at(Ino::ROOT, "a"))
        .expect("links");
    fs.link(&Caller::ROOT, ino, at(Ino::ROOT, "b"))
        .expect("links");
    assert_eq!(count(), 2);
    let large = vec![1; 5000];
    fs.write(ino, 0, &large, WriteOptions::default())
        .expect("writes");
    for name in ["a", "b"] {
        fs.unlink(&Caller::ROOT, at(Ino::ROOT, name))
            .expect("removes");
    }
    assert_eq!(count(), 1);
    fs.forget(ino, 3);
    assert_eq!(fs.reclaim().expect("reclaims"), 1);
}

/// Contents that are restored by several batches.
const HUGE: usize = 12 << 20;

#[test]
fn a_rollback_that_fails_in_the_middle_keeps_its_notices() {
    let model = crate::testing::formatted(&FsOptions::default());
    let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
    let fs = FileSystem::open(engine, FsOptions::default()).expect("opens");
    fs.readers_keep_contents();
    let dir = fs.make_dir(&Caller::ROOT, at(Ino::ROOT, "d"), &NEW);
    let dir = dir.expect("makes").ino;
    let file = |name| {
        let made = fs.create(&Caller::ROOT, at(dir, name), &NEW);
        made.expect("makes").ino
    };
    let write = |ino, byte, len| {
        let written = fs.write(ino, 0, &vec![byte; len], WriteOptions::default());
        written.expect("writes");
    };
    let (first, huge, closed) = (file("first"), file("huge"), file("closed"));
    for (ino, len) in [(first, 5000), (huge, HUGE), (closed, 5000)] {
        write(ino, 1, len);
    }
    fs.snapshots().create(dir, "mon").expect("creates");
    for (ino, len) in [(first, 5000), (huge, HUGE), (closed, 5000)] {
        write(ino, 2, len);
    }
    fs.forget(closed, 1);
    file("new");
    model.fail_commits(CommitFault::Done, 1);
    assert!(fs.roll_back("mon", dir, RollbackRights::default()).is_err());
    model.mend_commits();
    let kept = fs.send_notices(|kept| kept);
    assert!(kept.inodes.contains(&huge), "{kept:?}");
    assert!(
        fs.send_notices(|kept| kept).is_empty(),
        "they are taken once"
    );
    let rest = fs
        .roll_back("mon", dir, RollbackRights::default())
        .expect("finishes");
    let new = (dir, Box::from(&b"new"[..]));
    assert!(rest.names.contains(&new) && rest.inodes.contains(&dir));
    assert!(kept.inodes.contains(&first) || rest.inodes.contains(&first));
    assert!(
        !rest.inodes.contains(&closed),
        "the kernel does not know it"
    );
    assert!(
        fs.send_notices(|kept| kept).is_empty(),
        "they were returned"
    );
}

#[test]
fn what_is_known_of_a_removed_tree_gets_notices() {
    for has_cache in [false, true] {
        let fs = opened();
        if has_cache {
            fs.readers_keep_contents();
        }
        let dir = fs.make_dir(&Caller::ROOT, at(Ino::ROOT, "d"), &NEW);
        let dir = dir.expect("makes").ino;
        let make = |name| fs.create(&Caller::ROOT, at(dir, name), &NEW);
        let open = make("open").expect("makes").ino;
        let closed = make("closed").expect("makes").ino;
        fs.forget(closed, 1);
        fs.remove_tree(&Caller::ROOT, at(Ino::ROOT, "d"), None)
            .expect("removes");
        assert!(
            fs.send_notices(|kept| kept).is_empty(),
            "the kernel asked for it"
        );
        fs.empty_detached(u64::MAX).expect("removes");
        let notices = fs.send_notices(|kept| kept);
        if !has_cache {
            assert!(notices.is_empty());
            continue;
        }
        assert_eq!(notices.attrs, BTreeSet::from([open]));
        let names: Vec<&[u8]> = notices.names.iter().map(|(_, name)| &name[..]).collect();
        assert_eq!(names, [&b"closed"[..], b"open"]);
        assert_eq!(fs.get_attr(open).expect("is known").nlink, 0);
    }
}

#[test]
fn notices_are_sent_when_a_later_call_returns() {
    let fs = opened();
    fs.readers_keep_contents();
    let kept = |ino| Notices {
        attrs: BTreeSet::from([ino]),
        ..Notices::default()
    };
    fs.untold.keep_attrs(kept(Ino(20)));
    let sent = Mutex::new(Vec::new());
    let (begun, (done, is_done)) = (Barrier::new(2), mpsc::channel());
    let (fs, sent, begun) = (&fs, &sent, &begun);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            fs.send_notices(|notices| {
                begun.wait();
                // The other call has the time to return before this is sent.
                let _ = is_done.recv_timeout(Duration::from_millis(200));
                sent.lock().extend(notices.attrs);
            });
        });
        begun.wait();
        fs.untold.keep_attrs(kept(Ino(21)));
        fs.send_notices(|notices| sent.lock().extend(notices.attrs));
        assert_eq!(*sent.lock(), [Ino(20), Ino(21)]);
        let _ = done.send(());
    });
}
