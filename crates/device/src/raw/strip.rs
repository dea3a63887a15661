//! Short blocks through the page cache, and from there to the device in strips.
//!
//! A direct write returns when the device has answered: after 60 to 100 us for 4 KiB, and little
//! more for 64 KiB. A write into the page cache takes 2 us, and a killed process does not lose it
//! either. As soon as a strip of neighbouring blocks is full, the kernel is told to write it, so
//! that a sync finds little left to do. Once a strip is written, it is dropped from the page
//! cache.

use super::behind;
use crate::positioned;
use std::fs::File;
use std::ops::Range;

/// From this length on, blocks are written directly: no caller waits for asynchronous writes.
const LONG_BYTES: u64 = behind::LEN_MIN as u64;
/// Length of a strip. Strips begin at multiples of it.
const STRIP_BYTES: u64 = 256 << 10;

/// Reports whether a write is too short to wait for the device. A partial page counts as short,
/// although its rest may have to be read first: that takes no longer.
pub(super) fn is_short(range: &Range<u64>) -> bool {
    let len_bytes = range.end - range.start;
    (1..LONG_BYTES).contains(&len_bytes)
}

/// Starts the write-out of the strip that ends within a range just written, and drops the strip
/// before it from the page cache.
pub(super) fn begin(file: &File, written: &Range<u64>) {
    debug_assert!(is_short(written), "a part of a strip or two");
    let end = written.end / STRIP_BYTES * STRIP_BYTES;
    if end > written.start {
        let start = end.saturating_sub(2 * STRIP_BYTES);
        // This starts writing dirty pages, and drops clean ones.
        positioned::forget(file, &(start..end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn less_than_goes_on_behind_its_writer_is_short() {
        for (range, expected) in [
            (0..4 * KIB, true),
            (8 * KIB..68 * KIB, true),
            (8 * KIB..72 * KIB, false),
            (0..512, true),
            (1000..5 * KIB, true),
            (4 * KIB..4 * KIB, false),
        ] {
            assert_eq!(is_short(&range), expected, "{range:?}");
        }
    }
}
