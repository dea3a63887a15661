//! Back rows: from the number of an inode to the place of its row.
//!
//! Rows of the meta tree stand under (directory, hash of the name). The back row of an inode, in
//! the sys tree under `b` and the number, holds these two. So a file handle, which is a number, can
//! be opened.
//!
//! ```text
//! sys   b 42       -> (7, H)              back row of inode 42
//! meta  7 H "name" -> inode 42 ...        its row, found by a scan of (7, H)
//! ```
//!
//! Invariants, of a file system whose header has the feature:
//! - an inode whose row stands under a name has a back row, if that name is below the progress;
//! - every back row is right: no inode under its own number (root, several names, orphan) has one;
//! - the progress, under `b` alone, is a place too: that of the first name not looked at yet. A
//!   complete file system has the largest place.

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;
use stitch_base::Ino;

const PLACE_BYTES: usize = 16;

fields! {
    /// Layout of a back row.
    TABLE = "back row", PLACE_BYTES,
        "In the sys tree, under `b` and the inode's number: where its row is in the meta tree. \
        Under `b` alone: the place up to which all inodes have one.";
    PARENT: u64 = 0, "directory that the inode's only name is in";
    HASH: u64 = 8, "hash of the name";
}

/// Where names of one hash are in the meta tree. Sorts as the keys there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The directory.
    pub parent: Ino,
    /// The hash of the name.
    pub hash: u64,
}

impl Place {
    /// Before all names.
    pub const FIRST: Self = Self {
        parent: Ino(0),
        hash: 0,
    };
    /// After all names.
    pub const END: Self = Self {
        parent: Ino(u64::MAX),
        hash: u64::MAX,
    };

    /// The place of a key of the meta tree; `None` for an inode's own row and for what is no key.
    #[must_use]
    pub fn of_key(key: &[u8]) -> Option<Self> {
        crate::fs_key::place_of(key).map(|(parent, hash)| Self { parent, hash })
    }

    /// The place as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; PLACE_BYTES] {
        let mut out = [0; PLACE_BYTES];
        PARENT.put(&mut out, self.parent.0);
        HASH.put(&mut out, self.hash);
        out
    }

    /// The place in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not a place.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let row = reader.take(PLACE_BYTES)?;
        let (parent, hash) = (Ino(PARENT.get(row)), HASH.get(row));
        reader.finish()?;
        Ok(Self { parent, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs_key;

    #[test]
    fn bytes_are_pinned() {
        let place = Place {
            parent: Ino(0x0807_0605_0403_0201),
            hash: 0x100f_0e0d_0c0b_0a09,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(place.encode(), bytes);
        assert_eq!(Place::decode(&bytes), Ok(place));
        for cut in 0..bytes.len() {
            assert!(Place::decode(&bytes[..cut]).is_err());
        }
        assert!(Place::decode(&[1; 17]).is_err(), "one byte too many");
    }

    #[test]
    fn places_sort_as_keys_do() {
        let seed = 7;
        let mut keys: Vec<_> = (1..40_u64)
            .map(|n| fs_key::dentry(seed, Ino(n % 5 + 1), &n.to_be_bytes()))
            .collect();
        keys.sort_unstable();
        let places: Vec<_> = keys.iter().map(|key| Place::of_key(key)).collect();
        assert!(places.is_sorted());
        assert!(places.iter().all(|place| *place > Some(Place::FIRST)));
        assert!(places.iter().all(|place| *place < Some(Place::END)));
        assert_eq!(Place::of_key(&fs_key::own(Ino(5))), None);
    }
}
