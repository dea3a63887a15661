//! Valid blocks of VT-tree tables.

use stitch_base::{Seqno, TableId, TreeId};
use stitch_filter::{Precision, QuotientFilter};
use stitch_format::vt_data::{DataBuilder, Op};
use stitch_format::vt_index::{BlockPtr, IndexBuilder, IndexEntry};
use stitch_format::vt_range_delete::{self, StoredRangeDelete};
use stitch_format::vt_root::{Leaf, RootIndex, TableRoot};

pub(super) fn data() -> Vec<Vec<u8>> {
    [1, 40].map(data_of).to_vec()
}

fn data_of(count: u64) -> Vec<u8> {
    let mut builder = DataBuilder::new();
    for n in 0..count {
        let key = format!("name{:04}", n / 2);
        let op = match n % 3 {
            0 => Op::Put(b"value"),
            1 => Op::Delete,
            _ => Op::Upsert {
                function: 300,
                delta: b"delta",
            },
        };
        builder.add(key.as_bytes(), Seqno(1000 - n), &op);
    }
    let mut out = Vec::new();
    builder.finish(&mut out);
    out
}

fn block(addr: u64) -> BlockPtr {
    BlockPtr {
        addr,
        len_bytes: 1024,
        checksum: 7,
    }
}

pub(super) fn index() -> Vec<u8> {
    let mut builder = IndexBuilder::new();
    for n in 0..5u64 {
        let mut filter = Vec::new();
        let precision = match n {
            0 => Precision::High,
            _ => Precision::Normal,
        };
        QuotientFilter::build(&mut vec![n, n << 40], precision, &mut filter);
        builder.add(&IndexEntry {
            first: format!("name{n}a").into_bytes(),
            last: format!("name{n}z").into_bytes(),
            block: block(n * 1024),
            origin: TableId(300),
            raw_bytes: 900,
            entry_count: 3,
            delete_count: 1,
            has_versions: n % 2 == 0,
            is_value: false,
            min_seqno: Seqno(5),
            max_seqno: Seqno(700),
            filter,
        });
    }
    builder.add(&IndexEntry {
        first: b"value".to_vec(),
        last: b"value".to_vec(),
        block: block(8192),
        origin: TableId(300),
        raw_bytes: 1000,
        entry_count: 1,
        is_value: true,
        min_seqno: Seqno(6),
        max_seqno: Seqno(6),
        ..IndexEntry::default()
    });
    builder.finish()
}

pub(super) fn roots() -> Vec<Vec<u8>> {
    let leaf = |last: &[u8], addr| Leaf {
        last: last.to_vec(),
        block: block(addr),
    };
    let mut root = TableRoot {
        id: TableId(300),
        tree: TreeId(2),
        entry_count: 15,
        delete_count: 5,
        range_delete_count: 2,
        data_bytes: 5120,
        range_deletes: vec![block(9216)],
        index: RootIndex::Leaves(vec![leaf(b"m", 10_240), leaf(b"z", 11_264)]),
    };
    let with_leaves = root.encode(&[]);
    root.index = RootIndex::Inside(0..0);
    let with_index = root.encode(&index());
    root.index = RootIndex::None;
    vec![with_leaves, with_index, root.encode(&[])]
}

pub(super) fn range_deletes() -> Vec<u8> {
    let delete = |start, end| StoredRangeDelete {
        start,
        end,
        seqno: Seqno(300),
    };
    vt_range_delete::encode(&[delete(b"", b"b"), delete(b"c", b"d")])
}
