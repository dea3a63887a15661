//! Counters that any thread may raise, and the range check that every device makes.

use crate::{DeviceCounters, DeviceError, Wanted};
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// The counters behind [`DeviceCounters`], while the device is open.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    read_bytes: AtomicU64,
    reads: AtomicU64,
    write_bytes: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    discard_bytes: AtomicU64,
    prefetch_bytes: AtomicU64,
    windows: AtomicU64,
    prepared_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, len_bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    /// Counts a request for several pieces as one read for each separate extent.
    pub(crate) fn read_each(&self, pieces: &[Wanted<'_>]) {
        let len_bytes: usize = pieces.iter().map(|piece| piece.out.len()).sum();
        self.reads
            .fetch_add(Wanted::extents(pieces), Ordering::Relaxed);
        self.read_bytes
            .fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn write(&self, len_bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.write_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    pub(crate) fn sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn discard(&self, len_bytes: u64) {
        self.discard_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    pub(crate) fn prefetch(&self, len_bytes: u64) {
        self.prefetch_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    pub(crate) fn window(&self) {
        self.windows.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn prepared(&self, len_bytes: u64) {
        self.prepared_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> DeviceCounters {
        DeviceCounters {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            discard_bytes: self.discard_bytes.load(Ordering::Relaxed),
            prefetch_bytes: self.prefetch_bytes.load(Ordering::Relaxed),
            windows: self.windows.load(Ordering::Relaxed),
            prepared_bytes: self.prepared_bytes.load(Ordering::Relaxed),
        }
    }
}

/// A request, as error messages name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: &'static str,
    pub(crate) at: u64,
    pub(crate) len_bytes: u64,
}

impl Request {
    pub(crate) fn read(at: u64, out: &[u8]) -> Self {
        Self::new("read", at, out.len() as u64)
    }

    pub(crate) fn write(at: u64, pieces: &[&[u8]]) -> Self {
        let len_bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self::new("write", at, len_bytes)
    }

    pub(crate) const fn sync() -> Self {
        Self::new("sync", 0, 0)
    }

    pub(crate) const fn new(op: &'static str, at: u64, len_bytes: u64) -> Self {
        Self { op, at, len_bytes }
    }

    /// Returns its byte range, cut at the largest address.
    pub(crate) const fn range(self) -> std::ops::Range<u64> {
        self.at..self.at.saturating_add(self.len_bytes)
    }

    /// Checks that the request lies within `[0, device_bytes)`.
    pub(crate) fn check(self, name: &str, device_bytes: u64) -> Result<(), DeviceError> {
        let end = self.at.checked_add(self.len_bytes);
        if end.is_some_and(|end| end <= device_bytes) {
            return Ok(());
        }
        Err(DeviceError::OutOfRange {
            name: name.to_owned(),
            op: self.op,
            at: self.at,
            len_bytes: self.len_bytes,
            device_bytes,
        })
    }

    /// Returns the error of this request that the operating system reported.
    pub(crate) fn failed(self, name: &str, source: impl Into<std::io::Error>) -> DeviceError {
        DeviceError::Io {
            name: name.to_owned(),
            op: self.op,
            at: self.at,
            len_bytes: self.len_bytes,
            source: source.into(),
        }
    }
}
