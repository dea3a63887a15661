//! The identity of a store that is a directory: which engine it has, and what the store is called.
//!
//! The file [`FILE_NAME`] in the directory holds it, beside the engine's own files. A store in a
//! file or on a device has a superblock instead.
//!
//! The file is written twice, each time as a new file that takes the name: before the engine makes
//! its files ([`State::Making`]), and when all of them are durable ([`State::Made`]). What a crash
//! leaves of a making is known by that.

use crate::FormatError;
use crate::codec::Reader;
use crate::superblock::LABEL_BYTES_MAX;
use crate::table::{checksum_with_hole, fields};

/// Name of the file in the directory of the store.
pub const FILE_NAME: &str = "STITCHFS";
/// Length of the record, in bytes.
pub const IDENTITY_BYTES: usize = 128;
/// Version of the record that this program writes and reads.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"StitchID";
const ENGINE_ROCKSDB: u32 = 1;
const NO_LARGE_FILES: u64 = u64::MAX;

fields! {
    /// Layout of an identity.
    TABLE = "store identity", IDENTITY_BYTES,
        "The file `STITCHFS` in a store that is a directory.";
    MAGIC_AT: [u8; 8] = 0, "ASCII `StitchID`";
    CHECKSUM: u32 = 8, "CRC-32C of eight zero bytes and the record, this field as zeros";
    VERSION_AT: u32 = 12, "version of the record; a higher one than known is refused";
    ENGINE: u32 = 16, "engine: 1 for RocksDB";
    STATE: u32 = 20, "1 while the store is made, 2 afterwards";
    UUID: [u8; 16] = 24, "identity of the store";
    LARGE_FILES: u64 = 40, "size in bytes beyond which a file becomes a plain file; 2^64 - 1 for \
        none";
    LABEL: [u8; 64] = 48, "name given by the user: UTF-8, padded with zeros";
    RESERVED: [u8; 16] = 112, "zeros";
}

/// How far the making of a store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The engine makes its files. Not to be opened.
    Making,
    /// The store is complete.
    Made,
}

/// What a store in a directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// How far its making has come.
    pub state: State,
    /// Its number.
    pub uuid: [u8; 16],
    /// Files that become larger than this are plain files; `None` for no file.
    pub large_files: Option<u64>,
    /// Name given by the user: at most [`LABEL_BYTES_MAX`] bytes, none of them zero.
    pub label: String,
}

impl Identity {
    /// Returns the record of a store with the RocksDB engine.
    ///
    /// # Panics
    /// Panics if the label is too long or has a zero byte: the caller checked it.
    #[must_use]
    pub fn encode(&self) -> [u8; IDENTITY_BYTES] {
        assert!(self.label.len() <= LABEL_BYTES_MAX, "the label was checked");
        assert!(!self.label.contains('\0'), "the label was checked");
        assert_ne!(
            self.large_files,
            Some(NO_LARGE_FILES),
            "no file is as large"
        );
        let mut out = [0; IDENTITY_BYTES];
        MAGIC_AT.put(&mut out, MAGIC);
        VERSION_AT.put(&mut out, VERSION);
        ENGINE.put(&mut out, ENGINE_ROCKSDB);
        let state = match self.state {
            State::Making => 1,
            State::Made => 2,
        };
        STATE.put(&mut out, state);
        UUID.put(&mut out, self.uuid);
        LARGE_FILES.put(&mut out, self.large_files.unwrap_or(NO_LARGE_FILES));
        let mut label = [0; LABEL_BYTES_MAX];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        LABEL.put(&mut out, label);
        RESERVED.put(&mut out, [0; 16]);
        let sum = checksum_with_hole(0, &out, CHECKSUM.range());
        CHECKSUM.put(&mut out, sum);
        out
    }

    /// Returns the identity in `bytes`.
    ///
    /// # Errors
    /// [`FormatError::Newer`] if a newer program is needed, otherwise what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let record = reader.take(IDENTITY_BYTES)?;
        reader.finish()?;
        if MAGIC_AT.get(record) != MAGIC {
            return Err(TABLE.wrong("magic", "StitchID", "other bytes"));
        }
        let expected = checksum_with_hole(0, record, CHECKSUM.range());
        let found = CHECKSUM.get(record);
        if expected != found {
            return Err(FormatError::Checksum {
                record: TABLE.name,
                expected,
                found,
            });
        }
        check_versions(record)?;
        let large_files = LARGE_FILES.get(record);
        Ok(Self {
            state: state_of(record)?,
            uuid: UUID.get(record),
            large_files: (large_files != NO_LARGE_FILES).then_some(large_files),
            label: label_of(record)?,
        })
    }
}

