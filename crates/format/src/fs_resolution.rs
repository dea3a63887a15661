//! Resolutions of a transaction's conflicts, in its record (see `fs_transaction`).

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;
use xxhash_rust::xxh3::Xxh3;

/// Most bytes that the resolutions of a transaction take, heads included.
pub const RESOLUTIONS_BYTES_MAX: usize = 64 << 10;

const HEAD_BYTES: usize = 20;
const OURS: u8 = 1;
const THEIRS: u8 = 2;

fields! {
    /// Layout of a resolution, before its path.
    TABLE = "resolution of a conflict", HEAD_BYTES,
        "In the record of a transaction, after its name. The path follows.";
    SIDE: u8 = 0, "1 the transaction's, 2 mainline's";
    RESERVED: u8 = 1, "0";
    PATH_BYTES: u16 = 2, "length of the path";
    SEEN: [u8; 16] = 4, "hash of what mainline had in the conflicts there";
}

/// Which side's state is taken where a transaction and mainline have changed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The transaction's.
    Ours,
    /// Mainline's.
    Theirs,
}

/// The side that wins in the conflicts at a path and below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The side that wins.
    pub side: Side,
    /// Hash of what mainline had in these conflicts when that was said. It holds for nothing else.
    pub seen: [u8; 16],
    /// Path from the root, without a slash at either end; less than 64 KiB.
    pub path: Vec<u8>,
}

impl Resolution {
    /// Returns the number of bytes that it takes in a record.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        HEAD_BYTES + self.path.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let path_bytes = u16::try_from(self.path.len()).expect("the path was checked");
        let mut head = [0; HEAD_BYTES];
        let side = match self.side {
            Side::Ours => OURS,
            Side::Theirs => THEIRS,
        };
        SIDE.put(&mut head, side);
        PATH_BYTES.put(&mut head, path_bytes);
        SEEN.put(&mut head, self.seen);
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.path);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let head = reader.take(HEAD_BYTES)?;
        let side = match SIDE.get(head) {
            OURS => Side::Ours,
            THEIRS => Side::Theirs,
            other => return Err(TABLE.wrong("side", "1 or 2", other)),
        };
        let reserved = RESERVED.get(head);
        if reserved != 0 {
            return Err(TABLE.wrong("reserved", "0", reserved));
        }
        let path = reader.take(usize::from(PATH_BYTES.get(head)))?;
        Ok(Self {
            side,
            seen: SEEN.get(head),
            path: path.to_vec(),
        })
    }
}

/// Hash of rows that a resolution was made for, see [`Resolution::seen`].
pub struct SeenHash(Xxh3);

impl std::fmt::Debug for SeenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SeenHash").finish_non_exhaustive()
    }
}

impl Default for SeenHash {
    fn default() -> Self {
        Self(Xxh3::new())
    }
}

impl SeenHash {
    /// Adds a row; `None` is a row that is not there.
    pub fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        for bytes in [Some(key), value] {
            let len = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
            self.0.update(&len.to_le_bytes());
            self.0.update(bytes.unwrap_or_default());
        }
    }

    /// Returns the hash of all rows in their order.
    #[must_use]
    pub fn finish(&self) -> [u8; 16] {
        self.0.digest128().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(rows: &[(&[u8], Option<&[u8]>)]) -> [u8; 16] {
        let mut hash = SeenHash::default();
        for (key, value) in rows {
            hash.add(key, *value);
        }
        hash.finish()
    }

    #[test]
    fn rows_and_their_absence_differ() {
        let all = [
            hash(&[]),
            hash(&[(b"ab", None)]),
            hash(&[(b"ab", Some(b""))]),
            hash(&[(b"a", Some(b"b"))]),
            hash(&[(b"a", None), (b"b", None)]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
        assert_eq!(hash(&[(b"ab", None)]), all[1]);
        // It is in stores.
        let pinned = 0x7d69_9bd6_u32;
        assert_eq!(all[3][..4], pinned.to_le_bytes());
    }
}
