//! The inodes that the kernel knows, each an `O_PATH` descriptor of what is below.
//!
//! Invariants:
//! - an inode below has one number here as long as the kernel knows it, whatever its names: its
//!   descriptor is held for as long, so that its number below is not given to another;
//! - numbers here are used once.

use super::convert::errno;
use anyhow::Context as _;
use rustix::fs::{self as sys, AtFlags, CWD, Mode, OFlags, Stat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Bound;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_fuse::Errno;
use stitch_fuse::handler::Answer;

/// Most descriptors of a process.
const LIMIT_PATH: &str = "/proc/sys/fs/nr_open";

/// An inode of the file system below.
#[derive(Debug)]
pub(super) struct Inode {
    /// Its descriptor, good for its place and its attributes.
    pub(super) fd: OwnedFd,
    /// Device and number below.
    id: (u64, u64),
}

impl Inode {
    /// A path to the inode itself, for calls that take nothing else.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// Opens it.
    pub(super) fn open(&self, flags: OFlags) -> Answer<File> {
        let fd = sys::openat(CWD, self.path(), flags, Mode::empty()).map_err(errno)?;
        Ok(File::from(fd))
    }
}

/// Lets this process have as many descriptors as it can; how many.
fn raise_limit() -> anyhow::Result<u64> {
    let most: u64 = std::fs::read_to_string(LIMIT_PATH)?.trim().parse()?;
    let own = getrlimit(Resource::Nofile).maximum.unwrap_or(most);
    let set = |limit: u64| {
        let limit = Some(limit);
        let both = Rlimit {
            current: limit,
            maximum: limit,
        };
        setrlimit(Resource::Nofile, both)
    };
    // Beyond its own limit it may need a right that even root does not always have.
    if set(most).is_ok() {
        return Ok(most);
    }
    set(own)?;
    Ok(own)
}

/// All of them.
pub(super) struct Inodes {
    table: Mutex<InodeTable>,
    /// More than these are too many: the other descriptors are for open files.
    count_max: usize,
}

struct InodeTable {
    /// In the order in which they came.
    known: BTreeMap<Ino, Known>,
    by_id: HashMap<(u64, u64), Ino>,
    last: u64,
    /// The one that was last named as one of too many.
    named: Ino,
}

struct Known {
    inode: Arc<Inode>,
    lookups: u64,
}

fn id_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Inodes {
    /// The root alone.
    pub(super) fn new(root: &Path) -> anyhow::Result<Self> {
        let limit = raise_limit().context("cannot have more descriptors")?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = sys::openat(CWD, root, flags, Mode::empty())?;
        let id = id_of(&sys::fstat(&fd)?);
        let inode = Arc::new(Inode { fd, id });
        // The kernel never forgets the root.
        let known = Known { inode, lookups: 1 };
        let table = InodeTable {
            known: BTreeMap::from([(Ino::ROOT, known)]),
            by_id: HashMap::from([(id, Ino::ROOT)]),
            last: Ino::ROOT.0,
            named: Ino::ROOT,
        };
        Ok(Self {
            table: Mutex::new(table),
            count_max: usize::try_from(limit / 2)?,
        })
    }

    /// Some of the oldest, where there are too many: each time the next ones, since some stay.
    pub(super) fn too_many(&self, count: usize) -> Vec<Ino> {
        let mut table = self.table.lock();
        let over = table.known.len().saturating_sub(self.count_max);
        let count = count.min(over);
        let after = (Bound::Excluded(table.named), Bound::Unbounded);
        let next = table.known.range(after).map(|(ino, _)| *ino);
        let next: Vec<Ino> = next.take(count).collect();
        // After the last one it begins anew.
        table.named = next.last().copied().unwrap_or(Ino::ROOT);
        next
    }

    /// The inode of this number.
    pub(super) fn get(&self, ino: Ino) -> Answer<Arc<Inode>> {
        let table = self.table.lock();
        let known = table.known.get(&ino).ok_or(Errno::ESTALE)?;
        Ok(Arc::clone(&known.inode))
    }

    /// Finds a name; the lookup is counted.
    pub(super) fn look_up(&self, parent: &Inode, name: &[u8]) -> Answer<(Ino, Stat)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = sys::openat(&parent.fd, name, flags, Mode::empty()).map_err(errno)?;
        let stat = sys::statat(&fd, "", AtFlags::EMPTY_PATH).map_err(errno)?;
        Ok((self.count(fd, id_of(&stat)), stat))
    }

    /// Counts a lookup. The descriptor is kept where there was none.
    fn count(&self, fd: OwnedFd, id: (u64, u64)) -> Ino {
        let mut table = self.table.lock();
        let table = &mut *table;
        if let Some(&ino) = table.by_id.get(&id) {
            let known = table.known.get_mut(&ino);
            known.expect("both maps have the same inodes").lookups += 1;
            return ino;
        }
        table.last += 1;
        let ino = Ino(table.last);
        let inode = Arc::new(Inode { fd, id });
        table.by_id.insert(id, ino);
        table.known.insert(ino, Known { inode, lookups: 1 });
        debug_assert_eq!(table.by_id.len(), table.known.len(), "one number for each");
        ino
    }

    /// Takes lookups back; what has none is let go.
    pub(super) fn forget(&self, ino: Ino, count: u64) {
        if ino == Ino::ROOT {
            return;
        }
        let mut table = self.table.lock();
        let Some(known) = table.known.get_mut(&ino) else {
            return;
        };
        debug_assert!(
            known.lookups >= count,
            "no more is forgotten than was known"
        );
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return;
        }
        let gone = table.known.remove(&ino).map(|known| known.inode);
        if let Some(gone) = &gone {
            table.by_id.remove(&gone.id);
        }
        // Closed without the lock.
        drop(table);
        drop(gone);
    }

    #[cfg(test)]
    pub(super) const fn set_count_max(&mut self, count_max: usize) {
        self.count_max = count_max;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.lock().known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_has_one_number_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("one"), b"x").unwrap();
        std::fs::hard_link(dir.path().join("one"), dir.path().join("two")).unwrap();
        let inodes = Inodes::new(dir.path()).unwrap();
        let root = inodes.get(Ino::ROOT).unwrap();
        let (one, stat) = inodes.look_up(&root, b"one").unwrap();
        assert_eq!(stat.st_size, 1);
        assert_eq!(inodes.look_up(&root, b"two").unwrap().0, one);
        assert_eq!(inodes.look_up(&root, b"no").err(), Some(Errno::ENOENT));
        assert_eq!(inodes.look_up(&root, b".").unwrap().0, Ino::ROOT);
        inodes.forget(one, 1);
        assert!(inodes.get(one).is_ok());
        inodes.forget(one, 1);
        assert_eq!(inodes.get(one).err(), Some(Errno::ESTALE));
        assert_eq!(inodes.len(), 1);
        assert_ne!(inodes.look_up(&root, b"one").unwrap().0, one);
    }

    #[test]
    fn too_many_are_named_in_turn_and_never_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let mut inodes = Inodes::new(dir.path()).unwrap();
        inodes.set_count_max(3);
        let root = inodes.get(Ino::ROOT).unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
            inodes.look_up(&root, name.as_bytes()).unwrap();
        }
        assert_eq!(inodes.too_many(2), [Ino(2), Ino(3)]);
        assert_eq!(inodes.too_many(9), [Ino(4), Ino(5), Ino(6)]);
        assert_eq!(inodes.too_many(9), []);
        inodes.forget(Ino(2), 1);
        inodes.forget(Ino(3), 1);
        inodes.forget(Ino(4), 1);
        assert_eq!(inodes.too_many(9), []);
    }
}
