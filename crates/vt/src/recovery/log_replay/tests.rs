//! Runs that a log names and that cannot be.

use super::*;
use stitch_base::TableId;
use stitch_format::vt_index::{BlockPtr, IndexBuilder};

fn entry(first: &str, last: &str, addr: u64) -> IndexEntry {
    IndexEntry {
        first: first.into(),
        last: last.into(),
        block: BlockPtr {
            addr,
            len_bytes: 1024,
            checksum: 1,
        },
        origin: TableId(1),
        raw_bytes: 1000,
        entry_count: 2,
        min_seqno: Seqno(1),
        max_seqno: Seqno(2),
        ..IndexEntry::default()
    }
}

fn read(entries: &[IndexEntry], count: u64) -> Result<usize, FormatError> {
    let mut builder = IndexBuilder::new();
    entries.iter().for_each(|entry| builder.add(entry));
    let logged = LoggedRun {
        tree: TreeId(1),
        count,
        index: &builder.finish(),
    };
    logged_entries(&logged).map(|entries| entries.len())
}

#[test]
fn runs_are_read_back() {
    let entries = [entry("a", "b", 8192), entry("c", "d", 4096)];
    assert_eq!(read(&entries, 4).expect("a run"), 2);
}

#[test]
fn runs_that_contradict_themselves_are_refused() {
    let backwards = [entry("c", "d", 4096), entry("a", "b", 8192)];
    let one_key = [entry("a", "b", 4096), entry("b", "d", 8192)];
    let one_place = [entry("a", "b", 4096), entry("c", "d", 4608)];
    for (entries, expected) in [
        (&backwards, "keys"),
        (&one_key, "keys"),
        (&one_place, "blocks"),
    ] {
        let error = read(entries, 4).expect_err("it contradicts itself");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = read(&[entry("a", "b", 4096)], 3).expect_err("two are there");
    assert!(error.to_string().contains("count"), "{error}");
}
