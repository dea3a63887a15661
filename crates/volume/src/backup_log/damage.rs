//! Tells a damaged log from one whose end a power cut tore off.
//!
//! A replay stops at the first invalid record. A power cut may leave any part of the unsynced
//! bytes, in any order, so the mere existence of a later valid record proves nothing. Its contents
//! do: it notes that the log was durable up to `durable` when it was written. That stays true,
//! since every later open reads at least that far before it writes. So if a replay ends before
//! `durable`, records were damaged. The exception: a later generation has written before that
//! position, after a repair accepted the loss ([`super::BackupLog::accept_loss`]).
//!
//! In the same way, a record proves damage of the version log if it notes that the version log went
//! further, or if it stands where it can only after a later version was durable.
//!
//! The search for such records begins at the replay's end and tries every possible position. It
//! ends after [`QUIET_RECORDS`] times the longest record without a valid one. Short records need
//! not be found: they note nothing that a long one in their page does not, and only tell how much
//! is lost. After a clean close there is nothing to search for.

use super::replay::Reached;
use super::{BackupLog, HEADER};
use crate::VolumeError;
use crate::window::{Window, usize_from};
use stitch_base::sync::atomic::Ordering;
use stitch_base::{Generation, Lsn};
use stitch_format::log_record::{ALIGN, HEADER_BYTES, RecordHeader, RecordKind, VersionPage};

/// The search ends after this many lengths of the longest record without a valid one.
const QUIET_RECORDS: u64 = 2;
/// Length of the searched chunks, in bytes.
const CHUNK_BYTES: u64 = 64 << 10;

/// Evidence of what the logs must contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// The log was durable up to here.
    pub(super) durable: Lsn,
    /// The log was written up to here, durable or not.
    pub(super) written: Lsn,
    /// A later version than the one found was durable.
    pub(super) has_later_version: bool,
}

/// A search for records from a position on.
struct Search<'a> {
    log: &'a BackupLog,
    headers: Window<'a>,
    payloads: Window<'a>,
    from: Lsn,
    /// Records behind this position would overwrite live ones of the version found.
    limit: Lsn,
    /// Lowest generation that counts.
    generation: Generation,
    versions: VersionPage,
    evidence: Evidence,
}

impl BackupLog {
    /// What is known of the log beyond the end of a replay.
    pub(super) fn evidence(&self, reached: &Reached) -> Result<Evidence, VolumeError> {
        let (floors, start, version_end) = {
            let writer = self.writer.lock();
            (writer.floors, writer.start, writer.version_end)
        };
        let valid = floors.iter().filter(|f| f.generation >= reached.generation);
        let floor = valid.map(|f| f.end).max().unwrap_or(Lsn(0));
        let versions = VersionPage::of(version_end);
        let evidence = Evidence {
            durable: floor,
            written: floor.max(reached.end),
            has_later_version: reached
                .versions
                .is_some_and(|page| page.is_beyond(versions)),
        };
        if self.closed_end == Some(reached.end) {
            return Ok(evidence);
        }
        let mut search = Search {
            log: self,
            headers: Window::new(&*self.core.device, self.ring_at(), self.ring_bytes),
            payloads: Window::new(&*self.core.device, self.ring_at(), self.ring_bytes),
            from: reached.end,
            limit: Lsn(start.0.saturating_add(self.ring_bytes)),
            generation: reached.generation,
            versions,
            evidence,
        };
        search.run()?;
        debug_assert!(
            search.evidence.durable >= evidence.durable,
            "evidence is only added"
        );
        debug_assert!(
            search.evidence.written >= evidence.written,
            "evidence is only added"
        );
        Ok(search.evidence)
    }

