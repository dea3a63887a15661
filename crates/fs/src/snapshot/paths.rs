//! Paths of directories, which may lead through clones.
//!
//! ```text
//! mainline   a/b    clone 1 lies here        a/b
//! clone 1    x/y    clone 2 lies here            x/y      from the directory of clone 1 on
//! clone 2    z                                       z    from the directory of clone 2 on
//!                                            a/b/x/y/z    path of z in clone 2
//! ```

use crate::back::NumberLookup;
use crate::inode::Holds;
use crate::residents::Residents;
use crate::system::FileSystem;
use crate::views::ViewOpener;
use crate::{CloneInfo, FsError, FsResult, LiveView};
use stitch_base::Ino;
use stitch_format::fs_snapshot::SNAPSHOT_PATH_BYTES_MAX;

/// Paths of directories that are known, as they are at the moment.
///
/// Invariant: a path leads to its directory for a program that follows it. So where a clone hides
/// the directory, there is none.
#[derive(Clone, Copy)]
pub(crate) struct ViewPaths<'fs> {
    residents: &'fs Residents,
    numbers: NumberLookup<'fs>,
    holds: Holds<'fs>,
    opener: ViewOpener<'fs>,
}

impl<'fs> ViewPaths<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            residents: &fs.residents,
            numbers: NumberLookup::of(fs),
            holds: Holds::of(fs),
            opener: ViewOpener::of(fs),
        }
    }

    /// Returns the path of a directory, from `top`.
    ///
    /// # Errors
    /// [`FsError::Stale`] if a clone lies at it or above it, below `top`: its path leads into the
    /// clone.
    pub(super) fn outside_clones(&self, top: Ino, dir: Ino) -> FsResult<Vec<u8>> {
        let standing = self.opener.standing();
        self.residents
            .path_through(top, dir, |at| match standing.clone_at(at) {
                Some(_) => Err(FsError::Stale(dir)),
                None => Ok(()),
            })
    }

    /// Returns the path of a directory in a clone, from the root of this file system, which is
    /// mainline.
    ///
    /// # Errors
    /// [`FsError::NotFound`] for a clone that was removed; [`FsError::Stale`] for one that another
    /// clone hides; [`FsError::NameTooLong`].
    pub(crate) fn through(&self, clone: &LiveView, dir: Ino) -> FsResult<Vec<u8>> {
        let standing = self.opener.standing();
        debug_assert_eq!(standing.number, 0, "paths begin in mainline");
        let below = ViewPaths::of(clone.fs()).outside_clones(clone.info().root, dir)?;
        let number = clone.info().number;
        let mut info = standing.views.clone_of(number).ok_or(FsError::NotFound)?;
        let mut parts = vec![below];
        while info.home > 0 {
            debug_assert!(info.home < info.number, "other records are passed over");
            let home = self.opener.open(info.home)?;
            debug_assert_eq!(home.info().number, info.home, "the view that has the graft");
            parts.push(ViewPaths::of(home.fs()).of_graft(&info, home.info().root)?);
            info = home.info().clone();
        }
        parts.push(self.of_graft(&info, Ino::ROOT)?);
        parts.reverse();
        parts.retain(|part| !part.is_empty());
        let path = parts.join(&b'/');
        if path.len() > SNAPSHOT_PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(path)
    }

    /// Returns the path of the directory at which a clone lies, from `top`. This file system is its
    /// home.
    ///
    /// # Errors
    /// [`FsError::Stale`] if another clone lies above it.
    fn of_graft(&self, info: &CloneInfo, top: Ino) -> FsResult<Vec<u8>> {
        let standing = self.opener.standing();
        debug_assert_eq!(standing.number, info.home, "its home has the directory");
        let graft = info.graft;
        self.numbers.look_up(graft)?;
        let path = self
            .residents
            .path_through(top, graft, |at| match standing.clone_at(at) {
                Some(_) if at != graft => Err(FsError::Stale(graft)),
                _ => Ok(()),
            });
        self.holds.forget(graft);
        path
    }
}
