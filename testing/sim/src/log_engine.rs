//! The simplest durable engine: the model engine, with every change in the backup log of a volume,
//! replayed at open. It writes no tables, and is full when its log is. Code above an engine is
//! tested on it without the mistakes of a real one.

use crate::SystemError;
use crate::kv::{Host, OpenEngine};
use crate::tiny::Tiny;
use bytes::Bytes;
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{Seqno, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_kv::{
    Batch, CommitOptions, Compression, Counters, Direction, Engine, KeyRange, KvError, Limits,
    Messages, ModelEngine, Scan, Snapshot, SpaceClass, SpaceUsage, TreeInfo, TreeOptions,
    UpsertRegistry, Violation,
};
use stitch_volume::{OpenOptions, Volume, VolumeError};

const BATCH: u8 = 1;
const CREATE: u8 = 2;
const DROP: u8 = 3;
/// Space that only operations which release space may use.
const RESERVE_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Debug)]
pub struct LogEngine {
    model: ModelEngine,
    volume: Arc<Volume>,
    /// One change at a time, in log and model alike.
    order: Mutex<()>,
}

fn storage(error: VolumeError) -> KvError {
    match error {
        VolumeError::LogFull {
            used_bytes,
            capacity_bytes,
        } => KvError::NoSpace {
            needed_bytes: used_bytes,
            free_bytes: capacity_bytes - used_bytes,
        },
        VolumeError::Poisoned => KvError::Poisoned,
        VolumeError::ReadOnly => KvError::ReadOnly,
        other => KvError::storage(other.kind(), other),
    }
}

impl LogEngine {
    fn open(device: Arc<dyn Device>, functions: UpsertRegistry) -> Result<Self, VolumeError> {
        let opened = Volume::open(device, &OpenOptions::default())?;
        let model = ModelEngine::new(functions);
        opened
            .volume
            .log()
            .replay::<VolumeError, ()>(opened.log_start, &mut |_, record| {
                // A message that failed the first time fails again.
                let _ = replay(&model, record);
                Ok(())
            })?;
        Ok(Self {
            model,
            volume: opened.volume,
            order: Mutex::new(()),
        })
    }

    fn append(&self, pieces: &[&[u8]], space: SpaceClass) -> Result<(), KvError> {
        let needed_bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let room = self.volume.log().room_bytes().map_err(storage)?;
        let kept = if space == SpaceClass::Normal {
            RESERVE_BYTES
        } else {
            0
        };
        let free_bytes = room.saturating_sub(kept);
        // A record may skip the end of the ring.
        if needed_bytes * 2 + 4096 > free_bytes {
            return Err(KvError::NoSpace {
                needed_bytes,
                free_bytes,
            });
        }
        self.volume
            .log()
            .append(pieces)
            .map(|_| ())
            .map_err(storage)
    }
}

fn replay(model: &ModelEngine, record: &[u8]) -> Result<(), KvError> {
    let Some((kind, rest)) = record.split_first() else {
        return Ok(());
    };
    match *kind {
        BATCH => {
            let mut batch = Batch::new();
            for message in Messages::new(rest) {
                let (tree, message) = message.map_err(|e| KvError::storage(e.kind(), e))?;
                batch.push(tree, message);
            }
            model.commit(&batch, CommitOptions::default()).map(|_| ())
        }
        CREATE => {
            let compression = if rest[0] == 1 {
                Compression::Lz4
            } else {
                Compression::None
            };
            let options = TreeOptions {
                compression,
                ..TreeOptions::default()
            };
            model
                .create_tree(&String::from_utf8_lossy(&rest[1..]), &options)
                .map(|_| ())
        }
        _ => {
            let id = rest.first_chunk::<4>().expect("a drop record names a tree");
            model.drop_tree(TreeId(u32::from_le_bytes(*id)))
        }
    }
}

impl Engine for LogEngine {
    fn limits(&self) -> Limits {
        let limits = self.model.limits();
        let record_max = self.volume.log().record_bytes_max() - 1;
        Limits {
            value_bytes_max: limits.value_bytes_max.min(record_max / 2),
            batch_bytes_max: limits.batch_bytes_max.min(record_max),
            ..limits
        }
    }

    fn trees(&self) -> Vec<TreeInfo> {
        self.model.trees()
    }

    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        let _order = self.order.lock();
        let compression = u8::from(options.compression == Compression::Lz4);
        self.append(
            &[&[CREATE, compression], name.as_bytes()],
            SpaceClass::Normal,
        )?;
        self.volume.sync().map_err(storage)?;
        self.model.create_tree(name, options)
    }

    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError> {
        let _order = self.order.lock();
        self.append(&[&[DROP], &tree.0.to_le_bytes()], SpaceClass::Reserve)?;
        self.volume.sync().map_err(storage)?;
        self.model.drop_tree(tree)
    }

    /// Has no effect here, and is not logged.
    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.model.alter_tree(tree, options)
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
        let _order = self.order.lock();
        let mut pieces: Vec<&[u8]> = vec![&[BATCH]];
        pieces.extend(batch.stretch().pieces());
        self.append(&pieces, options.space)?;
        if options.sync {
            self.volume.sync().map_err(storage)?;
        }
        self.model.commit(batch, options)
    }

    fn sync(&self) -> Result<(), KvError> {
        self.volume.sync().map_err(storage)
    }

    fn snapshot(&self) -> Snapshot {
        self.model.snapshot()
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        self.model.get(tree, key, at)
    }

    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.model.scan(tree, range, direction, at)
    }

    fn counters(&self) -> Counters {
        self.model.counters()
    }

    fn space(&self) -> SpaceUsage {
        let free_bytes = self.volume.log().room_bytes().unwrap_or(0);
        SpaceUsage {
            total_bytes: self.volume.log().capacity_bytes(),
            free_bytes,
        }
    }

    fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        self.model.set_aside(bytes)
    }

    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError> {
        self.model.check(progress)
    }

    fn quiesce(&self) -> Result<(), KvError> {
        self.model.quiesce()
    }

    fn close(&self) -> Result<(), KvError> {
        self.volume.close().map_err(storage)?;
        self.model.close()
    }
}

/// Makes and opens [`LogEngine`]s.
#[derive(Debug)]
pub struct LogHost {
    image: MemDevice,
    name: &'static str,
}

impl LogHost {
    /// With a log of this length.
    #[must_use]
    pub fn new(name: &'static str, log_bytes: u64) -> Self {
        let tiny = Tiny {
            version_log_bytes: 64 << 10,
            backup_log_bytes: log_bytes,
            zone_bytes: 64 << 10,
            zones: 2,
        };
        Self {
            image: tiny.format(),
            name,
        }
    }
}

impl Host for LogHost {
    fn name(&self) -> &'static str {
        self.name
    }

    fn image(&self) -> MemDevice {
        self.image.clone()
    }

    fn open(
        &self,
        device: Arc<dyn Device>,
        functions: UpsertRegistry,
    ) -> Result<OpenEngine, SystemError> {
        let engine = LogEngine::open(device, functions)
            .map_err(|e: VolumeError| SystemError::new(e.kind(), e))?;
        Ok(OpenEngine {
            engine: Arc::new(engine),
            step: Box::new(|| Ok(false)),
            chores: None,
            audit: None,
        })
    }
}
