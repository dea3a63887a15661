//! A torn end stays lost.
//!
//! The first part of a torn record may stand behind the end of either log. It is invalid. But this
//! life writes to the same offset, often the same bytes. A second power cut may keep the old first
//! part and the rest of the new record. Together they would be a valid record that was already seen
//! to be lost, with its own generation, which replay accepts there. So the first part is
//! overwritten durably before anything else is written there.

use super::tail::page_of;
use super::{BackupLog, HEADER, PAGE_BYTES, Writer};
use crate::VolumeError;
use stitch_base::Lsn;
use stitch_base::sync::atomic::Ordering;
use stitch_format::log_record::HEADER_BYTES;
use stitch_format::version_object::{ALIGN, ObjectHeader};

const _: () = assert!(ALIGN == PAGE_BYTES, "an object's header has its first page");

impl BackupLog {
    /// Overwrites the possible first parts of a torn record and a torn version. Call it once, when
    /// the log's end is known and neither log was written to.
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

    /// Writes a mark where the next record will stand. Returns false if nothing stood there.
    fn bury_record(&self, writer: &mut Writer, end: Lsn) -> Result<bool, VolumeError> {
        let left = self.ring_bytes - self.offset(end);
        debug_assert!(writer.buffer.is_empty(), "nothing was appended yet");
        // If too little is left for a header, replay continues at the ring's start.
        let next = if left < HEADER {
            Lsn(end.0 + left)
        } else {
            end
        };
        debug_assert!(
            self.offset(next) + HEADER <= self.ring_bytes,
            "a header fits"
        );
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

    /// Erases the header of a torn version. Returns false if there is none.
    fn bury_version(&self, end: u64) -> Result<bool, VolumeError> {
        let offset = end % self.version_log_bytes;
        if offset == 0 {
            // The next object does not go here, but after a wrapping object of this life.
            return Ok(false);
        }
        let at = self.version_log_at.load(Ordering::Acquire) + offset;
        debug_assert!(
            offset + PAGE_BYTES <= self.version_log_bytes,
            "a log is whole pages"
        );
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
