use super::*;

const INO: Ino = Ino(7);
const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// Notes a read of a file. Returns the range to prefetch.
fn note_of(reads: &mut FileReads, contents: Ino, offset: u64, len: u64, size: u64) -> Range<u64> {
    reads.next_range(&FileRead {
        contents,
        offset,
        len,
        size,
    })
}

/// The same. Returns the pieces that are loaded.
fn pieces_of(reads: &mut FileReads, offset: u64, len: u64) -> Vec<Range<u64>> {
    let loads = reads.note(&FileRead {
        contents: INO,
        offset,
        len,
        size: SIZE,
    });
    let pieces = loads.into_iter().map(|load| match load.span {
        LoadSpan::Bytes(bytes) => bytes,
        LoadSpan::Files(_) | LoadSpan::Names => panic!("pieces of a file"),
    });
    pieces.collect()
}

fn note(reads: &mut FileReads, offset: u64, len: u64, size: u64) -> Range<u64> {
    note_of(reads, INO, offset, len, size)
}

#[test]
fn each_piece_is_asked_for_once_and_before_its_read() {
    for len in [16 << 10, 128 << 10, MIB] {
        let mut reads = FileReads::default();
        let mut pieces = Vec::new();
        for offset in (0..SIZE / len).map(|number| number * len) {
            for piece in pieces_of(&mut reads, offset, len) {
                assert!(piece.start >= offset + len, "ahead");
                assert!(piece.end <= offset + len + AHEAD_BYTES_MAX + PIECE_BYTES);
                pieces.push(piece.start / PIECE_BYTES);
            }
        }
        let first = pieces[0];
        assert!(first <= 2, "{first}");
        let expected: Vec<u64> = (first..SIZE / PIECE_BYTES).collect();
        assert_eq!(pieces, expected);
    }
}

#[test]
fn reads_here_and_there_ask_for_nothing() {
    let mut reads = FileReads::default();
    let mut at = 1u64;
    for _ in 0..20_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (at >> 33) % (SIZE / 8192) * 8192;
        assert_eq!(note(&mut reads, offset, 8192, SIZE), 0..0);
    }
}

#[test]
fn a_seek_begins_anew() {
    let mut reads = FileReads::default();
    for offset in 0..8 {
        note(&mut reads, offset * MIB, MIB, SIZE);
    }
    assert_eq!(note(&mut reads, 40 * MIB, MIB, SIZE), 0..0);
    let next = note(&mut reads, 41 * MIB, MIB, SIZE);
    assert_eq!(next, 42 * MIB..43 * MIB);
}

/// Regression: one of eight concurrent requests was taken for a seek, so that prefetched pieces
/// were read twice.
#[test]
fn requests_that_overtake_each_other_are_in_order() {
    let mut rng = stitch_base::random::Rng::new(1);
    for (at_a_time, len) in [(2, 16 << 10), (2, MIB), (8, 128 << 10), (8, MIB)] {
        let mut reads = FileReads::default();
        let mut pieces = Vec::new();
        for first in (0..SIZE / len).step_by(at_a_time) {
            let mut requests: Vec<u64> = (first..first + at_a_time as u64).collect();
            requests.sort_by_cached_key(|_| rng.next_u64());
            for number in requests {
                let next = pieces_of(&mut reads, number * len, len);
                pieces.extend(next.into_iter().map(|piece| piece.start / MIB));
            }
        }
        assert!(pieces.is_sorted_by(|a, b| a < b), "each once: {pieces:?}");
        assert!(pieces.len() as u64 >= SIZE / MIB * 3 / 4, "{pieces:?}");
    }
}

/// Regression: pieces began at whole megabytes, so that each was read by two requests. What the
/// first one left was gone if the second came before it.
#[test]
fn pieces_are_what_requests_will_be() {
    let mut reads = FileReads::default();
    let mut at = 0;
    let mut pieces = Vec::new();
    // The kernel reads ahead like this of a program that reads 16 KiB at a time.
    for len in [64, 128, 256, 512]
        .map(|kib| kib << 10)
        .into_iter()
        .chain([MIB; 20])
    {
        pieces.extend(pieces_of(&mut reads, at, len));
        at += len;
    }
    let phase = (64 + 128 + 256 + 512) << 10;
    assert!(pieces.len() >= 20, "{}", pieces.len());
    assert!(
        pieces.iter().all(|piece| piece.start % MIB == phase % MIB),
        "{pieces:?}"
    );
    assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn nothing_beyond_the_end_is_asked_for() {
    let mut reads = FileReads::default();
    note(&mut reads, 0, MIB, 3 * MIB + 5);
    assert_eq!(note(&mut reads, MIB, MIB, 3 * MIB + 5), 2 * MIB..4 * MIB);
    assert_eq!(note(&mut reads, 2 * MIB, MIB, 3 * MIB + 5), 0..0);
}

#[test]
fn readers_at_the_same_time_share_what_is_prefetched() {
    for (readers, depth) in [(1, 4), (3, 4), (4, 3), (8, 1), (40, 1)] {
        let mut reads = FileReads::default();
        let mut ahead = 0;
        for at in 0..16 {
            for ino in 0..readers {
                let next = note_of(&mut reads, Ino(100 + ino), at * MIB, MIB, SIZE);
                if at > 8 {
                    ahead = next.end.saturating_sub((at + 1) * MIB).max(ahead);
                }
            }
        }
        assert_eq!(ahead, depth * MIB, "{readers} readers");
    }
}

#[test]
fn pieces_without_memory_are_asked_for_again() {
    let mut reads = FileReads::default();
    let mut note = |at: u64| note_of(&mut reads, INO, at * MIB, MIB, SIZE);
    for at in 0..3 {
        note(at);
    }
    let next = note(3);
    assert_eq!(next, 6 * MIB..8 * MIB);
    reads.note_refused(INO, next.start);
    let mut note = |at: u64| note_of(&mut reads, INO, at * MIB, MIB, SIZE);
    assert_eq!(note(4), 6 * MIB..9 * MIB);
    reads.note_refused(INO, 8 * MIB);
    let eighth = MIB / 8;
    assert_eq!(note_of(&mut reads, INO, 5 * MIB, eighth, SIZE), 0..0);
    let next = note_of(&mut reads, INO, 5 * MIB + eighth, eighth, SIZE);
    assert_eq!(next, 8 * MIB..10 * MIB);
    // What another file was refused changes nothing.
    reads.note_refused(Ino(INO.0 + 64), 0);
    assert_eq!(
        note_of(&mut reads, INO, 6 * MIB, MIB, SIZE),
        10 * MIB..11 * MIB
    );
}
