//! Changes of a file's contents that are not in the file yet, in memory.
//!
//! ```text
//!   file before   |aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa|
//!   kept          |-------------------------|               cut here since the start
//!   extents            |BBBBBB|         |CCCCCCCC|
//!   size          |----------------------------------------------|
//!   contents      |aaaaBBBBBBaaaaaaaaaaaCCCCCCCC0000000000000000|
//! ```
//!
//! Invariants:
//! - extents are not empty, and do not overlap or reach beyond the size;
//! - `kept` is not above the size that the file had at the start, nor above any later one.

use crate::data::FILE_BYTES_MAX;
use std::collections::BTreeMap;
use std::ops::Range;

/// Written extents and the size of a file, above the contents that it had at the start.
#[derive(Clone, Debug)]
pub(crate) struct Overlay {
    /// Bytes of the file before this offset are still part of it.
    kept: u64,
    size: u64,
    extents: BTreeMap<u64, Vec<u8>>,
    /// Bytes in all extents.
    bytes: u64,
}

impl Overlay {
    /// Changes nothing of a file of `size` bytes.
    pub(crate) const fn new(size: u64) -> Self {
        debug_assert!(size <= FILE_BYTES_MAX, "the size of a file");
        Self {
            kept: size,
            size,
            extents: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Checks the invariants, as far as that takes no walk over all extents.
    fn check(&self) {
        debug_assert!(self.kept <= self.size, "what is kept is below the size");
        debug_assert!(
            self.extents.len() as u64 <= self.bytes,
            "extents are not empty"
        );
        let last = self.extents.last_key_value();
        let end = last.map_or(0, |(&at, bytes)| at + bytes.len() as u64);
        debug_assert!(end <= self.size, "extents end within the size");
        debug_assert!(last.is_some() || self.bytes == 0, "bytes are in extents");
    }

    /// Size of the file with the changes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the file before this offset are part of the contents, below the extents.
    pub(crate) const fn kept(&self) -> u64 {
        self.kept
    }

    /// Number of extents, and of bytes in them.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.extents.len() as u64, self.bytes)
    }

    /// Extents in the order of their offsets.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.extents.iter().map(|(&at, bytes)| (at, &bytes[..]))
    }

    /// Reports whether a byte of a range was written.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        debug_assert!(range.start <= range.end, "a range of bytes");
        let before = self.extents.range(..range.end).next_back();
        before
            .is_some_and(|(&at, bytes)| !range.is_empty() && at + bytes.len() as u64 > range.start)
    }

    /// Reports whether a byte of a range is different from that of the file, or may be.
    pub(crate) fn touches(&self, range: &Range<u64>) -> bool {
        debug_assert!(range.start <= range.end, "a range of bytes");
        range.end > self.kept || self.overlaps(range)
    }

    /// Replaces bytes from `at` on. The end is a valid offset.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = at + data.len() as u64;
        debug_assert!(end <= FILE_BYTES_MAX, "the end is a valid offset");
        self.remove(at..end);
        self.bytes += data.len() as u64;
        self.size = self.size.max(end);
        match self.extents.range_mut(..at).next_back() {
            Some((&from, bytes)) if from + bytes.len() as u64 == at => {
                bytes.extend_from_slice(data)
            }
            _ => {
                self.extents.insert(at, data.to_vec());
            }
        }
        debug_assert!(self.overlaps(&(at..end)), "it was written");
        debug_assert!(self.size >= end, "the size has all that was written");
        self.check();
    }

    /// Sets the size. What is cut is gone: growing again shows zeros.
    pub(crate) fn resize(&mut self, size: u64) {
        debug_assert!(size <= FILE_BYTES_MAX, "a valid size");
        if size < self.size {
            self.remove(size..u64::MAX);
        }
        self.kept = self.kept.min(size);
        debug_assert!(self.kept <= size, "what is kept is below the size");
        debug_assert!(!self.overlaps(&(size..u64::MAX)), "what was cut is gone");
        self.size = size;
        self.check();
    }

    /// Copies what was written over `buffer`, which begins at `offset` of the file.
    pub(crate) fn patch(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset + buffer.len() as u64;
        debug_assert!(end <= FILE_BYTES_MAX, "the buffer is a part of a file");
        let first = self.extents.range(..=offset).next_back();
        let from = first.map_or(offset, |(&at, _)| at);
        for (&at, bytes) in self.extents.range(from..end) {
            let start = at.max(offset);
            let stop = (at + bytes.len() as u64).min(end);
            debug_assert!(at < end, "extents begin below the end of the buffer");
            if start < stop {
                let source = &bytes[index(start - at)..index(stop - at)];
                buffer[index(start - offset)..index(stop - offset)].copy_from_slice(source);
            }
        }
    }

    /// Removes a range from all extents.
    fn remove(&mut self, range: Range<u64>) {
        debug_assert!(range.start < range.end, "a range that is not empty");
        let Range { start, end } = range;
        if let Some((&at, bytes)) = self.extents.range_mut(..start).next_back()
            && at + bytes.len() as u64 > start
        {
            let cut = bytes.split_off(index(start - at));
            self.bytes -= cut.len() as u64;
            self.keep_behind(start, &cut, end);
        }
        while let Some((&at, _)) = self.extents.range(start..end).next() {
            let cut = self.extents.remove(&at).unwrap_or_default();
            self.bytes -= cut.len() as u64;
            self.keep_behind(at, &cut, end);
        }
        debug_assert!(!self.overlaps(&(start..end)), "the range is free");
    }

    /// Adds what lies at `end` and behind of bytes from `at` on.
    fn keep_behind(&mut self, at: u64, bytes: &[u8], end: u64) {
        debug_assert!(at < end, "the bytes begin within the range that is removed");
        if at + bytes.len() as u64 > end {
            let rest = &bytes[index(end - at)..];
            debug_assert!(!rest.is_empty(), "an extent is not empty");
            self.bytes += rest.len() as u64;
            self.extents.insert(end, rest.to_vec());
        }
    }
}

