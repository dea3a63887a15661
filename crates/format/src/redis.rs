//! What the Redis protocol's server stores: one tree, `redis/rows`, with these rows.
//!
//! ```text
//! key                                      value
//! 'v'                                      version of this layout (u32)
//! 'c' db                                   Totals: keys, keys with expiry, next collection
//! 'k' db key                               KeyHead: type, expiry; then a string, or a Collection
//! 'm' db collection(u64) 'f' field         value of a hash's field
//! 'm' db collection(u64) 'm' member        score of a sorted set's member (f64)
//! 'm' db collection(u64) 's' score member  nothing: the members in the order of their scores
//! 'x' db expiry(u64) key                   nothing: the keys in the order of their expiry
//! ```
//!
//! Numbers in keys are big-endian, in values little-endian. `db` is one byte, 0: room for further
//! databases. A key's row names its collection by number, so that a collection is removed by one
//! range delete, and renamed by moving one row. A store without a row `c` has no keys.
//!
//! A transaction writes to a branch of the tree. Its collections have numbers that no other writer
//! gives out: those from [`first_collection_of`] the branch on.

use crate::FormatError;
use crate::codec::Reader;
use stitch_base::TreeId;

/// Version of the layout that this program writes and reads.
pub const VERSION: u32 = 1;
/// Key of the version.
pub const VERSION_KEY: &[u8] = b"v";
/// The one database.
pub const DB: u8 = 0;
/// First byte of the row of totals.
pub const TOTALS: u8 = b'c';
/// First byte of rows of keys.
pub const KEYS: u8 = b'k';
/// First byte of rows of collections.
pub const MEMBERS: u8 = b'm';
/// First byte of rows in the order of expiry.
pub const EXPIRIES: u8 = b'x';
/// Mark of a hash's fields.
pub const FIELD: u8 = b'f';
/// Mark of a sorted set's members, by name.
pub const MEMBER: u8 = b'm';
/// Mark of a sorted set's members, by score.
pub const SCORE: u8 = b's';
/// Bytes of a row's key before what the user chose, at most.
pub const PREFIX_BYTES_MAX: usize = 2 + 8 + 1 + 8;
/// Bytes of a key's row before the string.
pub const HEAD_BYTES: usize = 1 + 8;

const HEAD: &str = "key of the Redis protocol";
const TOTALS_RECORD: &str = "totals of the Redis protocol";

/// Type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes. Number 1.
    String,
    /// Fields with values. Number 2.
    Hash,
    /// Members with scores. Number 3.
    SortedSet,
}

impl Kind {
    /// Number by which stores know it. Do not renumber.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::String => 1,
            Self::Hash => 2,
            Self::SortedSet => 3,
        }
    }
}

/// What stands before a key's string or collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHead {
    /// Type of the value.
    pub kind: Kind,
    /// Milliseconds since 1970 at which the key expires; 0 for never.
    pub expiry_ms: u64,
}

impl KeyHead {
    /// Appends the head.
    pub fn encode(self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(self.kind.code());
        out.extend_from_slice(&self.expiry_ms.to_le_bytes());
        debug_assert_eq!(
            out.len(),
            start + HEAD_BYTES,
            "the body begins at HEAD_BYTES"
        );
    }

    /// Returns the head of a row, whose body begins at [`HEAD_BYTES`].
    ///
    /// # Errors
    /// [`FormatError`] for bytes that are no row of a key.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(HEAD, bytes);
        let kind = match reader.u8()? {
            1 => Kind::String,
            2 => Kind::Hash,
            3 => Kind::SortedSet,
            other => return Err(reader.field("type", "1 to 3", other.to_string())),
        };
        let expiry_ms = reader.u64()?;
        Ok(Self { kind, expiry_ms })
    }
}

/// A hash or a sorted set, as its key's row names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Its number, never that of another collection at the same time.
    pub number: u64,
    /// Number of its fields or members; at least 1 in a store.
    pub count: u64,
}

impl Collection {
    /// Returns it as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..].copy_from_slice(&self.count.to_le_bytes());
        out
    }

    /// Returns the collection of a row's body.
    ///
    /// # Errors
    /// [`FormatError`] for bytes that are none.
    pub fn decode(body: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("collection of the Redis protocol", body);
        let number = reader.u64()?;
        let count = reader.u64()?;
        if count == 0 {
            return Err(reader.field("count", "at least 1", "0".to_owned()));
        }
        reader.finish()?;
        Ok(Self { number, count })
    }
}

/// What is known of all keys together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Number of keys.
    pub keys: u64,
    /// Number of keys that have an expiry.
    pub expiries: u64,
    /// Number of the next collection.
    pub next_collection: u64,
}

impl Totals {
    /// Those of a database without keys.
    pub const EMPTY: Self = Self {
        keys: 0,
        expiries: 0,
        next_collection: 1,
    };

