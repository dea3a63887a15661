//! The header of a file system, in the sys tree: properties of all its rows.
//!
//! Numbers of the upsert functions of all the file system's rows: 16 `chunk` (data, see
//! `fs_chunk`), 17 `attr` (meta, see `fs_inode`), 18 `add` (sys, see [`fold_add`]). Do not
//! renumber.

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;
use stitch_base::{Ino, PinId};

/// Format version of the file system's rows, the newest that this program knows.
pub const FS_VERSION: u32 = 3;
/// Version of a file system with all contents in its trees. Later programs write it as long as that
/// is so, for older programs to open it.
const ALL_INSIDE: u32 = 1;
/// Version of a file system with external files. Written as long as there are no other features.
const WITH_EXTERNAL: u32 = 2;
/// First version whose header names its features.
const WITH_FEATURES: u32 = 3;
const MAGIC: [u8; 4] = *b"stfs";

const HEADER_BYTES: usize = 32;
/// Bytes of the header before the features, and of all headers before version 3.
const HEADER_V1_BYTES: usize = 24;

fields! {
    /// Layout of the header.
    TABLE = "file system header", HEADER_BYTES, "In the sys tree, under the key `h`.";
    MAGIC_AT: [u8; 4] = 0, "`stfs`";
    VERSION_AT: u32 = 4, "format version of all rows: 1; 2 if contents of some files may be \
        beside the store; 3 if features are named";
    NAME_SEED: u64 = 8, "secret seed of the order of names";
    CREATED: i64 = 16, "when it was made, ns since 1970";
    FEATURES: u64 = 24, "from version 3 on, earlier headers end before it: 1 contents of some \
        files may be beside the store, 2 back rows are kept, 4 some files may have rows of \
        allocated extents, 8 some directories may be clones (see `writable view`), 16 a rollback \
        is under way, 32 there may be transactions, 64 there may be policies of snapshots, 128 \
        some files may share contents (see `shared contents`), 256 a rollback of a directory in a \
        clone may be under way: the header of the clone says so by 16, 512 there may be policies \
        of snapshots of directories in clones";
}

/// Bits of the header's features. A program opens no file system with a bit that it does not know.
mod feature {
    pub(super) const EXTERNAL: u64 = 1;
    pub(super) const BACK_ROWS: u64 = 2;
    pub(super) const ALLOCATED: u64 = 4;
    pub(super) const VIEWS: u64 = 8;
    pub(super) const ROLLBACK: u64 = 16;
    pub(super) const TRANSACTIONS: u64 = 32;
    pub(super) const POLICIES: u64 = 64;
    pub(super) const SHARED: u64 = 128;
    pub(super) const CLONE_ROLLBACK: u64 = 256;
    pub(super) const CLONE_POLICIES: u64 = 512;
    pub(super) const ALL: u64 = 1023;
}

/// Upsert function that changes a chunk.
pub const UPSERT_CHUNK: u32 = 16;
/// Upsert function that changes an inode row.
pub const UPSERT_ATTR: u32 = 17;
/// Upsert function that adds to a number.
pub const UPSERT_ADD: u32 = 18;

/// Header of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsHeader {
    /// Secret seed of name hashes.
    pub name_seed: u64,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: i64,
    /// True if contents of some files may be beside the store; [`ExternalRow`]s list them.
    pub has_external: bool,
    /// True if every change of a name also writes back rows, see `fs_back`.
    pub has_back_rows: bool,
    /// True if some files may have [`AllocatedRow`]s.
    pub has_allocated: bool,
    /// True if there may be writable views, see `fs_view`.
    pub has_views: bool,
    /// True from the first to the last batch of a rollback: a [`RollbackRow`] says which.
    pub rolls_back: bool,
    /// True if there may be transactions, see `fs_transaction`.
    pub has_transactions: bool,
    /// True if there may be policies of snapshots, see `fs_policy`.
    pub has_policies: bool,
    /// True if some files may share contents, see `fs_shared`.
    pub has_shared: bool,
    /// True in mainline while a rollback in a clone may be under way: then `rolls_back` is set in
    /// the header of the clone, which has the [`RollbackRow`].
    pub rolls_back_clone: bool,
    /// True if there may be policies of snapshots of directories in clones, see `fs_policy`.
    pub has_clone_policies: bool,
}

