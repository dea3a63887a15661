use super::*;

/// Expects each cut of an edit's bytes to be an error, and each bit of them to mean something.
pub(super) fn expect_no_spare_bits(golden: &[u8], edit: &VersionEdit) {
    for cut in 0..golden.len() {
        assert!(VersionEdit::decode(&golden[..cut]).is_err(), "cut at {cut}");
    }
    for bit in 0..golden.len() * 8 {
        let mut flipped = golden.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(decoded) = VersionEdit::decode(&flipped) {
            assert_ne!(decoded, *edit, "bit {bit} means nothing");
        }
    }
}

fn sample_table() -> TableMeta {
    TableMeta {
        id: TableId(0x81),
        tree: TreeId(2),
        smallest: b"ab".to_vec(),
        largest: b"c".to_vec(),
        largest_excluded: true,
        entry_count: 3,
        delete_count: 1,
        range_delete_count: 2,
        data_bytes: 0x200,
        value_bytes: 0,
        min_seqno: Seqno(5),
        max_seqno: Seqno(7),
        shift: 0,
        root_addr: 0x0807_0605_0403_0201,
        root_bytes: 0x0d0c_0b0a,
        runs: vec![Run {
            addr: 0x0807_0605_0403_0200,
            len_bytes: 0x1000_0000,
        }],
    }
}

fn sample() -> VersionEdit {
    VersionEdit {
        last_seqno: Seqno(7),
        next_table: TableId(0x82),
        next_tree: TreeId(4),
        dropped_trees: vec![TreeId(1)],
        new_trees: vec![TreeRecord {
            id: TreeId(3),
            name: "meta".to_owned(),
            block_bytes: 0x4000,
            stitch_bytes: u64::MAX,
            compression: 1,
            value_block_bytes: 0,
            branch: None,
            branch_ranges: None,
        }],
        altered_trees: Vec::new(),
        pins: PinChanges::default(),
        removed: vec![TableId(0x11)],
        moved: vec![(TableId(0x12), 6)],
        added: vec![(1, Arc::new(sample_table()))],
    }
}

#[test]
fn the_length_of_a_base_is_known_without_encoding_it() {
    let mut edit = VersionEdit::default();
    for number in 0..40u32 {
        let mut table = sample_table();
        table.id = TableId(1 << number);
        table.smallest = vec![b'a'; 7 * number as usize];
        table.entry_count = u64::from(number) << number;
        table.root_addr = 512;
        let run = |i: u64| Run {
            addr: (i << (number % 30)) * 1024 + 512,
            len_bytes: 512,
        };
        table.runs = (0..u64::from(number)).map(run).collect();
        let mut tree = sample().new_trees.remove(0);
        tree.name = "n".repeat(5 * number as usize);
        edit.new_trees.push(tree);
        edit.added.push((1, Arc::new(table)));
        for value_bytes in [0, 300] {
            let mut edit = edit.clone();
            let last = edit.added.pop().map(|(level, table)| {
                let table = TableMeta::clone(&table);
                (
                    level,
                    Arc::new(TableMeta {
                        value_bytes,
                        ..table
                    }),
                )
            });
            edit.added.extend(last);
            edit.new_trees[0].value_block_bytes = u32::try_from(value_bytes).unwrap();
            let trees = edit.new_trees.iter().map(TreeRecord::base_bytes);
            let tables = edit.added.iter().map(|(_, t)| t.base_bytes());
            let parts: BaseBytes = trees.chain(tables).sum();
            let (most, bytes) = (
                parts.of_base(edit.is_of_version_1()),
                edit.encode().len() as u64,
            );
            assert!((bytes..bytes + 91).contains(&most), "{most} for {bytes}");
        }
    }
}

#[test]
fn bytes_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        1, // version
        7, 0x82, 0x01, 4, // last seqno, next table, next tree
        1, 1, // dropped trees
        1, 3, 4, b'm', b'e', b't', b'a', 0x80, 0x80, 0x01, // new trees: number, name, block bytes
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, // threshold, compression
        1, 0x11, // removed
        1, 0x12, 6, // moved
        1, 1, 0x81, 0x01, 2, 2, b'a', b'b', 1, b'c', 1, // added: level, number, tree, keys, flags
        3, 1, 2, 0x80, 0x04, 5, 7, // counts, bytes, seqnos
        1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0c, 0x0d, // root
        1, 0, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x80, 0x80, 0x80, 0x01, // runs
    ];
    assert_eq!(sample().encode(), golden);
}

