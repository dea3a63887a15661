//! The end of a store's life in good order.

use crate::VtError;
use crate::store::Store;
use stitch_format::vt_manifest::PinChanges;

impl Store {
    /// Writes everything out, and the whole version as one base.
    pub(super) fn close(&self) -> Result<(), VtError> {
        if self.volume.is_poisoned() || self.gate.is_failed() {
            return Err(VtError::Poisoned);
        }
        self.write_out_what_fits()?;
        let installer = self.versions.lock();
        let base = self
            .versions
            .whole_base(&self.version(), &PinChanges::default());
        if base.len() as u64 <= self.volume.base_bytes_max() {
            self.volume.commit_base(&base, installer.log_start)?;
        }
        self.volume.close()?;
        Ok(())
    }
}
