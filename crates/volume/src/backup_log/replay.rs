//! Reading the backup log back.

use super::{BackupLog, HEADER, LogLoss, Writer};
use crate::VolumeError;
use crate::window::Window;
use stitch_base::sync::MutexGuard;
use stitch_base::{Generation, Lsn};
use stitch_device::SECTOR_BYTES;
use stitch_format::log_record::short::{SHORT_HEADER_BYTES, ShortRecord};
use stitch_format::log_record::{ALIGN, HEADER_BYTES, RecordHeader, RecordKind, VersionPage};

/// A visitor of records. It gets the position after the record and its payload, and returns a
/// [`Replay`] or nothing.
pub type Visit<'a, E, R = ()> = dyn FnMut(Lsn, &[u8]) -> Result<R, E> + 'a;

/// The decision of a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Continue with the next record.
    Next,
    /// The log ends before this record, since data that it refers to never reached the medium.
    EndsHere,
}

impl From<()> for Replay {
    fn from((): ()) -> Self {
        Self::Next
    }
}

/// Where a replay ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// Position after the last valid record.
    pub(super) end: Lsn,
    /// Generation of that record.
    pub(super) generation: Generation,
    /// What the last long record notes about the version log.
    pub(super) versions: Option<VersionPage>,
    /// Generation of the last record with data.
    pub(super) last_data: Option<Generation>,
}

/// A valid record.
struct FoundRecord {
    lsn: Lsn,
    end: Lsn,
    generation: Generation,
    /// Offset in the ring and length of the payload; `None` for a record without data.
    payload: Option<(u64, u64)>,
    /// What a long record notes as durable: here, and of the version log.
    told: Option<(Lsn, VersionPage)>,
}

/// Walks the records of the ring.
struct Walk<'a> {
    log: &'a BackupLog,
    window: Window<'a>,
    /// Position of the next record.
    lsn: Lsn,
    /// The walk ends here at the latest.
    limit: Lsn,
    /// Lowest generation that the next record can have.
    generation: Generation,
}

impl BackupLog {
    /// Calls `visit` for every record from `from` on, in order, with the position after it (as
    /// [`Self::append`] returned it) and its payload. Stops at the first invalid record and returns
    /// the position after the last valid one, where appends continue. A visitor that returns
    /// [`Replay::EndsHere`] ends the log before the current record.
    ///
    /// # Errors
    /// [`VolumeError::Device`] if the log cannot be read; [`VolumeError::LogDamaged`] if it ends
    /// before a position known to be durable (see [`Self::accept_loss`]); [`VolumeError::Corrupt`]
    /// if it proves that the last version is missing; [`VolumeError::Invalid`] if `from` is not a
    /// position in the live part; the errors of `visit`.
    pub fn replay<E: From<VolumeError>, R: Into<Replay>>(
        &self,
        from: Lsn,
        visit: &mut Visit<'_, E, R>,
    ) -> Result<Lsn, E> {
        let (mut walk, end) = self.walk(from)?;
        let mut steps = Vec::new();
        let (mut versions, mut last_data) = (None, None);
        let mut before = walk.place();
        while let Some(found) = walk.step()? {
            if let Some((offset, len)) = found.payload {
                let payload = walk.window.bytes(offset, len)?;
                if visit(found.end, payload)?.into() == Replay::EndsHere {
                    (walk.lsn, walk.generation) = before;
                    break;
                }
                debug_assert!(last_data <= Some(found.generation), "generations go up");
                last_data = Some(found.generation);
            }
            before = walk.place();
            if steps
                .last()
                .is_none_or(|&(_, last)| last < found.generation)
            {
                steps.push((found.lsn, found.generation));
            }
            versions = found.told.map_or(versions, |(_, page)| Some(page));
        }
        debug_assert!(walk.lsn >= from, "a replay goes on");
        debug_assert!(steps.is_sorted(), "positions and generations go up");
        debug_assert!(walk.lsn <= walk.limit, "no more than the ring is read");
        let reached = Reached {
            end: walk.lsn,
            generation: walk.generation,
            versions,
            last_data,
        };
        if end.is_none() {
            self.set_end(&reached, &steps)?;
        }
        Ok(walk.lsn)
    }

