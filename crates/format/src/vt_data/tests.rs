use super::*;

type Row = (Vec<u8>, u64, EntryKind, u32, Vec<u8>);

fn sample() -> Vec<u8> {
    let mut builder = DataBuilder::new();
    builder.add(b"ab", Seqno(0x20), &Op::Put(b"\x01\x02\x03"));
    builder.add(b"ab", Seqno(0x1f), &Op::Delete);
    let upsert = Op::Upsert {
        function: 0x81,
        delta: b"\x04",
    };
    builder.add(b"ac", Seqno(0x22), &upsert);
    let mut out = Vec::new();
    builder.finish(&mut out);
    assert!(builder.is_empty());
    out
}

/// Every entry, or the first error.
fn rows(payload: &[u8]) -> Result<Vec<Row>, FormatError> {
    let layout = DataLayout::read(payload)?;
    for restart in 0..layout.restart_count() {
        layout.restart_key(payload, restart)?;
    }
    let mut at = layout.restart(payload, 0)?;
    let mut out = Vec::new();
    let mut key: Vec<u8> = Vec::new();
    while at < layout.entries_end() {
        let entry = layout.entry(payload, at)?;
        if entry.shared > key.len() {
            return Err(Reader::new(RECORD, payload).field("shared", "less", String::new()));
        }
        key.truncate(entry.shared);
        key.extend_from_slice(&payload[entry.suffix.clone()]);
        let value = payload[entry.value.clone()].to_vec();
        out.push((
            key.clone(),
            entry.seqno.0,
            entry.kind,
            entry.function,
            value,
        ));
        assert!(entry.next > at, "every entry takes room");
        at = entry.next;
    }
    Ok(out)
}

#[test]
fn bytes_are_pinned() {
    #[rustfmt::skip]
    let golden = [
        0x20, 0, 0, 0, 0, 0, 0, 0, // base
        0, 2, 1, 0, 3, b'a', b'b', 1, 2, 3, // shared, suffix, kind, seqno, value length, bytes
        2, 0, 2, 1, // delete
        1, 1, 3, 4, 0x81, 0x01, 1, b'c', 4, // upsert
        8, 0, 0, 0, // restart
        1, 0, 0, 0, // count
    ];
    assert_eq!(sample(), golden);
}

#[test]
fn entries_come_back() {
    let rows = rows(&sample()).unwrap();
    let key = |k: &[u8]| k.to_vec();
    assert_eq!(
        rows,
        [
            (key(b"ab"), 0x20, EntryKind::Put, 0, vec![1, 2, 3]),
            (key(b"ab"), 0x1f, EntryKind::Delete, 0, vec![]),
            (key(b"ac"), 0x22, EntryKind::Upsert, 0x81, vec![4]),
        ]
    );
}

#[test]
fn restarts_store_whole_keys() {
    let mut builder = DataBuilder::new();
    for n in 0..100u32 {
        builder.add(
            format!("key{n:05}").as_bytes(),
            Seqno(u64::MAX),
            &Op::Delete,
        );
    }
    let expected_len = builder.len_bytes();
    let mut out = Vec::new();
    builder.finish(&mut out);
    assert_eq!(out.len(), expected_len);
    let layout = DataLayout::read(&out).unwrap();
    assert_eq!(layout.restart_count(), 7);
    assert_eq!(
        layout.restart_key(&out, 6).unwrap(),
        (&b"key00096"[..], Seqno(u64::MAX))
    );
    assert_eq!(rows(&out).unwrap().len(), 100);
}

#[test]
fn no_cut_is_taken_for_the_whole() {
    let whole = sample();
    let expected = rows(&whole).unwrap();
    for len in 0..whole.len() {
        assert_ne!(
            rows(&whole[..len]).ok().as_ref(),
            Some(&expected),
            "cut at {len}"
        );
    }
}

#[test]
fn any_bytes_give_a_value_or_an_error() {
    let whole = sample();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = rows(&flipped);
    }
    let mut rng = stitch_base::random::Rng::new(7);
    for len in 0..500 {
        let mut bytes = vec![0; len % 64];
        rng.fill(&mut bytes);
        let _ = rows(&bytes);
        if let Some(last) = bytes.len().checked_sub(4) {
            bytes[last..].copy_from_slice(&[1, 0, 0, 0]);
            let _ = rows(&bytes);
        }
    }
}

#[test]
fn zigzag_takes_all_numbers() {
    for number in [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1] {
        assert_eq!(unzigzag(zigzag(number)), number);
    }
    assert_eq!(zigzag(u64::MAX), 1);
}
