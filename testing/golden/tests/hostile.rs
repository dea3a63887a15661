//! No decoder panics, whatever it is given: noise, and valid records with seeded changes.

use std::sync::mpsc;
use std::time::Duration;
use stitch_base::random::Rng;
use stitch_golden::hostile::{ENTRIES, Entry};
use stitch_golden::{mutate, seeds};

/// Stores that are changed and used.
const STORES: u64 = 300;

/// Inputs for one entry; whole volumes cost more.
fn rounds(entry: &Entry) -> u64 {
    let fast = std::env::var("STITCH_HOSTILE_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok());
    match entry.name {
        // Each is many openings: `changed_stores` has more of them.
        "whole" => fast.unwrap_or(4_000) / 400,
        "volume" | "volume_patched" | "fs_rows" => fast.unwrap_or(4_000) / 10,
        _ => fast.unwrap_or(4_000) * 5,
    }
}

/// Runs one input; a failure names it.
fn run(entry: &Entry, bytes: &[u8], what: &str) {
    let shown = &bytes[..bytes.len().min(600)];
    let ran = std::panic::catch_unwind(|| (entry.run)(bytes));
    assert!(
        ran.is_ok(),
        "{} on {what} ({} bytes): {shown:02x?}",
        entry.name,
        bytes.len()
    );
}

#[test]
fn valid_records_and_all_their_truncations() {
    for entry in ENTRIES {
        for valid in seeds::of(entry.name) {
            run(entry, &valid, "a valid record");
            let step = match entry.name {
                "whole" => 16,
                _ if valid.len() > 4096 => 4096,
                _ => 1,
            };
            (0..valid.len())
                .step_by(step)
                .for_each(|end| run(entry, &valid[..end], "a truncation"));
        }
    }
}

#[test]
fn changed_records() {
    for entry in ENTRIES {
        let valid = seeds::of(entry.name);
        let mut rng = Rng::new(0x90_1d);
        for round in 0..rounds(entry) {
            let index = usize::try_from(round).unwrap() % valid.len();
            let mut bytes = valid[index].clone();
            mutate::mutate(&mut bytes, &mut rng);
            run(entry, &bytes, "a changed record");
        }
    }
}

/// Longest time for one store. The slowest take a second where two tests share a processor.
const STORE_TIME_MAX: Duration = Duration::from_secs(60);

/// Whole stores with changed numbers and right checksums, each within a time limit.
/// `STITCH_HOSTILE_STORES=10000` for more of them, `STITCH_HOSTILE_SEED=7` to begin elsewhere.
#[test]
fn changed_stores() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let count: u64 = number("STITCH_HOSTILE_STORES").unwrap_or(STORES);
    let first: u64 = number("STITCH_HOSTILE_SEED").unwrap_or(0);
    let entry = ENTRIES.iter().find(|entry| entry.name == "whole").unwrap();
    let (done, is_done) = mpsc::channel();
    let body = move || {
        for seed in first..first + count {
            let mut bytes = [0; 32];
            Rng::new(seed).fill(&mut bytes);
            let len = if seed % 2 == 0 { 12 } else { bytes.len() };
            let ran = std::panic::catch_unwind(|| (entry.run)(&bytes[..len]));
            done.send((seed, ran.is_ok())).expect("the test waits");
        }
    };
    let worker = stitch_base::thread::spawn("stores", body).unwrap();
    let mut failed = Vec::new();
    for seed in first..first + count {
        let (ran, is_well) = is_done
            .recv_timeout(STORE_TIME_MAX)
            .unwrap_or_else(|_| panic!("no end of the store of seed {seed}"));
        assert_eq!(ran, seed);
        failed.extend((!is_well).then_some(seed));
    }
    worker.join().unwrap();
    assert_eq!(failed, [0; 0], "stores of these seeds");
}

#[test]
fn noise() {
    for entry in ENTRIES {
        let mut rng = Rng::new(0x0123);
        for _ in 0..rounds(entry) / 4 {
            let mut bytes = vec![0; usize::try_from(rng.below(600)).unwrap()];
            rng.fill(&mut bytes);
            run(entry, &bytes, "noise");
        }
    }
}

#[test]
fn a_right_checksum_is_kept_by_a_repair() {
    use stitch_format::superblock;
    use stitch_golden::hostile::repair;
    let valid = seeds::of("superblock").remove(0);
    let mut bytes = valid.clone();
    repair(
        &mut bytes,
        &superblock::TABLE,
        superblock::SUPERBLOCK_BYTES,
        0,
    );
    assert_eq!(bytes, valid);
    bytes[48] ^= 0x20;
    assert!(superblock::Superblock::decode(&bytes, 0).is_err());
    repair(
        &mut bytes,
        &superblock::TABLE,
        superblock::SUPERBLOCK_BYTES,
        0,
    );
    let label = superblock::Superblock::decode(&bytes, 0)
        .unwrap()
        .unwrap()
        .label;
    assert_eq!(label, "Label");
}

#[test]
fn every_decoder_has_a_fuzz_target() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    for entry in ENTRIES {
        let path = folder.join(format!("{}.rs", entry.name));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text.contains(&format!("hostile::{}(", entry.name)),
            "{} is missing",
            path.display()
        );
    }
}
