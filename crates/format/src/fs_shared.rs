//! Contents that several inodes share.
//!
//! ```text
//!   cp a b           a = inode 20, b = inode 21; the number 22 is new
//!   data tree        chunks of 20          the shared contents: no chunk is put any more
//!                    chunks of 22, 21      what a and b have written since
//!   sys  c20         own 22, contents 20, extents [0, n)
//!   sys  c21         own 21, contents 20, extents [0, n)
//!   sys  k20         n: no chunk has this number or a larger one
//!   sys  k20,20      a uses them
//!   sys  k20,21      b uses them
//! ```
//!
//! A chunk in an extent is read from the contents, any other one from the own number. An own number
//! that is not the inode's is given to no inode. Contents that no inode uses are deleted.

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_key::INO_MAX;
use crate::table::fields;
use std::ops::Range;
use stitch_base::Ino;

const HEAD_BYTES: usize = 16;
const EXTENT_BYTES: usize = 16;
/// Most extents of one row.
pub const SHARED_EXTENTS_MAX: usize = 256;

fields! {
    /// Layout of the row, before its extents.
    TABLE = "shared contents", HEAD_BYTES,
        "In the sys tree, under `c` and the inode's number. Extents follow: first chunk (u64) and \
         first chunk after it (u64), at most 256 of them, in order; no two touch.";
    OWN: u64 = 0, "number under which the inode's own chunks are";
    CONTENTS: u64 = 8, "number under which the shared chunks are; 0: none, and so no extents";
}

/// Where the contents of an inode are that shares them, or has shared them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRow {
    /// Number under which its own chunks are.
    pub own: Ino,
    /// Number under which the shared chunks are. Without it there are no extents.
    pub contents: Option<Ino>,
    /// Chunks that are read from the shared ones: sorted, not empty, and no two touch.
    pub extents: Vec<Range<u64>>,
}

impl SharedRow {
    /// The row as bytes.
    ///
    /// # Panics
    /// If there are more than [`SHARED_EXTENTS_MAX`] extents.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.extents.len() <= SHARED_EXTENTS_MAX,
            "a row has a bound"
        );
        debug_assert!(is_sound(&self.extents), "a reader takes no others");
        debug_assert!(self.contents.is_some() || self.extents.is_empty());
        let mut out = vec![0; HEAD_BYTES];
        OWN.put(&mut out, self.own.0);
        CONTENTS.put(&mut out, self.contents.map_or(0, |number| number.0));
        for extent in &self.extents {
            out.extend_from_slice(&extent.start.to_le_bytes());
            out.extend_from_slice(&extent.end.to_le_bytes());
        }
        out
    }

    /// The row in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not such a row.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let head = reader.take(HEAD_BYTES)?;
        let (own, contents) = (OWN.get(head), CONTENTS.get(head));
        if own == 0 || own > INO_MAX || contents > INO_MAX || own == contents {
            return Err(TABLE.wrong("own", "two numbers of inodes", own));
        }
        let count = bytes.len() / EXTENT_BYTES - 1;
        if count > SHARED_EXTENTS_MAX || (count > 0 && contents == 0) {
            return Err(TABLE.wrong("extents", "at most 256, with contents", count));
        }
        let mut extents = Vec::with_capacity(count);
        for _ in 0..count {
            extents.push(reader.u64()?..reader.u64()?);
        }
        reader.finish()?;
        if !is_sound(&extents) {
            return Err(TABLE.wrong("extents", "in order, apart and not empty", count));
        }
        Ok(Self {
            own: Ino(own),
            contents: (contents != 0).then_some(Ino(contents)),
            extents,
        })
    }
}

/// Reports whether extents are sorted, not empty, and no two touch.
fn is_sound(extents: &[Range<u64>]) -> bool {
    let are_apart = extents.windows(2).all(|pair| pair[0].end < pair[1].start);
    are_apart && extents.iter().all(|extent| extent.start < extent.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(own: u64, contents: u64, extents: &[Range<u64>]) -> SharedRow {
        SharedRow {
            own: Ino(own),
            contents: (contents != 0).then_some(Ino(contents)),
            extents: extents.to_vec(),
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let shared = row(0x0201, 0x0403, &[0..5, 6..0x0100]);
        let numbers = [0x0201_u64, 0x0403, 0, 5, 6, 0x0100];
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(shared.encode(), bytes);
        assert_eq!(SharedRow::decode(&bytes), Ok(shared));
        for cut in 0..bytes.len() {
            let is_whole = cut == HEAD_BYTES + EXTENT_BYTES;
            let is_whole = is_whole || cut == HEAD_BYTES;
            assert_eq!(SharedRow::decode(&bytes[..cut]).is_ok(), is_whole, "{cut}");
        }
        for contents in [0, 8] {
            let alone = row(7, contents, &[]);
            assert_eq!(SharedRow::decode(&alone.encode()), Ok(alone));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let bytes =
            |numbers: &[u64]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_le_bytes()).collect() };
        for numbers in [
            &[0, 5, 0, 1][..],
            &[5, 5, 0, 1],
            &[5, 0, 0, 1],
            &[5, 6, 1, 1],
            &[5, 6, 2, 1],
            &[5, 6, 0, 2, 2, 3],
            &[5, 6, 4, 5, 0, 1],
            &[INO_MAX + 1, 6, 0, 1],
            &[5, INO_MAX + 1, 0, 1],
        ] {
            assert!(SharedRow::decode(&bytes(numbers)).is_err(), "{numbers:?}");
        }
        let many: Vec<u64> = (0..=SHARED_EXTENTS_MAX as u64)
            .flat_map(|n| [2 * n, 2 * n + 1])
            .collect();
        let longest = [&[5, 6][..], &many[2..]].concat();
        assert!(SharedRow::decode(&bytes(&longest)).is_ok());
        let longer = [&[5, 6][..], &many].concat();
        assert!(SharedRow::decode(&bytes(&longer)).is_err());
    }
}
