//! Inode flags: the ioctls of `chattr` and `lsattr`, and the attributes of statx.

use stitch_base::Ino;
use stitch_fs::{FileSystem, inode_flag};

use super::convert::Owner;
use super::{Adapter, OrErrno};
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::args::Ioctl;
use crate::wire::codec::{Fields, Reader, Sink};

/// `FS_IOC_GETFLAGS`
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`
const GET_XFLAGS: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`
const SET_XFLAGS: u32 = 0x401c_5820;

/// The inode flags and their equivalents in `struct fsxattr`.
const XFLAGS: [(u32, u32); 4] = [
    (inode_flag::IMMUTABLE, 0x08),
    (inode_flag::APPEND, 0x10),
    (inode_flag::NOATIME, 0x40),
    (inode_flag::NODUMP, 0x80),
];

/// The inode flags and their equivalents in `stx_attributes`.
const STATX: [(u32, u64); 3] = [
    (inode_flag::IMMUTABLE, 0x10),
    (inode_flag::APPEND, 0x20),
    (inode_flag::NODUMP, 0x40),
];

pub(super) fn statx_of(flags: u32) -> u64 {
    let set = STATX.iter().filter(|(ours, _)| flags & ours != 0);
    set.fold(0, |bits, (_, theirs)| bits | theirs)
}

fn xflags_of(flags: u32) -> u32 {
    let set = XFLAGS.iter().filter(|(ours, _)| flags & ours != 0);
    set.fold(0, |bits, (_, theirs)| bits | theirs)
}

/// Converts flags of `struct fsxattr`. Returns `None` if one is not supported.
fn from_xflags(xflags: u32) -> Option<u32> {
    let set = XFLAGS.iter().filter(|(_, theirs)| xflags & theirs != 0);
    let flags = set.fold(0, |bits, (ours, _)| bits | ours);
    (xflags_of(flags) == xflags).then_some(flags)
}

/// Reports whether this command changes an inode.
const fn is_change(command: u32) -> bool {
    matches!(command, SET_FLAGS | SET_XFLAGS)
}

impl Adapter {
    /// Serves the ioctls of an inode's flags.
    pub(super) fn flags_ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        let result = serve(&self.fs, &self.actor(context), ino, args, out)?;
        if is_change(args.command) {
            // The change time has changed, and the kernel does not check that.
            self.attr_cache.drop_attr(ino);
        }
        Ok(result)
    }
}

pub(super) fn serve(
    fs: &FileSystem,
    actor: &Owner,
    ino: Ino,
    args: &Ioctl<'_>,
    out: &mut Sink<'_>,
) -> Answer<i32> {
    let mut input = Reader::new(args.input);
    let fits = match args.command {
        GET_FLAGS => {
            let flags = fs.get_attr(ino).or_errno()?.iflags;
            out.put(&Fields::<4>::default().u32(flags).done())
        }
        GET_XFLAGS => {
            let flags = xflags_of(fs.get_attr(ino).or_errno()?.iflags);
            out.put(&Fields::<28>::default().u32(flags).zeros(24).done())
        }
        SET_FLAGS => {
            let flags = input.u32().map_err(|_| Errno::EINVAL)?;
            set(fs, actor, ino, Some(flags))?;
            true
        }
        SET_XFLAGS => {
            let xflags = input.u32().map_err(|_| Errno::EINVAL)?;
            let rest = [input.u32(), input.u32(), input.u32(), input.u32()];
            // Extent sizes and projects are not supported.
            let [Ok(0), Ok(_), Ok(0), Ok(0)] = rest else {
                return Err(Errno::ENOTSUP);
            };
            set(fs, actor, ino, from_xflags(xflags))?;
            true
        }
        _ => return Err(Errno::ENOTTY),
    };
    if fits { Ok(0) } else { Err(Errno::EINVAL) }
}

fn set(fs: &FileSystem, actor: &Owner, ino: Ino, flags: Option<u32>) -> Answer<()> {
    let known = flags.filter(|flags| flags & !inode_flag::ALL == 0);
    let flags = known.ok_or(Errno::ENOTSUP)?;
    fs.set_inode_flags(&actor.caller(), ino, flags).or_errno()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_there_and_back() {
        for flags in [
            0,
            inode_flag::IMMUTABLE,
            inode_flag::APPEND | inode_flag::NODUMP,
            inode_flag::ALL,
        ] {
            assert_eq!(from_xflags(xflags_of(flags)), Some(flags));
        }
        assert_eq!(from_xflags(0x8000_0000), None);
        assert_eq!(statx_of(inode_flag::APPEND | inode_flag::NOATIME), 0x20);
    }
}
