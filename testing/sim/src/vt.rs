//! The VT-tree engine on tiny volumes, with tiny memtables, blocks and tables, so that write-outs,
//! compactions at every level, wraps of both logs and a full volume come within a few dozen
//! operations. Without threads: a seed gives the same run every time.

use crate::SystemError;
use crate::audit::audit;
use crate::kv::{Audit, Chore, Host, OpenEngine};
use crate::tiny::Tiny;
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_device::{Device, MemDevice};
use stitch_kv::{Compression, TreeOptions, UpsertRegistry};
use stitch_volume::{OpenOptions, Refusals, Volume};
use stitch_vt::{MEMORY_BYTES_MIN, StitchByKey, VtEngine, VtError, VtOptions};

/// Makes and opens VT-tree stores.
#[derive(Clone, Debug)]
pub struct VtHost {
    name: &'static str,
    image: MemDevice,
    memtable_bytes: u64,
    table_bytes: u64,
    has_threads: bool,
    direct_bytes_min: u64,
    unsynced_bytes_min: u64,
    discard: bool,
    moves_branches: bool,
    batch_table_bytes_min: Option<u64>,
    is_varied: bool,
    refusals: Option<Arc<Refusals>>,
}

impl VtHost {
    /// On a volume of this shape.
    #[must_use]
    pub fn new(name: &'static str, shape: Tiny, memtable_bytes: u64, table_bytes: u64) -> Self {
        Self {
            name,
            image: shape.format(),
            memtable_bytes,
            table_bytes,
            has_threads: false,
            direct_bytes_min: u64::MAX,
            unsynced_bytes_min: 0,
            discard: false,
            moves_branches: false,
            batch_table_bytes_min: None,
            is_varied: false,
            refusals: None,
        }
    }

    /// With other options in each life: what one has written, others read with theirs.
    #[must_use]
    pub fn with_varied_options(mut self) -> Self {
        self.is_varied = true;
        self
    }

    /// The options of a life, by its generation.
    fn vary(options: &mut VtOptions, generation: u64) {
        let mut rng = Rng::new(generation);
        let mut choose = |choices: [u64; 4]| choices[usize::try_from(rng.below(4)).unwrap_or(0)];
        let table_bytes = choose([8 << 10, 16 << 10, 32 << 10, 64 << 10]);
        options.memtable_bytes = Some(choose([4 << 10, 8 << 10, 16 << 10, 32 << 10]));
        options.table_bytes = Some(table_bytes);
        options.level1_bytes = Some(table_bytes * choose([1, 2, 4, 8]));
        options.fanout = choose([2, 3, 8, 16]);
        options.direct_bytes_min = choose([300, 1 << 10, 4 << 10, u64::MAX]);
        options.unsynced_bytes_min = choose([0, 2 << 10, 8 << 10, 256 << 10]);
        options.level0_tables_max = usize::try_from(choose([4, 6, 10, 16])).unwrap_or(4);
        let threshold = choose([0, 512, 4 << 10, u64::MAX]);
        if choose([0, 1, 2, 3]) == 0 {
            let by_key = StitchByKey::new(move |_, _| Some(threshold));
            options.stitch_by_key = Some(by_key);
        }
    }

    /// With threads for background work: runs differ from time to time.
    #[must_use]
    pub fn with_threads(mut self) -> Self {
        self.has_threads = true;
        self
    }

    /// With space that is refused at times.
    #[must_use]
    pub fn with_refusals(mut self, refusals: Arc<Refusals>) -> Self {
        self.refusals = Some(refusals);
        self
    }

    /// With branches whose tables are moved when they are absorbed, however short they are.
    #[must_use]
    pub fn with_moved_branches(mut self) -> Self {
        self.moves_branches = true;
        self
    }

    /// With batches of so many bytes to temporary branches written as tables. What is shorter than
    /// two of them is copied when a branch is absorbed, all else is moved.
    #[must_use]
    pub fn with_table_batches(mut self, bytes_min: u64) -> Self {
        self.batch_table_bytes_min = Some(bytes_min);
        self
    }

    /// With freed zones discarded.
    #[must_use]
    pub fn with_discard(mut self) -> Self {
        self.discard = true;
        self
    }

    /// With runs of values of so many bytes written to their zones at once.
    #[must_use]
    pub fn with_direct(mut self, bytes_min: u64) -> Self {
        self.direct_bytes_min = bytes_min;
        self
    }

    /// With write streams followed only after this many bytes without a sync.
    #[must_use]
    pub fn with_unsynced(mut self, bytes_min: u64) -> Self {
        self.unsynced_bytes_min = bytes_min;
        self
    }
}

