//! `stitchfs sync`: makes a mounted file system durable.

use super::live;
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use stitchfs::SYNC_XATTR;

const AFTER: &str = "\
When it returns, everything that was acknowledged before is on the medium:
names, attributes and contents of all files, those written through mappings
included. sync(1) does not reach a FUSE file system, fsync(2) of one file leaves
out the contents of other large files beside the store. Only root and the user
who mounted may do this.";

/// Make a mounted file system durable
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct SyncArgs {
    /// Mount point, or the store that is mounted
    #[arg(value_name = "MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &SyncArgs) -> Result<u8> {
    let mount_point = live::mounted(&args.path)?.path;
    write_back(&mount_point)?;
    tell(&mount_point)?;
    Ok(0)
}

/// Has the kernel send what was written through mappings, and waits until the daemon has it. Does
/// not tell the daemon to sync.
pub(super) fn write_back(mount_point: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mount_point, flags, Mode::empty())
        .with_context(|| mount_point.display().to_string())?;
    write_back_by(&root, mount_point)
}

/// Does the same by an open directory of the mount.
pub(super) fn write_back_by(dir: impl AsFd, mount_point: &Path) -> Result<()> {
    let shown = mount_point.display();
    stitch_fuse::write_back::complete(dir).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::TIMEDOUT) => anyhow!(
            "{shown}: cannot see that the kernel's pages were written back: the daemon does not \
             come on, or programs write all the time; try again later"
        ),
        Some(errno) if live::is_gone(errno) => live::refusal(mount_point, errno),
        _ => anyhow::Error::new(error).context(format!(
            "{shown}: the kernel's pages could not be written back"
        )),
    })
}

fn tell(mount_point: &Path) -> Result<()> {
    let shown = mount_point.display();
    match rustix::fs::setxattr(mount_point, SYNC_XATTR, b"", XattrFlags::empty()) {
        // A mount that is read-only has nothing to sync.
        Ok(()) | Err(Errno::ROFS) => Ok(()),
        Err(Errno::OPNOTSUPP) => {
            bail!("{shown}: its daemon is of an older stitchfs; unmount it and mount it again")
        }
        Err(Errno::IO) => bail!("{shown}: the sync failed; what was not durable may be lost"),
        Err(error) => Err(live::refusal(mount_point, error)),
    }
}
