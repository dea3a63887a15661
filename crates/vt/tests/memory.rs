//! One budget: whatever a store does, it has no more in memory than it was given.
#![expect(
    unsafe_code,
    reason = "an allocator that counts is the only way to count"
)]

mod common;

use common::{MIB, open};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::FileDevice;
use stitch_kv::{Batch, CommitOptions, Engine, TreeOptions};
use stitch_volume::{FormatOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

static IN_USE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn note(more: usize, less: usize) {
    let before = IN_USE.fetch_add(more as u64, Ordering::Relaxed);
    PEAK.fetch_max(before + more as u64, Ordering::Relaxed);
    IN_USE.fetch_sub(less as u64, Ordering::Relaxed);
}

// SAFETY: all is left to the system's allocator; the counts are plain numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size, layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a test and its device have in memory beside the store: a batch, a value, buffers of the
/// logs.
const BESIDE: u64 = MIB;
/// The counts are of the whole process: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Run {
    engine: Arc<VtEngine>,
    tree: TreeId,
    rng: Rng,
    rows: u64,
    value_bytes: usize,
}

impl Run {
    fn new(
        path: &std::path::Path,
        options: VtOptions,
        tree: &TreeOptions,
        value_bytes: usize,
    ) -> Self {
        let device = Arc::new(FileDevice::create(path, 512 * MIB).expect("there is space"));
        let format = FormatOptions {
            version_log_bytes: Some(16 * MIB),
            ..FormatOptions::default()
        };
        Volume::format(&*device, &format, &mut |_, _| {}).expect("the device is large enough");
        let engine = open(device, options);
        let tree = engine.create_tree("t", tree).expect("a new name");
        Self {
            engine,
            tree,
            rng: Rng::new(7),
            rows: 0,
            value_bytes,
        }
    }

    fn key(number: u64) -> [u8; 8] {
        // In no order.
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    fn load(&mut self, rows: u64) {
        let mut batch = Batch::new();
        for _ in 0..rows / 100 {
            for _ in 0..100 {
                let mut value = vec![0; self.value_bytes];
                self.rng.fill(&mut value);
                batch.put(self.tree, &Self::key(self.rows), &value);
                self.rows += 1;
            }
            let options = CommitOptions::default();
            self.engine.commit(&batch, options).expect("there is room");
            batch.clear();
            while self.engine.step().expect("nothing is wrong") {}
        }
    }

    fn read(&mut self, count: u64) {
        for _ in 0..count {
            let key = Self::key(self.rng.below(self.rows));
            let found = self.engine.get(self.tree, &key, None).expect("sound");
            assert!(found.is_some(), "what was put is there");
        }
    }
}

/// Loads, and reads until the cache is full, by turns. Answers the most that was in use.
fn most_in_use(run: &mut Run, rows: u64, gets: u64) -> u64 {
    PEAK.store(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed);
    for _ in 0..4 {
        run.load(rows / 4);
        run.read(gets / 4);
    }
    PEAK.load(Ordering::Relaxed)
}

fn options(budget: u64, memtable: u64, table: u64) -> VtOptions {
    VtOptions {
        memory_bytes: budget,
        memtable_bytes: Some(memtable),
        table_bytes: Some(table),
        background: false,
        ..VtOptions::default()
    }
}

#[test]
fn many_runs_and_their_lists_fit_into_the_budget() {
    let _one = ONE_AT_A_TIME.lock();
    let dir = tempfile::tempdir().expect("a place for files");
    let before = IN_USE.load(Ordering::Relaxed);
    let tree = TreeOptions {
        value_block_bytes: 256,
        ..TreeOptions::default()
    };
    let budget = 16 * MIB;
    let options = options(budget, 256 << 10, 64 << 10);
    let mut run = Run::new(&dir.path().join("store"), options, &tree, 300);
    let most = most_in_use(&mut run, 240_000, 60_000) - before;
    let lists = run.engine.counters().get("vt.list_memory_bytes");
    assert!(lists > budget / 4, "{lists} bytes of lists");
    println!("most in use: {most} of {budget}");
    assert!(most <= budget + BESIDE, "{most} of {budget}");
}

#[test]
fn compactions_fit_into_the_budget() {
    let _one = ONE_AT_A_TIME.lock();
    let dir = tempfile::tempdir().expect("a place for files");
    let before = IN_USE.load(Ordering::Relaxed);
    // The least that the library and the command give a store.
    let budget = 64 * MIB;
    let options = options(budget, MIB, 8 * MIB);
    let tree = TreeOptions::default();
    let mut run = Run::new(&dir.path().join("store"), options, &tree, 1000);
    let most = most_in_use(&mut run, 80_000, 40_000) - before;
    let cache = run.engine.counters().get("vt.cache_memory_bytes");
    assert!(cache > budget / 2, "the cache is full: {cache}");
    println!("most in use: {most} of {budget}");
    assert!(most <= budget + BESIDE, "{most} of {budget}");
}