fn altered_sample() -> VersionEdit {
    VersionEdit {
        altered_trees: vec![TreeRecord {
            id: TreeId(2),
            name: "kv".to_owned(),
            block_bytes: 0x1000,
            stitch_bytes: 0,
            compression: 2,
            value_block_bytes: 0,
            branch: None,
            branch_ranges: None,
        }],
        ..sample()
    }
}

#[test]
fn bytes_of_altered_trees_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        2, // version
        7, 0x82, 0x01, 4,
        1, 1,
        1, 3, 4, b'm', b'e', b't', b'a', 0x80, 0x80, 0x01,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, 0,
        1, 2, 2, b'k', b'v', 0x80, 0x20, 0, 2, 0, // altered trees
        1, 0x11,
        1, 0x12, 6,
        0,
    ];
    let mut edit = altered_sample();
    edit.added.clear();
    assert_eq!(edit.encode(), golden);
    assert_eq!(VersionEdit::decode(&golden), Ok(edit));
}

#[test]
fn version_2_is_written_only_where_it_is_needed() {
    assert!(sample().is_of_version_1() && !altered_sample().is_of_version_1());
    let mut zstd = sample();
    zstd.added.clear();
    zstd.new_trees[0].compression = 2;
    assert!(!zstd.is_of_version_1());
    let mut bytes = zstd.encode();
    assert_eq!(VersionEdit::decode(&bytes), Ok(zstd));
    bytes[0] = 1;
    assert!(VersionEdit::decode(&bytes).is_err());
    bytes[0] = 9;
    let newer = VersionEdit::decode(&bytes);
    assert!(matches!(newer, Err(FormatError::Newer { found: 9, .. })));
}

fn sample_with_values() -> VersionEdit {
    let mut edit = sample();
    edit.new_trees[0].value_block_bytes = 0x800;
    let table = Arc::make_mut(&mut edit.added[0].1);
    table.value_bytes = 0x180;
    table.root_addr = 0x2200;
    table.root_bytes = 0x200;
    let run = |addr, len_bytes| Run { addr, len_bytes };
    table.runs = vec![run(0x1000, 0x400), run(0x2200, 0x1_0000)];
    edit
}

#[test]
fn bytes_with_value_blocks_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        2, // version
        7, 0x82, 0x01, 4,
        1, 1,
        1, 3, 4, b'm', b'e', b't', b'a', 0x80, 0x80, 0x01,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1,
        0x80, 0x10, // value block bytes
        0, // altered trees
        1, 0x11,
        1, 0x12, 6,
        1, 1, 0x81, 0x01, 2, 2, b'a', b'b', 1, b'c', 1,
        3, 1, 2, 0x80, 0x04, 0x80, 0x03, 5, 7, // counts, bytes, value bytes, seqnos
        0, 0x22, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, // root
        2, 8, 2, 7, 0x80, 0x01, // runs
    ];
    let edit = sample_with_values();
    assert_eq!(edit.encode(), golden);
    assert_eq!(VersionEdit::decode(&golden), Ok(edit));
    for cut in 0..golden.len() {
        assert!(VersionEdit::decode(&golden[..cut]).is_err(), "cut at {cut}");
    }
    for bit in 0..golden.len() * 8 {
        let mut flipped = golden.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(edit) = VersionEdit::decode(&flipped) {
            assert_ne!(edit, sample_with_values(), "bit {bit} means nothing");
        }
    }
}

#[test]
fn an_edit_comes_back() {
    assert_eq!(VersionEdit::decode(&sample().encode()), Ok(sample()));
    let altered = altered_sample();
    assert_eq!(VersionEdit::decode(&altered.encode()), Ok(altered));
    let empty = VersionEdit::default();
    assert_eq!(VersionEdit::decode(&empty.encode()), Ok(empty));
}

