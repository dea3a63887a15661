//! The backup log: what memtables hold, so that a crash loses none of it. One ring for all trees.
//!
//! A record is valid only if all before it are: replay stops at the first that is not. What makes
//! a record valid is its checksum, its own position, and a generation that is not below that of
//! the record before it. A short record has position and generation in its checksum only.
//!
//! 1. An append goes to the end of the ring's live part, never across the ring's end.
//!    Every write takes whole pages, the last of which is kept in memory; see `tail`.
//! 2. A sync first fills the last sector with a skip record, so that no later append rewrites a
//!    sector that was synced; then it syncs the device. One caller leads, the others wait for it.
//! 3. Every long record says how far this log and the version log were durable when it was written.
//!    Long are the first that begins in a page, the first of a generation, and the first that knows
//!    more than those before it. So that the last sync is told too, a mark is written after it where
//!    the next record will stand, in the page that this record would write anyway, and not synced.
//! 4. A replay that ends before a durable place that any valid record names is damage, not the end
//!    that a power cut tore off; see `damage`.
//! 5. What a power cut has torn off is written over, durably, before anything else is written; see `torn`.
//! 6. Space comes back when a version with a later log start is durable.
//!
//! Invariants:
//! - `start <= durable <= end <= start + ring` and all positions are multiples of eight;
//! - within a generation, no position is written twice, but for marks.
//!
//! Locks: `syncer`, then `writer`.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, sections
//! 3.3 and 5.1. Differs: generations, sector padding, group commit and marks.

mod append;
mod damage;
mod mapped;
mod replay;
mod tail;
mod torn;

pub use replay::{Replay, Visit};

use crate::VolumeError;
use crate::core::Core;
use crate::version_log::State;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use stitch_base::{Generation, Lsn};
use stitch_device::SECTOR_BYTES;
use stitch_format::log_record::{ALIGN, HEADER_BYTES, RecordHeader, RecordKind, VersionPage};
use stitch_format::superblock::{Closed, LogAreas};
use tail::{Ring, Tail, bytes_of, page_of};

/// What an acknowledged append survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut: every append is synced before it returns.
    Device,
    /// A killed process: every append is with the operating system before it returns.
    #[default]
    Os,
    /// Nothing until the next sync: appends are collected in memory.
    Application,
}

const HEADER: u64 = HEADER_BYTES as u64;
/// What a medium may lose at once.
const PAGE_BYTES: u64 = 4096;
/// Room that appends leave for the skip record of the sync that follows.
const SLACK_BYTES: u64 = 1024;
/// Most that application-level durability keeps in memory.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest record, if the ring is large enough.
const RECORD_BYTES_MAX: u64 = 8 << 20;

const _: () = assert!(RECORD_BYTES_MAX < RecordHeader::PAYLOAD_BYTES_MAX as u64);

/// The backup log of an open volume.
#[derive(Debug)]
pub struct BackupLog {
    core: Arc<Core>,
    durability: Durability,
    /// Where the logs lie; the places change with `writer` held.
    ring_at: AtomicU64,
    ring_bytes: u64,
    version_log_at: AtomicU64,
    version_log_bytes: u64,
    /// Where the volume says that the log ended when it was closed, if nothing was written since.
    closed_end: Option<Lsn>,
    writer: Mutex<Writer>,
    syncer: Mutex<Syncer>,
    synced: Condvar,
    /// The ring is another's by now. Set with `writer` held.
    is_given_up: AtomicBool,
}

