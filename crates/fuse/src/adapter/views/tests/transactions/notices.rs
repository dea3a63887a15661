//! Notices to the kernel about a transaction that ends.

use super::*;
use crate::transport::ReplySender;
use crate::wire::notice::{Notice, PRUNE_COUNT_MAX};
use std::collections::BTreeSet;
use std::sync::{OnceLock, Weak};

const FILES: usize = 1500;

/// A kernel that forgets unused inodes as soon as it is asked to, and counts notices.
#[derive(Debug, Default)]
struct ForgettingKernel {
    setup: OnceLock<Weak<SharedSetup>>,
    /// Inodes in use.
    used: BTreeSet<Ino>,
    prunes: Mutex<usize>,
    /// Directory in which it makes `late` when it is asked for the first time, as a program does
    /// that goes on.
    late_in: Option<Ino>,
    /// Inodes that it was told to drop the pages of.
    dropped: Mutex<Vec<Ino>>,
}

struct SharedSetup(Setup);

impl std::fmt::Debug for SharedSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSetup")
    }
}

fn word(message: &[u8], at: usize) -> Ino {
    Ino(u64::from_le_bytes(message[at..at + 8].try_into().unwrap()))
}

impl ReplySender for ForgettingKernel {
    fn send(&self, message: &[u8]) -> std::io::Result<()> {
        let kind = |notice: Notice<'_>| notice.encode()[4..8].to_vec();
        let ino = word(message, 16);
        if message[4..8] == kind(Notice::Prune { inos: &[] }) {
            let count = {
                let mut prunes = self.prunes.lock();
                *prunes += 1;
                *prunes
            };
            let setup = self.setup.get().and_then(Weak::upgrade).unwrap();
            let inos = (32..message.len()).step_by(8).map(|at| word(message, at));
            for ino in inos.filter(|ino| !self.used.contains(ino)) {
                setup.0.views.forget(ino, 1);
            }
            if let Some(dir) = self.late_in.filter(|_| count == 1) {
                // One that was aborted refuses it.
                let made = setup.0.make(dir, b"late");
                assert!(made.is_ok() || made.err() == Some(Errno::ESTALE));
            }
        }
        let (offset, length) = (0, 0);
        let all = Notice::InvalidateInode {
            ino,
            offset,
            length,
        };
        if message == all.encode() {
            self.dropped.lock().push(ino);
        }
        Ok(())
    }
}

/// Ends a transaction with many new files, one of which is in use, by this verb. Returns the number
/// of notices to forget unused inodes, the inodes whose pages were to be dropped, and the one that
/// is in use. `minor` is the version of the kernel's protocol.
fn end_of_many_files(verb: &str, minor: u32) -> (usize, Vec<Ino>, Ino) {
    let setup = setup();
    let (_, root) = setup.begun("work");
    let dir = setup.make(root, b"dir").unwrap().ino;
    let mut used = dir;
    for index in 0..FILES {
        let name = format!("new {index}");
        used = setup.make(dir, name.as_bytes()).unwrap().ino;
    }
    let kernel = Arc::new(ForgettingKernel {
        used: BTreeSet::from([root, dir, used]),
        late_in: Some(root),
        ..ForgettingKernel::default()
    });
    let shared = Arc::new(SharedSetup(setup));
    kernel.setup.set(Arc::downgrade(&shared)).unwrap();
    let notifier = Notifier::new(Arc::clone(&kernel) as _, minor);
    shared.0.txn(&format!("{verb} work")).unwrap();
    shared.0.views.transactions.run_now(&notifier);
    let (prunes, dropped) = (*kernel.prunes.lock(), kernel.dropped.lock().clone());
    let is_late_there = shared.0.lookup(ROOT, b"late").unwrap().is_some();
    let is_expected = verb == "commit" && prunes > 0;
    assert_eq!(
        is_late_there, is_expected,
        "what came after the first notice"
    );
    (prunes, dropped, used)
}

#[test]
fn unused_inodes_of_a_transaction_need_no_notice_of_their_own() {
    for (verb, rounds) in [("commit", 2), ("abort", 1)] {
        let (prunes, dropped, used) = end_of_many_files(verb, 45);
        // The second time the kernel knows but those in use.
        let most = FILES.div_ceil(PRUNE_COUNT_MAX) + rounds;
        assert!((3..=most).contains(&prunes), "{verb}: {prunes}");
        assert!(dropped.contains(&used), "{verb}: it may have pages");
        assert!(dropped.len() <= 5 * rounds, "{verb}: {}", dropped.len());
    }
}

