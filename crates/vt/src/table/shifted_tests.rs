//! Tables whose sequence numbers count more than their blocks say, against copies that were written
//! with those numbers.

use super::newest::SeqnoWindow;
use super::tests::{Bed, Model, add_versions, newest, options, rows, violations};
use super::*;
use crate::entry::{EntryRef, Op, RangeDelete};
use std::cmp::Reverse;
use std::sync::Arc;
use stitch_base::Seqno;
use stitch_base::random::Rng;
use stitch_format::vt_manifest::TableMeta;
use stitch_kv::{KeyRange, TreeOptions};

const SHIFT: u64 = 1_000_000;

/// Several versions of keys, with values of which some get blocks of their own.
fn sample(rng: &mut Rng) -> Model {
    let mut model = Model::new();
    for number in 0..400u64 {
        let key = format!("key{number:05}").into_bytes();
        add_versions(&mut model, &key, rng);
    }
    model
}

fn written(bed: &Bed, model: &Model, deletes: &[RangeDelete]) -> TableMeta {
    let options = TreeOptions {
        value_block_bytes: 2048,
        ..options(1024)
    };
    let mut writer = bed.writer(&options);
    for ((key, seqno), value) in model {
        let op = value.as_ref().map_or(Op::Delete, |value| Op::Put(value));
        let seqno = Seqno(seqno.0);
        writer.add(&EntryRef { key, seqno, op }).expect("it writes");
    }
    for delete in deletes {
        writer.add_range_delete(delete.clone());
    }
    let meta = writer.finish().expect("it writes");
    meta.expect("it is not empty")
}

fn moved(meta: &TableMeta) -> TableMeta {
    let mut meta = meta.clone();
    meta.move_by(SHIFT);
    meta
}

fn newer_keys(table: &Table, since: Seqno) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut visit = |key: &[u8]| {
        if keys.last().is_none_or(|last| last != key) {
            keys.push(key.to_vec());
        }
        true
    };
    let all = KeyRange::all();
    let window = SeqnoWindow::since(since);
    table
        .keys_in_window(all, window, &mut visit)
        .expect("it reads");
    keys
}

#[test]
fn a_moved_table_reads_as_one_that_was_written_later() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let bed = Bed::new(64 << 20);
        let model = sample(&mut rng);
        let later: Model = model
            .iter()
            .map(|((key, seqno), value)| ((key.clone(), Reverse(seqno.0 + SHIFT)), value.clone()))
            .collect();
        let (table, twin) = (written(&bed, &model, &[]), written(&bed, &later, &[]));
        let (table, twin) = (bed.open(moved(&table)), bed.open(twin));
        let (meta, expected) = (table.meta(), twin.meta());
        assert_eq!(
            (meta.min_seqno, meta.max_seqno),
            (expected.min_seqno, expected.max_seqno)
        );
        let mut iter = table.iter(Arc::default());
        crate::iter::tests::check_against(&mut iter, &rows(&later), b"key00200", seed);
        for _ in 0..500 {
            let key = format!("key{:05}", rng.below(410)).into_bytes();
            let at = Seqno(SHIFT + rng.below(5100));
            assert_eq!(newest(&table, &key, at), newest(&twin, &key, at));
            let newer = |table: &Table| table.newest_of(&key, at).expect("it reads");
            assert_eq!(newer(&table), newer(&twin));
        }
        for since in [0, SHIFT, SHIFT + 2500, SHIFT + 4990] {
            assert_eq!(
                newer_keys(&table, Seqno(since)),
                newer_keys(&twin, Seqno(since))
            );
        }
        let seqnos = |table: &Arc<Table>| -> Vec<(Seqno, Seqno)> {
            let entries = table.index_entries(&[], None).expect("it reads");
            entries.iter().map(|e| (e.min_seqno, e.max_seqno)).collect()
        };
        assert_eq!(seqnos(&table), seqnos(&twin));
        assert_eq!(violations(&table), []);
    }
}

#[test]
fn range_deletes_are_moved_for_each_reader_of_the_table() {
    let bed = Bed::new(64 << 20);
    let delete = |start: &str, end: &str, seqno: u64| RangeDelete {
        start: start.into(),
        end: end.into(),
        seqno: Seqno(seqno),
    };
    let deletes = [delete("a", "f", 7), delete("c", "x", 3)];
    let meta = written(&bed, &sample(&mut Rng::new(1)), &deletes);
    // Readers of the version before have the table as it was, with the same blocks in the cache.
    let (before, table) = (bed.open(meta.clone()), bed.open(moved(&meta)));
    let mut twice = moved(&meta);
    twice.move_by(5);
    let twice = bed.open(twice);
    for _ in 0..2 {
        for (table, shift) in [(&before, 0), (&table, SHIFT), (&twice, SHIFT + 5)] {
            let set = table.range_deletes().expect("it reads");
            let newest = |key: &[u8]| set.newest_covering(key, Seqno(u64::MAX));
            assert_eq!(newest(b"b"), Some(Seqno(7 + shift)));
            assert_eq!(newest(b"p"), Some(Seqno(3 + shift)));
            assert_eq!(newest(b"x"), None);
            assert_eq!(violations(table), []);
        }
    }
    let plain = table.unshifted();
    assert_eq!(*plain.meta().as_ref(), meta);
}
