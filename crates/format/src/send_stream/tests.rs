//! Streams and tokens: their bytes, and what is refused.

use super::*;
use crate::table::testing::{dump, refuses_damage};
use proptest::prelude::*;

fn head() -> SendHead {
    SendHead {
        snapshot: SendId([7; 16]),
        base: Some(SendId([8; 16])),
        created_ns: 1_700_000_000_123_456_789,
        steps: 5,
        start: SendPosition { step: 2, offset: 3 },
        is_partial: true,
    }
}

/// One record of each kind but the last.
fn samples() -> Vec<SendRecord<'static>> {
    let path: &[u8] = b"d/f\xff";
    vec![
        SendRecord::Begin {
            snapshot: b"tue",
            base: b"mon",
        },
        SendRecord::Detach { path, object: 300 },
        SendRecord::Remove { path },
        SendRecord::RemoveDir { path },
        SendRecord::Detached,
        SendRecord::Place { path, object: 300 },
        SendRecord::MakeDir { path },
        SendRecord::MakeFile { path },
        SendRecord::MakeSymlink {
            path,
            target: b"../t",
        },
        SendRecord::MakeNode {
            path,
            mode: 0o020_000,
            device: 0x501,
        },
        SendRecord::Link {
            path,
            existing: b"e",
        },
        SendRecord::Write {
            path,
            offset: 4096,
            data: b"abc",
        },
        SendRecord::Hole {
            path,
            offset: 4096,
            len_bytes: 1 << 40,
        },
        SendRecord::Size {
            path,
            size: 1 << 41,
        },
        SendRecord::Owner {
            path: b"",
            user: 1000,
            group: u32::MAX,
        },
        SendRecord::SetXattr {
            path,
            name: b"user.a",
            value: b"\0",
        },
        SendRecord::DropXattr {
            path,
            name: b"user.b",
        },
        SendRecord::Attrs {
            path,
            mode: 0o104_755,
            accessed_ns: -1,
            modified_ns: 1,
        },
    ]
}

/// A stream of the samples: its head, and its records.
fn stream() -> ([u8; SEND_HEAD_BYTES], Vec<Vec<u8>>) {
    let head = head().encode();
    let mut encoder = SendEncoder::new(&head);
    let mut records: Vec<Vec<u8>> = Vec::new();
    for (step, record) in (2..).zip(samples()) {
        let mut out = Vec::new();
        encoder.record(step, &record, &mut out);
        records.push(out);
    }
    let mut out = Vec::new();
    encoder.end(99, &mut out);
    records.push(out);
    (head, records)
}

fn read<'a>(
    decoder: &mut SendDecoder,
    record: &'a [u8],
) -> Result<(u64, SendRecord<'a>), FormatError> {
    let Some((header, body)) = record.split_first_chunk() else {
        return Err(HEADER_TABLE.wrong("length", "a header", record.len()));
    };
    if decoder.body_len(header)? != body.len() {
        return Err(HEADER_TABLE.wrong("length", "that of the body", body.len()));
    }
    decoder.record(header, body)
}

#[test]
fn the_bytes_of_a_head_are_pinned() {
    let bytes = head().encode();
    let expected = "magic_at 7374697463687364\nversion_at 01000000\nflags 03000000\n\
        checksum 4acb6ce2\nreserved 00000000\nsnapshot 07070707070707070707070707070707\n\
        base 08080808080808080808080808080808\ncreated 15cd853dfe9c9717\n\
        steps 0500000000000000\nstart_step 0200000000000000\nstart_offset 0300000000000000\n";
    assert_eq!(dump(&HEAD_TABLE, &bytes), expected);
}

#[test]
fn the_bytes_of_records_are_pinned() {
    let (_, records) = stream();
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let dumped: String = records.iter().map(|record| hex(record) + "\n").collect();
    let golden = include_str!("golden.txt");
    if std::env::var_os("UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/send_stream/golden.txt");
        std::fs::write(path, &dumped).unwrap();
    }
    assert_eq!(dumped, golden, "streams of version 1 must stay readable");
}

