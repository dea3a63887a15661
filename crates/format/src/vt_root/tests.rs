use super::*;

fn block(addr: u64) -> BlockPtr {
    BlockPtr {
        addr,
        len_bytes: 0x200,
        checksum: 0x0403_0201,
    }
}

fn sample() -> TableRoot {
    TableRoot {
        id: TableId(0x81),
        tree: TreeId(2),
        entry_count: 3,
        delete_count: 1,
        range_delete_count: 4,
        data_bytes: 0x200,
        range_deletes: vec![block(0x0506_0708_0a00)],
        index: RootIndex::Leaves(vec![
            Leaf {
                last: b"ab".to_vec(),
                block: block(0x0c00),
            },
            Leaf {
                last: b"c".to_vec(),
                block: block(0x0e00),
            },
        ]),
    }
}

#[test]
fn bytes_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        1, 0x81, 0x01, 2, // version, table, tree
        3, 1, 4, 0x80, 0x04, // counts
        1, 0x00, 0x0a, 8, 7, 6, 5, 0, 0, 0, 2, 0, 0, 1, 2, 3, 4, // range deletes
        2, 2, // leaves
        2, b'a', b'b', 0, 0x0c, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 2, 3, 4,
        1, b'c', 0, 0x0e, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 2, 3, 4,
    ];
    assert_eq!(sample().encode(&[]), golden);
    assert_eq!(TableRoot::decode(&golden).unwrap(), sample());
}

#[test]
fn an_index_inside_comes_back() {
    let mut root = sample();
    root.index = RootIndex::Inside(0..0);
    let bytes = root.encode(b"index");
    let again = TableRoot::decode(&bytes).unwrap();
    let RootIndex::Inside(range) = again.index else {
        panic!("{again:?}");
    };
    assert_eq!(&bytes[range], b"index");
}

#[test]
fn no_index_comes_back() {
    let mut root = sample();
    root.index = RootIndex::None;
    assert_eq!(TableRoot::decode(&root.encode(&[])).unwrap(), root);
}

#[test]
fn cuts_and_flips_are_seen() {
    let whole = sample().encode(&[]);
    for len in 0..whole.len() {
        assert!(TableRoot::decode(&whole[..len]).is_err(), "cut at {len}");
    }
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(
            TableRoot::decode(&flipped).ok(),
            Some(sample()),
            "bit {bit}"
        );
    }
    let mut newer = whole;
    newer[0] = 2;
    assert!(matches!(
        TableRoot::decode(&newer),
        Err(FormatError::Newer { .. })
    ));
}
