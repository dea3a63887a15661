//! Beginning changes, and what they have in common with changes that are absorbed.

use super::Change;
use super::scope::ChangeScope;
use crate::FsResult;
use crate::room::CommitRetry;
use crate::rows::RowBatch;
use crate::schema::FIRST_INO;
use crate::system::FileSystem;
use crate::views::ViewLimits;
use stitch_base::Ino;
use stitch_db::SpaceClass;
use stitch_format::fs_key::INO_MAX;
use stitch_format::fs_sys::FsHeader;

/// Begins changes of a file system, which cannot be reached behind it. A part of the file system
/// that owns its fields has this, and so changes no field of another part.
#[derive(Clone, Copy)]
pub(crate) struct Changes<'fs> {
    fs: &'fs FileSystem,
}

impl<'fs> Changes<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self { fs }
    }

    /// Returns what changes of the file system use.
    pub(super) fn scope(self) -> ChangeScope<'fs> {
        debug_assert!(!self.fs.is_read_only(), "nothing is changed");
        ChangeScope::of(self.fs)
    }

    /// Begins a change that needs space.
    pub(crate) fn begin(self) -> Change<'fs> {
        Change::new(self.scope(), SpaceClass::Normal)
    }

    /// Begins a change that gives space back, and so may use the reserve.
    pub(crate) fn begin_giving_back(self) -> Change<'fs> {
        Change::new(self.scope(), SpaceClass::Reserve)
    }

    /// Takes a number that no inode ever had. May commit a change of the counter.
    pub(crate) fn new_ino(self) -> FsResult<Ino> {
        let commit = |batch: &RowBatch<'_>| self.commit_rows(batch, SpaceClass::Normal);
        let ino = self.fs.numbers.take(commit)?;
        debug_assert!(
            (FIRST_INO..=INO_MAX).contains(&ino.0),
            "a number of no other inode"
        );
        Ok(ino)
    }

    /// Refuses what puts inodes with numbers above these, if too few are left.
    pub(crate) fn check_numbers_leave_room(self) -> FsResult<()> {
        ViewLimits::of(self.fs).check_numbers()
    }

    /// Changes the header, before the first row that earlier programs do not know.
    pub(crate) fn mark_header(self, mark: impl FnOnce(&mut FsHeader)) -> FsResult<()> {
        let mut marked = self.fs.header.lock();
        let mut header = *marked;
        mark(&mut header);
        if header == *marked {
            return Ok(());
        }
        debug_assert_eq!(
            header.name_seed, marked.name_seed,
            "names keep their places"
        );
        debug_assert_eq!(header.created_ns, marked.created_ns, "it was made once");
        debug_assert!(
            header.has_views >= marked.has_views,
            "clones are not forgotten"
        );
        let mut change = self.begin();
        let key = change.keys().header();
        change.batch.put(&key, &header.encode());
        change.commit()?;
        *marked = header;
        Ok(())
    }

    /// Removes plain files of forgotten files at once, since the host is full. Reports whether
    /// there were any. The caller may have an inode locked.
    pub(crate) fn make_room_beside(self) -> FsResult<bool> {
        CommitRetry::of(self.fs).make_room_beside()
    }

    /// Commits rows that nothing in memory is about, as a [`Change`] commits its own.
    pub(crate) fn commit_rows(self, batch: &RowBatch<'_>, space: SpaceClass) -> FsResult<()> {
        debug_assert!(!batch.is_empty(), "an empty commit is none");
        CommitRetry::of(self.fs).commit(batch, space)
    }

    /// Returns the time of a change, in nanoseconds since 1970.
    pub(crate) fn now(self) -> i64 {
        self.fs.options.clock.now().0
    }
}
