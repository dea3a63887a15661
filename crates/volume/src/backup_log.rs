//! The backup log is the write-ahead log of all trees: a ring that holds the contents of the
//! memtables, so that a crash loses none of them.
//!
//! A record is valid only if all records before it are: replay stops at the first invalid one. A
//! record proves that it is valid by its checksum, its own position, and a generation that is at
//! least that of the record before it. A short record has position and generation in its checksum
//! only.
//!
//! 1. An append goes to the end of the ring's live part, never across the ring's end. Every write
//!    takes whole pages; the last page is kept in memory (see `tail`).
//! 2. A sync first fills the last sector with a skip record, so that no later append rewrites a
//!    sector that was synced; then it syncs the device. One caller leads, the others wait for it.
//! 3. Every long record notes how far this log and the version log were durable when it was
//!    written. A record is long if it is the first that begins in its page, the first of a
//!    generation, or the first after more became durable. For the last sync, a *mark* is written
//!    after it where the next record will stand. The mark goes into the page that this record would
//!    write anyway, and is not synced.
//! 4. If a replay ends before a position that a valid record notes as durable, the log is damaged.
//!    Otherwise a power cut tore its end off. See `damage`.
//! 5. A torn end is overwritten durably before anything else is written; see `torn`.
//! 6. Space is released when a version with a later log start is durable.
//!
//! Invariants:
//! - `start <= durable <= end <= start + ring` and all positions are multiples of eight;
//! - within a generation, no position is written twice, except for marks.
//!
//! Locks: `syncer`, then `writer`.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, sections
//! 3.3 and 5.1. Differs: generations, sector padding, group commit and marks.

mod append;
mod damage;
mod emit;
mod mapped;
mod replay;
mod tail;
mod torn;

pub use replay::{Replay, Visit};

use crate::VolumeError;
use crate::core::Core;
use crate::version_log::LogState;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use stitch_base::{Generation, Lsn};
use stitch_format::log_record::{ALIGN, HEADER_BYTES, RecordHeader, RecordKind};
use stitch_format::superblock::{Closed, LogAreas};
use tail::{Tail, bytes_of, page_of};

/// The failure that an acknowledged append survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut: every append is synced before it returns.
    Device,
    /// A killed process: every append is in the operating system before it returns.
    #[default]
    Os,
    /// Nothing until the next sync: appends are collected in memory.
    Application,
}

const HEADER: u64 = HEADER_BYTES as u64;
/// The unit that a medium may lose at once.
const PAGE_BYTES: u64 = 4096;
/// Space that appends leave for the skip record of the next sync.
const SLACK_BYTES: u64 = 1024;
/// Longest buffer of application-level durability.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest record, if the ring is large enough.
const RECORD_BYTES_MAX: u64 = 8 << 20;

const _: () = assert!(RECORD_BYTES_MAX < RecordHeader::PAYLOAD_BYTES_MAX as u64);

/// The backup log of an open volume.
#[derive(Debug)]
pub struct BackupLog {
    core: Arc<Core>,
    durability: Durability,
    /// Offset of the ring on the device. Changes with `writer` held.
    ring_at: AtomicU64,
    ring_bytes: u64,
    version_log_at: AtomicU64,
    version_log_bytes: u64,
    /// The log's end at the last close, if nothing was written since.
    closed_end: Option<Lsn>,
    writer: Mutex<Writer>,
    syncer: Mutex<Syncer>,
    synced: Condvar,
    /// True if the ring no longer belongs to this log. Set with `writer` held.
    is_given_up: AtomicBool,
}

#[derive(Debug)]
struct Writer {
    /// Start of the live records, as in the last durable version.
    start: Lsn,
    /// Position of the next record; `None` until the log was read once.
    end: Option<Lsn>,
    /// Positions before which an undamaged log does not end.
    floors: [Floor; 2],
    /// True if a damaged end may be dropped.
    accepts_loss: bool,
    /// The damaged end that was dropped.
    loss: Option<LogLoss>,
    /// Everything before this position is durable, as records note it.
    durable: Lsn,
    /// Position up to which the version log is durable.
    version_end: u64,
    /// True if a record or a mark has noted these two positions.
    is_noted: bool,
    /// The page of the last long record of this generation, if the two positions have not changed
    /// since: further records that begin in it may be short.
    durability_page: Option<Lsn>,
    /// True if [`BackupLog::mark_apart`] has noted them too.
    is_noted_apart: bool,
    /// Generation of the last record with data that was found when the log was read.
    last_data: Option<Generation>,
    /// Positions from which on records have at least these generations. Never empty.
    generations: Vec<(Lsn, Generation)>,
    /// Records that are not yet in the operating system; they end at `end`.
    buffer: Vec<u8>,
    /// The page of `end`, as it is in the operating system.
    tail: Tail,
}