impl FsHeader {
    /// The header of a new file system, without any of the features.
    #[must_use]
    pub const fn new(name_seed: u64, created_ns: i64) -> Self {
        Self {
            name_seed,
            created_ns,
            has_external: false,
            has_back_rows: false,
            has_allocated: false,
            has_views: false,
            rolls_back: false,
            has_transactions: false,
            has_policies: false,
            has_shared: false,
            rolls_back_clone: false,
            has_clone_policies: false,
        }
    }

    /// Encodes the header in the oldest version that can express it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let version = match self.features() {
            0 => ALL_INSIDE,
            feature::EXTERNAL => WITH_EXTERNAL,
            _ => WITH_FEATURES,
        };
        let mut out = vec![0; HEADER_BYTES];
        MAGIC_AT.put(&mut out, MAGIC);
        VERSION_AT.put(&mut out, version);
        NAME_SEED.put(&mut out, self.name_seed);
        CREATED.put(&mut out, self.created_ns);
        if version < WITH_FEATURES {
            out.truncate(HEADER_V1_BYTES);
        } else {
            FEATURES.put(&mut out, self.features());
        }
        out
    }

    /// Returns the generation of all inode numbers in file handles. It never changes and is never
    /// 0. It makes handles of another file system, which has the same numbers, invalid here.
    #[must_use]
    pub fn generation(&self) -> u32 {
        let mixed = self
            .created_ns
            .cast_unsigned()
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let [a, b, c, d, ..] = mixed.to_be_bytes();
        u32::from_be_bytes([a, b, c, d]).max(1)
    }

    fn features(&self) -> u64 {
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        bit(self.has_external, feature::EXTERNAL)
            | bit(self.has_back_rows, feature::BACK_ROWS)
            | bit(self.has_allocated, feature::ALLOCATED)
            | bit(self.has_views, feature::VIEWS)
            | bit(self.rolls_back, feature::ROLLBACK)
            | bit(self.has_transactions, feature::TRANSACTIONS)
            | bit(self.has_policies, feature::POLICIES)
            | bit(self.has_shared, feature::SHARED)
            | bit(self.rolls_back_clone, feature::CLONE_ROLLBACK)
            | bit(self.has_clone_policies, feature::CLONE_POLICIES)
    }

    /// The header in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not a header, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let header = reader.take(HEADER_V1_BYTES)?;
        let magic = MAGIC_AT.get(header);
        if magic != MAGIC {
            let found = magic.escape_ascii().to_string();
            return Err(reader.field("magic", "stfs", found));
        }
        let version = VERSION_AT.get(header);
        if version > FS_VERSION {
            return Err(FormatError::Newer {
                record: TABLE.name,
                found: version,
                supported: FS_VERSION,
            });
        }
        let features = match version {
            ALL_INSIDE => 0,
            WITH_EXTERNAL => feature::EXTERNAL,
            WITH_FEATURES => {
                let features = reader.u64()?;
                if features <= feature::EXTERNAL {
                    let found = format!("{features:#x}");
                    return Err(reader.field("features", "those of no earlier version", found));
                }
                features
            }
            _ => return Err(reader.field("version", "1 to 3", version.to_string())),
        };
        if features & !feature::ALL != 0 {
            return Err(reader.field("features", "known ones", format!("{features:#x}")));
        }
        let header = Self {
            name_seed: NAME_SEED.get(header),
            created_ns: CREATED.get(header),
            has_external: features & feature::EXTERNAL != 0,
            has_back_rows: features & feature::BACK_ROWS != 0,
            has_allocated: features & feature::ALLOCATED != 0,
            has_views: features & feature::VIEWS != 0,
            rolls_back: features & feature::ROLLBACK != 0,
            has_transactions: features & feature::TRANSACTIONS != 0,
            has_policies: features & feature::POLICIES != 0,
            has_shared: features & feature::SHARED != 0,
            rolls_back_clone: features & feature::CLONE_ROLLBACK != 0,
            has_clone_policies: features & feature::CLONE_POLICIES != 0,
        };
        reader.finish()?;
        Ok(header)
    }
}

const EXTERNAL_BYTES: usize = 16;

/// Layout of the row of an external file.
pub mod external {
    use super::EXTERNAL_BYTES;
    use crate::table::fields;

    fields! {
        /// Layout of the row.
        TABLE = "external file", EXTERNAL_BYTES,
            "In the sys tree, under `x` and the inode's number: contents that are a plain file \
             beside the store.";
        NUMBER: u64 = 0, "number of the plain file, given to no other inode or plain file ever";
        SETTLED: u64 = 8, "bytes that the plain file has at least: it was synced with them; at \
            most the size of the inode";
    }

