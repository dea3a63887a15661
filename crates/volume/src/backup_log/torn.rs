//! What a power cut has torn off stays lost.
//!
//! Behind the end of either log the beginning of what was written last may stand, without the rest of it. It
//! counts for nothing; but this life writes to the same place, often the same bytes, and a second power cut may
//! keep the old beginning and of the new bytes those behind it. Then the old record would be whole: after it was
//! seen to be lost, and with its generation, which nothing forbids there. So the beginning is written over,
//! durably, before anything else is written there.

use super::tail::page_of;
use super::{BackupLog, HEADER, PAGE_BYTES, Writer};
use crate::VolumeError;
use stitch_base::Lsn;
use stitch_base::sync::atomic::Ordering;
use stitch_format::log_record::HEADER_BYTES;
use stitch_format::version_object::{ALIGN, ObjectHeader};

const _: () = assert!(ALIGN == PAGE_BYTES, "an object's header has its first page");

impl BackupLog {
    /// Writes over what may be the beginning of a torn record, and of a torn version. To be called once, when
    /// the log's end is known and nothing was written to either yet.
    pub(super) fn bury_torn(&self, writer: &mut Writer) -> Result<(), VolumeError> {
        debug_assert!(!self.core.is_read_only, "it writes");
        let end = writer.end.expect("positioned");
        if self.closed_end == Some(end) {
            return Ok(());
        }
        let has_record = self.bury_record(writer, end)?;
        if self.bury_version(writer.version_end)? || has_record {
            self.core.sync()?;
        }
        Ok(())
    }

    /// Sees to it that a mark stands where the next record will. Answers false where nothing stood there.
    fn bury_record(&self, writer: &mut Writer, end: Lsn) -> Result<bool, VolumeError> {
        let left = self.ring_bytes - self.offset(end);
        // Where too little is left for a header, replay goes on at the ring's other end.
        let next = if left < HEADER {
            Lsn(end.0 + left)
        } else {
            end
        };
        let mut bytes = [0; HEADER_BYTES];
        let at = self.ring_at() + self.offset(next);
        self.core.read(at, &mut bytes)?;
        if bytes == [0; HEADER_BYTES] {
            return Ok(false);
        }
        if next == end {
            self.mark(writer)?;
        } else if !self.ring(writer).is_shared(next)
            && let Some(mark) = self.mark_for(writer, next)
        {
            debug_assert_eq!(page_of(next), next, "the ring's other end");
            let rest = [0; PAGE_BYTES as usize - HEADER_BYTES];
            self.core.write(at, &[&mark, &rest])?;
        }
        Ok(true)
    }

    /// Takes away the header of a torn version. Answers false if there is none.
    fn bury_version(&self, end: u64) -> Result<bool, VolumeError> {
        let offset = end % self.version_log_bytes;
        if offset == 0 {
            // The next one does not stand here, but after a wrapping object of this life.
            return Ok(false);
        }
        let at = self.version_log_at.load(Ordering::Acquire) + offset;
        let mut page = [0; PAGE_BYTES as usize];
        self.core.read(at, &mut page)?;
        let header = ObjectHeader::decode_header(&page);
        if !header.is_ok_and(|header| header.position == end) {
            return Ok(false);
        }
        self.core.write(at, &[&[0; PAGE_BYTES as usize]])?;
        Ok(true)
    }
}
