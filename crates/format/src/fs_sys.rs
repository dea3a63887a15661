//! Header of a file system: what holds for all its rows. In the sys tree.
//!
//! Numbers of the upsert functions of all the file system's rows: 16 `chunk` (data, see `fs_chunk`),
//! 17 `attr` (meta, see `fs_inode`), 18 `add` (sys, see [`fold_add`]). Do not renumber.

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;

/// Format version of the file system's rows, the newest that this program knows.
pub const FS_VERSION: u32 = 4;
/// Version of a file system that uses none of the features below. A feature is added with its first
/// use, so that earlier programs can open a file system that does not use it.
const BASE_VERSION: u32 = 1;
/// Added to the version if contents of some files may be beside the store.
const EXTERNAL_FEATURE: u32 = 1;
/// Added to the version if some files may have rows of allocated extents.
const ALLOCATED_FEATURE: u32 = 2;
const MAGIC: [u8; 4] = *b"stfs";

const HEADER_BYTES: usize = 24;

fields! {
    /// Layout of the header.
    TABLE = "file system header", HEADER_BYTES, "In the sys tree, under the key `h`.";
    MAGIC_AT: [u8; 4] = 0, "`stfs`";
    VERSION_AT: u32 = 4, "format version of all rows: 1, and 1 more if contents of some files may be beside the store, \
        and 2 more if some files may have rows of allocated extents";
    NAME_SEED: u64 = 8, "secret seed of the order of names";
    CREATED: i64 = 16, "when it was made, ns since 1970";
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
    /// Contents of some files may be beside the store, and [`ExternalRow`]s say which.
    pub has_external: bool,
    /// Some files may have [`AllocatedRow`]s.
    pub has_allocated: bool,
}

impl FsHeader {
    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        MAGIC_AT.put(&mut out, MAGIC);
        let external = u32::from(self.has_external) * EXTERNAL_FEATURE;
        let allocated = u32::from(self.has_allocated) * ALLOCATED_FEATURE;
        VERSION_AT.put(&mut out, BASE_VERSION + external + allocated);
        NAME_SEED.put(&mut out, self.name_seed);
        CREATED.put(&mut out, self.created_ns);
        out
    }

    /// The header in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not a header, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let header = reader.take(HEADER_BYTES)?;
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
        if version < BASE_VERSION {
            return Err(reader.field("version", "1 to 4", version.to_string()));
        }
        let features = version - BASE_VERSION;
        let header = Self {
            name_seed: NAME_SEED.get(header),
            created_ns: CREATED.get(header),
            has_external: features & EXTERNAL_FEATURE != 0,
            has_allocated: features & ALLOCATED_FEATURE != 0,
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
            "In the sys tree, under `x` and the inode's number: contents that are a plain file beside the store.";
        NUMBER: u64 = 0, "number of the plain file, given to no other inode or plain file ever";
        SETTLED: u64 = 8, "bytes that the plain file has at least: it was synced with them; at most the size of the inode";
    }

    pub(super) fn put(out: &mut [u8], number: u64, settled: u64) {
        NUMBER.put(out, number);
        SETTLED.put(out, settled);
    }

    pub(super) fn get(row: &[u8]) -> (u64, u64) {
        (NUMBER.get(row), SETTLED.get(row))
    }
}

/// Where the contents of an inode with the row flag `EXTERNAL` are.
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
            "In the sys tree, under `a`, the inode's number and the number of the first chunk after \
             the extent: chunks that have blocks. Extents of an inode do not overlap.";
        START: u64 = 0, "number of the first chunk, below that in the key";
        STATE: u8 = 8, "1 allocated and not written since, with its room set aside; 2 every chunk exists";
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
    /// Not written since it was allocated: the room of each chunk is set aside.
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

/// Upsert `add`: the delta (i64) is added to the number; what is no number counts as 0. A delta that
/// is none changes nothing.
pub fn fold_add(old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) {
    let before = old.and_then(|old| decode_number(old).ok()).unwrap_or(0);
    let by = delta.try_into().map_or(0, i64::from_le_bytes);
    out.extend_from_slice(&before.saturating_add_signed(by).to_le_bytes());
}

/// One delta of the upsert `add` with the effect of two, `older` first, into `out`. Answers false if one
/// of them is none, or the sum is too large. A number that two deltas took below 0 in between is the only
/// one that differs; what is counted never does.
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
    fn bytes_are_pinned() {
        let header = FsHeader {
            name_seed: 0x0807_0605_0403_0201,
            created_ns: 0x100f_0e0d_0c0b_0a09,
            has_external: false,
            has_allocated: false,
        };
        assert_eq!(header.encode(), GOLDEN);
        assert_eq!(FsHeader::decode(&GOLDEN), Ok(header));
        let with_external = FsHeader {
            has_external: true,
            ..header
        };
        let mut second = GOLDEN;
        second[4] = 2;
        assert_eq!(with_external.encode(), second);
        assert_eq!(FsHeader::decode(&second), Ok(with_external));
        for (version, header) in [(3, header), (4, with_external)] {
            let with_allocated = FsHeader {
                has_allocated: true,
                ..header
            };
            second[4] = version;
            assert_eq!(with_allocated.encode(), second);
            assert_eq!(FsHeader::decode(&second), Ok(with_allocated));
        }
        second[4] = 5;
        let newer = FsHeader::decode(&second);
        assert!(matches!(newer, Err(FormatError::Newer { found: 5, .. })));
    }

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
            let decoded = FsHeader::decode(&bytes);
            // Version 1 with the bit of 2 is 3, which has one feature more.
            let has_feature = decoded.is_ok_and(|header| header.has_allocated);
            assert_eq!(has_feature, bit == 33, "bit {bit}");
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
