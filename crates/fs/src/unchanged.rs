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
//! has the time of the change.

use crate::FsResult;
use crate::schema::Store;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// The rows of one directory tree at two moments.
struct SteppedWalk<'s> {
    then: &'s Store,
    now: &'s Store,
    dirs: Vec<Ino>,
}

/// Reports whether all below a directory is the same in two states of a file system. The
/// directory's own row is not looked at.
///
/// # Errors
/// Those of a read.
///
/// # Cost
/// A scan of all names below the directory on both sides, up to the first difference.
pub(crate) fn is_same_below(then: &Store, now: &Store, dir: Ino) -> FsResult<bool> {
    let dirs = vec![dir];
    let mut walk = SteppedWalk { then, now, dirs };
    while let Some(dir) = walk.dirs.pop() {
        if !walk.is_same_dir(dir)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reports whether an inode is the same, but for the time of access.
pub(crate) fn is_same_inode(then: &InodeHead, now: &InodeHead) -> bool {
    let atime = now.atime;
    InodeHead { atime, ..*then } == *now
}

impl SteppedWalk<'_> {
    fn is_same_dir(&mut self, dir: Ino) -> FsResult<bool> {
        let mut then = self.then.scan(&self.then.keys.dentries(dir))?;
        let mut now = self.now.scan(&self.now.keys.dentries(dir))?;
        let mut links = Vec::new();
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
                                self.dirs.push(new.ino);
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
        for ino in links {
            if !self.is_same_link(ino)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// An inode with several names.
    fn is_same_link(&self, ino: Ino) -> FsResult<bool> {
        let (then, now) = (self.then.own_row(ino)?, self.now.own_row(ino)?);
        // One side may lack it while it is being changed.
        let Some(((old, old_tail), (new, new_tail))) = then.zip(now) else {
            return Ok(false);
        };
        Ok(is_same_inode(&old, &new) && old_tail == new_tail)
    }
}