#[test]
fn records_come_back() {
    let (head, records) = stream();
    assert_eq!(SendHead::decode(&head), Ok(self::head()));
    let mut decoder = SendDecoder::new(&head);
    for ((step, expected), bytes) in (2..).zip(samples()).zip(&records) {
        assert_eq!(read(&mut decoder, bytes), Ok((step, expected)));
    }
    let (_, end) = read(&mut decoder, &records[records.len() - 1]).unwrap();
    assert!(
        matches!(end, SendRecord::End { records: 18, .. }),
        "{end:?}"
    );
}

#[test]
fn damage_to_any_record_or_to_the_head_is_refused() {
    let (head, records) = stream();
    refuses_damage(&head, |bytes| {
        bytes
            .try_into()
            .is_ok_and(|bytes| SendHead::decode(bytes).is_ok())
    });
    let mut decoder = SendDecoder::new(&head);
    for record in &records {
        refuses_damage(record, |bytes| read(&mut decoder.clone(), bytes).is_ok());
        read(&mut decoder, record).unwrap();
    }
}

#[test]
fn records_that_are_missing_doubled_or_foreign_are_refused() {
    let (head, records) = stream();
    let mut decoder = SendDecoder::new(&head);
    assert!(read(&mut decoder.clone(), &records[1]).is_err(), "missing");
    read(&mut decoder, &records[0]).unwrap();
    assert!(read(&mut decoder.clone(), &records[0]).is_err(), "doubled");
    let other = SendHead {
        created_ns: 0,
        ..self::head()
    }
    .encode();
    assert!(read(&mut SendDecoder::new(&other), &records[0]).is_err());
}

#[test]
fn a_newer_stream_is_refused_by_its_version_whatever_else_it_has() {
    let mut bytes = [0xaa; SEND_HEAD_BYTES];
    bytes[..8].copy_from_slice(b"stitchsd");
    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    let error = SendHead::decode(&bytes).unwrap_err();
    let expected = FormatError::Newer {
        record: HEAD_TABLE.name,
        found: 2,
        supported: 1,
    };
    assert_eq!(error, expected);
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    for path in [
        &b"/a"[..],
        b"a/",
        b"a//b",
        b"..",
        b"a/../b",
        b".",
        b"a\0",
        &[b'x'; 256],
    ] {
        let mut bytes = Vec::new();
        body(&SendRecord::Remove { path }, &mut bytes);
        assert!(parse(3, &bytes).is_err(), "{path:?}");
    }
    let mut bytes = Vec::new();
    body(&SendRecord::Remove { path: b"" }, &mut bytes);
    assert!(parse(3, &bytes).is_err(), "the directory itself");
}

#[test]
fn tokens_are_pinned_come_back_and_refuse_damage() {
    let token = SendToken {
        snapshot: SendId([7; 16]),
        base: Some(SendId([8; 16])),
        is_partial: false,
        position: SendPosition {
            step: 5,
            offset: 4096,
        },
    };
    let text = token.encode();
    let start = format!("01000000{}{}01000000", "07".repeat(16), "08".repeat(16));
    let expected = format!("{start}05000000000000000010000000000000");
    assert_eq!(&text[..112], expected);
    assert_eq!(SendToken::decode(&format!("{text}\n")), Ok(token));
    for at in 0..text.len() {
        let mut damaged = text.clone().into_bytes();
        damaged[at] = if damaged[at] == b'f' { b'0' } else { b'f' };
        assert!(SendToken::decode(&String::from_utf8(damaged).unwrap()).is_err());
        assert!(SendToken::decode(&text[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn identities_differ_by_name_directory_and_time() {
    let id = SendId::of(b"mon", 1, 5);
    assert_eq!(id, SendId::of(b"mon", 1, 5));
    for other in [
        SendId::of(b"tue", 1, 5),
        SendId::of(b"mon", 2, 5),
        SendId::of(b"mon", 1, 6),
    ] {
        assert_ne!(id, other);
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_record_or_an_error(kind: u8, bytes: Vec<u8>) {
        if let Ok(record) = parse(kind, &bytes) {
            let mut again = Vec::new();
            body(&record, &mut again);
            prop_assert_eq!(again, bytes, "one encoding");
        }
    }
}
