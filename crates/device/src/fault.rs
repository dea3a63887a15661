//! A wrapper that injects faults: errors at chosen calls, flipped bits, a shorter device.

use crate::counter::{Counters, Request};
use crate::{Device, DeviceCounters, DeviceError, Geometry, LEN_UNIT_BYTES, Wanted};
use bytes::Bytes;
use rustix::io::Errno;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// The calls that a fault counts and fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Reads.
    Read,
    /// Writes, and changes of the length.
    Write,
    /// Syncs.
    Sync,
    /// Every call that does I/O, discards too.
    Any,
}

/// An error at the n-th call of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The calls that count.
    pub op: FaultOp,
    /// The call that fails, from 1.
    pub nth: u64,
    /// True if all later calls of the kind fail too.
    pub is_permanent: bool,
}

impl Fault {
    /// Fails the n-th call of a kind, from 1, and no other.
    #[must_use]
    pub const fn once(op: FaultOp, nth: u64) -> Self {
        Self {
            op,
            nth,
            is_permanent: false,
        }
    }

    /// Fails the n-th call of a kind, from 1, and all later ones.
    #[must_use]
    pub const fn from(op: FaultOp, nth: u64) -> Self {
        Self {
            op,
            nth,
            is_permanent: true,
        }
    }
}

/// Numbers of calls that reached the wrapper, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Discards.
    pub discards: u64,
}

impl CallCounts {
    /// The number of all calls.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.reads + self.writes + self.syncs + self.discards
    }

    const fn of(&self, op: FaultOp) -> u64 {
        match op {
            FaultOp::Read => self.reads,
            FaultOp::Write => self.writes,
            FaultOp::Sync => self.syncs,
            FaultOp::Any => self.total(),
        }
    }
}

#[derive(Debug, Default)]
struct FaultState {
    calls: CallCounts,
    faults: Vec<Fault>,
    hits: u64,
    last_hit: Option<FaultOp>,
}

/// A device that forwards all calls to `inner`, except those that a planned fault fails. A failed
/// call does not reach `inner`.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    len_bytes: AtomicU64,
    state: Mutex<FaultState>,
    counters: Counters,
}

const NAME: &str = "fault device";

impl<D: Device> FaultDevice<D> {
    /// Wraps a device, without any fault planned.
    pub fn new(inner: D) -> Self {
        let len_bytes = inner.geometry().len_bytes;
        Self::shortened(inner, len_bytes)
    }

