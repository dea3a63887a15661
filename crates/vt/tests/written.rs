//! What is read again of what was written: by compactions, and by who asks for it soon.

mod common;

use common::{MIB, Setup, Store};
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_kv::conformance::Ending;
use stitch_kv::conformance::functions::registry;
use stitch_kv::{Batch, CommitOptions, Engine, Guards, NewBranch, TreeOptions};
use stitch_vt::counters::{DATA_BLOCKS_READ, MERGED_BYTES};

const KIB: u64 = 1 << 10;
const FILES: u64 = 400;
const PAGES: u64 = 8;

fn setup(caches_writes: bool) -> Setup {
    let mut setup = Setup::sized(256 * KIB, 512 * KIB, false).direct(64 * KIB);
    setup.options.caches_writes = caches_writes;
    setup
}

fn store(setup: &Setup) -> (Store, TreeId) {
    let store = Store::new(setup, 128 * MIB, None, registry());
    let options = TreeOptions::default();
    let tree = store.engine().create_tree("tree", &options);
    (store, tree.expect("the tree is made"))
}

fn key(file: u64, chunk: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&file.to_be_bytes());
    key[8..].copy_from_slice(&chunk.to_be_bytes());
    key
}

fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new(seed).fill(&mut out);
    out
}

/// Whole pages of a file, and an end that is none.
fn put_file(store: &Store, tree: TreeId, file: u64) {
    let mut batch = Batch::new();
    for chunk in 0..PAGES {
        batch.put(tree, &key(file, chunk), &value(file + chunk, 4096));
    }
    batch.put(tree, &key(file, PAGES), &value(file, 300));
    let engine = store.engine();
    let put = engine.commit(&batch, CommitOptions::default());
    put.expect("there is space");
    while engine.step().expect("background work succeeds") {}
}

fn check_end(store: &Store, tree: TreeId, file: u64) {
    let found = store.engine().get(tree, &key(file, PAGES), None);
    let found = found.expect("it can be read");
    assert_eq!(found.as_deref(), Some(&value(file, 300)[..]), "file {file}");
}

/// Every second file, and then the others: what is merged overlaps all over.
fn put_by_turns(store: &Store, tree: TreeId) {
    for file in (0..FILES).step_by(2).chain((1..FILES).step_by(2)) {
        put_file(store, tree, file);
    }
    store.engine().quiesce().expect("background work succeeds");
}

#[test]
fn a_compaction_reads_no_long_values_that_it_carries() {
    let (store, tree) = store(&setup(false));
    put_by_turns(&store, tree);
    let now = store.engine().counters();
    assert!(now.get(MERGED_BYTES) > 0, "something was merged");
    let values = FILES * PAGES;
    let read = now.get(DATA_BLOCKS_READ);
    assert!(read < values / 2, "{read} blocks beside {values} values");
    let (bytes, all) = (now.get("device.read_bytes"), values * 4096);
    assert!(bytes < all / 5, "{bytes} of {all} bytes");
    (0..FILES).for_each(|file| check_end(&store, tree, file));
}

#[test]
fn what_was_just_written_is_in_memory() {
    for caches_writes in [true, false] {
        let (store, tree) = store(&setup(caches_writes));
        put_by_turns(&store, tree);
        let reads = || store.engine().counters().get("device.reads");
        let before = reads();
        (0..FILES).for_each(|file| check_end(&store, tree, file));
        let grown = reads() - before;
        match caches_writes {
            true => assert_eq!(grown, 0, "ends, indexes and roots are there"),
            false => assert!(grown > FILES / 10, "{grown} reads"),
        }
        // A page is not: who reads pages keeps them.
        let before = reads();
        let found = store.engine().get(tree, &key(7, 0), None);
        let found = found.expect("it can be read");
        assert_eq!(found.as_deref(), Some(&value(7, 4096)[..]));
        assert!(reads() > before, "of the device");
    }
}

/// A hundred short rows of each of these files.
fn put_rows(store: &Store, tree: TreeId, files: std::ops::Range<u64>) {
    for file in files {
        let mut batch = Batch::new();
        for chunk in 0..100 {
            batch.put(tree, &key(file, chunk), &value(chunk, 600));
        }
        let put = store.engine().commit(&batch, CommitOptions::default());
        put.expect("there is space");
        while store.engine().step().expect("background work succeeds") {}
    }
}

fn branch_of(store: &Store, tree: TreeId) -> TreeId {
    let new = [NewBranch::new(tree, "branch")];
    let made = store.engine().branch_trees(&new, None);
    made.expect("the branch is made")[0]
}

/// Reads of the device for rows that were read before, after so much was written, to the tree or to
/// a branch of it, that it would fill the memory.
fn reads_again(caches_writes: bool, in_branch: bool) -> u64 {
    let mut setup = setup(caches_writes);
    setup.options.memory_bytes = 4 * MIB;
    let (mut store, tree) = store(&setup);
    put_by_turns(&store, tree);
    store.next_life(Ending::Closed);
    (0..FILES).for_each(|file| check_end(&store, tree, file));
    let written = match in_branch {
        true => branch_of(&store, tree),
        false => tree,
    };
    put_rows(&store, written, FILES..FILES + 100);
    let before = store.engine().counters().get("device.reads");
    (0..FILES).for_each(|file| check_end(&store, tree, file));
    store.engine().counters().get("device.reads") - before
}

