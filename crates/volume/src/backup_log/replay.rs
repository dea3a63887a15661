//! Reading the backup log back.

use super::{BackupLog, HEADER};
use crate::VolumeError;
use crate::window::Window;
use stitch_base::{Generation, Lsn};
use stitch_format::log_record::{ALIGN, HEADER_BYTES, RecordHeader, RecordKind};

/// What is shown a record: the position after it and its payload.
pub type Visit<'a, E> = dyn FnMut(Lsn, &[u8]) -> Result<(), E> + 'a;

/// Walks the records of the ring.
struct Walk<'a> {
    log: &'a BackupLog,
    window: Window<'a>,
    /// Where the next record should stand.
    lsn: Lsn,
    /// Not beyond this.
    limit: Lsn,
    /// Lowest generation that the next record can have.
    generation: Generation,
}

impl BackupLog {
    /// Shows every record from `from` on to `visit`, in order: the position after it (as
    /// [`Self::append`] returned it) and its payload. Stops at the first record that is not valid
    /// and returns the position after the last that is; from there appends go on.
    ///
    /// # Errors
    /// [`VolumeError::Device`] if the log cannot be read; [`VolumeError::Corrupt`] if it ends
    /// before what is known to be durable (see [`Self::accept_loss`]); [`VolumeError::Invalid`] if `from` is
    /// not a position in the live part; what `visit` returns.
    pub fn replay<E: From<VolumeError>>(
        &self,
        from: Lsn,
        visit: &mut Visit<'_, E>,
    ) -> Result<Lsn, E> {
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
            return Err(VolumeError::Invalid { reason }.into());
        }
        let mut walk = Walk {
            log: self,
            window: Window::new(&*self.core.device, self.ring_at, self.ring_bytes),
            lsn: from,
            limit,
            generation,
        };
        let mut steps = Vec::new();
        while let Some((header, offset)) = walk.step()? {
            if steps
                .last()
                .is_none_or(|&(_, last)| last < header.generation)
            {
                steps.push((header.lsn, header.generation));
            }
            if header.kind == RecordKind::Data {
                let payload = walk
                    .window
                    .bytes(offset + HEADER, u64::from(header.payload_len))?;
                visit(header.end(), payload)?;
            }
        }
        self.set_end(walk.lsn, &steps)?;
        Ok(walk.lsn)
    }

    /// Takes note of where the log ends, if that was not known.
    fn set_end(&self, end: Lsn, steps: &[(Lsn, Generation)]) -> Result<(), VolumeError> {
        let mut writer = self.writer.lock();
        if writer.end.is_some() {
            return Ok(());
        }
        // Too little for a header before the ring's end counts as used: nothing can stand there.
        let left = self.ring_bytes - self.offset(end);
        let reached = if left < HEADER { end.0 + left } else { end.0 };
        if reached < writer.floor.0 {
            return Err(VolumeError::Corrupt {
                what: "backup log".to_owned(),
                at: self.ring_at + self.offset(end),
                expected: format!("records up to position {}", writer.floor),
                found: format!("none after position {end}"),
            });
        }
        writer.end = Some(end);
        let own = (end, self.core.generation);
        for &(from, generation) in steps.iter().chain([&own]) {
            let last = writer.generations.last().expect("never empty").1;
            if generation > last {
                writer.generations.push((from, generation));
            }
        }
        tracing::debug!(lsn = end.0, "found the backup log's end");
        Ok(())
    }
}

impl Walk<'_> {
    /// The next valid record and its offset in the ring. `None` at the end of the log.
    fn step(&mut self) -> Result<Option<(RecordHeader, u64)>, VolumeError> {
        let ring_bytes = self.log.ring_bytes;
        let left = ring_bytes - self.log.offset(self.lsn);
        if left < HEADER {
            // Too little for a header: the record stands at the ring's start, if there is one.
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

    fn record(&mut self) -> Result<Option<(RecordHeader, u64)>, VolumeError> {
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
        let payload = match header.kind {
            RecordKind::Data => self
                .window
                .bytes(offset + HEADER, u64::from(header.payload_len))?,
            RecordKind::Skip => &[],
        };
        if header.check(self.log.core.salt, &encoded, payload).is_err() {
            return Ok(None);
        }
        self.lsn = header.end();
        self.generation = header.generation;
        Ok(Some((header, offset)))
    }
}
