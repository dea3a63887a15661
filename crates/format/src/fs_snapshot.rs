//! What a snapshot of a directory is of. The user bytes of a pin whose name begins with
//! [`PIN_PREFIX`].

use crate::FormatError;
use crate::codec::Reader;
use crate::table::fields;
use stitch_base::Ino;

/// Prefix of the names of pins that are snapshots of directories; the snapshot's name follows.
pub const PIN_PREFIX: &str = "fs/";
/// Format version of the record, the newest that this program knows.
pub const SNAPSHOT_VERSION: u32 = 1;
/// Longest path of a directory that has a snapshot, in bytes.
pub const SNAPSHOT_PATH_BYTES_MAX: usize = 4000;

const MAGIC: [u8; 4] = *b"stsn";
const HEAD_BYTES: usize = 28;

fields! {
    /// Layout of the record, before the path.
    TABLE = "snapshot of a directory", HEAD_BYTES,
        "User bytes of a pin named `fs/` and the snapshot's name. The path of the directory \
         follows, from the root of the file system at that moment, without a slash at either \
         end; it is empty for the root.";
    MAGIC_AT: [u8; 4] = 0, "`stsn`";
    VERSION_AT: u32 = 4, "format version, 1";
    ROOT: u64 = 8, "inode number of the directory";
    CREATED: i64 = 16, "when the snapshot was created, ns since 1970";
    OWNER: u32 = 24, "user that owned the directory, and may delete the snapshot";
}

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The directory.
    pub root: Ino,
    /// When the snapshot was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// User that owned the directory.
    pub owner: u32,
    /// Path of the directory from the root of the file system; at most
    /// [`SNAPSHOT_PATH_BYTES_MAX`] bytes.
    pub path: Vec<u8>,
}

impl SnapshotRecord {
    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.root.0 != 0, "0 is no inode number");
        debug_assert!(check_path(&self.path).is_ok(), "the path is one of names");
        let mut out = vec![0; HEAD_BYTES];
        MAGIC_AT.put(&mut out, MAGIC);
        VERSION_AT.put(&mut out, SNAPSHOT_VERSION);
        ROOT.put(&mut out, self.root.0);
        CREATED.put(&mut out, self.created_ns);
        OWNER.put(&mut out, self.owner);
        out.extend_from_slice(&self.path);
        out
    }

    /// Returns the record in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no such record, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let head = reader.take(HEAD_BYTES)?;
        let magic = MAGIC_AT.get(head);
        if magic != MAGIC {
            return Err(TABLE.wrong("magic", "stsn", magic.escape_ascii()));
        }
        let version = VERSION_AT.get(head);
        if version > SNAPSHOT_VERSION {
            return Err(FormatError::Newer {
                record: TABLE.name,
                found: version,
                supported: SNAPSHOT_VERSION,
            });
        }
        if version == 0 {
            return Err(TABLE.wrong("version", "1", version));
        }
        let root = ROOT.get(head);
        if root == 0 || root > crate::fs_key::INO_MAX {
            return Err(TABLE.wrong("root", "an inode number", root));
        }
        let path = &bytes[HEAD_BYTES..];
        check_path(path)?;
        Ok(Self {
            root: Ino(root),
            created_ns: CREATED.get(head),
            owner: OWNER.get(head),
            path: path.to_vec(),
        })
    }
}

fn check_path(path: &[u8]) -> Result<(), FormatError> {
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    let is_short = path.len() <= SNAPSHOT_PATH_BYTES_MAX;
    if is_short && (path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)) {
        return Ok(());
    }
    Err(TABLE.wrong("path", "names parted by slashes", path.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::dump;

    fn record(path: &[u8]) -> SnapshotRecord {
        SnapshotRecord {
            root: Ino(0x0102_0304),
            created_ns: 1_700_000_000_123_456_789,
            owner: 1000,
            path: path.to_vec(),
        }
    }

    #[test]
    fn its_bytes_are_pinned() {
        let bytes = record(b"home/ada").encode();
        assert_eq!(
            dump(&TABLE, &bytes[..HEAD_BYTES]),
            "magic_at 7374736e\nversion_at 01000000\nroot 0403020100000000\n\
             created 15cd853dfe9c9717\nowner e8030000\n"
        );
        assert_eq!(&bytes[HEAD_BYTES..], b"home/ada");
    }

    #[test]
    fn it_comes_back() {
        for path in [
            &b""[..],
            b"a",
            b"a/b c/\xff",
            &[b'x'; SNAPSHOT_PATH_BYTES_MAX],
        ] {
            let record = record(path);
            assert_eq!(SnapshotRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = record(b"a/b").encode();
        for cut in 0..HEAD_BYTES {
            assert!(SnapshotRecord::decode(&good[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            SnapshotRecord::decode(&bytes)
        };
        assert!(with(0, b'x').is_err(), "another magic");
        assert!(with(4, 0).is_err(), "version 0");
        assert!(matches!(with(4, 2), Err(FormatError::Newer { .. })));
        assert!(with(15, 0x80).is_err(), "no inode number");
        for path in [&b"/a"[..], b"a/", b"a//b", b"a/../b", b".", b"a\0"] {
            let bytes = [&good[..HEAD_BYTES], path].concat();
            assert!(SnapshotRecord::decode(&bytes).is_err(), "{path:?}");
        }
        let long = [&good[..HEAD_BYTES], &[b'x'; SNAPSHOT_PATH_BYTES_MAX + 1]].concat();
        assert!(SnapshotRecord::decode(&long).is_err());
    }
}
