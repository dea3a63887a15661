//! Stores on memory devices, for the tests of the engine.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(unreachable_pub, missing_docs, reason = "test helpers")]

pub mod space;

use std::sync::Arc;
use stitch_base::random::{Rng, bytes16};
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_kv::conformance::{Ending, Factory, Subject};
use stitch_kv::{Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{StitchByKey, VtEngine, VtOptions};

pub const MIB: u64 = 1 << 20;

/// How the engines of a test are opened.
#[derive(Clone, Default)]
pub struct Setup {
    pub options: VtOptions,
    /// Length of the version log; by default from the device.
    pub version_log_bytes: Option<u64>,
}

impl Setup {
    pub fn sized(memtable: u64, table: u64, background: bool) -> Self {
        let options = VtOptions {
            memory_bytes: 16 * MIB,
            memtable_bytes: Some(memtable),
            table_bytes: Some(table),
            level1_bytes: Some(4 * table),
            background,
            level0_tables_max: 4,
            ..VtOptions::default()
        };
        Self {
            options,
            version_log_bytes: None,
        }
    }

    /// With this stitching threshold in all trees.
    pub fn stitching(mut self, bytes_min: u64) -> Self {
        let by_key = StitchByKey::new(move |_, _| Some(bytes_min));
        self.options.stitch_by_key = Some(by_key);
        self
    }

    /// With branches whose tables are moved to their parents, however short they are.
    pub fn moving(mut self) -> Self {
        self.options.absorb_copy_bytes_max = 0;
        self
    }

    /// With runs of values of so many bytes written to their zones at once.
    pub fn direct(mut self, bytes_min: u64) -> Self {
        self.options.direct_bytes_min = bytes_min;
        self
    }
}

pub fn format(device: &dyn Device, backup_log_bytes: Option<u64>) {
    format_with_logs(device, backup_log_bytes, None);
}

fn format_with_logs(
    device: &dyn Device,
    backup_log_bytes: Option<u64>,
    version_log_bytes: Option<u64>,
) {
    let options = FormatOptions {
        uuid: bytes16().expect("the system has randomness"),
        backup_log_bytes,
        version_log_bytes,
        ..FormatOptions::default()
    };
    Volume::format(device, &options, &mut |_, _| {}).expect("the device is large enough");
}

pub fn open(device: Arc<dyn Device>, options: VtOptions) -> Arc<VtEngine> {
    let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
    VtEngine::open(opened, options).expect("the store opens")
}

/// A store on a device that can lose its power.
pub struct Store {
    setup: Setup,
    device: Arc<CrashDevice>,
    pub engine: Option<Arc<VtEngine>>,
    rng: Rng,
}

impl Store {
    pub fn new(
        setup: &Setup,
        len_bytes: u64,
        log_bytes: Option<u64>,
        registry: UpsertRegistry,
    ) -> Self {
        let mut setup = setup.clone();
        setup.options.upserts = registry;
        let device = Arc::new(CrashDevice::new(len_bytes, CrashPlan::default()));
        format_with_logs(&*device, log_bytes, setup.version_log_bytes);
        device.sync().expect("the device syncs");
        let engine = Some(open(device.clone(), setup.options.clone()));
        Self {
            setup,
            device,
            engine,
            rng: Rng::new(len_bytes),
        }
    }

    pub fn engine(&self) -> &Arc<VtEngine> {
        self.engine.as_ref().expect("open between calls")
    }

    pub fn device(&self) -> &Arc<CrashDevice> {
        &self.device
    }

    /// Ends this life and begins the next.
    pub fn next_life(&mut self, ending: Ending) {
        let image: Arc<MemDevice> = match ending {
            Ending::Closed => {
                self.engine().close().expect("the store closes");
                Arc::new(self.device.kill_image())
            }
            Ending::Killed => Arc::new(self.device.kill_image()),
            Ending::PowerCut => Arc::new(self.device.crash_image(&mut self.rng)),
        };
        self.engine = None;
        self.device = Arc::new(CrashDevice::from_image(&image, CrashPlan::default()));
        self.engine = Some(open(self.device.clone(), self.setup.options.clone()));
    }
}

impl Subject for Store {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(self.engine()) as Arc<dyn Engine>
    }

    fn reopen(&mut self, ending: Ending) -> bool {
        self.next_life(ending);
        true
    }
}

impl Factory for Setup {
    fn create(&self, registry: UpsertRegistry) -> Box<dyn Subject> {
        Box::new(Store::new(self, 96 * MIB, Some(8 * MIB), registry))
    }

    fn create_small(&self, registry: UpsertRegistry, len_bytes: u64) -> Option<Box<dyn Subject>> {
        Some(Box::new(Store::new(self, len_bytes, None, registry)))
    }
}
