//! Rows of the meta tree: inodes and links, and the deltas of the upsert `attr` on inodes.
//!
//! An inode row is a head of 80 bytes (see [`TABLE`]), then the inline contents (absent bytes up to
//! the size are zeros) or the target of a symlink.
//!
//! Link row: u8 kind 2, u8 type of file ([`FileKind`]), u64 number. The inode is in its own row.
//!
//! Delta: u64 number of the inode that it is for (it changes no other), u16 mask, then for each bit
//! of the mask from the lowest, as of [`AttrDelta`]: links to add i32, least size u64, size u64,
//! time of access i64, of content i64, of attributes i64, mode u16, owner u32, group u32, row flags
//! u8, inode flags u32, chunks u64.

use crate::FormatError;
use crate::codec::Reader;
use crate::fs_key;
use crate::table::fields;
use stitch_base::Ino;

/// Bytes of an inode row before its inline contents.
pub const INODE_HEAD_BYTES: usize = 80;
const INODE: u8 = 1;
const LINK: u8 = 2;
const TYPE_MASK: u16 = 0o170_000;

fields! {
    /// Layout of an inode row's head.
    TABLE = "inode row", INODE_HEAD_BYTES,
        "In the meta tree; inline contents or a symlink's target follow.";
    ROW_KIND: u8 = 0, "1";
    FLAGS: u8 = 1, "1 inline contents, 2 extended attributes, 4 access ACL, 8 default ACL, \
        16 capabilities, 32 holes, 64 contents in an external file, 128 rows of allocated \
        extents; 1 and 64 together: contents may be shared (see `shared contents`)";
    MODE: u16 = 2, "type and permissions as in `st_mode`";
    UID: u32 = 4, "owner";
    GID: u32 = 8, "group";
    NLINK: u32 = 12, "names; of a directory 2 and one for each directory in it";
    INO: u64 = 16, "number, neither 0 nor the largest";
    SIZE: u64 = 24, "size in bytes, below 2^63";
    ATIME: i64 = 32, "last access, ns since 1970";
    MTIME: i64 = 40, "last change of contents";
    CTIME: i64 = 48, "last change of anything";
    BTIME: i64 = 56, "birth";
    RDEV: u32 = 64, "device number of a device file";
    IFLAGS: u32 = 68, "flags as of `chattr`";
    CHUNKS: u64 = 72, "with holes: no more chunks (of an external file, pieces of 4 KiB) than this \
        exist or \
        are allocated";
}

/// Flags of an inode row that tell where other parts of the inode are.
pub mod row_flag {
    /// Contents are in the row.
    pub const INLINE: u8 = 1;
    /// It has, or had, rows in the xattr tree.
    pub const XATTRS: u8 = 2;
    /// It has an access ACL.
    pub const ACCESS_ACL: u8 = 4;
    /// It has a default ACL.
    pub const DEFAULT_ACL: u8 = 8;
    /// It has file capabilities.
    pub const CAPS: u8 = 16;
    /// Chunks below the size may be absent.
    pub const HOLES: u8 = 32;
    /// Contents are a plain file beside the store.
    pub const EXTERNAL: u8 = 64;
    /// It has, or had, rows of allocated extents. Set only beside `HOLES`.
    pub const ALLOCATED: u8 = 128;
    /// Both together: contents may be shared; a row of the sys tree tells where they are.
    pub const SHARED: u8 = INLINE | EXTERNAL;
}

/// Type of a file. The number is that of `d_type` and of the top bits of `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileKind {
    /// As `d_type` has it.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// From `d_type`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The type bits of `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u16 {
        (self as u16) << 12
    }

    /// From the type bits of `st_mode`.
    #[must_use]
    pub const fn from_mode(mode: u16) -> Option<Self> {
        Self::from_code(((mode & TYPE_MASK) >> 12).to_le_bytes()[0])
    }
}

/// An inode without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeHead {
    /// Number.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Permission bits, at most 0o7777.
    pub perm: u16,
    /// Flags of the row, of [`row_flag`].
    pub flags: u8,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; of a directory 2 and one for each directory in it.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of last access, ns since 1970.
    pub atime: i64,
    /// Time of last change of contents.
    pub mtime: i64,
    /// Time of last change of anything.
    pub ctime: i64,
    /// Time of birth.
    pub btime: i64,
    /// Device number of a device file.
    pub rdev: u32,
    /// Flags as of `chattr`.
    pub iflags: u32,
    /// With `HOLES`: upper bound of the number of chunks that exist or are allocated.
    pub chunks: u64,
}