#[derive(Debug)]
struct Writer {
    /// Where live records start: as in the last durable version.
    start: Lsn,
    /// Where the next record goes; unknown until the log was read once.
    end: Option<Lsn>,
    /// Where the log ends at the earliest, unless it is damaged.
    floors: [Floor; 2],
    /// What is damaged may be given up.
    accepts_loss: bool,
    /// What was given up.
    loss: Option<LogLoss>,
    /// Everything before is durable, as far as records are told.
    durable: Lsn,
    /// Where the version log is durable to.
    version_end: u64,
    /// True if a record or a mark was written since these two changed.
    is_told: bool,
    /// The page in which a long record of this generation was the last to begin, if these two have
    /// not changed since: what else begins in it may be short.
    told_page: Option<Lsn>,
    /// True if [`BackupLog::mark_apart`] has said it, too.
    is_told_apart: bool,
    /// From which position on records have at least which generation. Never empty.
    generations: Vec<(Lsn, Generation)>,
    /// Records that are not yet with the operating system; they end at `end`.
    buffer: Vec<u8>,
    /// The page of `end`, as the operating system has it.
    tail: Tail,
}

/// A damaged end of the log that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLoss {
    /// Offset on the device at which it began.
    pub at: u64,
    /// Bytes of log that are known to have been there.
    pub lost_bytes: u64,
}

/// Up to `end` the log was durable when `generation` noted it.
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
    /// More is durable than records say.
    const fn has_news(&mut self) {
        (self.is_told, self.is_told_apart) = (false, false);
        self.told_page = None;
    }

    /// Takes back a skip record at `lsn` that is still kept in memory: it would reach over what is appended next.
    fn take_back(&mut self, lsn: Lsn) {
        let end = self.end.expect("positioned");
        if end.0 == lsn.0 + HEADER {
            let left = self.buffer.len().checked_sub(HEADER_BYTES);
            self.buffer.truncate(left.expect("it is kept in memory"));
            self.end = Some(lsn);
            (self.is_told, self.told_page) = (false, None);
        }
    }
}

impl BackupLog {
    /// `version` is the live version, written by `writer_of_version`; `closed` is how the volume was
    /// last closed, and `is_closed` says that it still is.
    pub(crate) fn new(
        core: Arc<Core>,
        logs: &LogAreas,
        durability: Durability,
        (version, writer_of_version): (&State, Generation),
        (closed, is_closed): (&Closed, bool),
    ) -> Self {
        let start = version.log_start;
        assert!(start.0.is_multiple_of(ALIGN), "the version was checked");
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
            is_told: false,
            told_page: None,
            is_told_apart: false,
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

    /// Nothing is written to the ring any more when this returns.
    pub(crate) fn give_up(&self) {
        let mut writer = self.writer.lock();
        writer.tail = Tail::default();
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Refuses to write to the ring. To be called with `writer` held.
    fn check_writable(&self) -> Result<(), VolumeError> {
        self.core.check_writable()?;
        match self.is_given_up.load(Ordering::Acquire) {
            true => Err(VolumeError::Poisoned),
            false => Ok(()),
        }
    }

    /// Where the ring lies.
    fn ring_at(&self) -> u64 {
        self.ring_at.load(Ordering::Acquire)
    }

    /// What an acknowledged append survives.
    pub(crate) const fn durability(&self) -> Durability {
        self.durability
    }

    /// Goes on at another place when `copy`, which makes both logs be there, is done. Nothing is
    /// appended meanwhile.
    pub(crate) fn relocate(
        &self,
        logs: &LogAreas,
        copy: impl FnOnce() -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut writer = self.positioned()?;
        let end = writer.end.expect("positioned");
        writer.tail.unmap(end)?;
        copy()?;
        self.ring_at.store(logs.backup_log_at, Ordering::Release);
        self.version_log_at
            .store(logs.version_log_at, Ordering::Release);
        Ok(())
    }

    /// Longest payload of a record, in bytes.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
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
    /// As [`Durability`] says.
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
            self.append_record(&mut writer, payload_len, pieces)?
        };
        if self.durability == Durability::Device {
            self.sync(end)?;
        }
        Ok(end)
    }

    /// Makes everything before `up_to` durable. Returns at once if it is.
    ///
    /// # Errors
    /// [`VolumeError::Device`] for the caller whose sync failed, [`VolumeError::Poisoned`] for all
    /// others and ever after.
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

