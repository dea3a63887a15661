//! Resolutions of a transaction's conflicts, in its record (see `fs_transaction`).
//!
//! Programs before resolutions of records of trees beside the file system refuse one.

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;
use xxhash_rust::xxh3::Xxh3;

/// Most bytes that the resolutions of a transaction take, heads included.
pub const RESOLUTIONS_BYTES_MAX: usize = 64 << 10;

const HEAD_BYTES: usize = 20;
const OURS: u8 = 1;
const THEIRS: u8 = 2;
const AT_PATH: u8 = 0;
const AT_RECORD: u8 = 1;
/// Bytes of the length of a tree's name.
const TREE_LEN_BYTES: usize = 2;

fields! {
    /// Layout of a resolution, before its path.
    TABLE = "resolution of a conflict", HEAD_BYTES,
        "In the record of a transaction, after its name. The path follows; or of a record of a \
        tree beside the file system the length of the tree's name (u16), that name, and the key.";
    SIDE: u8 = 0, "1 the transaction's, 2 mainline's";
    KIND: u8 = 1, "0 at a path, 1 of a record";
    PATH_BYTES: u16 = 2, "length of what follows";
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

/// Which conflicts a resolution is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedAt {
    /// Those at a path from the root, without a slash at either end, and below it; the path has
    /// less than 64 KiB.
    Path(Vec<u8>),
    /// That of a record of a tree beside the file system; name and key have less than 64 KiB.
    Record {
        /// Name of the tree.
        tree: String,
        /// Key, as users know it.
        key: Vec<u8>,
    },
}

impl ResolvedAt {
    /// Returns the number of bytes that it takes behind the head.
    const fn len_bytes(&self) -> usize {
        match self {
            Self::Path(path) => path.len(),
            Self::Record { tree, key } => TREE_LEN_BYTES + tree.len() + key.len(),
        }
    }

    /// Reports whether it is short enough to be stored.
    #[must_use]
    pub fn fits(&self) -> bool {
        u16::try_from(self.len_bytes()).is_ok()
    }
}

/// The side that wins in some conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The side that wins.
    pub side: Side,
    /// Hash of what mainline had in these conflicts when that was said. It holds for nothing else.
    pub seen: [u8; 16],
    /// The conflicts that it is for.
    pub at: ResolvedAt,
}

impl Resolution {
    /// Returns the number of bytes that it takes in a record.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        HEAD_BYTES + self.at.len_bytes()
    }

    /// Returns the path that it is for; `None` for one of a record.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match &self.at {
            ResolvedAt::Path(path) => Some(path),
            ResolvedAt::Record { .. } => None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let path_bytes = u16::try_from(self.at.len_bytes()).expect("its length was checked");
        let mut head = [0; HEAD_BYTES];
        let side = match self.side {
            Side::Ours => OURS,
            Side::Theirs => THEIRS,
        };
        SIDE.put(&mut head, side);
        let kind = match self.at {
            ResolvedAt::Path(_) => AT_PATH,
            ResolvedAt::Record { .. } => AT_RECORD,
        };
        KIND.put(&mut head, kind);
        PATH_BYTES.put(&mut head, path_bytes);
        SEEN.put(&mut head, self.seen);
        out.extend_from_slice(&head);
        match &self.at {
            ResolvedAt::Path(path) => out.extend_from_slice(path),
            ResolvedAt::Record { tree, key } => {
                let tree_bytes = u16::try_from(tree.len()).expect("its length was checked");
                out.extend_from_slice(&tree_bytes.to_le_bytes());
                out.extend_from_slice(tree.as_bytes());
                out.extend_from_slice(key);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let head = reader.take(HEAD_BYTES)?;
        let side = match SIDE.get(head) {
            OURS => Side::Ours,
            THEIRS => Side::Theirs,
            other => return Err(TABLE.wrong("side", "1 or 2", other)),
        };
        let what = reader.take(usize::from(PATH_BYTES.get(head)))?;
        let at = match KIND.get(head) {
            AT_PATH => ResolvedAt::Path(what.to_vec()),
            AT_RECORD => decode_record(what)?,
            other => return Err(TABLE.wrong("kind", "0 or 1", other)),
        };
        Ok(Self {
            side,
            seen: SEEN.get(head),
            at,
        })
    }
}

fn decode_record(bytes: &[u8]) -> Result<ResolvedAt, FormatError> {
    let mut reader = Reader::new(TABLE.name, bytes);
    let tree_bytes = reader.u16()?;
    let tree = std::str::from_utf8(reader.take(usize::from(tree_bytes))?);
    let tree = tree.map_err(|error| TABLE.wrong("tree", "UTF-8", error))?;
    Ok(ResolvedAt::Record {
        tree: tree.to_owned(),
        key: reader.rest().to_vec(),
    })
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
    fn a_record_is_pinned_and_comes_back() {
        let resolution = Resolution {
            side: Side::Theirs,
            seen: [9; 16],
            at: ResolvedAt::Record {
                tree: "stock".to_owned(),
                key: b"a\0".to_vec(),
            },
        };
        let mut bytes = Vec::new();
        resolution.encode(&mut bytes);
        assert_eq!(bytes.len(), resolution.len_bytes());
        assert_eq!(bytes[..4], [2, 1, 9, 0]);
        assert_eq!(bytes[HEAD_BYTES..], *b"\x05\0stocka\0");
        let decode = |bytes: &[u8]| Resolution::decode(&mut Reader::new(TABLE.name, bytes));
        assert_eq!(decode(&bytes), Ok(resolution));
        for (byte, value) in [(1, 2), (HEAD_BYTES, 8), (HEAD_BYTES + 2, 0xff)] {
            let mut wrong = bytes.clone();
            wrong[byte] = value;
            assert!(decode(&wrong).is_err(), "byte {byte}");
        }
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
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
