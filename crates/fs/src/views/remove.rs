//! Removing clones.

use super::{LiveView, Standing, ViewOpener};
use crate::change::Change;
use crate::inode::Inode;
use crate::namespace::{NameChanges, Namespace};
use crate::system::FileSystem;
use crate::{Caller, DirName, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::clock::Clock;
use stitch_base::sync::Arc;

/// Removes clones by their names in one file system, their home.
///
/// Invariant: a clone goes in one batch with its name, and with the clones that lie in it.
#[derive(Clone, Copy)]
pub(crate) struct CloneRemoval<'fs> {
    names: NameChanges<'fs>,
    opener: ViewOpener<'fs>,
    clock: &'fs dyn Clock,
}

impl<'fs> CloneRemoval<'fs> {
    pub(crate) fn of(home: &'fs FileSystem) -> Self {
        Self {
            names: NameChanges::of(home),
            opener: ViewOpener::of(home),
            clock: &*home.options.clock,
        }
    }

    /// Returns the clone that a name leads to.
    pub(crate) fn find(&self, at: DirName<'_>) -> FsResult<Option<Arc<LiveView>>> {
        let standing = self.opener.standing();
        if !standing.views.has_any() {
            return Ok(None);
        }
        let found = self.names.names.peek(at)?;
        let found = found.and_then(|ino| standing.clone_at(ino));
        debug_assert!(
            found.as_ref().is_none_or(|info| info.number > 0),
            "mainline is no clone"
        );
        found.map(|info| self.opener.open(info.number)).transpose()
    }

    /// Removes the name of a clone, and with it the clone; `is_empty` refuses one that has entries.
    /// The trees go with [`FileSystem::reclaim`].
    pub(crate) fn remove(
        &self,
        caller: &Caller<'_>,
        at: DirName<'_>,
        view: &LiveView,
        is_empty: bool,
    ) -> FsResult<()> {
        debug_assert_eq!(
            view.fs().view_number(),
            view.info().number,
            "the file system of the clone"
        );
        let (fs, info) = (view.fs(), view.info());
        let _command = self.opener.standing().views.commands.begin(self.clock);
        let locks = &fs.residents.locks;
        let (_names, _root) = (locks.dir_write(info.root), locks.inode_write(info.root));
        if is_empty {
            Namespace::of(fs).check_empty(info.root)?;
        }
        let views = &self.opener.standing().views;
        let mut removed = Vec::new();
        let take = |change: &mut Change<'_>, graft: &Inode, now: i64| {
            debug_assert_eq!(graft.head.ino, info.graft, "it was expected");
            self.names.names.check_empty(info.graft)?;
            removed = views.stage_removed(&mut change.batch, info.number);
            change.drop_name(graft, now, Bytes::new())
        };
        self.names.take_dir(caller, at, Some(info.graft), take)?;
        debug_assert_eq!(
            removed.first(),
            Some(&info.number),
            "it goes, and what lies in it"
        );
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
