//! The decoded arguments of requests, as handlers get them.
//!
//! Borrowed names and data point into the request's buffer.

use stitch_base::Ino;
use stitch_base::clock::Timestamp;

use super::codec::{Reader, WireError};
use super::flags::{self, SetAttrMask, WriteFlags};

/// The handle of an open file, from the reply to OPEN; 0 if OPEN is not served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fh(pub u64);

/// Identifies the owner of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

fn fh_if(present: bool, raw: u64) -> Option<Fh> {
    present.then_some(Fh(raw))
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the request is served.
    Now,
    /// This time.
    At(Timestamp),
}

/// SETATTR: `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The open file of the system call.
    pub fh: Option<Fh>,
    /// Permission bits; file type bits have no meaning.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New size: truncate or extend.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (sent with the write-back cache only).
    pub ctime: Option<Timestamp>,
    /// Clear set-user-id, and set-group-id if the group may execute.
    pub kill_suidgid: bool,
    /// The lock owner.
    pub lock_owner: Option<LockOwner>,
}

impl SetAttr {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let valid = SetAttrMask(body.u32()?);
        body.skip(4)?;
        let (fh, size, lock_owner) = (body.u64()?, body.u64()?, body.u64()?);
        let seconds = [body.i64()?, body.i64()?, body.i64()?];
        let nanos = [body.u32()?, body.u32()?, body.u32()?];
        let mode = body.u32()?;
        body.skip(4)?;
        let (uid, gid) = (body.u32()?, body.u32()?);
        let has = |flag| valid.contains(flag);
        let at = |which: usize| Timestamp::from_parts(seconds[which], nanos[which]);
        let time = |set, now, which| match (has(set), has(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(at(which))),
            (false, false) => None,
        };
        Ok(Self {
            fh: fh_if(has(SetAttrMask::FH), fh),
            mode: has(SetAttrMask::MODE).then_some(mode),
            uid: has(SetAttrMask::UID).then_some(uid),
            gid: has(SetAttrMask::GID).then_some(gid),
            size: has(SetAttrMask::SIZE).then_some(size),
            atime: time(SetAttrMask::ATIME, SetAttrMask::ATIME_NOW, 0),
            mtime: time(SetAttrMask::MTIME, SetAttrMask::MTIME_NOW, 1),
            ctime: has(SetAttrMask::CTIME).then(|| at(2)),
            kill_suidgid: has(SetAttrMask::KILL_SUIDGID),
            lock_owner: has(SetAttrMask::LOCK_OWNER).then_some(LockOwner(lock_owner)),
        })
    }
}

/// STATX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statx {
    /// The open file of the system call.
    pub fh: Option<Fh>,
    /// `AT_STATX_*`.
    pub flags: u32,
    /// `STATX_*`: the requested fields.
    pub mask: u32,
}

impl Statx {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let getattr_flags = body.u32()?;
        body.skip(4)?;
        let fh = fh_if(getattr_flags & flags::GETATTR_FH != 0, body.u64()?);
        Ok(Self {
            fh,
            flags: body.u32()?,
            mask: body.u32()?,
        })
    }
}

/// MKNOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkNod<'a> {
    /// New name.
    pub name: &'a [u8],
    /// File type and permission bits, umask not applied.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Device number, as the kernel encodes it for user space.
    pub rdev: u32,
}

impl<'a> MkNod<'a> {
    pub(super) fn parse(body: &mut Reader<'a>) -> Result<Self, WireError> {
        let (mode, rdev, umask) = (body.u32()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        Ok(Self {
            name: body.name()?,
            mode,
            umask,
            rdev,
        })
    }
}

/// MKDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkDir<'a> {
    /// New name.
    pub name: &'a [u8],
    /// Permission bits, umask not applied.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

impl<'a> MkDir<'a> {
    pub(super) fn parse(body: &mut Reader<'a>) -> Result<Self, WireError> {
        let (mode, umask) = (body.u32()?, body.u32()?);
        Ok(Self {
            name: body.name()?,
            mode,
            umask,
        })
    }
}

/// RENAME and RENAME2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The name to move.
    pub source_name: &'a [u8],
    /// The target directory.
    pub target_parent: Ino,
    /// The new name.
    pub target_name: &'a [u8],
    /// `RENAME_*`.
    pub flags: u32,
}

