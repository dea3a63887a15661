//! Changes of attributes, and extended attributes.

use super::clear_set_id;
use super::convert::errno;
use super::handles::OpenHandle;
use super::inodes::Inode;
use rustix::fs::{
    self as sys, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    XattrFlags,
};
use stitch_fuse::Errno;
use stitch_fuse::handler::Answer;
use stitch_fuse::wire::args::{SetAttr, SetTime, SetXattr};
use stitch_fuse::wire::codec::Sink;

/// Sets the size, by the open file if there is one.
pub(super) fn set_size(inode: &Inode, opened: Option<&OpenHandle>, args: &SetAttr) -> Answer<()> {
    let size = args.size.ok_or(Errno::EINVAL)?;
    let own;
    let file = match opened {
        Some(handle) => handle.file()?,
        None => {
            own = inode.open(OFlags::WRONLY | OFlags::CLOEXEC)?;
            &own
        }
    };
    sys::ftruncate(file, size).map_err(errno)?;
    if args.kill_suidgid {
        clear_set_id(file)?;
    }
    Ok(())
}

/// Sets all but the size: the owner first, since a change of it clears set-id bits.
pub(super) fn set(inode: &Inode, args: &SetAttr) -> Answer<()> {
    if args.uid.is_some() || args.gid.is_some() {
        let (uid, gid) = (args.uid.map(Uid::from_raw), args.gid.map(Gid::from_raw));
        sys::chownat(&inode.fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
    }
    if let Some(mode) = args.mode {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        sys::chmodat(CWD, inode.path(), mode, AtFlags::empty()).map_err(errno)?;
    }
    if args.atime.is_some() || args.mtime.is_some() {
        let times = Timestamps {
            last_access: time_of(args.atime),
            last_modification: time_of(args.mtime),
        };
        sys::utimensat(&inode.fd, "", &times, AtFlags::EMPTY_PATH).map_err(errno)?;
    }
    Ok(())
}

fn time_of(set: Option<SetTime>) -> Timespec {
    let (tv_sec, tv_nsec) = match set {
        None => (0, UTIME_OMIT),
        Some(SetTime::Now) => (0, UTIME_NOW),
        Some(SetTime::At(time)) => (time.seconds(), time.nanos().into()),
    };
    Timespec { tv_sec, tv_nsec }
}

/// Sets an extended attribute.
pub(super) fn set_xattr(inode: &Inode, args: &SetXattr<'_>) -> Answer<()> {
    let flags = XattrFlags::from_bits_retain(args.flags);
    sys::setxattr(inode.path(), args.name, args.value, flags).map_err(errno)
}

/// Reads an extended attribute. Most are missing, so its length is asked for first.
pub(super) fn get_xattr(inode: &Inode, name: &[u8], out: &mut Sink<'_>) -> Answer<()> {
    let path = inode.path();
    let len = sys::getxattr_query(&path, name).map_err(errno)?;
    let mut value = vec![0; len];
    let len = sys::getxattr(&path, name, &mut value).map_err(errno)?;
    out.put(&value[..len]).then_some(()).ok_or(Errno::ERANGE)
}

/// Lists extended attributes.
pub(super) fn list_xattrs(inode: &Inode, out: &mut Sink<'_>) -> Answer<()> {
    let path = inode.path();
    let len = sys::listxattr_query(&path).map_err(errno)?;
    let mut names = vec![0; len];
    let len = sys::listxattr(&path, &mut names).map_err(errno)?;
    out.put(&names[..len]).then_some(()).ok_or(Errno::ERANGE)
}
