use super::*;
use crate::entry::Op;
use crate::memtable::Memtable;
use proptest::prelude::*;
use stitch_base::TreeId;

/// Key and sequence number.
pub(crate) type Row = (Vec<u8>, u64);

fn row(iter: &BoxIter) -> Option<Row> {
    iter.current().map(|e| (e.key.to_vec(), e.seqno.0))
}

/// Checks that `iter` walks `rows`, which are in entry order: whole both ways, and from a target
/// with turns.
pub(crate) fn check_against(iter: &mut BoxIter, rows: &[Row], key: &[u8], seqno: u64) {
    let mut seen = Vec::new();
    iter.seek(b"", Seqno(u64::MAX)).unwrap();
    while let Some(row) = row(iter) {
        seen.push(row);
        iter.next().unwrap();
    }
    assert_eq!(seen, rows, "forward");
    seen.clear();
    iter.seek_before(None).unwrap();
    while let Some(row) = row(iter) {
        seen.push(row);
        iter.prev().unwrap();
    }
    seen.reverse();
    assert_eq!(seen, rows, "backward");

    let at = rows.partition_point(|r| (r.0.as_slice(), u64::MAX - r.1) < (key, u64::MAX - seqno));
    iter.seek(key, Seqno(seqno)).unwrap();
    check_walk(iter, rows, at);
    let at = rows.partition_point(|r| r.0.as_slice() < key);
    iter.seek_before(Some(key)).unwrap();
    if at > 0 {
        check_walk(iter, rows, at - 1);
    } else {
        assert_eq!(row(iter), None, "nothing before");
    }
}

/// Walks a few steps with turns. `at` is where the iterator should stand.
fn check_walk(iter: &mut BoxIter, rows: &[Row], mut at: usize) {
    for forward in [true, true, false, true, false, false, false, true, true] {
        assert_eq!(row(iter).as_ref(), rows.get(at), "at {at}");
        if at >= rows.len() {
            return;
        }
        if forward {
            iter.next().unwrap();
            at += 1;
        } else {
            iter.prev().unwrap();
            match at.checked_sub(1) {
                Some(before) => at = before,
                None => {
                    assert_eq!(row(iter), None, "before the first");
                    return;
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn merged_order_is_that_of_all_rows(
        writes in proptest::collection::vec(
            (0usize..5, proptest::collection::vec(0u8..4, 0..4)), 0..120),
        target in proptest::collection::vec(0u8..4, 0..4),
        seqno in 0u64..120,
    ) {
        let tree = TreeId(1);
        let inputs: Vec<Memtable> = (0..5).map(|_| Memtable::new(0)).collect();
        let mut rows: Vec<Row> = Vec::new();
        for (seqno, (input, key)) in (1u64..).zip(&writes) {
            let op = Op::Put(&[]);
            inputs[*input].insert(tree, &EntryRef { key, seqno: Seqno(seqno), op });
            rows.push((key.clone(), seqno));
        }
        rows.sort_by_key(|r| (r.0.clone(), u64::MAX - r.1));
        let merged = MergeIter::new(inputs.iter().map(|m| m.iter(tree)).collect());
        check_against(&mut (Box::new(merged) as BoxIter), &rows, &target, seqno);
    }
}

#[test]
fn equal_entries_come_in_the_order_of_their_cursors() {
    let tree = TreeId(1);
    let tables = [b"first", b"other"].map(|value| {
        let memtable = Memtable::new(0);
        let key = b"k";
        let op = Op::Put(value);
        memtable.insert(
            tree,
            &EntryRef {
                key,
                seqno: Seqno(1),
                op,
            },
        );
        memtable
    });
    let mut merged = MergeIter::new(tables.iter().map(|m| m.iter(tree)).collect());
    let values = |merged: &MergeIter| match merged.current().unwrap().op {
        Op::Put(value) => value.to_vec(),
        other => panic!("{other:?}"),
    };
    merged.seek(b"", Seqno(9)).unwrap();
    for _ in 0..3 {
        assert_eq!(values(&merged), b"first");
        merged.next().unwrap();
        assert_eq!(values(&merged), b"other");
        merged.prev().unwrap();
    }
    merged.next().unwrap();
    merged.next().unwrap();
    assert!(merged.current().is_none());
}