    /// A device that ends after `len_bytes`, as if cut short.
    ///
    /// # Panics
    /// If that is longer than `inner`, or no multiple of 4 KiB.
    pub fn shortened(inner: D, len_bytes: u64) -> Self {
        assert!(
            len_bytes <= inner.geometry().len_bytes,
            "shorter than the whole"
        );
        assert!(
            len_bytes.is_multiple_of(LEN_UNIT_BYTES),
            "a multiple of 4 KiB"
        );
        Self {
            inner,
            len_bytes: AtomicU64::new(len_bytes),
            state: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Plans a fault. Calls are counted from the creation of the wrapper.
    pub fn add(&self, fault: Fault) {
        assert!(fault.nth > 0, "calls are counted from 1");
        self.state.lock().faults.push(fault);
    }

    /// Removes the planned faults.
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// Flips the bits of `mask` in the stored byte at `offset`.
    ///
    /// # Errors
    /// Those of the inner device.
    pub fn corrupt(&self, offset: u64, mask: u8) -> Result<(), DeviceError> {
        let mut byte = [0u8];
        self.inner.read_at(offset, &mut byte)?;
        byte[0] ^= mask;
        self.inner.write_at(offset, &[&byte])
    }

    /// Calls so far.
    pub fn calls(&self) -> CallCounts {
        self.state.lock().calls
    }

    /// The number of calls that a fault has failed.
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    /// The kind of the last call that a fault has failed; [`FaultOp::Any`] for a discard.
    pub fn last_hit(&self) -> Option<FaultOp> {
        self.state.lock().last_hit
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn enter(&self, op: FaultOp, request: Request) -> Result<(), DeviceError> {
        request.check(NAME, self.len_bytes.load(Ordering::Acquire))?;
        let mut state = self.state.lock();
        match op {
            FaultOp::Read => state.calls.reads += 1,
            FaultOp::Write => state.calls.writes += 1,
            FaultOp::Sync => state.calls.syncs += 1,
            FaultOp::Any => state.calls.discards += 1,
        }
        let calls = state.calls;
        let is_hit = state.faults.iter().any(|fault| {
            let counted = fault.op == op || fault.op == FaultOp::Any;
            let now = calls.of(fault.op);
            counted && (now == fault.nth || (fault.is_permanent && now > fault.nth))
        });
        if is_hit {
            state.hits += 1;
            state.last_hit = Some(op);
            return Err(request.failed(NAME, Errno::IO));
        }
        Ok(())
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes.load(Ordering::Acquire),
            name: NAME.to_owned(),
            path: None,
            is_block_device: self.inner.geometry().is_block_device,
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = Request::read(offset, out);
        self.enter(FaultOp::Read, request)?;
        self.inner.read_at(offset, out)?;
        self.counters.read(request.len_bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        self.enter(FaultOp::Write, request)?;
        self.inner.write_at(offset, pieces)?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        for piece in &*pieces {
            self.enter(FaultOp::Read, Request::read(piece.offset, piece.out))?;
        }
        let whole = Wanted::request(pieces, NAME, self.len_bytes.load(Ordering::Acquire))?;
        self.inner.read_each(pieces)?;
        self.counters.read(whole.len_bytes);
        Ok(())
    }

    fn write_blocks(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        self.enter(FaultOp::Write, request)?;
        self.inner.write_blocks(offset, pieces)?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn write_behind(&self, offset: u64, bytes: &Bytes) -> Result<(), DeviceError> {
        let request = Request::write(offset, &[bytes]);
        self.enter(FaultOp::Write, request)?;
        self.inner.write_behind(offset, bytes)?;
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn prepare(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.enter(FaultOp::Write, Request::new("prepare", offset, len_bytes))?;
        self.inner.prepare(offset, len_bytes)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.enter(FaultOp::Sync, Request::sync())?;
        self.inner.sync()?;
        self.counters.sync();
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        self.enter(FaultOp::Any, Request::new("discard", offset, len_bytes))?;
        let taken = self.inner.discard(offset, len_bytes)?;
        if taken {
            self.counters.discard(len_bytes);
        }
        Ok(taken)
    }

    fn grow(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        self.enter(FaultOp::Write, Request::new("grow", 0, 0))?;
        self.inner.grow(from, to)?;
        self.len_bytes.fetch_max(to, Ordering::AcqRel);
        Ok(())
    }

    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        self.enter(FaultOp::Write, Request::new("shrink", 0, 0))?;
        self.len_bytes.fetch_min(to, Ordering::AcqRel);
        self.inner.shrink(to)
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    fn device() -> FaultDevice<MemDevice> {
        FaultDevice::new(MemDevice::new(65536))
    }

    #[test]
    fn one_call_fails_and_leaves_the_bytes_alone() {
        let device = device();
        device.add(Fault::once(FaultOp::Write, 2));
        device.write_at(0, &[b"a"]).unwrap();
        assert!(matches!(
            device.write_at(0, &[b"b"]),
            Err(DeviceError::Io { op: "write", .. })
        ));
        let mut out = [0u8];
        device.read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"a");
        device.write_at(0, &[b"c"]).unwrap();
        assert_eq!(
            (device.hits(), device.last_hit()),
            (1, Some(FaultOp::Write))
        );
        assert_eq!(device.counters().writes, 2);
        assert_eq!(
            device.calls(),
            CallCounts {
                reads: 1,
                writes: 3,
                ..CallCounts::default()
            }
        );
    }

    #[test]
    fn a_permanent_fault_stays_until_cleared() {
        let device = device();
        device.add(Fault::from(FaultOp::Sync, 2));
        device.sync().unwrap();
        assert!(device.sync().is_err());
        assert!(device.sync().is_err());
        device.clear();
        device.sync().unwrap();
    }

    #[test]
    fn any_call_counts_for_a_fault_of_any_kind() {
        let device = device();
        device.add(Fault::once(FaultOp::Any, 4));
        device.write_at(0, &[b"a"]).unwrap();
        device.sync().unwrap();
        device.read_at(0, &mut [0]).unwrap();
        assert!(device.discard(0, 4096).is_err());
        device.discard(0, 4096).unwrap();
        assert_eq!(device.calls().total(), 5);
    }

    #[test]
    fn a_flipped_bit_stays_flipped() {
        let device = device();
        device.write_at(10, &[&[0b1010]]).unwrap();
        device.corrupt(10, 0b0011).unwrap();
        let mut out = [0u8];
        device.read_at(10, &mut out).unwrap();
        assert_eq!(out[0], 0b1001);
        assert_eq!(device.calls().reads, 1, "planting a fault is no call");
    }

    #[test]
    fn a_shortened_device_ends_early() {
        let device = FaultDevice::shortened(MemDevice::new(65536), 8192);
        assert_eq!(device.geometry().len_bytes, 8192);
        device.write_at(8191, &[&[1]]).unwrap();
        assert!(matches!(
            device.read_at(8192, &mut [0]),
            Err(DeviceError::OutOfRange {
                device_bytes: 8192,
                ..
            })
        ));
    }
}
