//! How long a write may be that happens whole or not at all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use stitchfs::fs::Files;
use stitchfs::{MakeOptions, StoreOptions};

const MIB: u64 = 1 << 20;

fn commits(files: &Files) -> u64 {
    let all = files.store().counters();
    let found = all.iter().find(|(counter, _)| counter == "kv.commits");
    found.unwrap().1
}

/// Steps of stores of these lengths, in bytes; what docs/semantics.md says of them.
const STEPS: [(u64, u64); 3] = [
    (16 * MIB, 440_000),
    (64 * MIB, 440_000),
    (320 * MIB, 2 * MIB),
];

#[test]
fn a_write_of_a_step_is_one_commit_and_a_longer_one_is_more() {
    for (len_bytes, step) in STEPS {
        let folder = tempfile::tempdir().unwrap();
        let make = MakeOptions {
            len_bytes: Some(len_bytes),
            ..MakeOptions::default()
        };
        let path = folder.path().join("store");
        let files = Files::create(&path, &make, &StoreOptions::default()).unwrap();
        let file = files.root().create("file").unwrap();
        let write = |len: u64| {
            let before = commits(&files);
            let data = vec![7; usize::try_from(len).unwrap()];
            file.write_at(&data, 0).unwrap();
            commits(&files) - before
        };
        assert_eq!(write(step), 1, "a store of {len_bytes} bytes");
        assert_eq!(write(2 * MIB + 4096).min(2), 2, "more than any step");
        files.close().unwrap();
    }
}