impl InodeHead {
    /// Returns the head of an inode of the superuser with one name, without permissions, contents
    /// and times.
    #[must_use]
    pub const fn new(ino: Ino, kind: FileKind) -> Self {
        Self {
            ino,
            kind,
            perm: 0,
            flags: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
            rdev: 0,
            iflags: 0,
            chunks: 0,
        }
    }

    /// Reports whether all of these row flags are set.
    #[must_use]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Type and permissions as in `st_mode`.
    #[must_use]
    pub const fn mode(&self) -> u16 {
        self.kind.mode_bits() | self.perm
    }

    /// The head as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; INODE_HEAD_BYTES] {
        assert!(self.perm <= 0o7777, "permissions have twelve bits");
        let mut out = [0; INODE_HEAD_BYTES];
        ROW_KIND.put(&mut out, INODE);
        FLAGS.put(&mut out, self.flags);
        MODE.put(&mut out, self.mode());
        UID.put(&mut out, self.uid);
        GID.put(&mut out, self.gid);
        NLINK.put(&mut out, self.nlink);
        INO.put(&mut out, self.ino.0);
        SIZE.put(&mut out, self.size);
        ATIME.put(&mut out, self.atime);
        MTIME.put(&mut out, self.mtime);
        CTIME.put(&mut out, self.ctime);
        BTIME.put(&mut out, self.btime);
        RDEV.put(&mut out, self.rdev);
        IFLAGS.put(&mut out, self.iflags);
        CHUNKS.put(&mut out, self.chunks);
        out
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let head = reader.take(INODE_HEAD_BYTES)?;
        let flags = FLAGS.get(head);
        let mode = MODE.get(head);
        let Some(kind) = FileKind::from_mode(mode) else {
            return Err(reader.field("mode", "a type of file", format!("{mode:#o}")));
        };
        let size = SIZE.get(head);
        if i64::try_from(size).is_err() {
            return Err(reader.field("size", "below 8 EiB", size.to_string()));
        }
        Ok(Self {
            ino: valid_ino(reader, INO.get(head))?,
            kind,
            perm: mode & !TYPE_MASK,
            flags,
            uid: UID.get(head),
            gid: GID.get(head),
            nlink: NLINK.get(head),
            size,
            atime: ATIME.get(head),
            mtime: MTIME.get(head),
            ctime: CTIME.get(head),
            btime: BTIME.get(head),
            rdev: RDEV.get(head),
            iflags: IFLAGS.get(head),
            chunks: CHUNKS.get(head),
        })
    }
}

fn read_ino(reader: &mut Reader<'_>) -> Result<Ino, FormatError> {
    let ino = reader.u64()?;
    valid_ino(reader, ino)
}

fn valid_ino(reader: &Reader<'_>, ino: u64) -> Result<Ino, FormatError> {
    if ino == 0 || ino > fs_key::INO_MAX {
        return Err(reader.field("ino", "1 to 2^63 - 1", ino.to_string()));
    }
    Ok(Ino(ino))
}

/// A row of the meta tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRow<'a> {
    /// An inode and its inline contents or symlink target.
    Inode(InodeHead, &'a [u8]),
    /// A name of an inode that has its own row.
    Link {
        /// Its number.
        ino: Ino,
        /// Its type.
        kind: FileKind,
    },
}

impl<'a> MetaRow<'a> {
    /// The row in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not a row.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("meta row", bytes);
        let kind = bytes.first().copied();
        match kind.map_or_else(|| reader.u8(), Ok)? {
            INODE => {
                let head = InodeHead::decode(&mut reader)?;
                Ok(Self::Inode(head, reader.rest()))
            }
            LINK => {
                let code = reader.take(2)?[1];
                let Some(kind) = FileKind::from_code(code) else {
                    return Err(reader.field("type", "a type of file", code.to_string()));
                };
                let ino = read_ino(&mut reader)?;
                reader.finish()?;
                Ok(Self::Link { ino, kind })
            }
            other => Err(reader.field("kind", "1 or 2", other.to_string())),
        }
    }

    /// The inode's number.
    #[must_use]
    pub const fn ino(&self) -> Ino {
        match self {
            Self::Inode(head, _) => head.ino,
            Self::Link { ino, .. } => *ino,
        }
    }
}