impl<'a> Rename<'a> {
    pub(super) fn parse(body: &mut Reader<'a>, with_flags: bool) -> Result<Self, WireError> {
        let target_parent = Ino(body.u64()?);
        let mut flags = 0;
        if with_flags {
            flags = body.u32()?;
            body.skip(4)?;
        }
        let source_name = body.name()?;
        Ok(Self {
            source_name,
            target_parent,
            target_name: body.name()?,
            flags,
        })
    }
}

/// OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `O_*`.
    pub flags: u32,
    /// Clear set-id bits, since the file is truncated.
    pub kill_suidgid: bool,
}

impl Open {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let flags = body.u32()?;
        Ok(Self {
            flags,
            kill_suidgid: body.u32()? & flags::OPEN_KILL_SUIDGID != 0,
        })
    }
}

/// CREATE and TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// New name; means nothing to TMPFILE.
    pub name: &'a [u8],
    /// `O_*`.
    pub flags: u32,
    /// File type and permission bits, umask not applied.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Clear set-id bits, if the file is there and is truncated.
    pub kill_suidgid: bool,
}

impl<'a> Create<'a> {
    pub(super) fn parse(body: &mut Reader<'a>) -> Result<Self, WireError> {
        let (flags, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
        let kill_suidgid = body.u32()? & flags::OPEN_KILL_SUIDGID != 0;
        Ok(Self {
            name: body.name()?,
            flags,
            mode,
            umask,
            kill_suidgid,
        })
    }
}

/// READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub fh: Fh,
    /// First byte; for directories the offset that the last entry came with, 0 to begin.
    pub offset: u64,
    /// Bytes wanted at most.
    pub size: u32,
    /// `O_*` of the open file.
    pub flags: u32,
    /// The lock owner of the reader, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
}

impl Read {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let (fh, offset, size) = (Fh(body.u64()?), body.u64()?, body.u32()?);
        let (read_flags, owner, flags) = (body.u32()?, body.u64()?, body.u32()?);
        body.skip(4)?;
        let lock_owner = (read_flags & flags::READ_LOCKOWNER != 0).then_some(LockOwner(owner));
        Ok(Self {
            fh,
            offset,
            size,
            flags,
            lock_owner,
        })
    }
}

/// WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file; possibly another one if the write comes from the cache.
    pub fh: Fh,
    /// First byte.
    pub offset: u64,
    /// The bytes to write.
    pub data: &'a [u8],
    /// `O_*` of the open file.
    pub flags: u32,
    /// Flags of the write.
    pub write_flags: WriteFlags,
    /// The lock owner of the writer.
    pub lock_owner: Option<LockOwner>,
}

impl<'a> Write<'a> {
    pub(super) fn parse(body: &mut Reader<'a>) -> Result<Self, WireError> {
        let (fh, offset, size) = (Fh(body.u64()?), body.u64()?, body.u32()?);
        let (write_flags, owner, flags) = (WriteFlags(body.u32()?), body.u64()?, body.u32()?);
        body.skip(4)?;
        let data = body.bytes(usize::try_from(size).map_err(|_| WireError::BadLength)?)?;
        let lock_owner = write_flags
            .contains(WriteFlags::LOCK_OWNER)
            .then_some(LockOwner(owner));
        Ok(Self {
            fh,
            offset,
            data,
            flags,
            write_flags,
            lock_owner,
        })
    }
}

/// FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The open file.
    pub fh: Fh,
    /// The owner whose POSIX locks are released.
    pub lock_owner: LockOwner,
}

impl Flush {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let fh = Fh(body.u64()?);
        body.skip(8)?;
        Ok(Self {
            fh,
            lock_owner: LockOwner(body.u64()?),
        })
    }
}

/// RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The open file.
    pub fh: Fh,
    /// `O_*` of the open file.
    pub flags: u32,
    /// The owner whose flock is released, if any.
    pub flock_owner: Option<LockOwner>,
}

impl Release {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let (fh, flags, release_flags) = (Fh(body.u64()?), body.u32()?, body.u32()?);
        let owner = LockOwner(body.u64()?);
        let flock = release_flags & flags::RELEASE_FLOCK_UNLOCK != 0;
        Ok(Self {
            fh,
            flags,
            flock_owner: flock.then_some(owner),
        })
    }
}

/// FSYNC and FSYNCDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FSync {
    /// The open file.
    pub fh: Fh,
    /// Only sync what is needed to read the data back.
    pub data_only: bool,
}

impl FSync {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let fh = Fh(body.u64()?);
        let data_only = body.u32()? & flags::FSYNC_FDATASYNC != 0;
        body.skip(4)?;
        Ok(Self { fh, data_only })
    }
}

/// SETXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// Its name, prefix included.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE`.
    pub flags: u32,
    /// Clear set-group-id: a caller outside the group sets an ACL.
    pub kill_sgid: bool,
}

impl<'a> SetXattr<'a> {
    /// Decodes the arguments; `extended` if SETXATTR_EXT was negotiated.
    pub(super) fn parse(body: &mut Reader<'a>, extended: bool) -> Result<Self, WireError> {
        let (size, flags) = (body.u32()?, body.u32()?);
        let mut kill_sgid = false;
        if extended {
            kill_sgid = body.u32()? & flags::SETXATTR_ACL_KILL_SGID != 0;
            body.skip(4)?;
        }
        let name = body.name()?;
        let value = body.bytes(usize::try_from(size).map_err(|_| WireError::BadLength)?)?;
        Ok(Self {
            name,
            value,
            flags,
            kill_sgid,
        })
    }
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// Dropped.
    Unlock,
}

impl LockKind {
    /// From `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        match i32::try_from(raw).ok()? {
            libc::F_RDLCK => Some(Self::Read),
            libc::F_WRLCK => Some(Self::Write),
            libc::F_UNLCK => Some(Self::Unlock),
            _ => None,
        }
    }

    /// `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        let raw = match self {
            Self::Read => libc::F_RDLCK,
            Self::Write => libc::F_WRLCK,
            Self::Unlock => libc::F_UNLCK,
        };
        u32::try_from(raw).expect("lock kinds are small")
    }
}

/// GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The open file.
    pub fh: Fh,
    /// The lock owner.
    pub owner: LockOwner,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// Kind of the lock.
    pub kind: LockKind,
    /// The calling process.
    pub pid: u32,
    /// flock, not POSIX: the range means nothing.
    pub flock: bool,
}

impl Lock {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let (fh, owner) = (Fh(body.u64()?), LockOwner(body.u64()?));
        let (start, end) = (body.u64()?, body.u64()?);
        let kind = LockKind::from_raw(body.u32()?).ok_or(WireError::BadValue)?;
        let pid = body.u32()?;
        let flock = body.u32()? & flags::LK_FLOCK != 0;
        body.skip(4)?;
        Ok(Self {
            fh,
            owner,
            start,
            end,
            kind,
            pid,
            flock,
        })
    }
}

/// IOCTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file.
    pub fh: Fh,
    /// `FUSE_IOCTL_*`.
    pub flags: u32,
    /// The command.
    pub command: u32,
    /// The argument as a number.
    pub arg: u64,
    /// The input of the caller.
    pub input: &'a [u8],
    /// Most bytes of output.
    pub output_size: u32,
}

impl<'a> Ioctl<'a> {
    pub(super) fn parse(body: &mut Reader<'a>) -> Result<Self, WireError> {
        let (fh, flags, command) = (Fh(body.u64()?), body.u32()?, body.u32()?);
        let (arg, input_size, output_size) = (body.u64()?, body.u32()?, body.u32()?);
        let input = body.bytes(usize::try_from(input_size).map_err(|_| WireError::BadLength)?)?;
        Ok(Self {
            fh,
            flags,
            command,
            arg,
            input,
            output_size,
        })
    }
}

/// FALLOCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The open file.
    pub fh: Fh,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `FALLOC_FL_*`.
    pub mode: u32,
}

impl Fallocate {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let fh = Fh(body.u64()?);
        let (offset, length, mode) = (body.u64()?, body.u64()?, body.u32()?);
        body.skip(4)?;
        Ok(Self {
            fh,
            offset,
            length,
            mode,
        })
    }
}

/// LSEEK: only `SEEK_DATA` and `SEEK_HOLE` are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LSeek {
    /// The open file.
    pub fh: Fh,
    /// Offset from which to search.
    pub offset: u64,
    /// `SEEK_*`.
    pub whence: u32,
}

impl LSeek {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let (fh, offset, whence) = (Fh(body.u64()?), body.u64()?, body.u32()?);
        body.skip(4)?;
        Ok(Self { fh, offset, whence })
    }
}

/// COPY_FILE_RANGE and COPY_FILE_RANGE_64; the source is the request's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Open source.
    pub source_fh: Fh,
    /// From here.
    pub source_offset: u64,
    /// Target.
    pub target: Ino,
    /// Open target.
    pub target_fh: Fh,
    /// To here.
    pub target_offset: u64,
    /// Bytes at most.
    pub length: u64,
    /// No flag is defined.
    pub flags: u64,
}

impl CopyFileRange {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            source_fh: Fh(body.u64()?),
            source_offset: body.u64()?,
            target: Ino(body.u64()?),
            target_fh: Fh(body.u64()?),
            target_offset: body.u64()?,
            length: body.u64()?,
            flags: body.u64()?,
        })
    }
}

/// BATCH_FORGET: inodes and the number of lookups to subtract from each.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a> {
    pairs: &'a [u8],
}

impl<'a> ForgetList<'a> {
    pub(super) fn parse(body: &mut Reader<'a>) -> Result<Self, WireError> {
        let count = usize::try_from(body.u32()?).map_err(|_| WireError::BadLength)?;
        body.skip(4)?;
        let len_bytes = count.checked_mul(16).ok_or(WireError::BadLength)?;
        Ok(Self {
            pairs: body.bytes(len_bytes)?,
        })
    }

    /// Each inode with its number of lookups.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, u64)> + 'a {
        self.pairs.chunks_exact(16).filter_map(|pair| {
            let mut pair = Reader::new(pair);
            Some((Ino(pair.u64().ok()?), pair.u64().ok()?))
        })
    }

    /// Wraps encoded pairs, for tests of handlers.
    #[must_use]
    pub const fn from_bytes(pairs: &'a [u8]) -> Self {
        Self { pairs }
    }
}

/// Groups of a creation: at most the caller's group that is also the parent directory's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a> {
    ids: &'a [u8],
}

impl<'a> Groups<'a> {
    /// Decodes the extensions of a request.
    pub(super) fn parse(extensions: &'a [u8]) -> Result<Self, WireError> {
        let mut rest = extensions;
        let mut found = Self::default();
        while !rest.is_empty() {
            let mut head = Reader::new(rest);
            let size = usize::try_from(head.u32()?).map_err(|_| WireError::BadLength)?;
            let kind = head.u32()?;
            let (whole, tail) = rest.split_at_checked(size).ok_or(WireError::Truncated)?;
            let body = whole.get(8..).ok_or(WireError::BadLength)?;
            if kind == flags::EXT_GROUPS {
                let mut body = Reader::new(body);
                let count = usize::try_from(body.u32()?).map_err(|_| WireError::BadLength)?;
                let len_bytes = count.checked_mul(4).ok_or(WireError::BadLength)?;
                found = Self {
                    ids: body.bytes(len_bytes)?,
                };
            }
            rest = tail;
        }
        Ok(found)
    }

    /// Their ids.
    pub fn iter(&self) -> impl Iterator<Item = u32> + 'a {
        self.ids
            .chunks_exact(4)
            .filter_map(|id| Reader::new(id).u32().ok())
    }
}
