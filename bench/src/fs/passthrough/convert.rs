//! From what system calls answer to what the protocol says.

use rustix::fs::{Stat, StatVfs};
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_fuse::Errno;
use stitch_fuse::handler::Answer;
use stitch_fuse::wire::reply::{Attr, StatFs};

/// How long names and attributes stand.
pub(super) const TTL: Duration = Duration::from_secs(1);

/// The same number.
pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Attributes. The birth time is not asked for.
pub(super) fn attr_of(stat: &Stat) -> Answer<Attr> {
    let time = |seconds: i64, nanos: u64| -> Answer<Timestamp> {
        let nanos = u32::try_from(nanos).map_err(|_| Errno::EIO)?;
        Ok(Timestamp::from_parts(seconds, nanos))
    };
    let ctime = time(stat.st_ctime, stat.st_ctime_nsec)?;
    Ok(Attr {
        ino: Ino(stat.st_ino),
        size: u64::try_from(stat.st_size).map_err(|_| Errno::EIO)?,
        blocks: u64::try_from(stat.st_blocks).map_err(|_| Errno::EIO)?,
        atime: time(stat.st_atime, stat.st_atime_nsec)?,
        mtime: time(stat.st_mtime, stat.st_mtime_nsec)?,
        ctime,
        btime: ctime,
        mode: stat.st_mode,
        nlink: u32::try_from(stat.st_nlink).map_err(|_| Errno::EOVERFLOW)?,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: u32::try_from(stat.st_rdev).map_err(|_| Errno::EOVERFLOW)?,
        blksize: u32::try_from(stat.st_blksize).map_err(|_| Errno::EIO)?,
    })
}

/// Space and limits.
pub(super) fn statfs_of(found: &StatVfs) -> Answer<StatFs> {
    let small = |number: u64| u32::try_from(number).map_err(|_| Errno::EOVERFLOW);
    Ok(StatFs {
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        files: found.f_files,
        files_free: found.f_ffree,
        block_size: small(found.f_bsize)?,
        name_len_max: small(found.f_namemax)?,
        fragment_size: small(found.f_frsize)?,
    })
}
