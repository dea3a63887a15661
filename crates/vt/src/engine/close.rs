//! The end of a store's life in good order.

use crate::VtError;
use crate::recovery::has_lasting_holds;
use crate::store::Store;
use stitch_base::Lsn;
use stitch_format::logged_commit::{closing_mark, is_closing_mark};
use stitch_format::vt_manifest::PinChanges;
use stitch_volume::VolumeError;

impl Store {
    /// Writes everything out, and the whole version as one base. If nothing is left that the next
    /// life had to sweep for, a mark in the log tells so.
    pub(super) fn close(&self) -> Result<(), VtError> {
        debug_assert!(!self.volume.is_read_only(), "a close writes");
        if self.volume.is_poisoned() || self.gate.is_failed() {
            return Err(VtError::Poisoned);
        }
        self.write_out_what_fits()?;
        let installer = self.versions.lock();
        let log_start = self.log_start_at_close(installer.log_start)?;
        let base = self
            .versions
            .whole_base(&self.version(), &PinChanges::default());
        if base.len() as u64 <= self.volume.base_bytes_max() {
            self.volume.commit_base(&base, log_start)?;
        }
        if has_lasting_holds(self) {
            let is_swept = self.is_swept();
            tracing::debug!(is_swept, "closes a store with pins or branches");
            if is_swept {
                self.log_closing_mark()?;
            }
        }
        self.volume.close()?;
        Ok(())
    }

    /// Returns where the log of the next life starts: at the end if all of it is in tables.
    fn log_start_at_close(&self, log_start: Lsn) -> Result<Lsn, VtError> {
        debug_assert!(self.gate.is_closed(), "nothing is committed any more");
        if !self
            .views
            .get()
            .buffers
            .iter()
            .all(|buffer| buffer.is_empty())
        {
            return Ok(log_start);
        }
        let end = self.volume.log().end()?;
        assert!(log_start <= end, "a log starts before it ends");
        Ok(end)
    }

    /// Appends the mark, if there is room for it. It is made durable by the close, and counts only
    /// if that succeeds.
    fn log_closing_mark(&self) -> Result<(), VtError> {
        debug_assert!(self.gate.is_closed(), "it is the last record");
        let next = self.committer.lock().last_seqno.next();
        let mark = closing_mark(next);
        debug_assert!(is_closing_mark(&mark), "the next open knows it");
        match self.volume.log().append(&[&mark]) {
            Ok(_) | Err(VolumeError::LogFull { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