    /// Makes everything durable that was written to the device before the call, the log included.
    pub(crate) fn barrier(&self) -> Result<(), VolumeError> {
        let mut syncer = self.syncer.lock();
        while syncer.is_running {
            self.synced.wait(&mut syncer);
        }
        self.core.check_writable()?;
        self.lead(syncer)
    }

    /// Syncs the device for all who wait.
    fn lead(&self, mut syncer: MutexGuard<'_, Syncer>) -> Result<(), VolumeError> {
        assert!(!syncer.is_running, "one leader at a time");
        syncer.is_running = true;
        drop(syncer);
        let result = self.sync_device().and_then(|durable| self.tell(durable));
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
            end
        };
        self.core.sync()?;
        Ok(end)
    }

    /// Takes note of what is durable, for the records to come, and leaves a mark.
    fn tell(&self, durable: Lsn) -> Result<Lsn, VolumeError> {
        let mut writer = self.writer.lock();
        assert!(durable >= writer.durable, "durability does not go back");
        if durable > writer.durable {
            writer.has_news();
            writer.durable = durable;
        }
        self.mark(&mut writer)?;
        Ok(durable)
    }

    /// Writes down what is durable where the next record will stand, unless a record has said it.
    fn mark(&self, writer: &mut Writer) -> Result<(), VolumeError> {
        if self.is_given_up.load(Ordering::Acquire) {
            return Ok(());
        }
        if !writer.is_told {
            let end = writer.end.expect("positioned");
            if let Some(encoded) = self.mark_for(writer, end) {
                let mut tail = std::mem::take(&mut writer.tail);
                let written = tail.write_mark(&self.ring(writer), end, &encoded);
                writer.tail = tail;
                written?;
                writer.is_told = true;
            }
        }
        Ok(())
    }

    /// A mark for a position at or after the end, if there is room.
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
        Some(header.encode(self.core.salt, &[]))
    }

    /// For a log in which nothing happens: says once more what is durable, in a page that holds none
    /// of it, so that the loss of a whole page is noticed too. Writes nothing if that was done.
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
        if !writer.is_told_apart {
            let end = writer.end.expect("positioned");
            let next_page = Lsn(page_of(end).0 + PAGE_BYTES);
            let ring = self.ring(&writer);
            if !ring.is_shared(next_page)
                && let Some(encoded) = self.mark_for(&writer, next_page)
            {
                let rest = [0; PAGE_BYTES as usize - HEADER_BYTES];
                let at = self.ring_at() + self.offset(next_page);
                self.core.write(at, &[&encoded, &rest])?;
                writer.is_told_apart = true;
            }
        }
        Ok(())
    }

    /// Position after the last record.
    ///
    /// # Errors
    /// [`VolumeError::Device`] if the log was not read yet and cannot be.
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
    /// As [`Self::end`].
    pub fn used_bytes(&self) -> Result<u64, VolumeError> {
        let writer = self.positioned()?;
        Ok(writer.end.expect("positioned").0 - writer.start.0)
    }

    /// Bytes that were handed to the device beside records, since every write takes whole pages. While
    /// a page cache gathers writes, most of these never reach the medium.
    #[must_use]
    pub fn padding_bytes(&self) -> u64 {
        self.writer.lock().tail.padding_bytes()
    }

    /// Bytes that can be appended before the log is full. A record at the ring's end takes up to
    /// twice its length, so write memtables out well before this is 0.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub fn room_bytes(&self) -> Result<u64, VolumeError> {
        let used = self.used_bytes()?;
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
        Ok(writer.generations[index - 1].1)
    }

    /// Lets the next replay end where the log is damaged, although more of it was durable. For
    /// repair: what stood there is lost.
    pub fn accept_loss(&self) {
        self.writer.lock().accepts_loss = true;
    }

    /// What was given up after [`Self::accept_loss`].
    #[must_use]
    pub fn loss(&self) -> Option<LogLoss> {
        self.writer.lock().loss
    }

    /// Takes note of a durable version, which ends the version log at `version_end`, and gives up
    /// the records before `start`.
    pub(crate) fn committed(&self, start: Lsn, version_end: u64) -> Result<(), VolumeError> {
        self.advance(start);
        let mut writer = self.writer.lock();
        if version_end > writer.version_end {
            writer.has_news();
            writer.version_end = version_end;
        }
        self.mark(&mut writer)
    }

    /// Gives up the records before `start`: a version that starts there is durable.
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
        writer.generations.drain(..index - 1);
    }

    /// The writer, after the log was read once to find its end.
    fn positioned(&self) -> Result<MutexGuard<'_, Writer>, VolumeError> {
        let writer = self.writer.lock();
        if writer.end.is_some() {
            return Ok(writer);
        }
        let from = writer.start;
        drop(writer);
        self.replay::<VolumeError, ()>(from, &mut |_, _| Ok(()))?;
        Ok(self.writer.lock())
    }

    fn offset(&self, lsn: Lsn) -> u64 {
        lsn.0 % self.ring_bytes
    }

    /// Writes a skip record that reaches `bytes` further, or just goes on if that is too little
    /// for a header, which is so only at the ring's end.
    fn skip(&self, writer: &mut Writer, bytes: u64) -> Result<(), VolumeError> {
        let lsn = writer.end.expect("positioned");
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
        writer.told_page = Some(page_of(lsn));
        writer.end = Some(Lsn(lsn.0 + bytes));
        Ok(())
    }

    /// The header of a record that would stand at the end.
    fn header(&self, writer: &Writer, kind: RecordKind, payload_len: u64) -> RecordHeader {
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
    fn fill_sector(&self, writer: &mut Writer) -> Result<Lsn, VolumeError> {
        let end = writer.end.expect("positioned");
        let over = end.0 % SECTOR_BYTES;
        if over > 0 {
            let left = self.ring_bytes - self.offset(end);
            let mut bytes = SECTOR_BYTES - over;
            if bytes < HEADER && bytes < left {
                bytes += SECTOR_BYTES;
            }
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

    /// Writes or keeps the bytes of a record and moves the end after it.
    fn emit(&self, writer: &mut Writer, pieces: &[&[u8]], len: u64) -> Result<Lsn, VolumeError> {
        let end = writer.end.expect("positioned");
        assert!(
            self.offset(end) + len <= self.ring_bytes,
            "records do not straddle"
        );
        let next = Lsn(end.0 + len);
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
        writer.is_told = true;
        Ok(next)
    }

    /// Hands bytes to the operating system, in whole pages.
    fn put(&self, writer: &mut Writer, lsn: Lsn, pieces: &[&[u8]]) -> Result<(), VolumeError> {
        let mut tail = std::mem::take(&mut writer.tail);
        let written = tail.write(&self.ring(writer), lsn, pieces);
        writer.tail = tail;
        written
    }

    fn ring(&self, writer: &Writer) -> Ring<'_> {
        Ring {
            core: &self.core,
            at: self.ring_at(),
            len_bytes: self.ring_bytes,
            start: writer.start,
        }
    }

    /// Hands what is kept in memory to the operating system.
    fn write_buffer(&self, writer: &mut Writer) -> Result<(), VolumeError> {
        if writer.buffer.is_empty() {
            return Ok(());
        }
        let end = writer.end.expect("positioned");
        let mut buffer = std::mem::take(&mut writer.buffer);
        let from = Lsn(end.0 - buffer.len() as u64);
        let written = self.put(writer, from, &[&buffer]);
        if written.is_ok() {
            buffer.clear();
        }
        writer.buffer = buffer;
        written
    }
}

#[cfg(test)]
mod tests;
