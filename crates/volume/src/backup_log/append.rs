//! Appends one record: finds its position, and decides between a long and a short header.

use super::tail::{between, bytes_of, page_of};
use super::{BackupLog, HEADER, SLACK_BYTES, Writer};
use crate::VolumeError;
use crate::window::usize_from;
use stitch_base::Lsn;
use stitch_format::log_record::short::ShortRecord;
use stitch_format::log_record::{RecordHeader, RecordKind};

impl BackupLog {
    /// Appends a record, after a skip record if it does not fit before the ring's end.
    pub(super) fn append_record(
        &self,
        writer: &mut Writer,
        payload_len: u64,
        pieces: &[&[u8]],
    ) -> Result<Lsn, VolumeError> {
        let end = writer.end.expect("positioned");
        let left = self.ring_bytes - self.offset(end);
        // Replay expects nothing where too little is left for a long header.
        let bytes_here = self.record_bytes(writer, end, payload_len).max(HEADER);
        let skipped = if bytes_here > left { left } else { 0 };
        let at = Lsn(end.0 + skipped);
        let record_bytes = self.record_bytes(writer, at, payload_len);
        let used_bytes = end.0 - writer.start.0;
        debug_assert_eq!(payload_len, bytes_of(pieces), "all of the payload is there");
        debug_assert!(
            self.offset(at) + record_bytes <= self.ring_bytes,
            "records do not straddle"
        );
        if used_bytes + skipped + record_bytes + SLACK_BYTES > self.ring_bytes {
            return Err(VolumeError::LogFull {
                used_bytes,
                capacity_bytes: self.ring_bytes,
            });
        }
        if skipped > 0 {
            self.skip(writer, skipped)?;
            self.write_buffer(writer)?;
        }
        if self.is_short(writer, at, payload_len) {
            let short = ShortRecord {
                lsn: at,
                generation: self.core.generation,
                payload_len: u16::try_from(payload_len).expect("it is short"),
            };
            let header = short.encode(self.core.salt, pieces);
            return self.emit_record(writer, &header, pieces, record_bytes);
        }
        let header = self.header(writer, RecordKind::Data, payload_len);
        let header = header.encode(self.core.salt, pieces);
        let next = self.emit_record(writer, &header, pieces, record_bytes)?;
        writer.durability_page = Some(page_of(at));
        Ok(next)
    }

    /// Reports whether a record at `lsn` may be short: an earlier record of its page notes the
    /// same.
    fn is_short(&self, writer: &Writer, lsn: Lsn, payload_len: u64) -> bool {
        self.core.has_short_records
            && payload_len <= ShortRecord::PAYLOAD_BYTES_MAX
            && writer.durability_page == Some(page_of(lsn))
    }

    /// Returns the length of a record at `lsn`.
    fn record_bytes(&self, writer: &Writer, lsn: Lsn, payload_len: u64) -> u64 {
        match self.is_short(writer, lsn, payload_len) {
            true => ShortRecord::record_bytes(payload_len),
            false => RecordHeader::record_bytes(payload_len),
        }
    }

    /// Emits a record of `record_bytes`, with zeros at its end.
    fn emit_record(
        &self,
        writer: &mut Writer,
        header: &[u8],
        pieces: &[&[u8]],
        record_bytes: u64,
    ) -> Result<Lsn, VolumeError> {
        let unpadded = header.len() as u64 + bytes_of(pieces);
        assert!(unpadded <= record_bytes, "a record holds its payload");
        assert!(
            record_bytes - unpadded < 8,
            "records are padded to multiples of eight"
        );
        let padding = &[0; 8][..usize_from(record_bytes - unpadded)];
        between(header, pieces, padding, |all| {
            self.emit(writer, all, record_bytes)
        })
    }
}
