use super::*;
use crate::transport::ReplySender;
use crate::wire::notice::Notice;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use stitch_base::sync::{Arc, Mutex};

/// A kernel that has some inodes, and notes what it was told.
#[derive(Debug, Default)]
struct Kernel {
    inodes: BTreeSet<u64>,
    told: Mutex<Vec<Vec<u8>>>,
}

impl ReplySender for Kernel {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.told.lock().push(message.to_vec());
        let ino = message[16..24].try_into().expect("each has an inode");
        match self.inodes.contains(&u64::from_le_bytes(ino)) {
            true => Ok(()),
            false => Err(rustix::io::Errno::NOENT.into()),
        }
    }
}

fn name(parent: u64, name: &str) -> Vec<u8> {
    let notice = Notice::InvalidateEntry {
        parent: Ino(parent),
        name: name.as_bytes(),
        expire_only: false,
    };
    notice.encode()
}

fn pages(ino: u64) -> Vec<u8> {
    let notice = Notice::InvalidateInode {
        ino: Ino(ino),
        offset: 0,
        length: 0,
    };
    notice.encode()
}

fn attrs(ino: u64) -> Vec<u8> {
    let notice = Notice::InvalidateInode {
        ino: Ino(ino),
        offset: -1,
        length: 0,
    };
    notice.encode()
}

/// A tree `top` of the root directory was removed: the directories 20 to 22, with two names each.
fn of_a_removed_tree() -> Notices {
    let names = || BTreeSet::from([Box::from(&b"a"[..]), Box::from(&b"b"[..])]);
    Notices {
        names: BTreeSet::from([(Ino(1), Box::from(&b"top"[..]))]),
        removed_dirs: BTreeMap::from([20, 21, 22].map(|dir| (Ino(dir), names()))),
        inodes: BTreeSet::from([Ino(30), Ino(31)]),
        attrs: BTreeSet::from([Ino(40), Ino(41)]),
    }
}

/// What a kernel that has these inodes is told of the tree, if the others are forgotten by now or
/// not.
fn told(inodes: [u64; 4], are_forgotten: bool) -> Vec<Vec<u8>> {
    let kernel = Arc::new(Kernel {
        inodes: BTreeSet::from(inodes),
        ..Kernel::default()
    });
    let notifier = Notifier::new(Arc::clone(&kernel) as _, 45);
    let is_known = |ino: Ino| !are_forgotten || inodes.contains(&ino.0);
    send_to_known(&of_a_removed_tree(), &notifier, is_known);
    let names = kernel
        .told
        .lock()
        .iter()
        .filter(|told| told[4] == 3)
        .count();
    assert_eq!(notifier.name_notices(), names as u64);
    kernel.told.lock().clone()
}

#[test]
fn names_in_a_removed_directory_are_told_if_the_kernel_has_it() {
    let all = [
        name(1, "top"),
        pages(20),
        pages(21),
        name(21, "a"),
        name(21, "b"),
        pages(22),
        pages(30),
        pages(31),
        attrs(40),
        attrs(41),
    ];
    assert_eq!(told([1, 21, 30, 40], false), all);
}

#[test]
fn what_is_forgotten_by_then_is_not_told() {
    let left = [
        name(1, "top"),
        pages(21),
        name(21, "a"),
        name(21, "b"),
        pages(30),
        attrs(40),
    ];
    assert_eq!(told([1, 21, 30, 40], true), left);
}

#[test]
fn a_notice_that_fails_ends_none_of_the_others() {
    #[derive(Debug, Default)]
    struct Deaf(Mutex<usize>);
    impl ReplySender for Deaf {
        fn send(&self, _: &[u8]) -> io::Result<()> {
            *self.0.lock() += 1;
            Err(rustix::io::Errno::IO.into())
        }
    }
    let kernel = Arc::new(Deaf::default());
    let notifier = Notifier::new(Arc::clone(&kernel) as _, 45);
    send(&of_a_removed_tree(), &notifier);
    // The kernel may have the directories: all names are told.
    assert_eq!(*kernel.0.lock(), 1 + 3 * 3 + 2 + 2);
}
