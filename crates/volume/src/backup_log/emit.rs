//! Writes or buffers the bytes of records at the log's end, and moves the end.

use super::tail::{Ring, bytes_of, page_of};
use super::{BUFFER_BYTES, BackupLog, Durability, HEADER, Writer};
use crate::VolumeError;
use stitch_base::Lsn;
use stitch_device::SECTOR_BYTES;
use stitch_format::log_record::{ALIGN, RecordHeader, RecordKind, VersionPage};

impl BackupLog {
    /// Writes a skip record of `bytes` in all. Moves the end without one if that is too little for
    /// a header, which happens only at the ring's end.
    pub(super) fn skip(&self, writer: &mut Writer, bytes: u64) -> Result<(), VolumeError> {
        let lsn = writer.end.expect("positioned");
        assert!(bytes > 0, "something is skipped");
        assert!(
            self.offset(lsn) + bytes <= self.ring_bytes,
            "records do not straddle"
        );
        if bytes < HEADER {
            assert_eq!(self.offset(lsn) + bytes, self.ring_bytes, "only at the end");
            self.write_buffer(writer)?;
            writer.end = Some(Lsn(lsn.0 + bytes));
            return Ok(());
        }
        let header = self.header(writer, RecordKind::Skip, bytes - HEADER);
        let encoded = header.encode(self.core.salt, &[]);
        let emitted = self.emit(writer, &[&encoded], HEADER);
        let written = emitted.and_then(|_| match bytes > HEADER {
            true => self.write_buffer(writer),
            false => Ok(()),
        });
        if written.is_err() {
            writer.take_back(lsn);
            return written;
        }
        debug_assert!(
            bytes == HEADER || writer.buffer.is_empty(),
            "a gap is never buffered"
        );
        writer.durability_page = Some(page_of(lsn));
        writer.end = Some(Lsn(lsn.0 + bytes));
        Ok(())
    }

    /// Returns the header of a record at the end.
    pub(super) fn header(
        &self,
        writer: &Writer,
        kind: RecordKind,
        payload_len: u64,
    ) -> RecordHeader {
        RecordHeader {
            kind,
            payload_len: u32::try_from(payload_len).expect("a record's length is bounded"),
            lsn: writer.end.expect("positioned"),
            generation: self.core.generation,
            durable: writer.durable,
            versions: VersionPage::of(writer.version_end),
        }
    }

    /// Moves the end to the start of a sector, so that the sectors before it can be synced.
    pub(super) fn fill_sector(&self, writer: &mut Writer) -> Result<Lsn, VolumeError> {
        let end = writer.end.expect("positioned");
        let over = end.0 % SECTOR_BYTES;
        if over > 0 {
            let left = self.ring_bytes - self.offset(end);
            let mut bytes = SECTOR_BYTES - over;
            if bytes < HEADER && bytes < left {
                bytes += SECTOR_BYTES;
            }
            debug_assert!(bytes <= left, "the ring is whole sectors");
            self.skip(writer, bytes)?;
        }
        let end = writer.end.expect("positioned");
        assert!(end.0.is_multiple_of(SECTOR_BYTES), "sectors are not shared");
        assert!(
            end.0 - writer.start.0 <= self.ring_bytes,
            "appends leave slack"
        );
        Ok(end)
    }

    /// Writes or buffers the bytes of a record and moves the end after it.
    pub(super) fn emit(
        &self,
        writer: &mut Writer,
        pieces: &[&[u8]],
        len: u64,
    ) -> Result<Lsn, VolumeError> {
        let end = writer.end.expect("positioned");
        assert!(
            self.offset(end) + len <= self.ring_bytes,
            "records do not straddle"
        );
        let next = Lsn(end.0 + len);
        debug_assert_eq!(bytes_of(pieces), len, "all of the record is there");
        debug_assert!(
            next.0.is_multiple_of(ALIGN),
            "records end at multiples of eight"
        );
        debug_assert!(
            next.0 - writer.start.0 <= self.ring_bytes,
            "live records stay"
        );
        if self.durability == Durability::Application {
            for piece in pieces {
                writer.buffer.extend_from_slice(piece);
            }
            writer.end = Some(next);
            if writer.buffer.len() >= BUFFER_BYTES {
                self.write_buffer(writer)?;
            }
        } else {
            self.put(writer, end, pieces)?;
            writer.end = Some(next);
        }
        writer.is_noted = true;
        Ok(next)
    }

    /// Writes bytes to the operating system, in whole pages.
    pub(super) fn put(
        &self,
        writer: &mut Writer,
        lsn: Lsn,
        pieces: &[&[u8]],
    ) -> Result<(), VolumeError> {
        debug_assert!(lsn >= writer.durable, "durable records stay as they are");
        let mut tail = std::mem::take(&mut writer.tail);
        let written = tail.write(&self.ring(writer), lsn, pieces);
        writer.tail = tail;
        written
    }

    pub(super) fn ring(&self, writer: &Writer) -> Ring<'_> {
        Ring {
            core: &self.core,
            at: self.ring_at(),
            len_bytes: self.ring_bytes,
            start: writer.start,
        }
    }

    /// Writes the buffer to the operating system.
    pub(super) fn write_buffer(&self, writer: &mut Writer) -> Result<(), VolumeError> {
        if writer.buffer.is_empty() {
            return Ok(());
        }
        let end = writer.end.expect("positioned");
        let mut buffer = std::mem::take(&mut writer.buffer);
        debug_assert!(buffer.len() as u64 <= end.0, "it holds the last records");
        let from = Lsn(end.0 - buffer.len() as u64);
        let written = self.put(writer, from, &[&buffer]);
        if written.is_ok() {
            buffer.clear();
        }
        writer.buffer = buffer;
        written
    }
}
