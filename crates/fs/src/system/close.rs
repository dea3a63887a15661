//! What makes a file system durable and gives its space back: sync, reclaim, close.

use super::FileSystem;
use crate::contents::Contents;
use crate::external::ExternalContents;
use crate::reclaim::Reclaimer;
use crate::room::unless_full;
use crate::rows::RowBatch;
use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_db::SpaceClass;

impl FileSystem {
    /// Gives back the space of forgotten files, then makes everything durable that was
    /// acknowledged.
    ///
    /// # Errors
    /// [`FsError::Storage`]: what was not durable may be lost; reopen.
    pub fn sync(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        // A file that cannot be reclaimed now is reclaimed later; acknowledged changes are durable
        // in any case.
        let reclaimed = self.reclaim();
        let externals = ExternalContents::of(self);
        let settled = externals.sync_all();
        if !self.syncs() {
            settled?;
            return unless_full(reclaimed);
        }
        self.engine.sync()?;
        externals.trim_all();
        externals.remove_retired()?;
        settled?;
        match reclaimed {
            // Nothing is lost: the space comes back later.
            Ok(_) | Err(FsError::NoSpace) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes an inode durable, and with it everything acknowledged before but the contents of other
    /// external files.
    ///
    /// # Errors
    /// As [`Self::sync`].
    ///
    /// # Cost
    /// One sync of the log, shared with other callers; none if everything is durable already.
    pub fn sync_inode(&self, ino: Ino) -> FsResult<()> {
        let inode = self.residents.inodes.get(ino)?;
        if Contents::are_external(&inode.head) && !self.options.read_only {
            ExternalContents::of(self).sync(ino)?;
        }
        // Also for an unlinked file of which nothing is stored: what was acknowledged before is.
        if !self.options.read_only && self.syncs() {
            self.engine.sync()?;
        }
        Ok(())
    }

    /// Reclaims what is left to reclaim and makes everything durable. The engine stays open.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn close(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.branch.is_none() {
            let give_back = |batch: &RowBatch<'_>| self.store.commit(batch, SpaceClass::Reserve);
            self.numbers.give_back(give_back)?;
            self.transactions().write_reads()?;
        }
        self.sync()
    }

    /// Gives back the space of forgotten files without names, and of shared contents that no file
    /// uses any more; `forget` leaves that to this. To be called now and then, and when idle.
    /// Returns the number of inodes reclaimed.
    ///
    /// # Errors
    /// [`FsError::Storage`]; what was not reclaimed is still queued.
    pub fn reclaim(&self) -> FsResult<usize> {
        Reclaimer::of(self).reclaim()
    }

    /// Reports whether the next [`Self::reclaim`] looks further for shared contents that a crash
    /// has left without users: an open looks at the first ones alone.
    #[must_use]
    pub fn has_more_to_reclaim(&self) -> bool {
        Reclaimer::of(self).has_more()
    }
}