    /// Returns the position up to which the log is known to have been durable, by all evidence:
    /// records, marks, the version and the superblock. For a log that was not replayed yet.
    ///
    /// # Cost
    /// Reads the log.
    ///
    /// # Errors
    /// [`VolumeError::Device`] if it cannot be read.
    pub fn known_durable(&self) -> Result<Lsn, VolumeError> {
        let start = self.writer.lock().start;
        let (mut walk, _) = self.walk(start)?;
        let mut durable = start;
        let mut versions = None;
        while let Some(found) = walk.step()? {
            if let Some((told, page)) = found.told {
                durable = durable.max(told);
                versions = Some(page);
            }
        }
        let reached = Reached {
            end: walk.lsn,
            generation: walk.generation,
            versions,
            last_data: None,
        };
        let known = durable.max(self.evidence(&reached)?.durable);
        debug_assert!(known >= start, "a version starts at durable records");
        Ok(known)
    }

    /// Starts a walk at `from`. Also returns the log's end if it is known.
    fn walk(&self, from: Lsn) -> Result<(Walk<'_>, Option<Lsn>), VolumeError> {
        let (start, end, generation) = {
            let mut writer = self.writer.lock();
            if writer.end.is_none() && from != writer.start {
                drop(writer);
                writer = self.positioned()?;
            }
            self.write_buffer(&mut writer)?;
            let index = writer.generations.partition_point(|&(at, _)| at <= from);
            let generation = writer.generations[index.saturating_sub(1)].1;
            (writer.start, writer.end, generation)
        };
        let limit = end.unwrap_or(Lsn(start.0.saturating_add(self.ring_bytes)));
        if from < start || from > limit || !from.0.is_multiple_of(ALIGN) {
            let reason = format!("no log record starts at {from}; live ones start at {start}");
            return Err(VolumeError::Invalid { reason });
        }
        let walk = Walk {
            log: self,
            window: Window::new(&*self.core.device, self.ring_at(), self.ring_bytes),
            lsn: from,
            limit,
            generation,
        };
        Ok((walk, end))
    }

    /// Records the log's end, unless another thread did meanwhile.
    fn set_end(&self, reached: &Reached, steps: &[(Lsn, Generation)]) -> Result<(), VolumeError> {
        let end = reached.end;
        let verdict = self.verdict(end, &self.evidence(reached)?);
        let mut writer = self.writer.lock();
        if writer.end.is_some() {
            return Ok(());
        }
        let loss = match verdict {
            Some(VolumeError::LogDamaged { at, lost_bytes }) if writer.accepts_loss => {
                Some(LogLoss { at, lost_bytes })
            }
            Some(error) => return Err(error),
            None => None,
        };
        assert!(end >= writer.start, "the log's end is not before its start");
        assert!(
            end.0 - writer.start.0 <= self.ring_bytes,
            "the ring holds all live records"
        );
        writer.end = Some(end);
        writer.last_data = reached.last_data;
        let own = (end, self.core.generation);
        for &(from, generation) in steps.iter().chain([&own]) {
            let last = writer.generations.last().expect("never empty").1;
            if generation > last {
                writer.generations.push((from, generation));
            }
        }
        if let Some(loss) = loss {
            tracing::warn!(?loss, "dropped the damaged end of the backup log");
            writer.loss = Some(loss);
            self.cut(&mut writer)?;
        }
        let end = writer.end.expect("just set");
        tracing::debug!(lsn = end.0, "found the backup log's end");
        if self.core.is_read_only {
            return Ok(());
        }
        // Opening for writing syncs the device, and so does the cut.
        debug_assert!(end >= writer.durable, "durability does not go back");
        writer.durable = end;
        self.bury_torn(&mut writer)?;
        self.mark(&mut writer)?;
        drop(writer);
        let mut syncer = self.syncer.lock();
        syncer.durable = syncer.durable.max(end);
        Ok(())
    }

    /// Returns the short record of this generation at `lsn`, if there is one that ends at or before
    /// `limit`.
    pub(super) fn short_record(
        &self,
        window: &mut Window<'_>,
        (lsn, generation): (Lsn, Generation),
        limit: Lsn,
    ) -> Result<Option<ShortRecord>, VolumeError> {
        let offset = self.offset(lsn);
        let left = self.ring_bytes - offset;
        if !self.core.has_short_records || left < HEADER || lsn >= limit {
            return Ok(None);
        }
        let bytes = window.bytes(offset, SHORT_HEADER_BYTES as u64)?;
        let header: [u8; SHORT_HEADER_BYTES] = bytes.try_into().expect("a header's bytes");
        let Ok(found) = ShortRecord::decode(&header, lsn, generation) else {
            return Ok(None);
        };
        let payload_len = u64::from(found.payload_len);
        if ShortRecord::record_bytes(payload_len) > left || found.end() > limit {
            return Ok(None);
        }
        let payload = window.bytes(offset + SHORT_HEADER_BYTES as u64, payload_len)?;
        debug_assert_eq!(found.lsn, lsn, "a short record says where it stands");
        let is_valid = found.check(self.core.salt, &header, payload).is_ok();
        Ok(is_valid.then_some(found))
    }

