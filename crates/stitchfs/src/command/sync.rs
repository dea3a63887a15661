//! `stitchfs sync`: makes a mounted file system durable.

use super::live;
use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
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
pub(super) struct Args {
    /// Mount point, or the store that is mounted
    #[arg(value_name = "MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let mount_point = live::mounted(&args.path)?.path;
    write_back(&mount_point)?;
    tell(&mount_point)?;
    Ok(0)
}

/// Has the kernel send what was written through mappings. It does not tell the daemon to sync.
pub(super) fn write_back(mount_point: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mount_point, flags, Mode::empty());
    let synced = root.and_then(|root| rustix::fs::syncfs(&root));
    let shown = mount_point.display();
    synced.with_context(|| format!("{shown}: the kernel's pages could not be written back"))
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
