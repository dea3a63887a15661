//! Removing clones.

use super::{LiveView, Standing};
use crate::change::Change;
use crate::inode::Inode;
use crate::system::FileSystem;
use crate::{Caller, DirName, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::Arc;

impl FileSystem {
    /// Returns the clone that a name leads to.
    pub(crate) fn clone_named(&self, at: DirName<'_>) -> FsResult<Option<Arc<LiveView>>> {
        if !self.standing.views.has_any() {
            return Ok(None);
        }
        let found = self.peek(at)?.and_then(|ino| self.clone_at(ino));
        found.map(|info| self.open_clone(info.number)).transpose()
    }

    /// Removes the name of a clone, and with it the clone; `is_empty` refuses one that has entries.
    /// The trees go with [`Self::reclaim`].
    pub(crate) fn remove_clone(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        view: &LiveView,
        is_empty: bool,
    ) -> FsResult<()> {
        let (fs, info) = (view.fs(), view.info());
        let locks = &fs.residents.locks;
        let (_names, _root) = (locks.dir_write(info.root), locks.inode_write(info.root));
        if is_empty {
            fs.namespace().check_empty(info.root)?;
        }
        let views = &self.standing.views;
        let mut removed = Vec::new();
        let take = |change: &mut Change<'_>, graft: &Inode, now: i64| {
            debug_assert_eq!(graft.head.ino, info.graft, "it was expected");
            self.namespace().check_empty(info.graft)?;
            removed = views.stage_removed(&mut change.batch, info.number);
            change.drop_name(graft, now, Bytes::new())
        };
        let names = self.name_changes();
        names.take_dir(caller, at, Some(info.graft), take)?;
        views.note_removed(&removed);
        Ok(())
    }
}

impl Standing {
    /// Stages the removal of the clone that lies at a directory, if one does. Returns what is to be
    /// noted after the commit.
    pub(crate) fn stage_clone_removed(&self, change: &mut Change<'_>, dir: Ino) -> Vec<u64> {
        let found = self.views.at(self.number, dir);
        found.map_or_else(Vec::new, |info| {
            self.views.stage_removed(&mut change.batch, info.number)
        })
    }
}
