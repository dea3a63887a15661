//! How often operations ask for memory: each time costs.
#![expect(
    unsafe_code,
    reason = "an allocator that counts is the only way to count"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use stitchfs::StoreOptions;
use stitchfs::fs::Files;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is left to the system's allocator; the count is a plain number of each thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COUNT_OF_OPERATIONS: u64 = 2000;

/// Allocations of an operation, in hundredths, on average. The names are made before.
fn cost(run: &mut dyn FnMut(&str), prefix: &str) -> u64 {
    let names: Vec<String> = (0..COUNT_OF_OPERATIONS)
        .map(|index| format!("{prefix}{index}"))
        .collect();
    let before = COUNT.get();
    for name in &names {
        run(name);
    }
    (COUNT.get() - before) * 100 / COUNT_OF_OPERATIONS
}

#[test]
fn operations_allocate_little() {
    let files = Files::in_memory(64 << 20, &StoreOptions::default()).unwrap();
    let root = files.root();
    root.make_dir("d").unwrap();
    // The file as it is known, rows that are read, the batch.
    let create = cost(&mut |name| assert!(root.create(name).is_ok()), "d/f");
    let stat = cost(&mut |name| assert!(root.stat(name).is_ok()), "d/f");
    let missing = cost(&mut |name| assert!(root.stat(name).is_err()), "d/none");
    let mode = |name: &str| assert!(root.set_perm(name, 0o600).is_ok());
    let mode = cost(&mut { mode }, "d/f");
    let remove = cost(&mut |name| root.remove_file(name).unwrap(), "d/f");

    let database = files.database();
    let tree = database.create_tree("t", &stitchfs::TreeOptions::default());
    let tree = tree.unwrap();
    let put = |name: &str| assert!(tree.put(name.as_bytes(), b"v").is_ok());
    let put = cost(&mut { put }, "k");
    let found = [create, stat, missing, mode, remove, put];
    println!("allocations in hundredths: {found:?}");
    let most = [600, 300, 50, 750, 1000, 250];
    for (found, most) in found.into_iter().zip(most) {
        assert!(found <= most, "{found} of {most} hundredths");
    }
}
