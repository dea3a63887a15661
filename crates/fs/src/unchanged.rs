//! Whether a directory, and all below it, is the same at two moments.
//!
//! Both sides are walked in step, and the first difference ends the walk:
//!
//! ```text
//!   then   d/=18  a=16  e/=19 ...        row by row: the same, but for times of access
//!   now    d/=18  a=16  e/=19 ...        directories are entered later; a link's own row is read
//! ```
//!
//! The row of an inode has the time of its last change. That tells of a change since, but for an
//! inode that changed right before the first moment: its extended attributes and contents are
//! compared ([`recent`](crate::recent)). Where a clone lies, one must lie on the other side, too,
//! and both are entered: it is the same one, or a rollback has made it again.

use crate::contents::Contents;
use crate::locator::Locator;
use crate::recent::{RecentSince, WrittenBetween};
use crate::schema::Store;
use crate::snapshot::SnapshotView;
use crate::system::FileSystem;
use crate::{FsResult, LiveView};
use std::collections::HashSet;
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
        debug_assert!(number > 0, "mainline is no clone");
        let view = match self {
            Self::Now(fs) => StateView::Live(fs.open_clone(number)?),
            Self::Past(view) => StateView::Past(view.open_view(number)?),
        };
        debug_assert_eq!(
            view.fs().view_number(),
            number,
            "the clone that was asked for"
        );
        Ok(view)
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
    /// What was written between.
    written: &'s WrittenBetween<'s>,
    recent_since: RecentSince,
    dirs: Vec<Ino>,
    /// Directories that were met: damaged rows may form a ring.
    met: HashSet<Ino>,
    /// Clones that were met: their numbers on both sides, and their directory.
    clones: Vec<((u64, u64), Ino)>,
}

/// What two directories have in common, as far as their rows tell.
#[derive(Default)]
struct SameNames {
    /// Inodes that have another row for each name.
    links: Vec<Ino>,
    /// Directories.
    dirs: Vec<Ino>,
    /// Inodes whose rows tell nothing of a change.
    recent: Vec<(InodeHead, InodeHead)>,
}

impl SameNames {
    /// Notes the rows under a name. Reports whether they are the same.
    fn note(&mut self, old: &MetaRow<'_>, new: &MetaRow<'_>, since: RecentSince) -> bool {
        match (old, new) {
            (MetaRow::Inode(old, old_tail), MetaRow::Inode(new, new_tail))
                if is_same_inode(old, new) && old_tail == new_tail =>
            {
                if new.kind == FileKind::Directory {
                    self.dirs.push(new.ino);
                }
                if since.is_recent(old) {
                    self.recent.push((*old, *new));
                }
            }
            (MetaRow::Link { ino: old, .. }, MetaRow::Link { ino, .. }) if old == ino => {
                self.links.push(*ino);
            }
            _ => return false,
        }
        true
    }
}

/// Reports whether a directory, and all below it, is the same at a moment of the past and in a
/// later state of a file system.
///
/// # Errors
/// Those of a read.
///
/// # Cost
/// A scan of all names below the directory on both sides, up to the first difference. Contents of
/// files are read only if they changed right before the moment, and were written since.
pub(crate) fn is_same_tree(
    past: &SnapshotView,
    now: TreeState<'_>,
    written: &WrittenBetween<'_>,
    dir: Ino,
) -> FsResult<bool> {
    debug_assert_eq!(
        past.fs().view_number(),
        now.base().view_number(),
        "one view at two moments"
    );
    let then = TreeState::Past(past);
    let recent_since = RecentSince::of_moment(past.info().created);
    let views = (StateView::Base(then.base()), StateView::Base(now.base()));
    let mut waiting = vec![(views, dir)];
    while let Some(((then_view, now_view), dir)) = waiting.pop() {
        let mut walk = SteppedWalk {
            then: then_view,
            now: now_view,
            written,
            recent_since,
            dirs: Vec::new(),
            met: HashSet::from([dir]),
            clones: Vec::new(),
        };
        if !walk.is_same_tree(dir)? {
            return Ok(false);
        }
        debug_assert!(walk.dirs.is_empty(), "all directories were compared");
        for (numbers, root) in walk.clones {
            waiting.push(((then.open(numbers.0)?, now.open(numbers.1)?), root));
        }
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
        debug_assert!(self.dirs.is_empty(), "a walk is run once");
        debug_assert!(self.clones.is_empty(), "a walk is run once");
        let head = |view: &StateView<'_>| view.fs().residents.inodes.head(dir);
        let heads = (head(&self.then)?, head(&self.now)?);
        if !is_same_inode(&heads.0, &heads.1) || !self.has_same_rows(&heads)? {
            return Ok(false);
        }
        self.dirs.push(dir);
        while let Some(dir) = self.dirs.pop() {
            if !self.is_same_dir(dir)? {
                return Ok(false);
            }
        }
        debug_assert!(self.dirs.is_empty(), "all directories were compared");
        Ok(true)
    }

    /// Reports whether an inode with the same row has the same extended attributes and contents.
    fn has_same_rows(&self, (then, now): &(InodeHead, InodeHead)) -> FsResult<bool> {
        debug_assert!(is_same_inode(then, now), "its rows were compared");
        if !self.recent_since.is_recent(then) {
            return Ok(true);
        }
        let sides = ((self.then.store(), then), (self.now.store(), now));
        Ok(!self.written.has_changed(sides.0, sides.1)?)
    }

    fn is_same_dir(&mut self, dir: Ino) -> FsResult<bool> {
        let Some(same) = self.same_names(dir)? else {
            return Ok(false);
        };
        for ino in same.dirs {
            if !self.note_dir(ino) {
                return Ok(false);
            }
        }
        for ino in same.links {
            if !self.is_same_link(ino)? {
                return Ok(false);
            }
        }
        for heads in &same.recent {
            if !self.has_same_rows(heads)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares the names of a directory and the rows under them; `None` if they are not the same.
    fn same_names(&self, dir: Ino) -> FsResult<Option<SameNames>> {
        let (then_store, now_store) = (self.then.store(), self.now.store());
        let mut then = then_store.scan(&then_store.keys.dentries(dir))?;
        let mut now = now_store.scan(&now_store.keys.dentries(dir))?;
        let mut same = SameNames::default();
        loop {
            match (then.next()?, now.next()?) {
                (None, None) => return Ok(Some(same)),
                (Some((old_key, old)), Some((new_key, new))) if old_key == new_key => {
                    let (old, new) = (MetaRow::decode(old)?, MetaRow::decode(new)?);
                    debug_assert_eq!(
                        Locator::ino_of(old_key),
                        Some(dir),
                        "a name in the directory"
                    );
                    if !same.note(&old, &new, self.recent_since) {
                        return Ok(None);
                    }
                }
                _ => return Ok(None),
            }
        }
    }

    /// Notes a directory, or the clone that lies there. Reports whether it may be the same on both
    /// sides.
    fn note_dir(&mut self, dir: Ino) -> bool {
        let (then, now) = (self.then.fs().clone_at(dir), self.now.fs().clone_at(dir));
        match (then, now) {
            (None, None) if self.met.insert(dir) => self.dirs.push(dir),
            (None, None) => {}
            (Some(then), Some(now)) if then.root == now.root => {
                self.clones.push(((then.number, now.number), now.root));
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
        debug_assert_eq!(old.ino, ino, "the row of the inode");
        debug_assert_eq!(new.ino, ino, "the row of the inode");
        let has_same_row = is_same_inode(&old, &new) && old_tail == new_tail;
        Ok(has_same_row && self.has_same_rows(&(old, new))?)
    }
}