fn check_versions(record: &[u8]) -> Result<(), FormatError> {
    let found = VERSION_AT.get(record);
    if found > VERSION {
        return Err(FormatError::Newer {
            record: TABLE.name,
            found,
            supported: VERSION,
        });
    }
    if found == 0 {
        return Err(TABLE.wrong("version", "1", found));
    }
    let engine = ENGINE.get(record);
    if engine != ENGINE_ROCKSDB {
        return Err(TABLE.wrong("engine", "1 (RocksDB)", engine));
    }
    if RESERVED.get(record) != [0; 16] {
        return Err(TABLE.wrong("reserved", "zeros", "other bytes"));
    }
    Ok(())
}

fn state_of(record: &[u8]) -> Result<State, FormatError> {
    match STATE.get(record) {
        1 => Ok(State::Making),
        2 => Ok(State::Made),
        other => Err(TABLE.wrong("state", "1 or 2", other)),
    }
}

fn label_of(record: &[u8]) -> Result<String, FormatError> {
    let padded = LABEL.get(record);
    let len = padded.iter().position(|&b| b == 0).unwrap_or(padded.len());
    let (label, padding) = padded.split_at(len);
    if padding.iter().any(|&b| b != 0) {
        return Err(TABLE.wrong("label", "zeros after its end", "other bytes"));
    }
    String::from_utf8(label.to_vec()).map_err(|_| TABLE.wrong("label", "UTF-8", "other bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::{dump, refuses_damage};
    use stitch_base::ErrorKind;

    fn sample() -> Identity {
        Identity {
            state: State::Made,
            uuid: *b"0123456789abcdef",
            large_files: Some(0x0102_0304),
            label: "home".to_owned(),
        }
    }

    /// A record that was changed and has the right checksum.
    fn changed(change: impl FnOnce(&mut [u8])) -> Result<Identity, FormatError> {
        let mut bytes = sample().encode();
        change(&mut bytes);
        let sum = checksum_with_hole(0, &bytes, CHECKSUM.range());
        CHECKSUM.put(&mut bytes, sum);
        Identity::decode(&bytes)
    }

    #[test]
    fn bytes_are_pinned() {
        let golden = "\
magic_at 5374697463684944
checksum d4257c87
version_at 01000000
engine 01000000
state 02000000
uuid 30313233343536373839616263646566
large_files 0403020100000000
label 686f6d65ZEROS
reserved 00000000000000000000000000000000
";
        let golden = golden.replace("ZEROS", &"00".repeat(60));
        assert_eq!(dump(&TABLE, &sample().encode()), golden);
    }

    #[test]
    fn it_comes_back() {
        let making = Identity {
            state: State::Making,
            large_files: None,
            label: "x".repeat(LABEL_BYTES_MAX),
            ..sample()
        };
        for identity in [sample(), making] {
            assert_eq!(Identity::decode(&identity.encode()), Ok(identity));
        }
    }

    #[test]
    fn damage_is_refused() {
        refuses_damage(&sample().encode(), |bytes| Identity::decode(bytes).is_ok());
        let longer = [&sample().encode()[..], &[0]].concat();
        assert!(Identity::decode(&longer).is_err());
    }

    #[test]
    fn other_versions_engines_and_states_are_refused() {
        let newer = changed(|bytes| VERSION_AT.put(bytes, VERSION + 1));
        assert_eq!(newer.unwrap_err().kind(), ErrorKind::Unsupported);
        let refused = [
            changed(|bytes| VERSION_AT.put(bytes, 0)),
            changed(|bytes| ENGINE.put(bytes, 2)),
            changed(|bytes| STATE.put(bytes, 3)),
            changed(|bytes| LABEL.put(bytes, [0xff; 64])),
            changed(|bytes| bytes[111] = 1),
            changed(|bytes| bytes[127] = 1),
        ];
        for identity in refused {
            assert_eq!(identity.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
