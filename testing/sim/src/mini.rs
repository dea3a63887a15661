//! The volume as a system under test, below a small engine: logs, zones, blocks.

mod engine;

use crate::tiny::Tiny;
use crate::{Ack, System, SystemError};
use engine::{Engine, MiniMap, SHARDS};
use std::collections::BTreeSet;
use std::fmt;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, MemDevice};
use stitch_volume::VolumeError;

/// See the module.
#[derive(Clone, Debug)]
pub struct Mini {
    image: MemDevice,
    value_bytes_max: u64,
}

/// One operation.
#[derive(Clone)]
pub enum MiniOp {
    /// Puts and deletes in one record.
    Commit(Vec<(u8, Option<Arc<[u8]>>)>),
    /// Syncs the log.
    Sync,
    /// Syncs the volume.
    Barrier,
    /// Writes one shard out.
    Checkpoint(usize),
    /// Writes all shards out.
    CheckpointAll,
}

impl fmt::Debug for MiniOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(entries) => {
                write!(f, "commit")?;
                let mut lens = entries
                    .iter()
                    .map(|(k, v)| (k, v.as_ref().map(|v| v.len())));
                lens.try_for_each(|(key, len)| write!(f, " {key}:{len:?}"))
            }
            Self::Sync => write!(f, "sync"),
            Self::Barrier => write!(f, "barrier"),
            Self::Checkpoint(shard) => write!(f, "checkpoint {shard}"),
            Self::CheckpointAll => write!(f, "checkpoint all"),
        }
    }
}

/// An open volume with its engine.
#[derive(Debug)]
pub struct LiveMini {
    engine: Engine,
}

fn error(e: VolumeError) -> SystemError {
    SystemError::new(e.kind(), e)
}

impl Default for Mini {
    fn default() -> Self {
        let tiny = Tiny {
            version_log_bytes: 48 << 10,
            backup_log_bytes: 64 << 10,
            zone_bytes: 64 << 10,
            zones: 16,
        };
        Self {
            image: tiny.format(),
            value_bytes_max: 3000,
        }
    }
}

impl System for Mini {
    type Op = MiniOp;
    type State = MiniMap;
    type Model = MiniMap;
    type Live = LiveMini;

    fn name(&self) -> &'static str {
        "volume"
    }

    fn image(&self) -> MemDevice {
        self.image.clone()
    }

    fn model(&self) -> MiniMap {
        MiniMap::new()
    }

    fn generate(&self, _model: &MiniMap, rng: &mut Rng) -> MiniOp {
        match rng.below(16) {
            0 | 1 => MiniOp::Sync,
            2 => MiniOp::Barrier,
            3..=5 => MiniOp::Checkpoint(usize::try_from(rng.below(SHARDS as u64)).expect("small")),
            6 if rng.one_in(3) => MiniOp::CheckpointAll,
            _ => {
                let count = 1 + rng.below(3);
                MiniOp::Commit((0..count).map(|_| self.entry(rng)).collect())
            }
        }
    }

    fn apply(&self, model: &mut MiniMap, op: &MiniOp) {
        if let MiniOp::Commit(entries) = op {
            for (key, value) in entries {
                match value {
                    Some(value) => model.insert(*key, Arc::clone(value)),
                    None => model.remove(key),
                };
            }
        }
    }

    fn model_state(&self, model: &MiniMap) -> MiniMap {
        model.clone()
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<LiveMini, SystemError> {
        Ok(LiveMini {
            engine: Engine::open(device).map_err(error)?,
        })
    }

    fn run(&self, live: &mut LiveMini, op: &MiniOp, _: &MiniMap) -> Result<Ack, SystemError> {
        let engine = &mut live.engine;
        match op {
            MiniOp::Commit(entries) => engine.commit(entries).map(|()| Ack::Done),
            MiniOp::Sync => engine.sync().map(|()| Ack::Durable),
            MiniOp::Barrier => engine.barrier().map(|()| Ack::Durable),
            // A commit of a version syncs all that was written before it.
            MiniOp::Checkpoint(shard) => engine.checkpoint(*shard).map(|()| Ack::Durable),
            MiniOp::CheckpointAll => engine.checkpoint_all().map(|()| Ack::Durable),
        }
        .map_err(error)
    }

    fn is_write(&self, op: &MiniOp) -> bool {
        matches!(op, MiniOp::Commit(_) | MiniOp::Checkpoint(_))
    }

    fn state(&self, live: &LiveMini) -> Result<MiniMap, SystemError> {
        Ok(live.engine.map().clone())
    }

    fn compare_readable(&self, live: &LiveMini, expected: &MiniMap) -> Result<u64, String> {
        if live.engine.map() == expected {
            return Ok(0);
        }
        Err(self.difference(live.engine.map(), expected))
    }

    fn check(&self, live: &LiveMini) -> Result<Vec<String>, SystemError> {
        live.engine.check().map_err(error)
    }

    fn close(&self, mut live: LiveMini) -> Result<(), SystemError> {
        live.engine.close().map_err(error)
    }

    fn difference(&self, found: &MiniMap, expected: &MiniMap) -> String {
        let keys: BTreeSet<u8> = found.keys().chain(expected.keys()).copied().collect();
        let different = keys
            .iter()
            .filter(|key| found.get(key) != expected.get(key));
        let len = |map: &MiniMap, key| map.get(key).map(|value| value.len());
        let texts: Vec<String> = different
            .map(|key| {
                format!(
                    "key {key}: {:?} not {:?} bytes",
                    len(found, key),
                    len(expected, key)
                )
            })
            .collect();
        texts.join(", ")
    }
}

impl Mini {
    fn entry(&self, rng: &mut Rng) -> (u8, Option<Arc<[u8]>>) {
        let key = u8::try_from(rng.below(32)).expect("small");
        if rng.one_in(6) {
            return (key, None);
        }
        let bound = if rng.one_in(3) {
            self.value_bytes_max
        } else {
            60
        };
        let mut value = vec![0; usize::try_from(rng.below(bound)).expect("small")];
        rng.fill(&mut value);
        (key, Some(value.into()))
    }
}
