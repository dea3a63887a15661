//! What an open serializable transaction has read, in the sys tree of mainline.
//!
//! The rows are written when the file system is closed, and are good if the transaction's record
//! says so (`READS`). A row under the key `s`, the number of the transaction and the number of the
//! part holds up to [`ENTRIES_PER_ROW`] entries, one behind the other.
//!
//! ```text
//! hash > 0    the name with this hash in the directory `number`
//! hash = 0    the inodes, or directories, [number << shift, (number + 1) << shift)
//! ```

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_key::{INO_MAX, NAME_HASH_MAX};
use crate::table::fields;

/// Most entries of one row.
pub const ENTRIES_PER_ROW: usize = 128;
/// Largest shift: all inodes are one group.
pub const SHIFT_MAX: u8 = 63;

const ENTRY_BYTES: usize = 18;

fields! {
    /// Layout of an entry.
    TABLE = "read of a transaction", ENTRY_BYTES,
        "In the sys tree of mainline, under `s`, the number of the transaction and that of the \
        part (u64 each, big-endian): entries one behind the other, at most 128.";
    NUMBER: u64 = 0, "inode, directory, or group of them: 2^shift numbers";
    HASH: u64 = 8, "hash of a name in the directory; 0: the inodes themselves";
    SHIFT: u8 = 16, "binary logarithm of the size of the group; 0 with a hash";
    WHAT: u8 = 17,
        "1 names, 2 attributes of inodes whose rows are under these names, 4 attributes of inodes \
        with rows of their own, 8 contents, 16 extended attributes";
}

/// What of it was read: bits of [`ReadEntry::what`].
pub mod read_of {
    /// Which inode a name stands for, or that there is none; without a hash, all names.
    pub const NAMES: u8 = 1;
    /// Attributes of the inode whose row is under the name; without a hash, of all such in the
    /// directory.
    pub const NAMED_INODES: u8 = 2;
    /// Attributes of an inode whose row is under its number.
    pub const OWN_INODE: u8 = 4;
    /// Contents.
    pub const CONTENTS: u8 = 8;
    /// Extended attributes.
    pub const XATTRS: u8 = 16;
    /// All of these.
    pub const ALL: u8 = NAMES | NAMED_INODES | OWN_INODE | CONTENTS | XATTRS;
}

/// Something that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadEntry {
    /// Inode, directory, or group of them.
    pub number: u64,
    /// Hash of a name in the directory; 0 for the inodes themselves.
    pub hash: u64,
    /// Binary logarithm of the size of the group.
    pub shift: u8,
    /// Bits of [`read_of`].
    pub what: u8,
}

impl ReadEntry {
    /// Returns the numbers that it is about, as a half-open range.
    #[must_use]
    pub const fn numbers(&self) -> (u64, u64) {
        (self.number << self.shift, (self.number + 1) << self.shift)
    }

    fn check(&self) -> Result<(), FormatError> {
        let allowed = match self.hash {
            0 => read_of::ALL,
            _ => read_of::NAMES | read_of::NAMED_INODES,
        };
        if self.what == 0 || self.what & !allowed != 0 {
            return Err(TABLE.wrong("what", "something that was read", self.what));
        }
        if self.shift > SHIFT_MAX || (self.hash > 0 && self.shift > 0) {
            return Err(TABLE.wrong("shift", "0, or up to 63 without a hash", self.shift));
        }
        if self.number > INO_MAX >> self.shift {
            return Err(TABLE.wrong("number", "one of inodes", self.number));
        }
        if self.hash > NAME_HASH_MAX {
            return Err(TABLE.wrong("hash", "one of names", self.hash));
        }
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) {
        debug_assert!(self.check().is_ok(), "{self:?}");
        let at = out.len();
        out.resize(at + ENTRY_BYTES, 0);
        let entry = &mut out[at..];
        NUMBER.put(entry, self.number);
        HASH.put(entry, self.hash);
        SHIFT.put(entry, self.shift);
        WHAT.put(entry, self.what);
    }
}

/// Returns a row of up to [`ENTRIES_PER_ROW`] entries.
#[must_use]
pub fn encode(entries: &[ReadEntry]) -> Vec<u8> {
    debug_assert!(entries.len() <= ENTRIES_PER_ROW, "more are several rows");
    let mut out = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    entries.iter().for_each(|entry| entry.put(&mut out));
    out
}

/// Returns the entries of a row.
///
/// # Errors
/// [`FormatError`]: no such row.
pub fn decode(row: &[u8]) -> Result<Vec<ReadEntry>, FormatError> {
    let mut reader = Reader::new(TABLE.name, row);
    let mut entries = Vec::new();
    while !reader.is_empty() {
        let bytes = reader.take(ENTRY_BYTES)?;
        let entry = ReadEntry {
            number: NUMBER.get(bytes),
            hash: HASH.get(bytes),
            shift: SHIFT.get(bytes),
            what: WHAT.get(bytes),
        };
        entry.check()?;
        entries.push(entry);
    }
    if entries.is_empty() || entries.len() > ENTRIES_PER_ROW {
        return Err(TABLE.wrong("row", "1 to 128 entries", entries.len()));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::dump;

    const NAME: ReadEntry = ReadEntry {
        number: 7,
        hash: 0x0102,
        shift: 0,
        what: read_of::NAMES | read_of::NAMED_INODES,
    };
    const GROUP: ReadEntry = ReadEntry {
        number: 1,
        hash: 0,
        shift: 4,
        what: read_of::CONTENTS,
    };

    #[test]
    fn bytes_are_pinned_and_come_back() {
        let row = encode(&[NAME, GROUP]);
        assert_eq!(
            dump(&TABLE, &row[..ENTRY_BYTES]),
            "number 0700000000000000\nhash 0201000000000000\nshift 00\nwhat 03\n"
        );
        assert_eq!(
            dump(&TABLE, &row[ENTRY_BYTES..]),
            "number 0100000000000000\nhash 0000000000000000\nshift 04\nwhat 08\n"
        );
        assert_eq!(decode(&row), Ok(vec![NAME, GROUP]));
        assert_eq!((NAME.numbers(), GROUP.numbers()), ((7, 8), (16, 32)));
    }

    #[test]
    fn what_is_none_is_refused() {
        let row = encode(&[NAME]);
        for cut in 0..ENTRY_BYTES {
            assert!(decode(&row[..cut]).is_err(), "{cut}");
        }
        assert!(decode(&row.repeat(ENTRIES_PER_ROW)).is_ok());
        assert!(decode(&row.repeat(ENTRIES_PER_ROW + 1)).is_err());
        let with = |at: usize, byte: u8| {
            let mut row = row.clone();
            row[at] = byte;
            decode(&row)
        };
        for (at, byte) in [(7, 0x80), (15, 0x80), (16, 1), (17, 0), (17, 4), (17, 32)] {
            assert!(with(at, byte).is_err(), "byte {at}");
        }
        let mut group = encode(&[GROUP]);
        group[16] = 64;
        assert!(decode(&group).is_err());
    }
}
