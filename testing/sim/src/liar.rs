//! Canaries: devices that break the contract, between a store and the medium. They show that the
//! simulation detects faults at all.

use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, DeviceCounters, DeviceError, Geometry};

/// How a device lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Syncs do nothing.
    IgnoresSyncs,
    /// One write in fifty is acknowledged and dropped.
    LosesWrites,
    /// Writes and syncs that fail are acknowledged.
    HidesErrors,
}

/// A device that lies.
#[derive(Debug)]
pub struct Liar {
    inner: Arc<dyn Device>,
    lie: Lie,
}

impl Liar {
    /// Wraps `inner`.
    #[must_use]
    pub fn wrap(inner: Arc<dyn Device>, lie: Lie) -> Arc<dyn Device> {
        Arc::new(Self { inner, lie })
    }

    fn tell(&self, done: Result<(), DeviceError>) -> Result<(), DeviceError> {
        match self.lie {
            Lie::HidesErrors => Ok(()),
            Lie::IgnoresSyncs | Lie::LosesWrites => done,
        }
    }
}

/// Depends on what is written and where, so that a run can be repeated.
fn is_unlucky(offset: u64, pieces: &[&[u8]]) -> bool {
    let bytes = pieces.iter().flat_map(|piece| piece.iter());
    let mixed = bytes.fold(offset, |mix, byte| {
        mix.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    Rng::new(mixed).one_in(50)
}

impl Device for Liar {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        if self.lie == Lie::LosesWrites && is_unlucky(offset, pieces) {
            return Ok(());
        }
        let written = self.inner.write_at(offset, pieces);
        self.tell(written)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        match self.lie {
            Lie::IgnoresSyncs => Ok(()),
            Lie::LosesWrites | Lie::HidesErrors => self.tell(self.inner.sync()),
        }
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }

    fn medium_bytes(&self) -> Result<u64, DeviceError> {
        self.inner.medium_bytes()
    }

    fn grow(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        self.inner.grow(from, to)
    }

    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        self.inner.shrink(to)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