    /// The error that evidence amounts to, if any, for a replay that ended at `end`.
    pub(super) fn verdict(&self, end: Lsn, evidence: &Evidence) -> Option<VolumeError> {
        if evidence.has_later_version {
            let tail = self.writer.lock().version_end;
            return Some(VolumeError::Corrupt {
                what: "version log".to_owned(),
                at: self.version_log_at.load(Ordering::Acquire) + tail % self.version_log_bytes,
                expected: "the last version, which the backup log names".to_owned(),
                found: format!("none after position {tail}"),
            });
        }
        // Too little for a header before the ring's end counts as used: nothing can stand there.
        let left = self.ring_bytes - self.offset(end);
        let reached = if left < HEADER { end.0 + left } else { end.0 };
        (reached < evidence.durable.0).then(|| VolumeError::LogDamaged {
            at: self.ring_at() + self.offset(end),
            lost_bytes: evidence.durable.max(evidence.written).0 - end.0,
        })
    }
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), VolumeError> {
        let ring_bytes = self.log.ring_bytes;
        let quiet_bytes = QUIET_RECORDS * (self.log.record_bytes_max() + HEADER);
        let last = self.from.0.saturating_add(ring_bytes);
        let mut at = self.from.0;
        let mut seen = at;
        while at < last.min(seen.saturating_add(quiet_bytes)) {
            let offset = self.log.offset(Lsn(at));
            let len = CHUNK_BYTES.min(ring_bytes - offset);
            if self.chunk(offset, len)? {
                seen = at;
            }
            // A header may begin in this chunk and end in the next.
            let overlap = if offset + len < ring_bytes {
                HEADER - ALIGN
            } else {
                0
            };
            assert!(len > overlap, "the search goes on");
            at += len - overlap;
        }
        Ok(())
    }

    /// Takes note of the records whose headers stand in a piece of the ring. True if there are any.
    fn chunk(&mut self, offset: u64, len: u64) -> Result<bool, VolumeError> {
        let bytes = self.headers.bytes(offset, len)?;
        let places = (0..usize_from(len)).step_by(usize_from(ALIGN));
        let headers = places.filter_map(|index| {
            let bytes = bytes[index..].first_chunk::<HEADER_BYTES>()?;
            if !RecordHeader::may_be_at(bytes) {
                return None;
            }
            let header = RecordHeader::decode(bytes).ok()?;
            Some((offset + index as u64, header, *bytes))
        });
        let candidates: Vec<_> = headers.collect();
        let mut has_any = false;
        for (offset, header, bytes) in candidates {
            if self.is_valid(offset, &header, &bytes)? {
                has_any = true;
                self.note(&header);
                self.follow(&header)?;
            }
        }
        Ok(has_any)
    }

    fn is_valid(
        &mut self,
        offset: u64,
        header: &RecordHeader,
        bytes: &[u8],
    ) -> Result<bool, VolumeError> {
        let core = &self.log.core;
        let record_bytes = RecordHeader::record_bytes(u64::from(header.payload_len));
        let is_ours = self.log.offset(header.lsn) == offset
            && header.lsn >= self.from
            && header.generation >= self.generation
            && header.generation <= core.generation;
        if !is_ours || record_bytes > self.log.ring_bytes - offset {
            return Ok(false);
        }
        let payload = match header.kind {
            RecordKind::Data => self
                .payloads
                .bytes(offset + HEADER, u64::from(header.payload_len))?,
            RecordKind::Skip | RecordKind::Mark => &[],
        };
        Ok(header.check(core.salt, bytes, payload).is_ok())
    }

    fn note(&mut self, header: &RecordHeader) {
        debug_assert!(
            header.lsn >= self.from,
            "records of the log's own part were replayed"
        );
        debug_assert!(
            header.generation >= self.generation,
            "older ones prove nothing"
        );
        let evidence = &mut self.evidence;
        evidence.durable = evidence.durable.max(header.durable);
        evidence.written = evidence.written.max(match header.kind {
            RecordKind::Mark => header.lsn,
            RecordKind::Data | RecordKind::Skip => header.end(),
        });
        evidence.has_later_version |=
            header.versions.is_beyond(self.versions) || header.lsn >= self.limit;
    }

    /// Takes note of how far the log was written in short records after a long one.
    fn follow(&mut self, header: &RecordHeader) -> Result<(), VolumeError> {
        let limit = Lsn(self.from.0.saturating_add(self.log.ring_bytes));
        let mut end = header.end();
        if header.kind == RecordKind::Mark {
            return Ok(());
        }
        while let Some(record) =
            self.log
                .short_record(&mut self.payloads, (end, header.generation), limit)?
        {
            assert!(record.end() > end, "records have a length");
            end = record.end();
        }
        self.evidence.written = self.evidence.written.max(end);
        Ok(())
    }
}