#[test]
fn an_older_kernel_is_told_of_each_inode() {
    let (prunes, dropped, used) = end_of_many_files("commit", 44);
    assert_eq!(prunes, 0, "it knows no such notice");
    let dropped: BTreeSet<Ino> = dropped.into_iter().collect();
    assert!(dropped.len() > FILES, "{}", dropped.len());
    assert!(dropped.contains(&used));
}

/// A kernel that has looked up a tree of mainline, and uses one directory in it.
#[derive(Debug, Default)]
struct WalkingKernel {
    setup: OnceLock<Weak<SharedSetup>>,
    /// The name of the tree, and what is in it beside what is used.
    top: Vec<u8>,
    unused: Mutex<Vec<Ino>>,
    /// Number of notices about names, and the inodes of all others.
    names: Mutex<usize>,
    inodes: Mutex<Vec<Ino>>,
}

impl ReplySender for WalkingKernel {
    fn send(&self, message: &[u8]) -> std::io::Result<()> {
        let (code, ino) = (message[4], word(message, 16));
        match i32::from(code) {
            2 => self.inodes.lock().push(ino),
            3 => *self.names.lock() += 1,
            _ => {}
        }
        if message.ends_with(&self.top) {
            // It drops what is unused below, and FORGETs come.
            let setup = self.setup.get().and_then(Weak::upgrade).unwrap();
            let unused = std::mem::take(&mut *self.unused.lock());
            unused
                .iter()
                .for_each(|ino| setup.0.views.forget(*ino, 1000));
        }
        Ok(())
    }
}

#[test]
fn a_removed_tree_has_notices_where_it_is_in_use_alone() {
    const DIRS: usize = 20;
    const NAMES: usize = 30;
    let setup = setup();
    let top = setup.dir(b"top");
    let mut unused = Vec::new();
    let mut used = Vec::new();
    for dir in 0..DIRS {
        let at = setup
            .make(top, format!("dir {dir}").as_bytes())
            .unwrap()
            .ino;
        let names =
            (0..NAMES).map(|name| setup.make(at, format!("{name}").as_bytes()).unwrap().ino);
        unused.extend(names);
        match dir {
            7 => used.push(at),
            _ => unused.push(at),
        }
    }
    used.push(top);
    let (_, root) = setup.begun("work");
    let find = |dir: Ino, name: String| {
        let found = setup.lookup(dir, name.as_bytes()).unwrap();
        found.unwrap().ino
    };
    let remove = |dir: Ino, name: String| {
        let removed = setup.views.rmdir(&context(0), dir, name.as_bytes());
        removed.unwrap();
    };
    let inside = find(root, "top".to_owned());
    for dir in 0..DIRS {
        let at = find(inside, format!("dir {dir}"));
        (0..NAMES).for_each(|name| remove(at, format!("{name}")));
        remove(inside, format!("dir {dir}"));
    }
    remove(root, "top".to_owned());
    let shared = Arc::new(SharedSetup(setup));
    let kernel = Arc::new(WalkingKernel {
        top: b"top\0".to_vec(),
        unused: Mutex::new(unused),
        ..WalkingKernel::default()
    });
    kernel.setup.set(Arc::downgrade(&shared)).unwrap();
    let notifier = Notifier::new(Arc::clone(&kernel) as _, 45);
    shared.0.txn("commit work").unwrap();
    shared.0.views.transactions.run_now(&notifier);
    assert_eq!(shared.0.lookup(ROOT, b"top"), Ok(None));
    // Its own, those in what is used, and that of the transaction.
    assert_eq!(*kernel.names.lock(), 1 + DIRS + NAMES + 1);
    let inodes = kernel.inodes.lock();
    let mainline = inodes
        .iter()
        .filter(|ino| matches!(Node::of(**ino), Node::Mainline));
    let mainline: BTreeSet<Ino> = mainline.copied().collect();
    used.push(ROOT);
    assert_eq!(mainline, used.into_iter().collect());
}
