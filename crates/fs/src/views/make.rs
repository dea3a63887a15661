//! Making clones.

use super::CloneInfo;
use super::set::drop_trees;
use crate::locator::Tree;
use crate::namespace::check_name;
use crate::schema::view_schema;
use crate::snapshot::pin_name;
use crate::system::FileSystem;
use crate::{Caller, DirName, FsError, FsResult, NewNode};
use stitch_base::Ino;
use stitch_format::fs_view::{VIEW_PATH_BYTES_MAX, ViewRecord, ViewState};
use stitch_kv::{KvError, NewBranch};

/// How often a clone is begun again because its source, or a directory above it, was renamed.
const TRIES: usize = 16;

/// What a clone is made of.
#[derive(Clone, Copy, Debug)]
pub struct CloneSource<'a> {
    /// The file system that has the directory. Of a snapshot, that of its moment.
    pub fs: &'a FileSystem,
    /// The directory, which is known.
    pub dir: Ino,
    /// The name of the snapshot, if it is one.
    pub snapshot: Option<&'a str>,
}

impl FileSystem {
    /// Makes a clone of a directory under a name in this file system: a directory with the same
    /// contents, which changes apart from its source. Nothing is copied. The clone shows what was
    /// acknowledged before the call, and nothing of what is written after it returns. Clones that
    /// lie in the source are empty directories in it.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the name is taken; [`FsError::NotDir`]; [`FsError::NotFound`] for a
    /// source that was removed; [`FsError::NameTooLong`] also for a path of the source over 4000
    /// bytes; [`FsError::Unsupported`] of an engine without branch trees, or a store with large
    /// files beside it, which are written in place; [`FsError::NumbersTooLarge`];
    /// [`FsError::TooDeep`] for a clone of a clone of ... 32 times; [`FsError::NoSpace`],
    /// [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// The clone, and all that it shows, are on the medium when this returns.
    ///
    /// # Cost
    /// Two syncs of the log, one record, and a point read for each name of the path. Reads of a
    /// clone look at its own tables, then at those of its source.
    pub fn make_clone(
        &self,
        caller: &Caller<'_>,
        source: &CloneSource<'_>,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        self.check_writable()?;
        check_name(at.name)?;
        self.check_takes_clones()?;
        source.fs.check_can_be_cloned()?;
        if self.standing.number == 0 {
            self.mark_header(|header| header.has_views = true)?;
        }
        let mut tried = Err(FsError::NotFound);
        for _ in 0..TRIES {
            tried = self.try_clone(caller, source, at);
            // The path led elsewhere: it was changed after it was read.
            if !matches!(tried, Err(FsError::Stale(ino)) if ino == source.dir) {
                break;
            }
        }
        let info = tried?;
        self.engine().sync()?;
        Ok(info)
    }

    /// Reports whether the engine can hold clones, and inode numbers leave room to name their
    /// inodes.
    #[must_use]
    pub fn takes_clones(&self) -> bool {
        self.check_takes_clones().is_ok()
    }

    fn check_takes_clones(&self) -> FsResult<()> {
        if !self.engine().capabilities().branches {
            return Err(FsError::Unsupported);
        }
        self.check_can_be_cloned()
    }

    fn check_can_be_cloned(&self) -> FsResult<()> {
        // Plain files are written in place. A transaction ends, and its trees with it.
        if self.branch.is_some() || self.header.lock().has_external {
            return Err(FsError::Unsupported);
        }
        self.check_numbers_leave_room()
    }

    fn try_clone(
        &self,
        caller: &Caller<'_>,
        source: &CloneSource<'_>,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        let path = source.fs.path_of(source.dir)?;
        if path.len() > VIEW_PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let (making, number) = self.standing.views.begin_making()?;
        // Those of a try that ended badly.
        drop_trees(self.engine().as_ref(), |of| of == number)?;
        {
            // No clone is of half a rollback.
            let _whole = source.fs.snapshot_change.lock();
            self.branch_trees(source, number)?;
        }
        let made = self.put_graft(caller, source.dir, path, number, at);
        if made.is_err() {
            drop_trees(self.engine().as_ref(), |of| of == number)?;
        }
        drop(making);
        made
    }

    /// Makes the trees of a view.
    fn branch_trees(&self, source: &CloneSource<'_>, number: u64) -> FsResult<()> {
        let schema = view_schema(number);
        let of = |tree: Tree| format!("{schema}/{}", tree.name());
        let trees = [Tree::Meta, Tree::Data, Tree::Xattr, Tree::Sys];
        let names = trees.map(of);
        let branches: Vec<NewBranch<'_>> = trees
            .iter()
            .zip(&names)
            .map(|(tree, name)| NewBranch::new(source.fs.store.dictionary(*tree).tree(), name))
            .collect();
        let engine = self.engine();
        let moment = source.snapshot.map(|name| engine.open_pin(&pin_name(name)));
        let made = engine.branch_trees(&branches, moment.transpose()?.as_ref());
        let made = made.map_err(|error| match error {
            // Of a clone that was removed since, which a snapshot shows.
            KvError::NoTree(_) if source.snapshot.is_some() => FsError::Unsupported,
            error => error.into(),
        })?;
        debug_assert_eq!(made.len(), branches.len(), "each is made");
        Ok(())
    }

    /// Puts the directory and the record of a view whose trees are made.
    fn put_graft(
        &self,
        caller: &Caller<'_>,
        root: Ino,
        path: Vec<u8>,
        number: u64,
        at: DirName<'_>,
    ) -> FsResult<CloneInfo> {
        let perm = {
            let view = self.open_writable(number)?;
            let found = view.walk_path(root, &path).map(drop);
            let attr = found.and_then(|()| view.get_attr(root));
            view.release_aside();
            attr?.perm
        };
        let mut record = ViewRecord {
            state: ViewState::Live,
            owner: caller.uid,
            root,
            home: self.standing.number,
            graft: root,
            created_ns: self.now(),
            path,
        };
        let new = NewNode {
            perm: u32::from(perm),
            umask: 0,
        };
        let views = &self.standing.views;
        let mut is_staged = false;
        let made = self.make_dir_with(caller, at, &new, |change, graft| {
            record.graft = graft;
            views.stage_made(&mut change.batch, number, record.clone());
            is_staged = true;
        });
        match made {
            Ok(graft) => {
                // A front end gives out the inode of the view.
                self.forget(graft.ino, 1);
                Ok(CloneInfo::of(number, &record))
            }
            Err(error) => {
                if is_staged {
                    views.unmake(number);
                }
                Err(error)
            }
        }
    }
}
