//! Which files are read in order, and what of them comes next.
//!
//! Each request reads its part with a scan of its own, and so no scan goes on for long. What was read last
//! is remembered for a few files; where requests follow each other, the engine is told of the next
//! megabytes, a piece at a time, each once.
//!
//! - Nothing is asked for ahead before half a megabyte was read in order, and nothing at all after a
//!   request that does not follow the one before it.
//! - Requests that are served at the same time may come in the wrong order: one that lies within two of its
//!   lengths of where the last one ended follows it, a long one within eight.

use super::slots::Slots;
use std::ops::Range;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_db::Caching;

/// What the engine is told of at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// So much must have been read in order.
const IN_ORDER_BYTES_MIN: u64 = 512 << 10;
/// Most that is asked for ahead of one file.
const AHEAD_BYTES_MAX: u64 = 4 * PIECE_BYTES;

/// Requests from so many bytes on are mostly asked for ahead, many at the same time.
const LONG_BYTES: u64 = 128 << 10;

#[derive(Clone, Copy, Debug, Default)]
struct LastRead {
    ino: u64,
    /// Where it ended.
    end: u64,
    /// Bytes that were read in order up to there.
    in_order_bytes: u64,
    /// The engine was told of all up to here.
    told: u64,
}

/// How far from where the last request ended one of so many bytes follows it.
const fn near(len: u64) -> u64 {
    let count = if len < LONG_BYTES { 2 } else { 8 };
    count * len
}

/// The last reads of some files.
#[derive(Debug, Default)]
pub(crate) struct LastReads {
    slots: Slots<LastRead>,
    /// Whoever reads keeps what he has read.
    is_past_cache: AtomicBool,
}

impl LastReads {
    /// From now on what is read ahead goes past the cache.
    pub(crate) fn pass_cache(&self) {
        self.is_past_cache.store(true, Ordering::Relaxed);
    }

    pub(crate) fn caching(&self) -> Caching {
        match self.is_past_cache.load(Ordering::Relaxed) {
            true => Caching::Past,
            false => Caching::IfRoom,
        }
    }

    /// Notes a read of `[offset, offset + len)` of a file. Answers what should be read ahead: whole pieces that
    /// begin below `size`, or nothing.
    pub(crate) fn note(&self, ino: Ino, offset: u64, len: u64, size: u64) -> Range<u64> {
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
                told: 0,
            };
            return 0..0;
        }
        last.end = last.end.max(end);
        last.in_order_bytes = last.in_order_bytes.saturating_add(len);
        if last.in_order_bytes < IN_ORDER_BYTES_MIN {
            return 0..0;
        }
        let depth = last.in_order_bytes.clamp(PIECE_BYTES, AHEAD_BYTES_MAX);
        // Pieces begin where requests do: each is then taken by one, and by the time that its end is, all of it.
        let start = last.told.max(last.end);
        let until = last.end.saturating_add(depth).min(size);
        if start >= until {
            return 0..0;
        }
        let until = start + (until - start).next_multiple_of(PIECE_BYTES);
        last.told = until;
        debug_assert!(until - start <= AHEAD_BYTES_MAX + PIECE_BYTES, "bounded");
        start..until
    }

    /// The pieces of what should be read ahead.
    pub(crate) fn pieces(ahead: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let count = (ahead.end - ahead.start) / PIECE_BYTES;
        (0..count).map(move |number| {
            let start = ahead.start + number * PIECE_BYTES;
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
            let mut told = Vec::new();
            for offset in (0..SIZE / len).map(|number| number * len) {
                let ahead = reads.note(INO, offset, len, SIZE);
                assert!(ahead.is_empty() || ahead.start >= offset + len, "ahead");
                assert!(ahead.end <= offset + len + AHEAD_BYTES_MAX + PIECE_BYTES);
                told.extend(LastReads::pieces(ahead).map(|piece| piece.start / PIECE_BYTES));
            }
            let first = told[0];
            assert!(first <= 2, "{first}");
            let expected: Vec<u64> = (first..SIZE / PIECE_BYTES).collect();
            assert_eq!(told, expected);
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
        let ahead = reads.note(INO, 41 * MIB, MIB, SIZE);
        assert_eq!(ahead, 42 * MIB..43 * MIB);
    }

    /// They were no more than two at a time, and of eight one was taken for a seek: what had been asked for ahead was
    /// read once more.
    #[test]
    fn requests_that_overtake_each_other_are_in_order() {
        let mut rng = stitch_base::random::Rng::new(1);
        for (at_a_time, len) in [(2, 16 << 10), (2, MIB), (8, 128 << 10), (8, MIB)] {
            let reads = LastReads::default();
            let mut told = Vec::new();
            for first in (0..SIZE / len).step_by(at_a_time) {
                let mut requests: Vec<u64> = (first..first + at_a_time as u64).collect();
                requests.sort_by_cached_key(|_| rng.next_u64());
                for number in requests {
                    let ahead = reads.note(INO, number * len, len, SIZE);
                    told.extend(LastReads::pieces(ahead).map(|piece| piece.start / MIB));
                }
            }
            assert!(told.is_sorted_by(|a, b| a < b), "each once: {told:?}");
            assert!(told.len() as u64 >= SIZE / MIB * 3 / 4, "{told:?}");
        }
    }

    /// They began at whole megabytes: each was taken by two requests, and what the first had left was gone if the second
    /// came before it.
    #[test]
    fn pieces_are_what_requests_will_be() {
        let reads = LastReads::default();
        let mut at = 0;
        let mut told = Vec::new();
        // As the kernel reads ahead of who reads by 16 KiB.
        for len in [64, 128, 256, 512]
            .map(|kib| kib << 10)
            .into_iter()
            .chain([MIB; 20])
        {
            told.extend(LastReads::pieces(reads.note(INO, at, len, SIZE)));
            at += len;
        }
        let phase = (64 + 128 + 256 + 512) << 10;
        assert!(told.len() >= 20, "{}", told.len());
        assert!(
            told.iter().all(|piece| piece.start % MIB == phase % MIB),
            "{told:?}"
        );
        assert!(told.windows(2).all(|pair| pair[0].end == pair[1].start));
    }

    #[test]
    fn nothing_beyond_the_end_is_asked_for() {
        let reads = LastReads::default();
        reads.note(INO, 0, MIB, 3 * MIB + 5);
        assert_eq!(reads.note(INO, MIB, MIB, 3 * MIB + 5), 2 * MIB..4 * MIB);
        assert_eq!(reads.note(INO, 2 * MIB, MIB, 3 * MIB + 5), 0..0);
    }
}
