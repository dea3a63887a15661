//! What a snapshot of a directory is of. The user bytes of a pin whose name begins with
//! [`PIN_PREFIX`].

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_view::VIEW_NUMBER_MAX;
use crate::table::fields;
use std::collections::BTreeSet;
use stitch_base::Ino;

/// Prefix of the names of pins that are snapshots of directories; the snapshot's name follows.
pub const PIN_PREFIX: &str = "fs/";
/// Format version of the record, the newest that this program knows.
pub const SNAPSHOT_VERSION: u32 = 3;
/// Version of a record without tags and flags. Later programs write it as long as there are none,
/// for older programs to read it.
const PLAIN: u32 = 1;
/// Version of a record with tags or flags, of a directory of mainline.
const WITH_TAGS: u32 = 2;
/// Version of a record of a directory in a clone.
const IN_CLONE: u32 = 3;
/// Longest path of a directory that has a snapshot, in bytes.
pub const SNAPSHOT_PATH_BYTES_MAX: usize = 4000;
/// Longest tag of a hold, in bytes.
pub const TAG_BYTES_MAX: usize = 64;
/// Longest record, in bytes: what a pin has room for.
pub const RECORD_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 4] = *b"stsn";
const HEAD_BYTES: usize = 28;
const MORE_BYTES: usize = 6;

fields! {
    /// Layout of the record, before the path.
    TABLE = "snapshot of a directory", HEAD_BYTES,
        "User bytes of a pin named `fs/` and the snapshot's name. The path of the directory \
         follows, from the root of the file system at that moment, without a slash at either \
         end; it is empty for the root. From version 2 on the tags of holds stand between, in \
         version 3 behind the number of a clone: see below.";
    MAGIC_AT: [u8; 4] = 0, "`stsn`";
    VERSION_AT: u32 = 4, "format version: 1; 2 with tags or flags; 3 of a directory in a clone";
    ROOT: u64 = 8, "inode number of the directory, in the trees that it is in";
    CREATED: i64 = 16, "when the snapshot was created, ns since 1970";
    OWNER: u32 = 24, "user that owned the directory, and may delete the snapshot";
}

/// Layout of the fields between the head and the path, from version 2 on.
pub mod more {
    use super::MORE_BYTES;
    use crate::table::fields;

    fields! {
        /// Layout of the fields.
        TABLE = "tags of a snapshot", MORE_BYTES,
            "Behind the head of a record of version 2. In version 3 the number of the clone that \
             the directory is in stands before them (u64, see `writable view`). As many tags \
             follow, each a length (u8, 1 to 64) and as many bytes of UTF-8, in rising order; then \
             the path.";
        FLAGS: u32 = 0, "1 a policy created the snapshot";
        TAG_COUNT: u16 = 4, "number of tags";
    }

    pub(super) fn put(out: &mut [u8], flags: u32, tag_count: u16) {
        FLAGS.put(out, flags);
        TAG_COUNT.put(out, tag_count);
    }

    pub(super) fn get(fields: &[u8]) -> (u32, u16) {
        (FLAGS.get(fields), TAG_COUNT.get(fields))
    }
}

/// Flag of a snapshot that a policy created.
const AUTOMATIC: u32 = 1;

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The directory, in the trees that it is in.
    pub root: Ino,
    /// Number of the clone that it is in, 0 for mainline.
    pub view: u64,
    /// When the snapshot was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// User that owned the directory.
    pub owner: u32,
    /// A policy created it, and may delete it.
    pub is_automatic: bool,
    /// Tags of the holds, none twice: with one the snapshot cannot be deleted.
    pub tags: BTreeSet<String>,
    /// Path of the directory from the root of the file system; at most
    /// [`SNAPSHOT_PATH_BYTES_MAX`] bytes.
    pub path: Vec<u8>,
}

impl SnapshotRecord {
    /// Returns the record as bytes, in the oldest version that can express it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let version = self.version();
        debug_assert!(self.root.0 != 0, "0 is no inode number");
        debug_assert!(self.view <= VIEW_NUMBER_MAX, "a view has that number");
        debug_assert!(check_path(&self.path).is_ok(), "the path is one of names");
        let mut out = vec![0; HEAD_BYTES];
        MAGIC_AT.put(&mut out, MAGIC);
        VERSION_AT.put(&mut out, version);
        ROOT.put(&mut out, self.root.0);
        CREATED.put(&mut out, self.created_ns);
        OWNER.put(&mut out, self.owner);
        if version >= IN_CLONE {
            out.extend_from_slice(&self.view.to_le_bytes());
        }
        if version >= WITH_TAGS {
            self.encode_more(&mut out);
        }
        out.extend_from_slice(&self.path);
        out
    }

    /// Returns the oldest version that can express it.
    fn version(&self) -> u32 {
        let is_plain = self.tags.is_empty() && !self.is_automatic;
        match (self.view, is_plain) {
            (0, true) => PLAIN,
            (0, false) => WITH_TAGS,
            _ => IN_CLONE,
        }
    }

    fn encode_more(&self, out: &mut Vec<u8>) {
        let mut fields = [0; MORE_BYTES];
        let flags = if self.is_automatic { AUTOMATIC } else { 0 };
        let count = u16::try_from(self.tags.len()).expect("a record has room for few tags");
        more::put(&mut fields, flags, count);
        out.extend_from_slice(&fields);
        for tag in &self.tags {
            debug_assert!(is_tag(tag), "a reader takes no other tag");
            out.push(u8::try_from(tag.len()).expect("a tag has a bound"));
            out.extend_from_slice(tag.as_bytes());
        }
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
            return Err(TABLE.wrong("version", "1 to 3", version));
        }
        let root = ROOT.get(head);
        if root == 0 || root > crate::fs_key::INO_MAX {
            return Err(TABLE.wrong("root", "an inode number", root));
        }
        let view = match version {
            IN_CLONE => valid_view(reader.u64()?)?,
            _ => 0,
        };
        let (flags, tags) = match version {
            PLAIN => (0, BTreeSet::new()),
            _ => decode_more(&mut reader)?,
        };
        if version == WITH_TAGS && flags == 0 && tags.is_empty() {
            return Err(more::TABLE.wrong("flags", "one, or a tag", flags));
        }
        let path = reader.rest();
        check_path(path)?;
        Ok(Self {
            is_automatic: flags & AUTOMATIC != 0,
            tags,
            root: Ino(root),
            view,
            created_ns: CREATED.get(head),
            owner: OWNER.get(head),
            path: path.to_vec(),
        })
    }
}