    pub(super) fn put(out: &mut [u8], number: u64, settled: u64) {
        NUMBER.put(out, number);
        SETTLED.put(out, settled);
    }

    pub(super) fn get(row: &[u8]) -> (u64, u64) {
        (NUMBER.get(row), SETTLED.get(row))
    }
}

/// The location of the contents of an inode with the row flag `EXTERNAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalRow {
    /// Number of the plain file.
    pub number: u64,
    /// Bytes that the plain file has at least.
    pub settled: u64,
}

impl ExternalRow {
    /// The row as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; EXTERNAL_BYTES] {
        let mut out = [0; EXTERNAL_BYTES];
        external::put(&mut out, self.number, self.settled);
        out
    }

    /// The row in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not such a row.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(external::TABLE.name, bytes);
        let row = reader.take(EXTERNAL_BYTES)?;
        let (number, settled) = external::get(row);
        if number == 0 {
            return Err(reader.field("number", "not 0", number.to_string()));
        }
        reader.finish()?;
        Ok(Self { number, settled })
    }
}

const ALLOCATED_BYTES: usize = 9;

/// Layout of the row of an allocated extent.
pub mod allocated {
    use super::ALLOCATED_BYTES;
    use crate::table::fields;

    fields! {
        /// Layout of the row.
        TABLE = "allocated extent", ALLOCATED_BYTES,
            "In the sys tree, under `a`, the inode's number and the number of the first chunk \
             after \
             the extent: chunks that have blocks. Extents of an inode do not overlap.";
        START: u64 = 0, "number of the first chunk, below that in the key";
        STATE: u8 = 8, "1 allocated and not written since, with its room set aside; 2 every chunk \
            exists";
    }

    pub(super) fn put(out: &mut [u8], start: u64, state: u8) {
        START.put(out, start);
        STATE.put(out, state);
    }

    pub(super) fn get(row: &[u8]) -> (u64, u8) {
        (START.get(row), STATE.get(row))
    }
}

/// State of the chunks of an allocated extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ExtentState {
    /// Not written since it was allocated: space for each chunk is reserved.
    Unwritten = 1,
    /// Every chunk exists.
    Written = 2,
}

/// Row of an allocated extent. The end of the extent is in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedRow {
    /// Number of the first chunk.
    pub start: u64,
    /// State of all chunks.
    pub state: ExtentState,
}

impl AllocatedRow {
    /// The row as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ALLOCATED_BYTES] {
        let mut out = [0; ALLOCATED_BYTES];
        allocated::put(&mut out, self.start, self.state as u8);
        out
    }

    /// The row in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not such a row.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(allocated::TABLE.name, bytes);
        let row = reader.take(ALLOCATED_BYTES)?;
        let (start, code) = allocated::get(row);
        let state = match code {
            1 => ExtentState::Unwritten,
            2 => ExtentState::Written,
            other => return Err(reader.field("state", "1 or 2", other.to_string())),
        };
        reader.finish()?;
        Ok(Self { start, state })
    }
}

const ROLLBACK_BYTES: usize = 16;

/// Layout of the row of a rollback.
pub mod rollback {
    use super::ROLLBACK_BYTES;
    use crate::table::fields;

    fields! {
        /// Layout of the row.
        TABLE = "rollback", ROLLBACK_BYTES,
            "In the sys tree, of a clone where the directory is in one, under the key `r`, while a \
             rollback of several batches is under way. The path of the directory in that file \
             system follows, as in a snapshot.";
        SNAPSHOT: u64 = 0, "number of the pin of the snapshot";
        DIR: u64 = 8, "inode number of the directory";
    }

    pub(super) fn put(out: &mut [u8], snapshot: u64, dir: u64) {
        SNAPSHOT.put(out, snapshot);
        DIR.put(out, dir);
    }

    pub(super) fn get(row: &[u8]) -> (u64, u64) {
        (SNAPSHOT.get(row), DIR.get(row))
    }
}

/// A rollback that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackRow {
    /// The pin of the snapshot.
    pub snapshot: PinId,
    /// The directory.
    pub dir: Ino,
    /// Path of the directory, from the root of the file system.
    pub path: Vec<u8>,
}