    /// Ends the log here durably, whatever stands behind, by a record of this generation.
    fn cut(&self, writer: &mut MutexGuard<'_, Writer>) -> Result<(), VolumeError> {
        if self.core.is_read_only {
            return Ok(());
        }
        let left = self.ring_bytes - self.offset(writer.end.expect("positioned"));
        if left < HEADER {
            self.skip(writer, left)?;
        }
        if writer
            .end
            .expect("positioned")
            .0
            .is_multiple_of(SECTOR_BYTES)
        {
            self.skip(writer, SECTOR_BYTES)?;
        }
        self.fill_sector(writer)?;
        self.write_buffer(writer)?;
        self.core.sync()
    }
}

impl Walk<'_> {
    /// Returns the position and the generation.
    const fn place(&self) -> (Lsn, Generation) {
        (self.lsn, self.generation)
    }

    /// The next valid record. `None` at the end of the log.
    fn step(&mut self) -> Result<Option<FoundRecord>, VolumeError> {
        let ring_bytes = self.log.ring_bytes;
        let left = ring_bytes - self.log.offset(self.lsn);
        debug_assert!(
            self.lsn.0.is_multiple_of(ALIGN),
            "records start at multiples of eight"
        );
        debug_assert!(self.lsn <= self.limit, "no more than the ring is read");
        if left < HEADER {
            // Too little space for a header: the next record, if any, is at the ring's start.
            let at = self.lsn;
            self.lsn = Lsn(at.0.saturating_add(left));
            let found = self.record()?;
            if found.is_none() && self.lsn != self.limit {
                self.lsn = at;
            }
            return Ok(found);
        }
        self.record()
    }

    fn record(&mut self) -> Result<Option<FoundRecord>, VolumeError> {
        let found = match self.short()? {
            Some(found) => Some(found),
            None => self.long()?,
        };
        if let Some(found) = &found {
            assert!(found.end > self.lsn, "records have a length");
            assert!(found.generation >= self.generation, "it never goes down");
            (self.lsn, self.generation) = (found.end, found.generation);
        }
        Ok(found)
    }

    /// Reads a short record here. Its generation is that of the record before it; the version notes
    /// that of the first.
    fn short(&mut self) -> Result<Option<FoundRecord>, VolumeError> {
        let place = self.place();
        let short = self.log.short_record(&mut self.window, place, self.limit)?;
        Ok(short.map(|record| {
            let payload_at = self.log.offset(record.lsn) + SHORT_HEADER_BYTES as u64;
            FoundRecord {
                lsn: record.lsn,
                end: record.end(),
                generation: record.generation,
                payload: Some((payload_at, u64::from(record.payload_len))),
                told: None,
            }
        }))
    }

    fn long(&mut self) -> Result<Option<FoundRecord>, VolumeError> {
        let offset = self.log.offset(self.lsn);
        if self.lsn >= self.limit {
            return Ok(None);
        }
        let bytes = self.window.bytes(offset, HEADER)?;
        let Ok(header) = RecordHeader::decode(bytes) else {
            return Ok(None);
        };
        let encoded: [u8; HEADER_BYTES] = bytes.try_into().expect("a header's bytes");
        let record_bytes = RecordHeader::record_bytes(u64::from(header.payload_len));
        let is_ours = header.lsn == self.lsn
            && header.generation >= self.generation
            && header.generation <= self.log.core.generation;
        if !is_ours || record_bytes > self.log.ring_bytes - offset || header.end() > self.limit {
            return Ok(None);
        }
        debug_assert!(
            header.generation <= self.log.core.generation,
            "this life is the newest"
        );
        let place = (offset + HEADER, u64::from(header.payload_len));
        let payload = match header.kind {
            RecordKind::Data => self.window.bytes(place.0, place.1)?,
            RecordKind::Skip => &[],
            RecordKind::Mark => return Ok(None),
        };
        if header.check(self.log.core.salt, &encoded, payload).is_err() {
            return Ok(None);
        }
        Ok(Some(FoundRecord {
            lsn: header.lsn,
            end: header.end(),
            generation: header.generation,
            payload: (header.kind == RecordKind::Data).then_some(place),
            told: Some((header.durable, header.versions)),
        }))
    }
}