#[test]
fn what_is_written_pushes_out_nothing_that_was_read() {
    for in_branch in [false, true] {
        let [with, without] = [true, false].map(|caches| reads_again(caches, in_branch));
        assert!(
            with <= without + FILES / 20,
            "{with} and {without} reads, in a branch: {in_branch}"
        );
    }
}

/// Data blocks and requests that are read from the device while a branch is written beside a full
/// cache, absorbed, and read through its parent.
fn reads_of_branch(caches_writes: bool) -> [u64; 2] {
    let mut setup = setup(caches_writes).moving();
    setup.options.memory_bytes = 16 * MIB;
    let (store, tree) = store(&setup);
    put_rows(&store, tree, 0..300);
    let engine = store.engine();
    engine.quiesce().expect("background work succeeds");
    let count = |name| engine.counters().get(name);
    let (bytes, bytes_max) = (
        count("vt.cache_memory_bytes"),
        count("vt.cache_memory_bytes_max"),
    );
    assert!(
        !caches_writes || bytes > bytes_max / 10 * 9,
        "the cache is full: {bytes} of {bytes_max}"
    );
    let branch = branch_of(&store, tree);
    let reads = || [DATA_BLOCKS_READ, "device.reads"].map(count);
    let before = reads();
    put_rows(&store, branch, 1000..1080);
    let moment = engine.branch_moment(branch).expect("it is a branch");
    let absorbed = engine.absorb(
        &[branch],
        &Batch::new(),
        &Guards::since(&moment),
        CommitOptions::default(),
    );
    absorbed.expect("nothing else was written");
    for file in 1000..1080 {
        let found = engine.get(tree, &key(file, 99), None).expect("it reads");
        assert_eq!(found.as_deref(), Some(&value(99, 600)[..]), "file {file}");
    }
    let after = reads();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn a_branch_beside_a_full_cache_is_absorbed_from_memory() {
    let [with, without] = [true, false].map(reads_of_branch);
    println!("{with:?} and {without:?} blocks and requests");
    assert!(without[0] > 50, "{without:?} without");
    assert!(with[0] <= without[0] / 20, "{with:?} and {without:?}");
    assert!(with[1] <= without[1] / 20, "{with:?} and {without:?}");
}

#[test]
fn keys_of_a_branch_are_read_without_their_long_values() {
    let (mut store, parent) = store(&setup(false));
    let branch = branch_of(&store, parent);
    put_by_turns(&store, branch);
    store.next_life(Ending::Closed);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        let after = keys.last().map(Vec::as_slice);
        let page = store.engine().branch_keys(branch, after, 500);
        let page = page.expect("they can be read");
        keys.extend(page.iter().cloned());
        if page.len() < 500 {
            break;
        }
    }
    let chunks = |file| (0..=PAGES).map(move |chunk| key(file, chunk).to_vec());
    let expected: Vec<Vec<u8>> = (0..FILES).flat_map(chunks).collect();
    assert!(
        keys == expected,
        "{} of {} keys",
        keys.len(),
        expected.len()
    );
    let read = store.engine().counters().get("device.read_bytes");
    let all = FILES * PAGES * 4096;
    assert!(read < all / 5, "{read} of {all} bytes");
}

/// Short rows of a transaction that is larger than a batch: in each batch, keys in order.
const BATCHES: u64 = 70;
const BATCH_ROWS: u64 = 1000;

/// Data blocks and requests that gets of all rows read from the device right after a transaction
/// was absorbed whose batches were written as tables.
fn reads_after_batches(caches_writes: bool, is_full: bool) -> [u64; 2] {
    let mut setup = setup(caches_writes).moving();
    setup.options.memory_bytes = 16 * MIB;
    setup.options.batch_table_bytes_min = 64 * KIB;
    let (store, tree) = store(&setup);
    if is_full {
        put_rows(&store, tree, 0..300);
    }
    let engine = store.engine();
    engine.quiesce().expect("background work succeeds");
    let new = [NewBranch::temporary(tree, "branch")];
    let made = engine.branch_trees(&new, None);
    let branch = made.expect("the branch is made")[0];
    for number in 0..BATCHES {
        let mut batch = Batch::new();
        for row in 0..BATCH_ROWS {
            let id = 1000 + row * BATCHES + number;
            batch.put(branch, &key(id, 0), &value(id, 100));
        }
        let put = engine.commit(&batch, CommitOptions::default());
        put.expect("there is space");
    }
    let count = |name| engine.counters().get(name);
    assert_eq!(count("vt.table_batches"), BATCHES, "each became a table");
    let moment = engine.branch_moment(branch).expect("it is a branch");
    let guards = Guards::since(&moment);
    let absorbed = engine.absorb(&[branch], &Batch::new(), &guards, CommitOptions::default());
    absorbed.expect("nothing else was written");
    let reads = || [DATA_BLOCKS_READ, "device.reads"].map(count);
    let before = reads();
    for id in 1000..1000 + BATCHES * BATCH_ROWS {
        let found = engine.get(tree, &key(id, 0), None).expect("it reads");
        assert_eq!(found.as_deref(), Some(&value(id, 100)[..]), "row {id}");
    }
    let after = reads();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn rows_of_a_large_transaction_are_read_from_memory_after_it() {
    for is_full in [false, true] {
        let [with, without] = [true, false].map(|caches| reads_after_batches(caches, is_full));
        println!("{with:?} and {without:?} blocks and requests, full: {is_full}");
        assert!(without[0] > 50, "{without:?} without");
        assert!(with[0] <= without[0] / 20, "{with:?} and {without:?}");
        assert!(with[1] <= without[1] / 20, "{with:?} and {without:?}");
    }
}
