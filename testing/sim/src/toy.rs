//! A store small enough to be right at a glance: one log of puts from the start of the device. It
//! tests the simulation itself, and its canaries show what the simulation can see.

use crate::{Ack, System, SystemError};
use std::collections::BTreeMap;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, DeviceError, MemDevice};

const RECORD_BYTES: u64 = 32;
const DEVICE_BYTES: u64 = 1 << 16;
const SEED: u64 = 0x5eed_0f70;

/// A mistake to make on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToyBug {
    /// None.
    None,
    /// Records without a checksum: a torn one is taken for whole.
    NoChecksum,
    /// Recovery skips a bad record and goes on with the next.
    SkipsHoles,
    /// Recovery wipes the last record, as one that cuts a log at the wrong place does.
    RecoveryLosesTail,
    /// Recovery trusts a count that it wrote without making the records durable first.
    CountsUnsynced,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Toy {
    /// What it does wrong.
    pub bug: ToyBug,
}

/// What a toy can do.
#[derive(Clone, Copy, Debug)]
pub enum ToyOp {
    /// Sets a key.
    Put(u8, u64),
    /// Makes all that was put durable.
    Sync,
}

/// An open toy.
#[derive(Debug)]
pub struct LiveToy {
    device: Arc<dyn Device>,
    map: BTreeMap<u8, u64>,
    records: u64,
}

fn io(e: &DeviceError) -> SystemError {
    SystemError::new(e.kind(), e)
}

impl Toy {
    fn record(self, sequence: u64, key: u8, value: u64) -> [u8; 32] {
        let mut out = [0u8; 32];
        out[..8].copy_from_slice(&(sequence + 1).to_le_bytes());
        out[8] = key;
        out[16..24].copy_from_slice(&value.to_le_bytes());
        let sum = if self.bug == ToyBug::NoChecksum {
            0
        } else {
            sum(&out[..24])
        };
        out[24..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(self, sequence: u64, bytes: &[u8; 32]) -> Option<(u8, u64)> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let is_next = word(0) == sequence + 1;
        let is_whole = self.bug == ToyBug::NoChecksum || word(24) == sum(&bytes[..24]);
        (is_next && is_whole).then(|| (bytes[8], word(16)))
    }

    /// Pads records so that they lie across sectors.
    const fn place(sequence: u64) -> u64 {
        500 + sequence * RECORD_BYTES
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mix = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(SEED, mix)
}

impl System for Toy {
    type Op = ToyOp;
    type State = BTreeMap<u8, u64>;
    type Model = BTreeMap<u8, u64>;
    type Live = LiveToy;

    fn name(&self) -> &'static str {
        "toy"
    }

    fn image(&self) -> MemDevice {
        MemDevice::new(DEVICE_BYTES)
    }

    fn model(&self) -> Self::Model {
        BTreeMap::new()
    }

    fn generate(&self, _model: &Self::Model, rng: &mut Rng) -> ToyOp {
        if rng.one_in(5) {
            return ToyOp::Sync;
        }
        let key = u8::try_from(rng.below(16)).expect("a small number");
        ToyOp::Put(key, rng.next_u64())
    }

    fn apply(&self, model: &mut Self::Model, op: &ToyOp) {
        if let ToyOp::Put(key, value) = op {
            model.insert(*key, *value);
        }
    }

    fn model_state(&self, model: &Self::Model) -> Self::State {
        model.clone()
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<LiveToy, SystemError> {
        let mut live = LiveToy {
            device,
            map: BTreeMap::new(),
            records: 0,
        };
        let (mut sequence, mut misses) = (0, 0);
        loop {
            let mut bytes = [0u8; 32];
            live.device
                .read_at(Self::place(sequence), &mut bytes)
                .map_err(|e| io(&e))?;
            match self.decode(sequence, &bytes) {
                Some((key, value)) => {
                    live.map.insert(key, value);
                    live.records = sequence + 1;
                }
                None if self.bug == ToyBug::SkipsHoles && misses < 3 => misses += 1,
                None => break,
            }
            sequence += 1;
        }
        if self.bug == ToyBug::RecoveryLosesTail && live.records > 0 {
            let at = Self::place(live.records - 1);
            live.device.write_at(at, &[&[0; 32]]).map_err(|e| io(&e))?;
        }
        if self.bug == ToyBug::CountsUnsynced {
            // A later log would start over here, trusting a count that outlived its records.
            let mut count = [0u8; 8];
            live.device.read_at(0, &mut count).map_err(|e| io(&e))?;
            if u64::from_le_bytes(count) > live.records {
                return Err(SystemError::new(ErrorKind::Corrupt, "records are missing"));
            }
            live.device
                .write_at(0, &[&live.records.to_le_bytes()])
                .map_err(|e| io(&e))?;
        } else {
            // What follows the last good record must never be taken for a next one.
            let at = Self::place(live.records);
            let rest = usize::try_from(DEVICE_BYTES - at).expect("a small device");
            live.device
                .write_at(at, &[&vec![0; rest]])
                .map_err(|e| io(&e))?;
        }
        live.device.sync().map_err(|e| io(&e))?;
        Ok(live)
    }

    fn run(
        &self,
        live: &mut LiveToy,
        op: &ToyOp,
        _model: &Self::Model,
    ) -> Result<Ack, SystemError> {
        match op {
            ToyOp::Put(key, value) => {
                let record = self.record(live.records, *key, *value);
                let at = Self::place(live.records);
                live.device.write_at(at, &[&record]).map_err(|e| io(&e))?;
                live.records += 1;
                live.map.insert(*key, *value);
                Ok(Ack::Done)
            }
            ToyOp::Sync => {
                live.device.sync().map_err(|e| io(&e))?;
                Ok(Ack::Durable)
            }
        }
    }

    fn is_write(&self, _op: &ToyOp) -> bool {
        true
    }

    fn state(&self, live: &LiveToy) -> Result<Self::State, SystemError> {
        Ok(live.map.clone())
    }

    fn compare_readable(&self, live: &LiveToy, expected: &Self::State) -> Result<u64, String> {
        if live.map == *expected {
            return Ok(0);
        }
        Err(self.difference(&live.map, expected))
    }

    fn check(&self, _live: &LiveToy) -> Result<Vec<String>, SystemError> {
        Ok(Vec::new())
    }

    fn close(&self, live: LiveToy) -> Result<(), SystemError> {
        live.device.sync().map_err(|e| io(&e))
    }

    fn difference(&self, found: &Self::State, expected: &Self::State) -> String {
        format!("{found:?} is not {expected:?}")
    }
}