/// A link row as bytes.
#[must_use]
pub fn encode_link(ino: Ino, kind: FileKind) -> [u8; 10] {
    let mut out = [0; 10];
    out[0] = LINK;
    out[1] = kind.code();
    out[2..].copy_from_slice(&ino.0.to_le_bytes());
    out
}

/// A change of an inode by one upsert. `None` and 0 links change nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrDelta {
    /// The inode that it is for.
    pub ino: Ino,
    /// Links to add.
    pub nlink_add: i32,
    /// The size is at least this.
    pub size_least: Option<u64>,
    /// The size is this. Applied before `size_least`.
    pub size: Option<u64>,
    /// Time of access.
    pub atime: Option<i64>,
    /// Time of content.
    pub mtime: Option<i64>,
    /// Time of attributes.
    pub ctime: Option<i64>,
    /// Type and permissions.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Row flags.
    pub flags: Option<u8>,
    /// Inode flags.
    pub iflags: Option<u32>,
    /// Upper bound of chunks.
    pub chunks: Option<u64>,
}

impl AttrDelta {
    /// Returns the delta from `old` to `new`, which are one inode of one type and birth.
    #[must_use]
    pub fn between(old: &InodeHead, new: &InodeHead) -> Self {
        debug_assert_eq!(old.ino, new.ino, "one inode");
        debug_assert_eq!(old.kind, new.kind, "a type never changes");
        let links = i64::from(new.nlink) - i64::from(old.nlink);
        Self {
            ino: new.ino,
            nlink_add: i32::try_from(links).expect("links change by few at a time"),
            size_least: (new.size > old.size).then_some(new.size),
            size: (new.size < old.size).then_some(new.size),
            atime: (new.atime != old.atime).then_some(new.atime),
            mtime: (new.mtime != old.mtime).then_some(new.mtime),
            ctime: (new.ctime != old.ctime).then_some(new.ctime),
            mode: (new.mode() != old.mode()).then_some(new.mode()),
            uid: (new.uid != old.uid).then_some(new.uid),
            gid: (new.gid != old.gid).then_some(new.gid),
            flags: (new.flags != old.flags).then_some(new.flags),
            iflags: (new.iflags != old.iflags).then_some(new.iflags),
            chunks: (new.chunks != old.chunks).then_some(new.chunks),
        }
    }

