//! Writable views of a file system, in the sys tree of mainline (see [`FsHeader`]). A view is a
//! file system over branches of another one's trees.
//!
//! A clone's directory is an empty directory by its row. That the view lies there instead is said
//! by the view's record, which names the directory by its inode number and the file system that it
//! is in. So a snapshot or clone of that file system finds the empty directory: the record is not
//! about its copy.
//!
//! [`FsHeader`]: crate::fs_sys::FsHeader

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_key::INO_MAX;
use crate::table::fields;
use stitch_base::Ino;

/// Longest path of a directory that a clone is made of, in bytes.
pub const VIEW_PATH_BYTES_MAX: usize = 4000;
/// Largest number of a view.
pub const VIEW_NUMBER_MAX: u64 = u32::MAX as u64;

const HEAD_BYTES: usize = 40;
const LIVE: u8 = 1;
const REMOVED: u8 = 2;

fields! {
    /// Layout of the record, before the path.
    TABLE = "writable view", HEAD_BYTES,
        "In the sys tree of the trees named `fs/`, under the key `v` and the view's number (u64, \
        big-endian). The trees of the view are named `fs~`, its number, `/`, and `meta` and so on. \
        The path of its directory in these trees follows, without a slash at either end; it is \
        empty for the root.";
    STATE: u8 = 0, "1 in use, 2 removed: its trees are dropped next, and this record last";
    RESERVED: [u8; 3] = 1, "zeros";
    OWNER: u32 = 4, "user that made it";
    ROOT: u64 = 8, "inode number of its directory, in its own trees";
    HOME: u64 = 16, "number of the view that the directory of the clone is in, 0 for mainline";
    GRAFT: u64 = 24, "inode number of that directory, in the trees of `home`";
    CREATED: i64 = 32, "when it was made, ns since 1970";
}

/// Whether a view is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewState {
    /// It is in use.
    Live,
    /// Its trees are to be dropped.
    Removed,
}

/// A writable view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRecord {
    /// Whether it is in use.
    pub state: ViewState,
    /// User that made it.
    pub owner: u32,
    /// Its directory, in its own trees.
    pub root: Ino,
    /// The view that has the directory which it replaces, 0 for mainline.
    pub home: u64,
    /// The directory which it replaces.
    pub graft: Ino,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Path of its directory in its own trees; at most [`VIEW_PATH_BYTES_MAX`] bytes.
    pub path: Vec<u8>,
}

impl ViewRecord {
    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.home <= VIEW_NUMBER_MAX, "a view has that number");
        debug_assert!(check_path(&self.path).is_ok(), "the path is one of names");
        let mut out = vec![0; HEAD_BYTES];
        let state = match self.state {
            ViewState::Live => LIVE,
            ViewState::Removed => REMOVED,
        };
        STATE.put(&mut out, state);
        RESERVED.put(&mut out, [0; 3]);
        OWNER.put(&mut out, self.owner);
        ROOT.put(&mut out, self.root.0);
        HOME.put(&mut out, self.home);
        GRAFT.put(&mut out, self.graft.0);
        CREATED.put(&mut out, self.created_ns);
        out.extend_from_slice(&self.path);
        out
    }

    /// Returns the record in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no such record.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(TABLE.name, bytes);
        let head = reader.take(HEAD_BYTES)?;
        let state = match STATE.get(head) {
            LIVE => ViewState::Live,
            REMOVED => ViewState::Removed,
            other => return Err(TABLE.wrong("state", "1 or 2", other)),
        };
        if RESERVED.get(head) != [0; 3] {
            return Err(TABLE.wrong("reserved", "zeros", "others"));
        }
        let home = HOME.get(head);
        if home > VIEW_NUMBER_MAX {
            return Err(TABLE.wrong("home", "a number of a view", home));
        }
        let path = &bytes[HEAD_BYTES..];
        check_path(path)?;
        Ok(Self {
            state,
            owner: OWNER.get(head),
            root: valid_ino("root", ROOT.get(head))?,
            home,
            graft: valid_ino("graft", GRAFT.get(head))?,
            created_ns: CREATED.get(head),
            path: path.to_vec(),
        })
    }
}

fn valid_ino(field: &'static str, number: u64) -> Result<Ino, FormatError> {
    if number == 0 || number > INO_MAX {
        return Err(TABLE.wrong(field, "an inode number", number));
    }
    Ok(Ino(number))
}

fn check_path(path: &[u8]) -> Result<(), FormatError> {
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    let is_short = path.len() <= VIEW_PATH_BYTES_MAX;
    if is_short && (path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)) {
        return Ok(());
    }
    Err(TABLE.wrong("path", "names parted by slashes", path.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::dump;

    fn record(path: &[u8]) -> ViewRecord {
        ViewRecord {
            state: ViewState::Live,
            owner: 1000,
            root: Ino(0x0102_0304),
            home: 7,
            graft: Ino(0x0506),
            created_ns: 1_700_000_000_123_456_789,
            path: path.to_vec(),
        }
    }

    #[test]
    fn its_bytes_are_pinned() {
        let bytes = record(b"src/main").encode();
        assert_eq!(
            dump(&TABLE, &bytes[..HEAD_BYTES]),
            "state 01\nreserved 000000\nowner e8030000\nroot 0403020100000000\n\
             home 0700000000000000\ngraft 0605000000000000\ncreated 15cd853dfe9c9717\n"
        );
        assert_eq!(&bytes[HEAD_BYTES..], b"src/main");
    }

    #[test]
    fn it_comes_back() {
        let removed = ViewRecord {
            state: ViewState::Removed,
            ..record(b"a")
        };
        let long = record(&[b'x'; VIEW_PATH_BYTES_MAX]);
        for record in [record(b""), record(b"a/b c/\xff"), removed, long] {
            assert_eq!(ViewRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = record(b"a/b").encode();
        for cut in 0..HEAD_BYTES {
            assert!(ViewRecord::decode(&good[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            ViewRecord::decode(&bytes)
        };
        assert!(with(0, 0).is_err(), "no state");
        assert!(with(0, 3).is_err(), "an unknown state");
        assert!(with(3, 1).is_err(), "reserved bytes");
        assert!(with(15, 0x80).is_err(), "no inode number");
        assert!(with(23, 1).is_err(), "no number of a view");
        assert!(with(31, 0x80).is_err(), "no inode number");
        for path in [&b"/a"[..], b"a/", b"a//b", b"a/../b", b".", b"a\0"] {
            let bytes = [&good[..HEAD_BYTES], path].concat();
            assert!(ViewRecord::decode(&bytes).is_err(), "{path:?}");
        }
        let long = [&good[..HEAD_BYTES], &[b'x'; VIEW_PATH_BYTES_MAX + 1]].concat();
        assert!(ViewRecord::decode(&long).is_err());
    }
}