/// A damaged end of the log that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLoss {
    /// Offset on the device at which it began.
    pub at: u64,
    /// Length of the dropped end, as far as it is known.
    pub lost_bytes: u64,
}

/// The log was durable up to `end` when `generation` noted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) end: Lsn,
    pub(crate) generation: Generation,
}

#[derive(Debug)]
struct Syncer {
    durable: Lsn,
    is_running: bool,
}

impl Writer {
    /// Records the fact that more is durable than records note.
    const fn has_news(&mut self) {
        (self.is_noted, self.is_noted_apart) = (false, false);
        self.durability_page = None;
    }

    /// Removes a skip record at `lsn` from the buffer: it would reach over the next record.
    fn take_back(&mut self, lsn: Lsn) {
        let end = self.end.expect("positioned");
        assert!(end >= lsn, "the record is before the end");
        debug_assert!(lsn >= self.durable, "durable records are not taken back");
        if end.0 == lsn.0 + HEADER {
            let left = self.buffer.len().checked_sub(HEADER_BYTES);
            self.buffer.truncate(left.expect("it is kept in memory"));
            self.end = Some(lsn);
            (self.is_noted, self.durability_page) = (false, None);
        }
    }
}

impl BackupLog {
    /// Creates the log of an open volume. `version` is the live version, written by
    /// `writer_of_version`. `closed` describes the last close; `is_closed` is true if nothing was
    /// written since.
    pub(crate) fn new(
        core: Arc<Core>,
        logs: &LogAreas,
        durability: Durability,
        (version, writer_of_version): (&LogState, Generation),
        (closed, is_closed): (&Closed, bool),
    ) -> Self {
        let start = version.log_start;
        assert!(start.0.is_multiple_of(ALIGN), "the version was checked");
        assert!(
            start <= version.log_durable,
            "a version starts at durable records"
        );
        assert!(
            logs.backup_log_bytes.is_multiple_of(PAGE_BYTES),
            "a ring is whole pages"
        );
        let writer = Writer {
            start,
            end: None,
            floors: [
                Floor {
                    end: version.log_durable,
                    generation: writer_of_version,
                },
                Floor {
                    end: closed.log_end,
                    generation: closed.generation,
                },
            ],
            accepts_loss: false,
            loss: None,
            durable: start,
            version_end: version.tail,
            is_noted: false,
            durability_page: None,
            is_noted_apart: false,
            last_data: None,
            generations: vec![(start, version.log_generation)],
            buffer: Vec::new(),
            tail: Tail::default(),
        };
        let syncer = Syncer {
            durable: start,
            is_running: false,
        };
        Self {
            core,
            durability,
            ring_at: AtomicU64::new(logs.backup_log_at),
            ring_bytes: logs.backup_log_bytes,
            version_log_at: AtomicU64::new(logs.version_log_at),
            version_log_bytes: logs.version_log_bytes,
            closed_end: is_closed.then_some(closed.log_end),
            writer: Mutex::new(writer),
            syncer: Mutex::new(syncer),
            synced: Condvar::new(),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Detaches the log from its ring: nothing is written there after this returns.
    pub(crate) fn give_up(&self) {
        let mut writer = self.writer.lock();
        writer.tail = Tail::default();
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Checks that the ring still belongs to this log. Call it with `writer` held.
    fn check_writable(&self) -> Result<(), VolumeError> {
        self.core.check_writable()?;
        match self.is_given_up.load(Ordering::Acquire) {
            true => Err(VolumeError::Poisoned),
            false => Ok(()),
        }
    }

    /// Returns the offset of the ring on the device.
    fn ring_at(&self) -> u64 {
        self.ring_at.load(Ordering::Acquire)
    }

    /// The failure that an acknowledged append survives.
    pub(crate) const fn durability(&self) -> Durability {
        self.durability
    }

    /// Moves the ring: `copy` copies both logs to the new offset while nothing is appended.
    pub(crate) fn relocate(
        &self,
        logs: &LogAreas,
        copy: impl FnOnce() -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut writer = self.positioned()?;
        let end = writer.end.expect("positioned");
        assert_eq!(
            logs.backup_log_bytes, self.ring_bytes,
            "a ring keeps its length"
        );
        assert!(
            logs.backup_log_at.is_multiple_of(PAGE_BYTES),
            "a ring starts at a page"
        );
        writer.tail.unmap(end)?;
        copy()?;
        self.ring_at.store(logs.backup_log_at, Ordering::Release);
        self.version_log_at
            .store(logs.version_log_at, Ordering::Release);
        debug_assert_eq!(writer.end, Some(end), "nothing was appended meanwhile");
        Ok(())
    }

    /// Longest payload of a record, in bytes.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        debug_assert!(self.ring_bytes / 4 > HEADER, "a ring holds records");
        RECORD_BYTES_MAX.min(self.ring_bytes / 4) - HEADER
    }

    /// Length of the ring.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Appends one record whose payload is all of `pieces`, and returns the position after it.
    ///
    /// # Errors
    /// [`VolumeError::LogFull`] until a version with a later log start is committed;
    /// [`VolumeError::Invalid`] if the record is too long; [`VolumeError::Poisoned`],
    /// [`VolumeError::ReadOnly`], [`VolumeError::Device`].
    ///
    /// # Durability
    /// That of the volume's [`Durability`].
    pub fn append(&self, pieces: &[&[u8]]) -> Result<Lsn, VolumeError> {
        let payload_len = bytes_of(pieces);
        if payload_len > self.record_bytes_max() {
            return Err(VolumeError::Invalid {
                reason: format!(
                    "a log record of {payload_len} bytes is too long; at most {} fit",
                    self.record_bytes_max()
                ),
            });
        }
        let end = {
            let mut writer = self.positioned()?;
            self.check_writable()?;
            let before = writer.end;
            let end = self.append_record(&mut writer, payload_len, pieces)?;
            debug_assert_eq!(writer.end, Some(end), "the log ends after the record");
            debug_assert!(writer.end > before, "positions go up");
            debug_assert!(self.is_in_order(&writer), "start, durable, end, ring");
            end
        };
        if self.durability == Durability::Device {
            self.sync(end)?;
        }
        Ok(end)
    }

    /// Makes everything before `up_to` durable. Returns at once if it is already.
    ///
    /// # Errors
    /// [`VolumeError::Device`] for the caller whose sync failed, [`VolumeError::Poisoned`] for all
    /// others and from then on.
    ///
    /// # Durability
    /// When this returns, no power cut loses a record that ends at or before `up_to`.
    pub fn sync(&self, up_to: Lsn) -> Result<(), VolumeError> {
        if self.core.is_read_only {
            return Ok(());
        }
        let mut syncer = self.syncer.lock();
        loop {
            if syncer.durable >= up_to {
                return Ok(());
            }
            self.core.check_writable()?;
            if !syncer.is_running {
                break;
            }
            self.synced.wait(&mut syncer);
        }
        self.lead(syncer)
    }

    /// Makes everything durable that was written to the device before the call, including the log.
    pub(crate) fn barrier(&self) -> Result<(), VolumeError> {
        let mut syncer = self.syncer.lock();
        while syncer.is_running {
            self.synced.wait(&mut syncer);
        }
        self.core.check_writable()?;
        self.lead(syncer)
    }

    /// Syncs the device for all waiting callers.
    fn lead(&self, mut syncer: MutexGuard<'_, Syncer>) -> Result<(), VolumeError> {
        assert!(!syncer.is_running, "one leader at a time");
        syncer.is_running = true;
        drop(syncer);
        let result = self
            .sync_device()
            .and_then(|durable| self.note_durable(durable));
        let mut syncer = self.syncer.lock();
        syncer.is_running = false;
        if let Ok(durable) = &result {
            assert!(*durable >= syncer.durable, "durability does not go back");
            syncer.durable = *durable;
        }
        self.synced.notify_all();
        result.map(|_| ())
    }

    fn sync_device(&self) -> Result<Lsn, VolumeError> {
        let end = {
            let mut writer = self.positioned()?;
            self.check_writable()?;
            let end = self.fill_sector(&mut writer)?;
            self.write_buffer(&mut writer)?;
            writer.tail.synced();
            debug_assert!(
                writer.buffer.is_empty(),
                "all of it is in the operating system"
            );
            end
        };
        self.core.sync()?;
        debug_assert!(
            end.0.is_multiple_of(ALIGN),
            "records start at multiples of eight"
        );
        Ok(end)
    }

    /// Records what is durable, for later records, and writes a mark.
    fn note_durable(&self, durable: Lsn) -> Result<Lsn, VolumeError> {
        let mut writer = self.writer.lock();
        assert!(durable >= writer.durable, "durability does not go back");
        if durable > writer.durable {
            writer.has_news();
            writer.durable = durable;
        }
        debug_assert!(self.is_in_order(&writer), "start, durable, end, ring");
        self.mark(&mut writer)?;
        Ok(durable)
    }

    /// Writes a mark where the next record will stand, unless a record has noted the same.
    fn mark(&self, writer: &mut Writer) -> Result<(), VolumeError> {
        if self.is_given_up.load(Ordering::Acquire) {
            return Ok(());
        }
        if !writer.is_noted {
            let end = writer.end.expect("positioned");
            if let Some(encoded) = self.mark_for(writer, end) {
                let mut tail = std::mem::take(&mut writer.tail);
                let written = tail.write_mark(&self.ring(writer), end, &encoded);
                writer.tail = tail;
                written?;
                writer.is_noted = true;
            }
        }
        Ok(())
    }

    /// Returns a mark for a position at or after the end, if there is space.
    fn mark_for(&self, writer: &Writer, lsn: Lsn) -> Option<[u8; HEADER_BYTES]> {
        let has_room = self.offset(lsn) + HEADER <= self.ring_bytes
            && lsn.0 + HEADER - writer.start.0 <= self.ring_bytes;
        if !has_room || !writer.buffer.is_empty() {
            return None;
        }
        assert!(
            Some(lsn) >= writer.end,
            "what is written is not written over"
        );
        let header = RecordHeader {
            lsn,
            ..self.header(writer, RecordKind::Mark, 0)
        };
        debug_assert!(header.durable <= lsn, "a mark notes earlier records");
        Some(header.encode(self.core.salt, &[]))
    }

    /// Notes what is durable once more, in a page of its own, so that the loss of a whole page is
    /// detected too. For an idle log. Writes nothing if that was done.
    ///
    /// # Errors
    /// [`VolumeError::Device`], [`VolumeError::Poisoned`], [`VolumeError::ReadOnly`].
    ///
    /// # Durability
    /// None is needed.
    pub fn mark_apart(&self) -> Result<(), VolumeError> {
        let mut writer = self.positioned()?;
        self.check_writable()?;
        self.mark(&mut writer)?;
        if !writer.is_noted_apart {
            let end = writer.end.expect("positioned");
            let next_page = Lsn(page_of(end).0 + PAGE_BYTES);
            let ring = self.ring(&writer);
            debug_assert!(next_page > end, "the log's own page is not lost with it");
            if !ring.is_shared(next_page)
                && let Some(encoded) = self.mark_for(&writer, next_page)
            {
                let rest = [0; PAGE_BYTES as usize - HEADER_BYTES];
                let at = self.ring_at() + self.offset(next_page);
                self.core.write(at, &[&encoded, &rest])?;
                writer.is_noted_apart = true;
            }
        }
        Ok(())
    }

    /// Reports whether the log was closed in good order, nothing was written between that and this
    /// life, and the life that closed it wrote the last record with data. An engine that ends with
    /// a record of its own at each close knows by this that no other program closed the log later.
    ///
    /// # Errors
    /// Those of [`Self::end`].
    pub fn is_closed_by_last_writer(&self) -> Result<bool, VolumeError> {
        let writer = self.positioned()?;
        let [_, closed] = &writer.floors;
        debug_assert!(closed.generation < self.core.generation || self.core.is_read_only);
        debug_assert!(
            writer.last_data <= Some(self.core.generation),
            "of some life"
        );
        Ok(self.closed_end.is_some() && writer.last_data == Some(closed.generation))
    }

    /// Returns the position after the last record.
    ///
    /// # Errors
    /// [`VolumeError::Device`] if the log must be read first and cannot be.
    pub fn end(&self) -> Result<Lsn, VolumeError> {
        Ok(self.positioned()?.end.expect("positioned"))
    }

    /// Position before which everything is durable.
    #[must_use]
    pub fn durable_end(&self) -> Lsn {
        self.syncer.lock().durable
    }

    /// Bytes from the log start to the end.
    ///
    /// # Errors
    /// Those of [`Self::end`].
    pub fn used_bytes(&self) -> Result<u64, VolumeError> {
        let writer = self.positioned()?;
        let used = writer.end.expect("positioned").0 - writer.start.0;
        debug_assert!(used <= self.ring_bytes, "the ring holds all live records");
        Ok(used)
    }

    /// Bytes written beside the records themselves, since every write takes whole pages. While a
    /// page cache combines writes, most of these never reach the medium.
    #[must_use]
    pub fn padding_bytes(&self) -> u64 {
        self.writer.lock().tail.padding_bytes()
    }

    /// Returns the number of bytes that can be appended before the log is full. A record at the
    /// ring's end takes up to twice its length, so write memtables out well before this is 0.
    ///
    /// # Errors
    /// Those of [`Self::end`].
    pub fn room_bytes(&self) -> Result<u64, VolumeError> {
        let used = self.used_bytes()?;
        debug_assert!(self.ring_bytes > SLACK_BYTES, "a ring holds records");
        Ok((self.ring_bytes - SLACK_BYTES).saturating_sub(used))
    }

    /// The lowest generation that records at or after `lsn` can have.
    pub(crate) fn generation_at(&self, lsn: Lsn) -> Result<Generation, VolumeError> {
        let writer = self.positioned()?;
        assert!(lsn >= writer.start, "log starts do not go back");
        assert!(
            lsn <= writer.end.expect("positioned"),
            "a log start is not beyond the end"
        );
        let index = writer.generations.partition_point(|&(from, _)| from <= lsn);
        debug_assert!(index > 0, "the first generation is that of the log's start");
        let generation = writer.generations[index - 1].1;
        debug_assert!(
            generation <= self.core.generation,
            "this life is the newest"
        );
        Ok(generation)
    }

    /// Lets the next replay end at the damage, although more was durable. For repair: the records
    /// behind it are lost.
    pub fn accept_loss(&self) {
        self.writer.lock().accepts_loss = true;
    }

    /// The end that was dropped after [`Self::accept_loss`].
    #[must_use]
    pub fn loss(&self) -> Option<LogLoss> {
        self.writer.lock().loss
    }

    /// Records a durable version, which ends the version log at `version_end`, and releases the
    /// records before `start`.
    pub(crate) fn committed(&self, start: Lsn, version_end: u64) -> Result<(), VolumeError> {
        self.advance(start);
        let mut writer = self.writer.lock();
        debug_assert!(
            version_end >= writer.version_end,
            "the version log's end does not go back"
        );
        if version_end > writer.version_end {
            writer.has_news();
            writer.version_end = version_end;
        }
        self.mark(&mut writer)
    }

    /// Releases the records before `start`: a version that starts there is durable.
    pub(crate) fn advance(&self, start: Lsn) {
        let mut writer = self.writer.lock();
        assert!(start >= writer.start, "log starts do not go back");
        assert!(
            start.0.is_multiple_of(ALIGN),
            "records start at multiples of eight"
        );
        writer.start = start;
        let index = writer
            .generations
            .partition_point(|&(from, _)| from <= start);
        assert!(index > 0, "the first generation is that of the log's start");
        writer.generations.drain(..index - 1);
        debug_assert!(
            writer.end.is_none_or(|end| start <= end),
            "a start is not beyond the end"
        );
    }

    /// Locks the writer, after reading the log once to find its end.
    fn positioned(&self) -> Result<MutexGuard<'_, Writer>, VolumeError> {
        let writer = self.writer.lock();
        if writer.end.is_some() {
            return Ok(writer);
        }
        let from = writer.start;
        drop(writer);
        self.replay::<VolumeError, ()>(from, &mut |_, _| Ok(()))?;
        let writer = self.writer.lock();
        debug_assert!(writer.end.is_some(), "a replay finds the log's end");
        Ok(writer)
    }

    /// Reports whether the log's positions are in the order of the head of this module. For
    /// assertions.
    fn is_in_order(&self, writer: &Writer) -> bool {
        let end = writer.end.expect("positioned");
        let is_bounded = end.0 - writer.start.0 <= self.ring_bytes;
        writer.durable <= end && is_bounded && end.0.is_multiple_of(ALIGN)
    }

    fn offset(&self, lsn: Lsn) -> u64 {
        lsn.0 % self.ring_bytes
    }
}

#[cfg(test)]
mod tests;
