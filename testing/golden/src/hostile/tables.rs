//! Blocks of VT-tree tables.

use stitch_format::FormatError;
use stitch_format::vt_data::{DataBuilder, DataLayout};
use stitch_format::vt_index::{IndexBuilder, IndexEntry, IndexLayout};
use stitch_format::vt_range_delete;
use stitch_format::vt_root::{RootIndex, TableRoot};

/// A data block: every restart and every entry.
pub fn vt_data(bytes: &[u8]) {
    let _ = data_entries(bytes);
}

fn data_entries(bytes: &[u8]) -> Result<(), FormatError> {
    let layout = DataLayout::read(bytes)?;
    for restart in 0..layout.restart_count() {
        let (key, _) = layout.restart_key(bytes, restart)?;
        assert!(key.len() <= bytes.len(), "a key is a part of the block");
    }
    let mut at = layout.restart(bytes, 0)?;
    let (mut key, mut builder) = (Vec::new(), DataBuilder::new());
    let mut last: Option<Vec<u8>> = None;
    while at < layout.entries_end() {
        let entry = layout.entry(bytes, at)?;
        assert!(entry.next > at, "every entry takes room");
        assert!(
            entry.next <= layout.entries_end(),
            "entries lie in the block"
        );
        if entry.shared > key.len() {
            return Ok(());
        }
        key.truncate(entry.shared);
        key.extend_from_slice(&bytes[entry.suffix.clone()]);
        if last.as_ref().is_some_and(|last| *last > key) {
            return Ok(());
        }
        builder.add(&key, entry.seqno, &entry.op(bytes));
        last = Some(key.clone());
        at = entry.next;
    }
    let mut again = Vec::new();
    builder.finish(&mut again);
    DataLayout::read(&again).expect("a block that was built is a block");
    Ok(())
}

/// An index block: every entry.
pub fn vt_index(bytes: &[u8]) {
    let Ok(layout) = IndexLayout::read(bytes) else {
        return;
    };
    let mut builder = IndexBuilder::new();
    let mut entries: Vec<IndexEntry> = Vec::new();
    for index in 0..layout.entry_count() {
        let Ok(entry) = layout.entry(bytes, index) else {
            return;
        };
        assert_eq!(layout.last(bytes, index).ok(), Some(entry.last));
        entries.push(entry.to_owned());
        builder.add(&entries[index]);
    }
    let again = builder.finish();
    let layout = IndexLayout::read(&again).expect("an index that was built is an index");
    for (index, entry) in entries.iter().enumerate() {
        let found = layout.entry(&again, index);
        assert_eq!(found, Ok(entry.borrow()), "an entry is worth its bytes");
    }
}

/// A table's root.
pub fn vt_root(bytes: &[u8]) {
    if let Ok(root) = TableRoot::decode(bytes) {
        let inside = match &root.index {
            RootIndex::Inside(range) => &bytes[range.clone()],
            _ => &[],
        };
        if matches!(root.index, RootIndex::Inside(_)) && inside.is_empty() {
            return;
        }
        let again = root.encode(inside);
        assert_eq!(again, bytes, "a root is worth its bytes");
    }
}

/// A block of range deletes.
pub fn vt_range_deletes(bytes: &[u8]) {
    if let Ok(deletes) = vt_range_delete::decode(bytes) {
        let again = vt_range_delete::encode(&deletes);
        assert_eq!(again, bytes, "range deletes are worth their bytes");
    }
}