impl Host for VtHost {
    fn name(&self) -> &'static str {
        self.name
    }

    fn image(&self) -> MemDevice {
        self.image.clone()
    }

    /// Trees differ in everything that a tree can be told.
    fn tree_options(&self, name: &str) -> TreeOptions {
        let number = name.bytes().last().unwrap_or(0) % 3;
        TreeOptions {
            block_bytes: [512, 1024, 4096][usize::from(number)],
            stitch_bytes: [2048, 0, u64::MAX][usize::from(number)],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd]
                [usize::from(number)],
            value_block_bytes: [64, 0, 100][usize::from(number)],
        }
    }

    fn other_options(&self, _name: &str, number: u64) -> TreeOptions {
        let choice = |part: u32, count: u64| {
            usize::try_from((number >> (8 * part)) % count).expect("a small number")
        };
        TreeOptions {
            block_bytes: [512, 1024, 2048, 4096][choice(0, 4)],
            stitch_bytes: [0, 512, 2048, u64::MAX][choice(1, 4)],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd][choice(2, 3)],
            value_block_bytes: [0, 50, 200][choice(3, 3)],
        }
    }

    fn open(
        &self,
        device: Arc<dyn Device>,
        functions: UpsertRegistry,
    ) -> Result<OpenEngine, SystemError> {
        let engine = self.open_engine(device, functions)?;
        Ok(Self::opened(engine, !self.has_threads))
    }
}

impl VtHost {
    /// Opens the engine of the first instance.
    pub(crate) fn open_engine(
        &self,
        device: Arc<dyn Device>,
        functions: UpsertRegistry,
    ) -> Result<Arc<VtEngine>, SystemError> {
        let volume_options = OpenOptions {
            discard: self.discard,
            ..OpenOptions::default()
        };
        let opened =
            Volume::open(device, &volume_options).map_err(|e| SystemError::new(e.kind(), e))?;
        if let Some(refusals) = &self.refusals {
            opened.volume.zones().refuse_by(Arc::clone(refusals));
        }
        let generation = opened.volume.generation();
        let mut options = VtOptions {
            memory_bytes: MEMORY_BYTES_MIN,
            upserts: functions,
            sync_interval: Duration::from_millis(20),
            background: self.has_threads,
            memtable_bytes: Some(self.memtable_bytes),
            table_bytes: Some(self.table_bytes),
            level1_bytes: Some(2 * self.table_bytes),
            direct_bytes_min: self.direct_bytes_min,
            unsynced_bytes_min: self.unsynced_bytes_min,
            level0_tables_max: 4,
            // In every other life, what is read comes from the device.
            caches_writes: generation.0.is_multiple_of(2),
            is_paranoid: true,
            ..VtOptions::default()
        };
        if self.moves_branches {
            options.absorb_copy_bytes_max = 0;
        }
        if let Some(bytes_min) = self.batch_table_bytes_min {
            options.batch_table_bytes_min = bytes_min;
            options.absorb_copy_bytes_max = 2 * bytes_min;
        }
        if self.is_varied {
            Self::vary(&mut options, generation.0);
        }
        VtEngine::open(opened, options).map_err(|e| SystemError::new(e.kind(), e))
    }

    /// True if background work has threads.
    pub(crate) const fn has_threads(&self) -> bool {
        self.has_threads
    }

    /// An engine with what can be asked of it; `has_audit` if it has the volume to itself.
    pub(crate) fn opened(engine: Arc<VtEngine>, has_audit: bool) -> OpenEngine {
        let stepped = Arc::clone(&engine);
        let step = move || stepped.step().map_err(|e| SystemError::new(e.kind(), e));
        let worked = Arc::clone(&engine);
        let chores = move |chore| do_whole_chore(&worked, chore);
        let audited = Arc::clone(&engine);
        let audit: Audit = Box::new(move || audit(audited.volume(), std::iter::once(&*audited)));
        OpenEngine {
            engine,
            step: Box::new(step),
            chores: Some(Box::new(chores)),
            audit: has_audit.then_some(audit),
        }
    }
}

/// Does a chore. One that is refused leaves the length as it was.
fn do_whole_chore(engine: &VtEngine, chore: Chore) -> Result<(), SystemError> {
    let volume = engine.volume();
    let before = volume.device_bytes();
    let Err(error) = do_chore(engine, chore) else {
        return Ok(());
    };
    let now = volume.device_bytes();
    let is_refused = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Invalid);
    if is_refused && now != before {
        let message = format!("{chore:?} was refused, and {before} bytes are {now} now");
        return Err(SystemError::new(ErrorKind::Bug, message));
    }
    Err(SystemError::new(error.kind(), error))
}

pub(crate) fn do_chore(engine: &VtEngine, chore: Chore) -> Result<(), VtError> {
    let now = engine.volume().device_bytes();
    match chore {
        Chore::Defrag(most) => {
            let mut steps = 0;
            let mut watch = |_, _| {
                steps += 1;
                steps <= most
            };
            engine.defrag(&mut watch).map(drop)
        }
        Chore::Trim => engine
            .trim(&stitch_volume::TrimRange::ALL, &mut |_, _| true)
            .map(drop),
        Chore::Grow(bytes) => engine.grow(now + bytes),
        Chore::Shrink(bytes) => engine
            .shrink(now.saturating_sub(bytes), &mut |_, _| true)
            .map(drop),
    }
}
