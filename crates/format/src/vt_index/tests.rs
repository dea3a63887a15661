use super::*;

fn entries() -> [IndexEntry; 2] {
    let first = IndexEntry {
        first: b"ab".to_vec(),
        last: b"c".to_vec(),
        block: BlockPtr {
            addr: 0x0706_0504_0302_0200,
            len_bytes: 0x0001_0200,
            checksum: 0x0403_0201,
        },
        origin: TableId(0x81),
        raw_bytes: 0x82,
        entry_count: 5,
        delete_count: 2,
        has_versions: true,
        is_value: false,
        min_seqno: Seqno(6),
        max_seqno: Seqno(8),
        filter: vec![7, 9],
    };
    let second = IndexEntry {
        first: b"d".to_vec(),
        last: b"d".to_vec(),
        has_versions: false,
        entry_count: 1,
        delete_count: 0,
        filter: vec![],
        ..first.clone()
    };
    [first, second]
}

fn sample() -> Vec<u8> {
    let mut builder = IndexBuilder::new();
    for entry in &entries() {
        builder.add(entry);
    }
    let len = builder.len_bytes();
    let out = builder.finish();
    assert_eq!(out.len(), len);
    out
}

fn read_all(payload: &[u8]) -> Result<Vec<IndexEntry>, FormatError> {
    let layout = IndexLayout::read(payload)?;
    (0..layout.entry_count())
        .map(|index| {
            let last = layout.last(payload, index)?;
            let (entry, filter) = layout.entry_and_filter(payload, index)?;
            assert_eq!((last, &payload[filter]), (entry.last, entry.filter));
            assert_eq!(layout.entry(payload, index)?, entry);
            Ok(entry.to_owned())
        })
        .collect()
}

#[test]
fn bytes_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        1, b'c', 2, b'a', b'b', // last, first
        0, 2, 2, 3, 4, 5, 6, 7, 0, 2, 1, 0, 1, 2, 3, 4, // block
        0x81, 0x01, 0x82, 0x01, 5, 2, 1, 6, 2, // origin, raw, counts, flags, seqnos
        2, 7, 9, // filter
        1, b'd', 1, b'd',
        0, 2, 2, 3, 4, 5, 6, 7, 0, 2, 1, 0, 1, 2, 3, 4,
        0x81, 0x01, 0x82, 0x01, 1, 0, 0, 6, 2,
        0,
        0, 0, 0, 0, 33, 0, 0, 0, // offsets
        2, 0, 0, 0, // count
    ];
    assert_eq!(sample(), golden);
}

fn value_entry() -> IndexEntry {
    IndexEntry {
        first: b"key".to_vec(),
        last: b"key".to_vec(),
        block: BlockPtr {
            addr: 0x1200,
            len_bytes: 0x600,
            checksum: 0x0403_0201,
        },
        origin: TableId(9),
        raw_bytes: 0x401,
        entry_count: 1,
        has_versions: true,
        is_value: true,
        min_seqno: Seqno(6),
        max_seqno: Seqno(6),
        ..IndexEntry::default()
    }
}

fn index_of(entry: &IndexEntry) -> Vec<u8> {
    let mut builder = IndexBuilder::new();
    builder.add(entry);
    builder.finish()
}

#[test]
fn bytes_of_a_value_block_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        3, b'k', b'e', b'y', 0, // last, first
        0, 0x12, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 1, 2, 3, 4, // block
        9, 0x81, 0x08, 1, 0, 3, 6, 0, // origin, raw, counts, flags, seqnos
        0, // filter
        0, 0, 0, 0, // offsets
        1, 0, 0, 0, // count
    ];
    assert_eq!(index_of(&value_entry()), golden);
    assert_eq!(read_all(&golden).unwrap(), [value_entry()]);
    assert_eq!(value_checksum(1, 0x1200, b"value"), 0x1c08_1859);
    assert_ne!(value_checksum(1, 0x1400, b"value"), 0x1c08_1859);
}

#[test]
fn value_blocks_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut IndexEntry)| {
        let mut entry = value_entry();
        change(&mut entry);
        assert!(read_all(&index_of(&entry)).is_err(), "{entry:?}");
    };
    refused(|e| e.block.len_bytes = 0x800);
    refused(|e| e.raw_bytes = 0x400);
    refused(|e| e.entry_count = 2);
    refused(|e| e.delete_count = 1);
    refused(|e| e.max_seqno = Seqno(7));
    refused(|e| e.filter = vec![1]);
}

#[test]
fn entries_come_back() {
    assert_eq!(read_all(&sample()).unwrap(), entries());
}

#[test]
fn no_cut_is_taken_for_the_whole() {
    let whole = sample();
    for len in 0..whole.len() {
        let cut = read_all(&whole[..len]);
        assert!(cut.is_err() || cut.unwrap() != entries(), "cut at {len}");
    }
}

#[test]
fn any_bytes_give_a_value_or_an_error() {
    let whole = sample();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(
            read_all(&flipped).ok(),
            Some(entries().to_vec()),
            "bit {bit}"
        );
    }
}