    /// Returns them as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; 24] {
        let mut out = [0; 24];
        out[..8].copy_from_slice(&self.keys.to_le_bytes());
        out[8..16].copy_from_slice(&self.expiries.to_le_bytes());
        out[16..].copy_from_slice(&self.next_collection.to_le_bytes());
        out
    }

    /// Returns the totals of a row.
    ///
    /// # Errors
    /// [`FormatError`] for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TOTALS_RECORD, bytes);
        let keys = reader.u64()?;
        let expiries = reader.u64()?;
        let next_collection = reader.u64()?;
        if expiries > keys {
            return Err(reader.field("expiries", "at most the keys", expiries.to_string()));
        }
        reader.finish()?;
        Ok(Self {
            keys,
            expiries,
            next_collection,
        })
    }
}

/// Returns the version of a layout.
///
/// # Errors
/// [`FormatError::Newer`] for one that this program does not know.
pub fn check_version(bytes: &[u8]) -> Result<(), FormatError> {
    let mut reader = Reader::new("layout of the Redis protocol", bytes);
    let found = reader.u32()?;
    if found == VERSION {
        return reader.finish();
    }
    Err(FormatError::Newer {
        record: "layout of the Redis protocol",
        found,
        supported: VERSION,
    })
}

/// The tree with these rows.
pub const TREE: &str = "redis/rows";

const BRANCH_BIT: u64 = 1 << 63;
const BRANCH_SHIFT: u32 = 32;

/// Returns the first number of collections that are made in a branch tree. There are 2^32 of them.
/// Numbers of trees are never used again, and other writers count up from 1.
#[must_use]
pub const fn first_collection_of(branch: TreeId) -> u64 {
    debug_assert!(branch.0 > 0, "tree 0 is never given out");
    BRANCH_BIT | (branch.0 as u64) << BRANCH_SHIFT & !BRANCH_BIT
}

/// Reports whether a collection of this number was made in a branch tree.
#[must_use]
pub const fn is_of_branch(collection: u64, branch: TreeId) -> bool {
    collection >> BRANCH_SHIFT == first_collection_of(branch) >> BRANCH_SHIFT
}

/// Returns the key of the totals.
#[must_use]
pub const fn totals_key() -> [u8; 2] {
    [TOTALS, DB]
}

/// Returns the key of a key's row.
#[must_use]
pub fn key_row(key: &[u8]) -> Vec<u8> {
    prefixed(&[KEYS, DB], key)
}

/// Returns the user's key in the key of its row.
#[must_use]
pub fn user_key(row: &[u8]) -> Option<&[u8]> {
    row.strip_prefix(&[KEYS, DB])
}

/// Returns the key of the row that finds a key by its expiry.
#[must_use]
pub fn expiry_row(expiry_ms: u64, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(10 + key.len());
    out.extend_from_slice(&[EXPIRIES, DB]);
    out.extend_from_slice(&expiry_ms.to_be_bytes());
    out.extend_from_slice(key);
    out
}

/// Returns expiry and key of such a row's key.
#[must_use]
pub fn expiry_of_row(row: &[u8]) -> Option<(u64, &[u8])> {
    let rest = row.strip_prefix(&[EXPIRIES, DB])?;
    let (expiry, key) = rest.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*expiry), key))
}

/// Returns what the keys of a collection's rows begin with, with this mark.
#[must_use]
pub fn member_prefix(collection: u64, mark: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(&[MEMBERS, DB]);
    out.extend_from_slice(&collection.to_be_bytes());
    out.push(mark);
    out
}

/// Returns the key of a field's or a member's row.
#[must_use]
pub fn member_row(collection: u64, mark: u8, member: &[u8]) -> Vec<u8> {
    prefixed(&member_prefix(collection, mark), member)
}

/// Returns the key of the row that finds a member by its score.
#[must_use]
pub fn score_row(collection: u64, score: f64, member: &[u8]) -> Vec<u8> {
    let mut out = member_prefix(collection, SCORE);
    out.extend_from_slice(&ordered(score).to_be_bytes());
    debug_assert_eq!(out.len(), PREFIX_BYTES_MAX, "no prefix is longer than this");
    out.extend_from_slice(member);
    out
}

/// Returns score and member behind the prefix of such a row's key.
#[must_use]
pub fn score_of_rest(rest: &[u8]) -> Option<(f64, &[u8])> {
    let (bits, member) = rest.split_first_chunk::<8>()?;
    Some((unordered(u64::from_be_bytes(*bits)), member))
}

/// Returns `[start, end)` of all rows of a collection.
#[must_use]
pub fn collection_rows(collection: u64) -> (Vec<u8>, Vec<u8>) {
    let bound = |number: u64| {
        let mut out = vec![MEMBERS, DB];
        out.extend_from_slice(&number.to_be_bytes());
        out
    };
    match collection.checked_add(1) {
        Some(next) => (bound(collection), bound(next)),
        None => (bound(collection), vec![MEMBERS, DB + 1]),
    }
}