/// A distance within an extent or a buffer.
fn index(distance: u64) -> usize {
    usize::try_from(distance).expect("within memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: &[u8] = b"abcdefghijklmnopqrst";

    fn contents(overlay: &Overlay) -> Vec<u8> {
        let kept = index(overlay.kept()).min(BASE.len());
        let mut out = BASE[..kept].to_vec();
        out.resize(index(overlay.size()), 0);
        overlay.patch(0, &mut out);
        out
    }

    #[test]
    fn a_write_over_others_takes_their_middle_and_ends() {
        let mut overlay = Overlay::new(20);
        overlay.write(2, b"BBBBBB");
        overlay.write(10, b"CCCC");
        overlay.write(4, b"dd");
        assert_eq!(contents(&overlay), b"abBBddBBijCCCCopqrst");
        overlay.write(7, b"EEEEE");
        assert_eq!(contents(&overlay), b"abBBddBEEEEECCopqrst");
        assert_eq!(overlay.usage().1, 12);
    }

    #[test]
    fn what_was_cut_is_zeros_when_the_file_grows_again() {
        let mut overlay = Overlay::new(20);
        overlay.write(6, b"BBBB");
        overlay.resize(8);
        overlay.resize(12);
        assert_eq!(contents(&overlay), b"abcdefBB\0\0\0\0");
        assert_eq!((overlay.kept(), overlay.usage()), (8, (1, 2)));
    }

    #[test]
    fn a_range_overlaps_only_what_was_written() {
        let mut overlay = Overlay::new(20);
        overlay.write(4, b"BB");
        assert!(overlay.overlaps(&(0..5)) && overlay.overlaps(&(5..9)));
        assert!(!overlay.overlaps(&(0..4)) && !overlay.overlaps(&(6..9)));
        assert!(!overlay.overlaps(&(5..5)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u8, usize),
        Resize(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..40_u64, any::<u8>(), 0..12_usize)
                .prop_map(|(at, byte, len)| Step::Write(at, byte, len)),
            1 => (0..40_u64).prop_map(Step::Resize),
        ];
        prop::collection::vec(step, 0..30)
    }

    proptest! {
        #[test]
        fn contents_are_those_of_plain_bytes(steps in steps(), from in 0..40_usize) {
            let mut overlay = Overlay::new(20);
            let mut twin = BASE.to_vec();
            for step in steps {
                match step {
                    Step::Write(at, byte, len) => {
                        overlay.write(at, &vec![byte; len]);
                        let end = index(at) + len;
                        if len > 0 {
                            twin.resize(twin.len().max(end), 0);
                            twin[index(at)..end].fill(byte);
                        }
                    }
                    Step::Resize(size) => {
                        overlay.resize(size);
                        twin.resize(index(size), 0);
                    }
                }
                prop_assert_eq!(contents(&overlay), &twin[..]);
                let bytes: usize = overlay.extents().map(|(_, bytes)| bytes.len()).sum();
                prop_assert_eq!(overlay.usage().1, bytes as u64);
            }
            let from = from.min(twin.len());
            let mut part = contents(&overlay)[from..].to_vec();
            overlay.patch(from as u64, &mut part);
            prop_assert_eq!(&part[..], &twin[from..]);
        }
    }
}
