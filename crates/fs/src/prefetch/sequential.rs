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
//! - Files that are read at the same time share [`AHEAD_BYTES_ALL`]: the more they are, the less is
//!   prefetched of each. A piece that there was no memory for is asked for again after the next
//!   [`RETRY_BYTES`].
//!
//! ```text
//!   |== read in order ==|== prefetched ==|---- up to 4 MiB ----|
//!                       ^ last.end       ^ last.prefetched
//! ```

use super::policy::{Load, LoadSpan};
use super::slots::Slots;
use std::ops::Range;
use stitch_base::Ino;
use stitch_db::Priority;

/// Size of a prefetched range: about as much as one read returns.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are read in order before any are prefetched.
const IN_ORDER_BYTES_MIN: u64 = 512 << 10;
/// Largest number of bytes prefetched ahead of the reader of one file.
const AHEAD_BYTES_MAX: u64 = 4 * PIECE_BYTES;
/// The same of all files, with the piece of each that is being read: no more than a store with 512
/// MiB of memory has room for.
const AHEAD_BYTES_ALL: u64 = 16 * PIECE_BYTES;
/// Bytes that are read after a piece was refused before it is asked for again.
const RETRY_BYTES: u64 = PIECE_BYTES / 4;
/// Requests of at least this length are mostly read ahead by the kernel, many at the same time.
const LONG_BYTES: u64 = 128 << 10;
/// A file is read now if it had one of this number of last reads.
const RECENT_READS: u64 = 64;
const _: () = assert!(
    AHEAD_BYTES_MAX >= PIECE_BYTES,
    "at least a piece is prefetched"
);
const _: () = assert!(
    AHEAD_BYTES_ALL >= AHEAD_BYTES_MAX,
    "one reader has its most"
);
const _: () = assert!(
    AHEAD_BYTES_MAX.is_multiple_of(PIECE_BYTES),
    "whole pieces are prefetched"
);
const _: () = assert!(
    RETRY_BYTES < PIECE_BYTES,
    "a piece that was refused is asked for again in time"
);

/// A read of `[offset, offset + len)` of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileRead {
    /// The number that its chunks are under.
    pub(super) contents: Ino,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LastRead {
    contents: u64,
    /// Where it ended.
    end: u64,
    /// Bytes that were read in order up to there.
    in_order_bytes: u64,
    /// All up to here was prefetched.
    prefetched: u64,
    /// There was no memory: nothing is asked for until a read ends here.
    asks_at: u64,
    /// Its number among all reads.
    number: u64,
}

/// Distance from the end of the last request within which one of `len` bytes follows it.
const fn near(len: u64) -> u64 {
    let count = if len < LONG_BYTES { 2 } else { 8 };
    count * len
}

/// The last reads of some files.
#[derive(Debug, Default)]
pub(super) struct FileReads {
    slots: Slots<LastRead>,
    /// Number of reads so far.
    count: u64,
}

impl FileReads {
    /// Notes a read. Returns loads of whole pieces that begin below the file's size, or nothing.
    pub(super) fn note(&mut self, read: &FileRead) -> Vec<Load> {
        let next = self.next_range(read);
        debug_assert_eq!((next.end - next.start) % PIECE_BYTES, 0, "whole pieces");
        debug_assert!(
            next.is_empty() || next.start < read.size,
            "pieces begin below the size"
        );
        let piece = usize::try_from(PIECE_BYTES).expect("a small number");
        let load = |start| Load {
            of: read.contents,
            span: LoadSpan::Bytes(start..start + PIECE_BYTES),
            beyond: None,
            priority: Priority::Soon,
        };
        next.step_by(piece).map(load).collect()
    }

    /// Returns the range to prefetch: whole pieces.
    fn next_range(&mut self, read: &FileRead) -> Range<u64> {
        self.count += 1;
        let FileRead {
            contents, offset, ..
        } = *read;
        let end = offset + read.len;
        let last = self.slots.of(contents);
        let follows = last.contents == contents.0 && last.end.abs_diff(offset) <= near(read.len);
        debug_assert!(read.len > 0, "something is read");
        if !follows {
            *last = LastRead {
                contents: contents.0,
                end,
                // The first bytes of a file are in order.
                in_order_bytes: if offset == 0 { read.len } else { 0 },
                number: self.count,
                ..LastRead::default()
            };
            return 0..0;
        }
        last.end = last.end.max(end);
        last.in_order_bytes = last.in_order_bytes.saturating_add(read.len);
        last.number = self.count;
        let last = *last;
        if last.in_order_bytes < IN_ORDER_BYTES_MIN || last.end < last.asks_at {
            return 0..0;
        }
        let depth = last.in_order_bytes.clamp(PIECE_BYTES, self.ahead_max());
        debug_assert!(depth <= AHEAD_BYTES_MAX, "bounded");
        // Pieces begin where requests do: each is then read by one request.
        let start = last.prefetched.max(last.end);
        let until = last.end.saturating_add(depth).min(read.size);
        if start >= until {
            return 0..0;
        }
        let until = start + (until - start).next_multiple_of(PIECE_BYTES);
        debug_assert!(start < until, "some bytes are prefetched");
        self.slots.of(contents).prefetched = until;
        debug_assert!(until - start <= AHEAD_BYTES_MAX + PIECE_BYTES, "bounded");
        start..until
    }

    /// Returns the largest number of bytes prefetched ahead of each reader.
    fn ahead_max(&self) -> u64 {
        let is_reader = |last: &&LastRead| {
            last.in_order_bytes >= IN_ORDER_BYTES_MIN && self.count - last.number < RECENT_READS
        };
        let readers = self.slots.all().filter(is_reader).count() as u64;
        debug_assert!(readers > 0, "the one that reads now");
        let each = (AHEAD_BYTES_ALL / readers).saturating_sub(PIECE_BYTES);
        each.clamp(PIECE_BYTES, AHEAD_BYTES_MAX)
    }

    /// Notes that there was no memory for the piece at an offset, nor for those behind it.
    pub(super) fn note_refused(&mut self, contents: Ino, offset: u64) {
        let last = self.slots.of(contents);
        if last.contents == contents.0 && offset < last.prefetched {
            last.prefetched = offset;
            last.asks_at = last.end.saturating_add(RETRY_BYTES);
        }
    }
}

#[cfg(test)]
mod tests;
