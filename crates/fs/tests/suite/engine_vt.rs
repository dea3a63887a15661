//! The engine that the tests run on: the VT-tree, in memory, without threads.

use std::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device};
use stitch_kv::conformance;
use stitch_kv::{Dump, Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const STORE_BYTES: u64 = 64 << 20;
const LOG_BYTES: u64 = 8 << 20;
/// So small that branch trees have tables, not only a write buffer.
const MEMTABLE_BYTES: u64 = 64 << 10;
const TABLE_BYTES: u64 = 64 << 10;
/// Of so many pairs of changes one is tried.
pub(crate) const PAIRS_STEP: usize = 11;

/// A store on a device in memory.
pub(crate) struct TestEngine {
    device: Arc<CrashDevice>,
    engine: Arc<VtEngine>,
    registry: UpsertRegistry,
}

pub(crate) fn dynamic(engine: &Arc<TestEngine>) -> Arc<dyn Engine> {
    Arc::clone(&engine.engine) as Arc<dyn Engine>
}

impl TestEngine {
    pub(crate) fn new(registry: UpsertRegistry) -> Self {
        let device = CrashDevice::new(STORE_BYTES, CrashPlan::default());
        let options = FormatOptions {
            uuid: [7; 16],
            backup_log_bytes: Some(LOG_BYTES),
            ..FormatOptions::default()
        };
        Volume::format(&device, &options, &mut |_, _| {}).expect("the device is large enough");
        device.sync().expect("the device syncs");
        Self::open(Arc::new(device), registry)
    }

    fn open(device: Arc<CrashDevice>, registry: UpsertRegistry) -> Self {
        let volume = Volume::open(device.clone(), &OpenOptions::default());
        let options = VtOptions {
            memory_bytes: 16 << 20,
            memtable_bytes: Some(MEMTABLE_BYTES),
            table_bytes: Some(TABLE_BYTES),
            background: false,
            upserts: registry.clone(),
            ..VtOptions::default()
        };
        let engine = VtEngine::open(volume.expect("the volume opens"), options);
        Self {
            device,
            engine: engine.expect("the store opens"),
            registry,
        }
    }

    /// What a killed process leaves, opened again.
    pub(crate) fn reopened(&self) -> Self {
        let image = self.device.kill_image();
        let device = CrashDevice::from_image(&image, CrashPlan::default());
        Self::open(Arc::new(device), self.registry.clone())
    }

    /// All that it holds now.
    pub(crate) fn dump(&self) -> Dump {
        conformance::dump(&*self.engine)
    }
}
