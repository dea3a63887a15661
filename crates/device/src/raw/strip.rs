//! Short blocks through the page cache, and from there to the device in strips.
//!
//! A write past the page cache ends when the device has answered, 60 to 100 us for 4 KiB and not much more for
//! 64. Into the page cache it takes 2 us, and a killed process loses nothing either. What follows each other there is on its
//! way together as soon as a strip is full, so that a sync finds little left to do; once it is written,
//! the page cache lets go of it.

use super::behind;
use crate::positioned;
use std::fs::File;
use std::ops::Range;

/// From so many bytes on, blocks go past the page cache, where nobody need wait for them either.
const LONG_BYTES: u64 = behind::LEN_MIN as u64;
/// Length of a strip, which begins at a multiple of it.
const STRIP_BYTES: u64 = 256 << 10;

/// True for what is not worth waiting for the device. Of a part of a page the rest may have to be read first, which takes
/// no longer than that.
pub(super) fn is_short(range: &Range<u64>) -> bool {
    let len_bytes = range.end - range.start;
    (1..LONG_BYTES).contains(&len_bytes)
}

/// Has the kernel begin to write the strip that ends within a range which was just written, and let go of the one
/// before.
pub(super) fn begin(file: &File, written: &Range<u64>) {
    debug_assert!(is_short(written), "a part of a strip or two");
    let end = written.end / STRIP_BYTES * STRIP_BYTES;
    if end > written.start {
        let start = end.saturating_sub(2 * STRIP_BYTES);
        // This begins to write what is not written, and forgets what is.
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