impl RollbackRow {
    /// The row as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; ROLLBACK_BYTES];
        rollback::put(&mut out, self.snapshot.0, self.dir.0);
        out.extend_from_slice(&self.path);
        out
    }

    /// The row in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not such a row.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(rollback::TABLE.name, bytes);
        let (snapshot, dir) = rollback::get(reader.take(ROLLBACK_BYTES)?);
        if snapshot == 0 || dir == 0 || dir > crate::fs_key::INO_MAX {
            return Err(reader.field("dir", "an inode and a pin", dir.to_string()));
        }
        Ok(Self {
            snapshot: PinId(snapshot),
            dir: Ino(dir),
            path: reader.rest().to_vec(),
        })
    }
}

/// A number of the sys tree as bytes.
#[must_use]
pub const fn encode_number(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

/// A number of the sys tree.
///
/// # Errors
/// [`FormatError`]: not eight bytes.
pub fn decode_number(bytes: &[u8]) -> Result<u64, FormatError> {
    let mut reader = Reader::new("fs number", bytes);
    let value = reader.u64()?;
    reader.finish()?;
    Ok(value)
}

/// Upsert `add`: adds the delta (i64) to the number; an invalid number counts as 0. An invalid
/// delta changes nothing.
pub fn fold_add(old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) {
    let before = old.and_then(|old| decode_number(old).ok()).unwrap_or(0);
    let by = delta.try_into().map_or(0, i64::from_le_bytes);
    out.extend_from_slice(&before.saturating_add_signed(by).to_le_bytes());
}

/// Joins two deltas of the upsert `add` into one with the same effect, `older` first, in `out`.
/// Returns false if one of them is invalid, or if the sum is too large. The result differs only for
/// a number that goes below 0 in between, which counts never do.
pub fn join_add(older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
    let delta = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_le_bytes);
    let (Some(older), Some(newer)) = (delta(older), delta(newer)) else {
        return false;
    };
    let Some(sum) = older.checked_add(newer) else {
        return false;
    };
    out.extend_from_slice(&sum.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: [u8; 24] = [
        b's', b't', b'f', b's', // magic
        1, 0, 0, 0, // version
        1, 2, 3, 4, 5, 6, 7, 8, // seed
        9, 10, 11, 12, 13, 14, 15, 16, // created
    ];

    #[test]
    fn rows_of_allocated_extents_are_pinned() {
        let start = 0x0807_0605_0403_0201;
        let mut bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0];
        for (code, state) in [(1, ExtentState::Unwritten), (2, ExtentState::Written)] {
            bytes[8] = code;
            let row = AllocatedRow { start, state };
            assert_eq!(row.encode(), bytes);
            assert_eq!(AllocatedRow::decode(&bytes), Ok(row));
        }
        for cut in 0..bytes.len() {
            assert!(AllocatedRow::decode(&bytes[..cut]).is_err());
        }
        for code in [0, 3, 255] {
            bytes[8] = code;
            assert!(AllocatedRow::decode(&bytes).is_err(), "state {code}");
        }
        assert!(AllocatedRow::decode(&[1; 10]).is_err(), "one byte too many");
    }

    #[test]
    fn bytes_are_pinned() {
        let header = FsHeader {
            name_seed: 0x0807_0605_0403_0201,
            created_ns: 0x100f_0e0d_0c0b_0a09,
            has_external: false,
            has_back_rows: false,
            has_allocated: false,
            has_views: false,
            rolls_back: false,
            has_transactions: false,
            has_policies: false,
            has_shared: false,
            rolls_back_clone: false,
            has_clone_policies: false,
        };
        assert_eq!(header.encode(), GOLDEN);
        assert_eq!(FsHeader::decode(&GOLDEN), Ok(header));
        assert_eq!(header.generation(), 0xc670_ef93);
        let next = FsHeader {
            created_ns: header.created_ns + 1,
            ..header
        };
        assert_ne!(next.generation(), header.generation());
        let first = FsHeader {
            created_ns: 0,
            ..header
        };
        assert_eq!(first.generation(), 1);
        let with_external = FsHeader {
            has_external: true,
            ..header
        };
        let mut second = GOLDEN;
        second[4] = 2;
        assert_eq!(with_external.encode(), second);
        assert_eq!(FsHeader::decode(&second), Ok(with_external));
    }

    #[test]
    fn the_row_of_a_rollback_is_pinned() {
        let row = RollbackRow {
            snapshot: PinId(0x0102),
            dir: Ino(0x0304),
            path: b"a/b".to_vec(),
        };
        let bytes = row.encode();
        assert_eq!(bytes, *b"\x02\x01\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0a/b");
        assert_eq!(RollbackRow::decode(&bytes), Ok(row));
        for cut in 0..ROLLBACK_BYTES {
            assert!(RollbackRow::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(RollbackRow::decode(&[0; ROLLBACK_BYTES]).is_err(), "no pin");
    }

    #[test]
    fn features_are_pinned() {
        for features in 2..=1023_u16 {
            let header = FsHeader {
                name_seed: 0x0807_0605_0403_0201,
                created_ns: 0x100f_0e0d_0c0b_0a09,
                has_external: features & 1 != 0,
                has_back_rows: features & 2 != 0,
                has_allocated: features & 4 != 0,
                has_views: features & 8 != 0,
                rolls_back: features & 16 != 0,
                has_transactions: features & 32 != 0,
                has_policies: features & 64 != 0,
                has_shared: features & 128 != 0,
                rolls_back_clone: features & 256 != 0,
                has_clone_policies: features & 512 != 0,
            };
            let [low, high] = features.to_le_bytes();
            let mut bytes = [&GOLDEN[..], &[low, high, 0, 0, 0, 0, 0, 0]].concat();
            bytes[4] = 3;
            assert_eq!(header.encode(), bytes);
            assert_eq!(FsHeader::decode(&bytes), Ok(header));
            for cut in 0..bytes.len() {
                assert!(FsHeader::decode(&bytes[..cut]).is_err());
            }
            for bit in 10..64 {
                let mut unknown = bytes.clone();
                unknown[24 + bit / 8] |= 1 << (bit % 8);
                assert!(FsHeader::decode(&unknown).is_err(), "bit {bit}");
            }
        }
        for features in [0, 1] {
            let mut bytes = [&GOLDEN[..], &[features, 0, 0, 0, 0, 0, 0, 0]].concat();
            bytes[4] = 3;
            assert!(
                FsHeader::decode(&bytes).is_err(),
                "an earlier version has them"
            );
        }
        let mut longer = [&GOLDEN[..], &[2, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert!(
            FsHeader::decode(&longer).is_err(),
            "version 1 has no features"
        );
        longer[4] = 4;
        assert!(matches!(
            FsHeader::decode(&longer),
            Err(FormatError::Newer { .. })
        ));
    }

    #[test]
    fn rows_of_external_files_are_pinned() {
        let row = ExternalRow {
            number: 0x0807_0605_0403_0201,
            settled: 0x100f_0e0d_0c0b_0a09,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(row.encode(), bytes);
        assert_eq!(ExternalRow::decode(&bytes), Ok(row));
        for cut in 0..bytes.len() {
            assert!(ExternalRow::decode(&bytes[..cut]).is_err());
        }
        assert!(ExternalRow::decode(&[0; 16]).is_err(), "no number is 0");
        assert!(ExternalRow::decode(&[1; 17]).is_err(), "one byte too many");
    }

    #[test]
    fn cuts_and_flipped_bits_of_magic_and_version_are_errors() {
        for cut in 0..GOLDEN.len() {
            assert!(FsHeader::decode(&GOLDEN[..cut]).is_err());
        }
        for bit in 0..64 {
            let mut bytes = GOLDEN;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FsHeader::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn add_saturates_and_takes_anything() {
        let mut out = Vec::new();
        fold_add(Some(&encode_number(5)), &(-2i64).to_le_bytes(), &mut out);
        assert_eq!(decode_number(&out), Ok(3));
        out.clear();
        fold_add(Some(b"junk"), &(-2i64).to_le_bytes(), &mut out);
        assert_eq!(decode_number(&out), Ok(0));
        out.clear();
        fold_add(None, b"", &mut out);
        assert_eq!(decode_number(&out), Ok(0));
    }

    #[test]
    fn joined_deltas_have_the_effect_of_both() {
        let mut out = Vec::new();
        assert!(join_add(
            &7i64.to_le_bytes(),
            &(-9i64).to_le_bytes(),
            &mut out
        ));
        assert_eq!(out, (-2i64).to_le_bytes());
        out.clear();
        assert!(!join_add(
            &i64::MAX.to_le_bytes(),
            &1i64.to_le_bytes(),
            &mut out
        ));
        assert!(!join_add(b"short", &1i64.to_le_bytes(), &mut out));
        assert!(out.is_empty());
    }
}
