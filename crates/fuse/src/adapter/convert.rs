//! Converts arguments and replies between the kernel's types and those of the file system.

use stitch_base::Ino;
use stitch_fs::{Caller, ClearSetId, FallocateMode, FileKind, NewNode, RenameMode, SeekFor};

use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::args::{SetAttr, SetTime};
use crate::wire::reply::{self, DirEntry, Entry, FOREVER, StatFs};

pub(super) const XATTR_CREATE: u32 = 1;
pub(super) const XATTR_REPLACE: u32 = 2;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
pub(super) const O_APPEND: u32 = 0o2000;
/// Also a part of `O_SYNC`.
pub(super) const O_DSYNC: u32 = 0o10000;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 0x10;

/// The value of `st_blksize`. Programs use it as their buffer size, and each of their writes is a
/// request, so it is larger than a page.
const BLOCK_SIZE: u32 = 64 << 10;

/// The caller, with the one group that the kernel sends.
pub(super) struct Owner {
    uid: u32,
    gid: u32,
    group: Option<[u32; 1]>,
}

impl Owner {
    pub(super) const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        group: None,
    };

    pub(super) fn new(context: &Context<'_>) -> Self {
        Self {
            uid: context.caller.uid,
            gid: context.caller.gid,
            group: context.groups.iter().next().map(|group| [group]),
        }
    }

    pub(super) fn caller(&self) -> Caller<'_> {
        Caller {
            uid: self.uid,
            gid: self.gid,
            groups: self.group.as_ref().map_or(&[], |group| group),
        }
    }
}

pub(super) fn attr(attr: &stitch_fs::Attr) -> reply::Attr {
    reply::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
    }
}

pub(super) fn entry(of: &stitch_fs::Attr) -> Entry {
    debug_assert!(of.ino != Ino(0), "no inode has number 0");
    Entry {
        ino: of.ino,
        // As the root's.
        generation: 0,
        attr: attr(of),
        entry_ttl: FOREVER,
        attr_ttl: FOREVER,
    }
}

pub(super) fn dir_entry<'a>(entry: &stitch_fs::DirEntry<'a>) -> DirEntry<'a> {
    debug_assert!(entry.offset > 0, "0 is where a listing begins");
    DirEntry {
        ino: entry.ino,
        next_offset: entry.offset,
        kind: kind(entry.kind),
        name: entry.name,
    }
}

const fn kind(kind: FileKind) -> reply::FileKind {
    match kind {
        FileKind::Fifo => reply::FileKind::Fifo,
        FileKind::CharDevice => reply::FileKind::CharDevice,
        FileKind::Directory => reply::FileKind::Directory,
        FileKind::BlockDevice => reply::FileKind::BlockDevice,
        FileKind::Regular => reply::FileKind::Regular,
        FileKind::Symlink => reply::FileKind::Symlink,
        FileKind::Socket => reply::FileKind::Socket,
    }
}

/// Returns the type of file that MKNOD creates; a mode without a type means a regular file.
pub(super) fn kind_of_mode(mode: u32) -> Answer<FileKind> {
    if mode >> 12 == 0 {
        return Ok(FileKind::Regular);
    }
    let mode = u16::try_from(mode).map_err(|_| Errno::EINVAL)?;
    FileKind::from_mode(mode).ok_or(Errno::EINVAL)
}

pub(super) const fn new_node(mode: u32, umask: u32) -> NewNode {
    NewNode {
        perm: mode & 0o7777,
        umask: umask & 0o777,
    }
}

pub(super) fn set_attr(args: &SetAttr, clear_setid: ClearSetId) -> stitch_fs::SetAttr {
    let time = |time| match time {
        SetTime::Now => stitch_fs::SetTime::Now,
        SetTime::At(at) => stitch_fs::SetTime::At(at),
    };
    stitch_fs::SetAttr {
        perm: args.mode.map(|mode| mode & 0o7777),
        uid: args.uid,
        gid: args.gid,
        size: args.size,
        atime: args.atime.map(time),
        mtime: args.mtime.map(time),
        ctime: args.ctime,
        clear_setid,
    }
}

pub(super) const fn seek_for(whence: u32) -> Answer<SeekFor> {
    match whence {
        SEEK_DATA => Ok(SeekFor::Data),
        SEEK_HOLE => Ok(SeekFor::Hole),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) const fn rename_mode(flags: u32) -> Answer<RenameMode> {
    Ok(match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        libc::RENAME_WHITEOUT => RenameMode::Whiteout,
        _ => return Err(Errno::EINVAL),
    })
}

pub(super) const fn fallocate_mode(mode: u32) -> Answer<FallocateMode> {
    const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
    const ZERO_KEEP: u32 = FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE;
    Ok(match mode {
        0 => FallocateMode::Allocate { keep_size: false },
        FALLOC_KEEP_SIZE => FallocateMode::Allocate { keep_size: true },
        PUNCH => FallocateMode::PunchHole,
        FALLOC_ZERO_RANGE => FallocateMode::ZeroRange { keep_size: false },
        ZERO_KEEP => FallocateMode::ZeroRange { keep_size: true },
        _ => return Err(Errno::ENOTSUP),
    })
}

pub(super) const fn stat_fs(space: &stitch_fs::StatFs) -> StatFs {
    debug_assert!(
        space.blocks_free <= space.blocks,
        "no more is free than there is"
    );
    debug_assert!(
        space.block_bytes.is_power_of_two(),
        "the kernel shifts by it"
    );
    StatFs {
        blocks: space.blocks,
        blocks_free: space.blocks_free,
        blocks_available: space.blocks_free,
        files: space.inodes,
        files_free: space.inodes_free,
        block_size: space.block_bytes,
        name_len_max: space.name_bytes_max,
        fragment_size: space.block_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_name_a_kind() {
        assert_eq!(kind_of_mode(0o644), Ok(FileKind::Regular));
        assert_eq!(kind_of_mode(0o100_644), Ok(FileKind::Regular));
        assert_eq!(kind_of_mode(0o020_600), Ok(FileKind::CharDevice));
        assert_eq!(kind_of_mode(0o170_000), Err(Errno::EINVAL));
        assert_eq!(kind_of_mode(0o1_100_644), Err(Errno::EINVAL));
    }

    #[test]
    fn only_offered_flags_are_taken() {
        assert_eq!(rename_mode(2), Ok(RenameMode::Exchange));
        assert_eq!(rename_mode(3), Err(Errno::EINVAL));
        assert_eq!(fallocate_mode(3), Ok(FallocateMode::PunchHole));
        let zero = FallocateMode::ZeroRange { keep_size: true };
        assert_eq!(fallocate_mode(0x11), Ok(zero));
        assert_eq!(fallocate_mode(2), Err(Errno::ENOTSUP));
        assert_eq!(fallocate_mode(8), Err(Errno::ENOTSUP));
    }
}