/// Returns `[start, end)` of all rows of the database with this first byte.
#[must_use]
pub const fn all_rows(first: u8) -> ([u8; 2], [u8; 2]) {
    ([first, DB], [first, DB + 1])
}

/// Returns a number whose order is that of the scores. -0 and 0 are one score.
const fn ordered(score: f64) -> u64 {
    let bits = if score == 0.0 { 0 } else { score.to_bits() };
    if bits >> 63 == 0 {
        bits | 1 << 63
    } else {
        !bits
    }
}

const fn unordered(number: u64) -> f64 {
    let bits = if number >> 63 == 1 {
        number & !(1 << 63)
    } else {
        !number
    };
    f64::from_bits(bits)
}

fn prefixed(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(prefix.len() + rest.len());
    out.extend_from_slice(prefix);
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_have_these_bytes() {
        let mut head = Vec::new();
        KeyHead {
            kind: Kind::Hash,
            expiry_ms: 0x0102,
        }
        .encode(&mut head);
        assert_eq!(head, [2, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(head.len(), HEAD_BYTES);
        let collection = Collection {
            number: 0x0304,
            count: 5,
        };
        assert_eq!(
            collection.encode(),
            [4, 3, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]
        );
        let totals = Totals {
            keys: 9,
            expiries: 7,
            next_collection: 8,
        };
        let bytes = totals.encode();
        assert_eq!((bytes[0], bytes[8], bytes[16]), (9, 7, 8));
        assert_eq!(totals_key(), [b'c', 0]);
        assert_eq!(key_row(b"ab"), [b'k', 0, b'a', b'b']);
        assert_eq!(
            expiry_row(0x0102, b"a"),
            [b'x', 0, 0, 0, 0, 0, 0, 0, 1, 2, b'a']
        );
        assert_eq!(
            member_row(3, FIELD, b"a"),
            [b'm', 0, 0, 0, 0, 0, 0, 0, 0, 3, b'f', b'a']
        );
        assert_eq!(
            score_row(3, 1.0, b"a")[10..],
            [b's', 0xbf, 0xf0, 0, 0, 0, 0, 0, 0, b'a']
        );
    }

    #[test]
    fn rows_lead_back_and_others_are_refused() {
        let collection = Collection {
            number: 3,
            count: 5,
        };
        assert_eq!(
            Collection::decode(&collection.encode()).ok(),
            Some(collection)
        );
        assert_eq!(
            Totals::decode(&Totals::EMPTY.encode()).ok(),
            Some(Totals::EMPTY)
        );
        assert_eq!(user_key(&key_row(b"ab")), Some(&b"ab"[..]));
        assert_eq!(expiry_of_row(&expiry_row(7, b"ab")), Some((7, &b"ab"[..])));
        assert_eq!(expiry_of_row(b"x\0abc"), None);
        assert!(KeyHead::decode(&[4, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(KeyHead::decode(&[1, 0, 0]).is_err());
        assert!(Collection::decode(&[0; 16]).is_err(), "a count of 0");
        assert!(Collection::decode(&[1; 17]).is_err(), "too long");
        let mut totals = Totals::EMPTY.encode();
        totals[8] = 1;
        assert!(Totals::decode(&totals).is_err(), "more expiries than keys");
        assert!(check_version(&VERSION.to_le_bytes()).is_ok());
        assert!(check_version(&2u32.to_le_bytes()).is_err());
        assert!(check_version(&[]).is_err());
    }

    #[test]
    fn collections_of_branches_have_numbers_of_their_own() {
        let first = first_collection_of(TreeId(5));
        assert_eq!(first, 0x8000_0005_0000_0000);
        assert!(is_of_branch(first, TreeId(5)) && is_of_branch(first + 0xffff_ffff, TreeId(5)));
        assert!(!is_of_branch(first + (1 << 32), TreeId(5)));
        assert!(!is_of_branch(first, TreeId(6)) && !is_of_branch(1, TreeId(5)));
        let largest = first_collection_of(TreeId(u32::MAX));
        assert!(largest > first && largest >> 63 == 1);
    }

    #[test]
    fn a_collection_lies_within_its_range_alone() {
        let (start, end) = collection_rows(255);
        assert!(start < member_row(255, FIELD, b"") && member_row(255, SCORE, &[255; 9]) < end);
        assert!(member_row(254, SCORE, &[255; 9]) < start && end <= member_row(256, FIELD, b""));
        let (start, end) = collection_rows(u64::MAX);
        assert!(start < end && member_row(u64::MAX, SCORE, &[255; 9]) < end);
    }

    proptest! {
        #[test]
        fn scores_are_in_order_and_lead_back(a: f64, b: f64) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(a < b, ordered(a) < ordered(b));
            prop_assert_eq!(unordered(ordered(a)), a);
        }
    }
}