#[test]
fn every_cut_is_an_error() {
    for sample in [sample(), altered_sample()] {
        let bytes = sample.encode();
        for cut in 0..bytes.len() {
            assert!(VersionEdit::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
    let mut longer = sample().encode();
    longer.push(0);
    assert!(VersionEdit::decode(&longer).is_err());
}

#[test]
fn no_flipped_bit_panics_or_goes_unseen() {
    for sample in [sample(), altered_sample()] {
        let bytes = sample.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(edit) = VersionEdit::decode(&flipped) {
                assert_ne!(edit, sample, "bit {bit} means nothing");
            }
        }
    }
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut TableMeta)| {
        let mut edit = sample();
        change(Arc::make_mut(&mut edit.added[0].1));
        assert!(VersionEdit::decode(&edit.encode()).is_err());
    };
    refused(|t| t.largest = b"aa".to_vec());
    refused(|t| t.largest = t.smallest.clone());
    refused(|t| t.min_seqno = Seqno(8));
    refused(|t| t.value_bytes = t.data_bytes + 1);
    refused(|t| t.root_addr = 0x100);
    refused(|t| t.runs.push(t.runs[0]));
    refused(|t| t.runs[0].len_bytes = 0);
}

#[test]
fn a_huge_count_does_not_take_memory() {
    let mut bytes = vec![VERSION, 0, 0, 0];
    put_varint(&mut bytes, u64::MAX >> 1);
    assert!(VersionEdit::decode(&bytes).is_err());
}

#[test]
fn ranges_with_an_excluded_end_do_not_overlap_what_starts_there() {
    let mut table = sample_table();
    assert!(!table.overlaps(b"c", None));
    assert!(table.overlaps(b"bz", Some(b"c")));
    assert!(!table.overlaps(b"a", Some(b"ab")));
    table.largest_excluded = false;
    assert!(table.overlaps(b"c", None));
}

fn shifted_sample() -> VersionEdit {
    let table = TableMeta {
        shift: 4,
        root_addr: 0x400,
        root_bytes: 0x200,
        runs: vec![Run {
            addr: 0x400,
            len_bytes: 0x200,
        }],
        ..sample_table()
    };
    VersionEdit {
        last_seqno: Seqno(7),
        next_table: TableId(0x82),
        next_tree: TreeId(4),
        dropped_trees: vec![TreeId(3)],
        added: vec![(0, Arc::new(table))],
        ..VersionEdit::default()
    }
}

#[rustfmt::skip]
const GOLDEN_SHIFTED: [u8; 51] = [
    5, // version
    7, 0x82, 0x01, 4, // last seqno, next table, next tree
    1, 3, 0, 0, // dropped, new and altered trees
    0, 0, 0, 0, 0, // pins: last, dropped, hidden trees, new, altered
    0, 0, // removed, moved
    1, 0, 0x81, 0x01, 2, 2, b'a', b'b', 1, b'c', 1, // added: level, number, tree, keys, flags
    3, 1, 2, 0x80, 0x04, 0, 5, 7, 4, // counts, bytes, seqnos, shift
    0, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, // root
    1, 2, 1, // runs
];

#[test]
fn bytes_of_shifted_tables_are_pinned() {
    let edit = shifted_sample();
    assert_eq!(edit.encode(), GOLDEN_SHIFTED);
    assert_eq!(VersionEdit::decode(&GOLDEN_SHIFTED), Ok(edit.clone()));
    expect_no_spare_bits(&GOLDEN_SHIFTED, &edit);
}

#[test]
fn a_store_without_shifted_tables_stays_readable_for_older_programs() {
    let edit = shifted_sample();
    assert!(edit.has_shifts() && !edit.is_of_version_1());
    let mut plain = edit.clone();
    let table = TableMeta::clone(&edit.added[0].1);
    plain.added[0].1 = Arc::new(TableMeta { shift: 0, ..table });
    assert!(!plain.has_shifts() && plain.is_of_version_1());
    assert_eq!(plain.encode()[0], 1);
}

#[test]
fn a_shift_leaves_writes_that_count_from_1() {
    let with = |shift: u64| {
        let mut edit = shifted_sample();
        let table = TableMeta::clone(&edit.added[0].1);
        edit.added[0].1 = Arc::new(TableMeta { shift, ..table });
        VersionEdit::decode(&edit.encode()).is_ok()
    };
    assert!(with(4) && !with(5) && !with(1 << 62) && !with(u64::MAX));
}

#[test]
fn the_length_of_a_shift_in_a_base_is_bounded() {
    assert!(varint_bytes(1 << 62) as u64 <= TableMeta::SHIFT_BYTES_MAX);
    assert_eq!(varint_bytes(0) as u64, TableMeta::NO_SHIFT_BYTES);
}
