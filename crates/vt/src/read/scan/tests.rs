//! Scans over sources that a damaged block gives: entries out of their order.

use super::*;
use crate::entry::{EntryRef, RangeDelete};
use crate::range_delete::RangeDeletes;
use crate::testing::{MIB, Small};

const SEEKS_MAX: usize = 100;

/// Entries that are out of order, so that a seek by halving lands anywhere: here on the first
/// (going back: the last) of them.
struct Jumbled {
    keys: Vec<&'static [u8]>,
    /// One more than the index of the entry it stands on; 0 before the first.
    at: usize,
    seeks: usize,
}

impl Jumbled {
    fn new(keys: &[&'static str]) -> Self {
        Self {
            keys: keys.iter().map(|key| key.as_bytes()).collect(),
            at: 0,
            seeks: 0,
        }
    }

    fn sought(&mut self, at: usize) {
        self.at = at;
        self.seeks += 1;
        assert!(self.seeks < SEEKS_MAX, "the scan comes to no end");
    }
}

impl EntryIter for Jumbled {
    fn seek(&mut self, _: &[u8], _: Seqno) -> Result<(), VtError> {
        self.sought(1);
        Ok(())
    }

    fn seek_before(&mut self, _: Option<&[u8]>) -> Result<(), VtError> {
        self.sought(self.keys.len());
        Ok(())
    }

    fn next(&mut self) -> Result<(), VtError> {
        self.at += 1;
        Ok(())
    }

    fn prev(&mut self) -> Result<(), VtError> {
        self.at -= 1;
        Ok(())
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        let key = self.keys.get(self.at.checked_sub(1)?)?;
        Some(EntryRef {
            key,
            seqno: Seqno(1),
            op: Op::Put(b"value"),
        })
    }
}

/// Scans all of a source below a newer one with these range deletes.
fn scan(
    keys: &[&'static str],
    direction: Direction,
    deletes: Vec<RangeDelete>,
) -> Result<Vec<Vec<u8>>, KvError> {
    let small = Small::new(16 * MIB);
    let store = &small.engine.store;
    let seqnos = (Seqno(9), Seqno(9));
    let mut scan = VtScan::new(
        &store.reads,
        store.views.get(),
        small.tree,
        KeyRange::all(),
        (direction, false),
        seqnos,
    )?;
    let newer = Box::new(Jumbled::new(&[]));
    let mut older = Box::new(Jumbled::new(keys));
    match direction {
        Direction::Forward => older.seek(b"", Seqno(u64::MAX))?,
        Direction::Backward => older.seek_before(None)?,
    }
    scan.has_range_deletes = !deletes.is_empty();
    scan.sources = vec![
        Source::of(newer, RangeDeletes::new(deletes), Seqno(9)),
        Source::of(older, RangeDeletes::default(), Seqno(9)),
    ];
    let mut out = Vec::new();
    while let Some((key, _)) = scan.next()? {
        out.push(key.to_vec());
    }
    Ok(out)
}

#[test]
fn a_scan_whose_seek_goes_back_is_an_error_and_no_endless_one() {
    for direction in [Direction::Forward, Direction::Backward] {
        let delete = RangeDelete {
            start: b"b".to_vec(),
            end: b"y".to_vec(),
            seqno: Seqno(5),
        };
        let found = scan(&["a", "m", "c", "z"], direction, vec![delete]);
        let error = found.expect_err("it comes back to a key");
        assert_eq!(error.kind(), stitch_base::ErrorKind::Corrupt, "{error}");
    }
}

/// Without a seek, callers were given keys before those that they had been given.
#[test]
fn a_scan_gives_keys_in_their_order_or_an_error() {
    for direction in [Direction::Forward, Direction::Backward] {
        let found = scan(&["a", "m", "c", "z"], direction, Vec::new());
        let error = found.expect_err("keys are out of order");
        assert_eq!(error.kind(), stitch_base::ErrorKind::Corrupt, "{error}");
        let all = scan(&["a", "c", "m", "z"], direction, Vec::new()).unwrap();
        assert_eq!(all.len(), 4);
    }
}
