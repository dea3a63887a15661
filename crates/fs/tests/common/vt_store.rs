//! A store on the VT-tree, in memory and without threads, for tests of what is read and written.

use stitch_base::sync::Arc;
use stitch_device::{Device, MemDevice};
use stitch_kv::{Engine, UpsertRegistry};
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

const MIB: u64 = 1 << 20;

/// A volume, and the upserts of what is stored in it.
pub(crate) struct VtStore {
    device: Arc<dyn Device>,
    upserts: UpsertRegistry,
}

impl VtStore {
    /// Makes a volume of 256 MiB.
    pub(crate) fn new(upserts: UpsertRegistry) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 * MIB));
        let format = FormatOptions {
            uuid: [7; 16],
            ..FormatOptions::default()
        };
        let formatted = Volume::format(&*device, &format, &mut |_, _| {});
        formatted.expect("the device is large enough");
        Self { device, upserts }
    }

    /// Opens the engine with 64 MiB of memory. Nothing is cached.
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        let options = VtOptions {
            upserts: self.upserts.clone(),
            memory_bytes: 64 * MIB,
            background: false,
            ..VtOptions::default()
        };
        let opened = Volume::open(Arc::clone(&self.device), &OpenOptions::default());
        let engine = VtEngine::open(opened.expect("the volume opens"), options);
        engine.expect("the store opens")
    }
}