    /// Reports whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                ino: self.ino,
                ..Self::default()
            }
    }

    /// Appends the delta to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ino.0.to_le_bytes());
        let mask_at = out.len();
        out.extend_from_slice(&[0, 0]);
        let mut mask = 0u16;
        let mut field = |bit: u16, bytes: Option<&[u8]>| {
            if let Some(bytes) = bytes {
                mask |= 1 << bit;
                out.extend_from_slice(bytes);
            }
        };
        let links = (self.nlink_add != 0).then(|| self.nlink_add.to_le_bytes());
        field(0, links.as_ref().map(|b| &b[..]));
        field(
            1,
            self.size_least
                .map(u64::to_le_bytes)
                .as_ref()
                .map(|b| &b[..]),
        );
        field(2, self.size.map(u64::to_le_bytes).as_ref().map(|b| &b[..]));
        field(3, self.atime.map(i64::to_le_bytes).as_ref().map(|b| &b[..]));
        field(4, self.mtime.map(i64::to_le_bytes).as_ref().map(|b| &b[..]));
        field(5, self.ctime.map(i64::to_le_bytes).as_ref().map(|b| &b[..]));
        field(6, self.mode.map(u16::to_le_bytes).as_ref().map(|b| &b[..]));
        field(7, self.uid.map(u32::to_le_bytes).as_ref().map(|b| &b[..]));
        field(8, self.gid.map(u32::to_le_bytes).as_ref().map(|b| &b[..]));
        field(9, self.flags.map(u8::to_le_bytes).as_ref().map(|b| &b[..]));
        field(
            10,
            self.iflags.map(u32::to_le_bytes).as_ref().map(|b| &b[..]),
        );
        field(
            11,
            self.chunks.map(u64::to_le_bytes).as_ref().map(|b| &b[..]),
        );
        out[mask_at..mask_at + 2].copy_from_slice(&mask.to_le_bytes());
    }

    /// The delta in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: not a delta.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new("attr delta", bytes);
        let ino = read_ino(&mut r)?;
        let mask = r.u16()?;
        if mask >> 12 != 0 {
            return Err(r.field("mask", "twelve bits", format!("{mask:#x}")));
        }
        let has = |bit: u16| mask & (1 << bit) != 0;
        let delta = Self {
            ino,
            nlink_add: if has(0) { r.u32()?.cast_signed() } else { 0 },
            size_least: has(1).then(|| r.u64()).transpose()?,
            size: has(2).then(|| r.u64()).transpose()?,
            atime: has(3).then(|| r.i64()).transpose()?,
            mtime: has(4).then(|| r.i64()).transpose()?,
            ctime: has(5).then(|| r.i64()).transpose()?,
            mode: has(6).then(|| r.u16()).transpose()?,
            uid: has(7).then(|| r.u32()).transpose()?,
            gid: has(8).then(|| r.u32()).transpose()?,
            flags: has(9).then(|| r.u8()).transpose()?,
            iflags: has(10).then(|| r.u32()).transpose()?,
            chunks: has(11).then(|| r.u64()).transpose()?,
        };
        r.finish()?;
        Ok(delta)
    }

    /// Changes `head`.
    pub fn apply(&self, head: &mut InodeHead) {
        head.nlink = head.nlink.saturating_add_signed(self.nlink_add);
        let size = self
            .size
            .unwrap_or(head.size)
            .max(self.size_least.unwrap_or(0));
        head.size = size.min(i64::MAX.unsigned_abs());
        head.atime = self.atime.unwrap_or(head.atime);
        head.mtime = self.mtime.unwrap_or(head.mtime);
        head.ctime = self.ctime.unwrap_or(head.ctime);
        if let Some(mode) = self.mode
            && FileKind::from_mode(mode) == Some(head.kind)
        {
            head.perm = mode & !TYPE_MASK;
        }
        head.uid = self.uid.unwrap_or(head.uid);
        head.gid = self.gid.unwrap_or(head.gid);
        head.flags = self.flags.unwrap_or(head.flags);
        head.iflags = self.iflags.unwrap_or(head.iflags);
        head.chunks = self.chunks.unwrap_or(head.chunks);
    }
}

/// Folds a delta over a row. Returns whether a row is left, which `out` then holds. A row of
/// another inode stays as it is.
pub fn fold(old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(old) = old else { return false };
    let (Ok(MetaRow::Inode(mut head, tail)), Ok(delta)) =
        (MetaRow::decode(old), AttrDelta::decode(delta))
    else {
        out.extend_from_slice(old);
        return true;
    };
    if delta.ino == head.ino {
        delta.apply(&mut head);
    }
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(tail);
    true
}

/// Joins two deltas for the same inode. Returns false for any other pair.
pub fn join(older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
    let (Ok(older), Ok(newer)) = (AttrDelta::decode(older), AttrDelta::decode(newer)) else {
        return false;
    };
    let Some(nlink_add) = older.nlink_add.checked_add(newer.nlink_add) else {
        return false;
    };
    // Links stop at 0, so a sum is not the same as its parts where they differ in sign.
    if older.ino != newer.ino || (older.nlink_add < 0 && newer.nlink_add > 0) {
        return false;
    }
    let (size, size_least) = match (newer.size, newer.size_least) {
        (Some(size), least) => (Some(size.max(least.unwrap_or(0))), None),
        (None, least) => (older.size, older.size_least.max(least)),
    };
    let joined = AttrDelta {
        ino: newer.ino,
        nlink_add,
        size_least,
        size,
        atime: newer.atime.or(older.atime),
        mtime: newer.mtime.or(older.mtime),
        ctime: newer.ctime.or(older.ctime),
        mode: newer.mode.or(older.mode),
        uid: newer.uid.or(older.uid),
        gid: newer.gid.or(older.gid),
        flags: newer.flags.or(older.flags),
        iflags: newer.iflags.or(older.iflags),
        chunks: newer.chunks.or(older.chunks),
    };
    joined.encode(out);
    true
}

#[cfg(test)]
mod tests;