/// Reports whether a text may be the tag of a hold.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    (1..=TAG_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

fn valid_view(number: u64) -> Result<u64, FormatError> {
    if number == 0 || number > VIEW_NUMBER_MAX {
        return Err(TABLE.wrong("clone", "a number of a view", number));
    }
    Ok(number)
}

fn decode_more(reader: &mut Reader<'_>) -> Result<(u32, BTreeSet<String>), FormatError> {
    let (flags, count) = more::get(reader.take(MORE_BYTES)?);
    if flags & !AUTOMATIC != 0 {
        return Err(more::TABLE.wrong("flags", "known ones", flags));
    }
    let mut tags: BTreeSet<String> = BTreeSet::new();
    for _ in 0..count {
        let len = usize::from(reader.u8()?);
        let tag = reader.take(len)?;
        match std::str::from_utf8(tag) {
            Ok(text) if is_tag(text) && tags.last().is_none_or(|last| last.as_str() < text) => {
                tags.insert(text.to_owned())
            }
            _ => {
                return Err(more::TABLE.wrong("tag", "a text behind the last", tag.escape_ascii()));
            }
        };
    }
    Ok((flags, tags))
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
            view: 0,
            created_ns: 1_700_000_000_123_456_789,
            owner: 1000,
            is_automatic: false,
            tags: BTreeSet::new(),
            path: path.to_vec(),
        }
    }

    fn held(tags: &[&str]) -> SnapshotRecord {
        SnapshotRecord {
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..record(b"home/ada")
        }
    }

    #[test]
    fn the_bytes_of_tags_and_flags_are_pinned() {
        let automatic = SnapshotRecord {
            is_automatic: true,
            ..held(&["b", "audit"])
        };
        let bytes = automatic.encode();
        assert_eq!(bytes[4..8], [2, 0, 0, 0]);
        assert_eq!(
            bytes[HEAD_BYTES..],
            *b"\x01\0\0\0\x02\0\x05audit\x01bhome/ada"
        );
        assert_eq!(SnapshotRecord::decode(&bytes), Ok(automatic));
        let alone = held(&["hold"]);
        assert_eq!(SnapshotRecord::decode(&alone.encode()), Ok(alone));
    }

    #[test]
    fn the_bytes_of_a_directory_in_a_clone_are_pinned() {
        let plain = SnapshotRecord {
            view: 0x0102,
            ..record(b"home/ada")
        };
        let bytes = plain.encode();
        assert_eq!(bytes[4..8], [3, 0, 0, 0]);
        assert_eq!(
            bytes[HEAD_BYTES..],
            *b"\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0home/ada"
        );
        assert_eq!(SnapshotRecord::decode(&bytes), Ok(plain.clone()));
        let held = SnapshotRecord {
            view: VIEW_NUMBER_MAX,
            ..held(&["audit"])
        };
        assert_eq!(SnapshotRecord::decode(&held.encode()), Ok(held));
        for cut in HEAD_BYTES..HEAD_BYTES + 14 {
            assert!(SnapshotRecord::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for view in [0, VIEW_NUMBER_MAX + 1] {
            let mut bad = bytes.clone();
            bad[HEAD_BYTES..HEAD_BYTES + 8].copy_from_slice(&view.to_le_bytes());
            assert!(SnapshotRecord::decode(&bad).is_err(), "{view}");
        }
    }

    #[test]
    fn damaged_tags_are_refused() {
        let good = held(&["audit", "b"]).encode();
        for cut in HEAD_BYTES..HEAD_BYTES + MORE_BYTES + 8 {
            assert!(SnapshotRecord::decode(&good[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[HEAD_BYTES + at] = byte;
            SnapshotRecord::decode(&bytes).is_err()
        };
        assert!(with(0, 2), "an unknown flag");
        assert!(with(6, 0), "an empty tag");
        assert!(with(7, b'c'), "not in order");
        assert!(with(7, 0xff), "no text");
        assert!(with(4, 0), "neither tag nor flag");
        assert!(!is_tag(&"x".repeat(TAG_BYTES_MAX + 1)) && is_tag("audit 2026"));
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
        assert!(matches!(with(4, 4), Err(FormatError::Newer { .. })));
        assert!(with(15, 0x80).is_err(), "no inode number");
        for path in [&b"/a"[..], b"a/", b"a//b", b"a/../b", b".", b"a\0"] {
            let bytes = [&good[..HEAD_BYTES], path].concat();
            assert!(SnapshotRecord::decode(&bytes).is_err(), "{path:?}");
        }
        let long = [&good[..HEAD_BYTES], &[b'x'; SNAPSHOT_PATH_BYTES_MAX + 1]].concat();
        assert!(SnapshotRecord::decode(&long).is_err());
    }
}
