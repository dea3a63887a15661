//! How batches are divided.

use super::*;
use stitch_kv::Batch;

const A: TreeId = TreeId(1);
const B: TreeId = TreeId(2);

/// The same batch, to which all values are lent.
fn lent<'a>(batch: &'a Batch<'_>) -> Batch<'a> {
    let mut lent = Batch::new();
    for (tree, message) in batch.messages() {
        match message {
            Message::Put { key, value } => lent.put_borrowed(tree, key, value),
            other => lent.push(tree, other),
        }
    }
    lent
}

/// Parts as text: `3` for messages, `d2` for a run of two puts.
fn parts(batch: &Batch, bytes_min: u64) -> String {
    let parts = divide(batch, bytes_min, &mut |_| None);
    let lens = |parts: &[Part]| -> Vec<(u64, u64, Option<Direct>)> {
        let len = |part: &Part| (part.len_bytes(), part.count, part.direct);
        parts.iter().map(len).collect()
    };
    let lent = lent(batch);
    let of_lent = divide(&lent, bytes_min, &mut |_| None);
    assert_eq!(lens(&of_lent), lens(&parts), "wherever values are");
    let mut at = Position::default();
    let mut count = 0;
    for part in &parts {
        assert_eq!(part.place.start, at, "parts follow each other");
        at = part.place.end;
        count += part.count;
    }
    let len = at.since(&Position::default());
    assert_eq!(len, batch.len_bytes(), "all bytes are in a part");
    assert_eq!(count, batch.count() as u64, "all messages are in a part");
    let name = |part: &Part| {
        format!(
            "{}{}",
            if part.direct.is_some() { "d" } else { "" },
            part.count
        )
    };
    parts.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn long_runs_of_puts_are_parts_of_their_own() {
    let value = [7; 300];
    let mut batch = Batch::new();
    batch.delete(A, b"x");
    batch.put(A, b"a", &value);
    batch.put(A, b"b", &value);
    batch.put(A, b"b", &value);
    batch.put(B, b"c", &value);
    batch.delete(B, b"d");
    batch.put(B, b"e", &value);
    assert_eq!(parts(&batch, u64::MAX), "7");
    assert_eq!(parts(&batch, 400), "1 d2 4");
    assert_eq!(parts(&batch, 200), "1 d2 d1 d1 1 d1");
}

#[test]
fn an_empty_batch_has_no_parts() {
    assert_eq!(parts(&Batch::new(), 0), "");
}

#[test]
fn keys_that_go_back_end_a_run() {
    let mut batch = Batch::new();
    for key in [b"a", b"b", b"a", b"c"] {
        batch.put(A, key, &[0; 260]);
    }
    assert_eq!(parts(&batch, 520), "d2 d2");
    assert_eq!(parts(&batch, 560), "4");
}

#[test]
fn values_that_are_short_beside_their_keys_go_through_the_log() {
    let mut batch = Batch::new();
    batch.put(A, b"a", &[0; 300]);
    batch.put(A, &[b'b'; 100], &[0; 300]);
    batch.put(A, b"c", &[0; 300]);
    assert_eq!(parts(&batch, 0), "d1 1 d1");
}

#[test]
fn what_is_not_finished_goes_through_the_log() {
    let value = [7; 300];
    let mut batch = Batch::new();
    batch.put(A, b"a", &value);
    batch.put(A, b"b", &value);
    batch.put_partial(A, b"c", &value);
    batch.put(A, b"d", &value);
    batch.put(B, b"e", &value);
    let mut followed = Vec::new();
    let parts = divide(&batch, 0, &mut |puts| {
        followed.push((puts.last.to_vec(), puts.value_bytes_min));
        None
    });
    let kinds: Vec<_> = parts
        .iter()
        .map(|p| (p.count, p.direct.is_some()))
        .collect();
    assert_eq!(kinds, [(2, true), (1, false), (1, true), (1, true)]);
    let ends = [(&b"c"[..], 300), (b"d", 300), (b"e", 300)];
    assert_eq!(
        followed,
        ends.map(|(key, len)| (key.to_vec(), len)),
        "a stream goes on with it"
    );
    batch.clear();
    batch.put_partial(A, b"a", &[7; 512]);
    assert_eq!(divide(&batch, 0, &mut |_| None)[0].direct, None);
    // It is short of this without the one that is not finished.
    batch.clear();
    batch.put(A, b"a", &value);
    batch.put_partial(A, b"b", &value);
    assert_eq!(divide(&batch, 400, &mut |_| None).len(), 1);
}
