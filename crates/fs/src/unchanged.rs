//! Whether a directory, and all below it, is the same at two moments.
//!
//! Both sides are walked in step, and the first difference ends the walk:
//!
//! ```text
//!   then   d/=18  a=16  e/=19 ...        row by row: the same, but for times of access
//!   now    d/=18  a=16  e/=19 ...        directories are entered later; a link's own row is read
//! ```
//!
//! Contents, attributes and names of an inode cannot change without a change of its row: the row
//! has the time of the change. Where a clone lies, the same one must lie on the other side, and is
//! entered.

use crate::contents::Contents;
use crate::schema::Store;
use crate::snapshot::SnapshotView;
use crate::system::FileSystem;
use crate::{FsResult, LiveView};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// One state of a directory tree.
#[derive(Clone, Copy)]
pub(crate) enum TreeState<'s> {
    /// As it is.
    Now(&'s FileSystem),
    /// As a snapshot or a moment shows it.
    Past(&'s SnapshotView),
}

/// One file system of a state.
enum StateView<'s> {
    Base(&'s FileSystem),
    Live(Arc<LiveView>),
    Past(Arc<FileSystem>),
}

impl<'s> TreeState<'s> {
    /// The file system that has the directory.
    pub(crate) fn base(self) -> &'s FileSystem {
        match self {
            Self::Now(fs) => fs,
            Self::Past(view) => view.fs(),
        }
    }

    /// Opens a clone.
    fn open(self, number: u64) -> FsResult<StateView<'s>> {
        Ok(match self {
            Self::Now(fs) => StateView::Live(fs.open_clone(number)?),
            Self::Past(view) => StateView::Past(view.open_view(number)?),
        })
    }
}

impl StateView<'_> {
    fn fs(&self) -> &FileSystem {
        match self {
            Self::Base(fs) => fs,
            Self::Live(view) => view.fs(),
            Self::Past(fs) => fs,
        }
    }

    fn store(&self) -> &Store {
        &self.fs().store
    }
}

/// The rows of one file system at two moments.
struct SteppedWalk<'s> {
    then: StateView<'s>,
    now: StateView<'s>,
    dirs: Vec<Ino>,
    /// Clones that were met, each with its directory.
    clones: Vec<(u64, Ino)>,
}

/// Reports whether all below a directory is the same in two states of a file system. The row of the
/// directory itself is not looked at.
///
/// # Errors
/// Those of a read.
///
/// # Cost
/// A scan of all names below the directory on both sides, up to the first difference.
pub(crate) fn is_same_below(then: TreeState<'_>, now: TreeState<'_>, dir: Ino) -> FsResult<bool> {
    let mut walk = SteppedWalk {
        then: StateView::Base(then.base()),
        now: StateView::Base(now.base()),
        dirs: Vec::new(),
        clones: Vec::new(),
    };
    if !walk.is_same_tree(dir)? {
        return Ok(false);
    }
    let mut clones = walk.clones;
    while let Some((number, root)) = clones.pop() {
        let mut walk = SteppedWalk {
            then: then.open(number)?,
            now: now.open(number)?,
            dirs: Vec::new(),
            clones: Vec::new(),
        };
        let head = |view: &StateView<'_>| view.fs().residents.inodes.head(root);
        let is_same = is_same_inode(&head(&walk.then)?, &head(&walk.now)?);
        if !is_same || !walk.is_same_tree(root)? {
            return Ok(false);
        }
        clones.extend(walk.clones);
    }
    Ok(true)
}

/// Reports whether an inode is the same, but for the time of access. A copy of a file may make its
/// contents shared ones: that changes none of them.
pub(crate) fn is_same_inode(then: &InodeHead, now: &InodeHead) -> bool {
    let same = |head: &InodeHead| InodeHead {
        atime: 0,
        flags: Contents::unshared(head.flags),
        ..*head
    };
    same(then) == same(now)
}

impl SteppedWalk<'_> {
    fn is_same_tree(&mut self, dir: Ino) -> FsResult<bool> {
        self.dirs.push(dir);
        while let Some(dir) = self.dirs.pop() {
            if !self.is_same_dir(dir)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_same_dir(&mut self, dir: Ino) -> FsResult<bool> {
        let (then_store, now_store) = (self.then.store(), self.now.store());
        let mut then = then_store.scan(&then_store.keys.dentries(dir))?;
        let mut now = now_store.scan(&now_store.keys.dentries(dir))?;
        let (mut links, mut below) = (Vec::new(), Vec::new());
        loop {
            match (then.next()?, now.next()?) {
                (None, None) => break,
                (Some((old_key, old)), Some((new_key, new))) if old_key == new_key => {
                    let (old, new) = (MetaRow::decode(old)?, MetaRow::decode(new)?);
                    match (old, new) {
                        (MetaRow::Inode(old, old_tail), MetaRow::Inode(new, new_tail))
                            if is_same_inode(&old, &new) && old_tail == new_tail =>
                        {
                            if new.kind == FileKind::Directory {
                                below.push(new.ino);
                            }
                        }
                        (MetaRow::Link { ino: old, .. }, MetaRow::Link { ino, .. })
                            if old == ino =>
                        {
                            links.push(ino);
                        }
                        _ => return Ok(false),
                    }
                }
                _ => return Ok(false),
            }
        }
        drop((then, now));
        for ino in below {
            if !self.note_dir(ino) {
                return Ok(false);
            }
        }
        for ino in links {
            if !self.is_same_link(ino)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes a directory, or the clone that lies there. Reports whether it is the same on both
    /// sides.
    fn note_dir(&mut self, dir: Ino) -> bool {
        let (then, now) = (self.then.fs().clone_at(dir), self.now.fs().clone_at(dir));
        match (then, now) {
            (None, None) => self.dirs.push(dir),
            (Some(then), Some(now)) if then.number == now.number => {
                self.clones.push((now.number, now.root));
            }
            _ => return false,
        }
        true
    }

    /// An inode with several names.
    fn is_same_link(&self, ino: Ino) -> FsResult<bool> {
        let (then, now) = (
            self.then.store().own_row(ino)?,
            self.now.store().own_row(ino)?,
        );
        // One side may lack it while it is being changed.
        let Some(((old, old_tail), (new, new_tail))) = then.zip(now) else {
            return Ok(false);
        };
        Ok(is_same_inode(&old, &new) && old_tail == new_tail)
    }
}
