//! Sequential reads of files, and the range of each that comes next.
//!
//! Each request reads its part with a scan of its own, so no scan lasts long enough to read ahead.
//! The last read of a few files is kept. Where requests follow each other, the next megabytes are
//! prefetched, piece by piece, each piece once.
//!
//! - Nothing is prefetched before half a megabyte was read in order, nor after a request that does
//!   not follow the one before it.
//! - Requests that are served at the same time may arrive out of order. A request follows the last
//!   one if it begins within two of its lengths of where that ended, a long one within eight.
//!
//! ```text
//!   |== read in order ==|== prefetched ==|---- up to 4 MiB ----|
//!                       ^ last.end       ^ last.prefetched
//! ```

use super::slots::Slots;
use std::ops::Range;
use stitch_base::Ino;

/// Length of a piece.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are read in order before any are prefetched.
const IN_ORDER_BYTES_MIN: u64 = 512 << 10;
/// Largest number of bytes prefetched ahead of the reader of one file.
const AHEAD_BYTES_MAX: u64 = 4 * PIECE_BYTES;

/// Requests of at least this length are mostly read ahead by the kernel, many at the same time.
const LONG_BYTES: u64 = 128 << 10;

#[derive(Clone, Copy, Debug, Default)]
struct LastRead {
    ino: u64,
    /// Where it ended.
    end: u64,
    /// Bytes that were read in order up to there.
    in_order_bytes: u64,
    /// All up to here was prefetched.
    prefetched: u64,
}

/// Distance from the end of the last request within which one of `len` bytes follows it.
const fn near(len: u64) -> u64 {
    let count = if len < LONG_BYTES { 2 } else { 8 };
    count * len
}

/// The last reads of some files.
#[derive(Debug, Default)]
pub(super) struct LastReads {
    slots: Slots<LastRead>,
}

impl LastReads {
    /// Notes a read of `[offset, offset + len)` of a file. Returns the range to prefetch: whole
    /// pieces that begin below `size`, or nothing.
    pub(super) fn note(&self, ino: Ino, offset: u64, len: u64, size: u64) -> Range<u64> {
        let mut last = self.slots.of(ino).lock();
        let end = offset + len;
        let follows = last.ino == ino.0 && last.end.abs_diff(offset) <= near(len);
        if !follows {
            // The first bytes of a file are in order.
            let in_order_bytes = if offset == 0 { len } else { 0 };
            *last = LastRead {
                ino: ino.0,
                end,
                in_order_bytes,
                prefetched: 0,
            };
            return 0..0;
        }
        last.end = last.end.max(end);
        last.in_order_bytes = last.in_order_bytes.saturating_add(len);
        if last.in_order_bytes < IN_ORDER_BYTES_MIN {
            return 0..0;
        }
        let depth = last.in_order_bytes.clamp(PIECE_BYTES, AHEAD_BYTES_MAX);
        // Pieces begin where requests do: each is then read by one request.
        let start = last.prefetched.max(last.end);
        let until = last.end.saturating_add(depth).min(size);
        if start >= until {
            return 0..0;
        }
        let until = start + (until - start).next_multiple_of(PIECE_BYTES);
        last.prefetched = until;
        debug_assert!(until - start <= AHEAD_BYTES_MAX + PIECE_BYTES, "bounded");
        start..until
    }

    /// Returns the pieces of a range to prefetch.
    pub(super) fn pieces(next: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let count = (next.end - next.start) / PIECE_BYTES;
        (0..count).map(move |number| {
            let start = next.start + number * PIECE_BYTES;
            start..start + PIECE_BYTES
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);
    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 64 * MIB;

    #[test]
    fn each_piece_is_asked_for_once_and_before_its_read() {
        for len in [16 << 10, 128 << 10, MIB] {
            let reads = LastReads::default();
            let mut pieces = Vec::new();
            for offset in (0..SIZE / len).map(|number| number * len) {
                let next = reads.note(INO, offset, len, SIZE);
                assert!(next.is_empty() || next.start >= offset + len, "ahead");
                assert!(next.end <= offset + len + AHEAD_BYTES_MAX + PIECE_BYTES);
                pieces.extend(LastReads::pieces(next).map(|piece| piece.start / PIECE_BYTES));
            }
            let first = pieces[0];
            assert!(first <= 2, "{first}");
            let expected: Vec<u64> = (first..SIZE / PIECE_BYTES).collect();
            assert_eq!(pieces, expected);
        }
    }

    #[test]
    fn reads_here_and_there_ask_for_nothing() {
        let reads = LastReads::default();
        let mut at = 1u64;
        for _ in 0..20_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (at >> 33) % (SIZE / 8192) * 8192;
            assert_eq!(reads.note(INO, offset, 8192, SIZE), 0..0);
        }
    }

    #[test]
    fn a_seek_begins_anew() {
        let reads = LastReads::default();
        for offset in 0..8 {
            reads.note(INO, offset * MIB, MIB, SIZE);
        }
        assert_eq!(reads.note(INO, 40 * MIB, MIB, SIZE), 0..0);
        let next = reads.note(INO, 41 * MIB, MIB, SIZE);
        assert_eq!(next, 42 * MIB..43 * MIB);
    }

    /// Regression: one of eight concurrent requests was taken for a seek, so that prefetched pieces
    /// were read twice.
    #[test]
    fn requests_that_overtake_each_other_are_in_order() {
        let mut rng = stitch_base::random::Rng::new(1);
        for (at_a_time, len) in [(2, 16 << 10), (2, MIB), (8, 128 << 10), (8, MIB)] {
            let reads = LastReads::default();
            let mut pieces = Vec::new();
            for first in (0..SIZE / len).step_by(at_a_time) {
                let mut requests: Vec<u64> = (first..first + at_a_time as u64).collect();
                requests.sort_by_cached_key(|_| rng.next_u64());
                for number in requests {
                    let next = reads.note(INO, number * len, len, SIZE);
                    pieces.extend(LastReads::pieces(next).map(|piece| piece.start / MIB));
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
        let reads = LastReads::default();
        let mut at = 0;
        let mut pieces = Vec::new();
        // The kernel reads ahead like this of a program that reads 16 KiB at a time.
        for len in [64, 128, 256, 512]
            .map(|kib| kib << 10)
            .into_iter()
            .chain([MIB; 20])
        {
            pieces.extend(LastReads::pieces(reads.note(INO, at, len, SIZE)));
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
        let reads = LastReads::default();
        reads.note(INO, 0, MIB, 3 * MIB + 5);
        assert_eq!(reads.note(INO, MIB, MIB, 3 * MIB + 5), 2 * MIB..4 * MIB);
        assert_eq!(reads.note(INO, 2 * MIB, MIB, 3 * MIB + 5), 0..0);
    }
}
