//! `umount.fuse.stitchfs`: what umount(8) starts for our mounts.
//!
//! It unmounts by umount2(2) or `fusermount3`, never by umount(8), which would start it again.
//! `-l` and `-f` are for mounts whose daemon hangs: they ask the daemon nothing and do not wait.

use super::{HELD, UmountArgs};
use crate::command::live;
use anyhow::Result;
use clap::Parser;
use std::path::{Path, PathBuf};
use stitch_fuse::mount::{self, MountError, MountOptions, Unmount};

/// Unmount a StitchFS store, as umount(8) asks for it
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.stitchfs", version, max_term_width = crate::command::HELP_COLUMNS)]
pub(in crate::command) struct UmountHelperArgs {
    /// Mount point
    #[arg(value_name = "MNT")]
    path: PathBuf,

    /// Detach the mount even if it is busy
    #[arg(short = 'l')]
    lazy: bool,

    /// End requests that wait for the daemon
    #[arg(short = 'f')]
    force: bool,

    /// Make the mount read-only if it is busy
    #[arg(short = 'r')]
    read_only: bool,

    /// Do not write /etc/mtab (it never is)
    #[arg(short = 'n')]
    no_mtab: bool,

    /// Say more
    #[arg(short = 'v')]
    verbose: bool,

    /// Type of file system
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

pub(in crate::command) fn run(args: UmountHelperArgs) -> Result<u8> {
    match (args.lazy, args.force) {
        (true, _) => return unmount_now(&args.path, Unmount::Lazy),
        (false, true) => return unmount_now(&args.path, Unmount::Force),
        (false, false) => {}
    }
    let path = args.path.clone();
    match super::run(&UmountArgs { lazy: false, path }) {
        // What is in use elsewhere is unmounted here all the same.
        Ok(HELD) => Ok(0),
        Err(error) if args.read_only && is_busy(&error) => make_read_only(&args.path),
        other => other,
    }
}

fn unmount_now(path: &Path, how: Unmount) -> Result<u8> {
    let entry = live::mounted(path)?;
    super::check_user(&entry)?;
    mount::unmount(&entry.path, how)?;
    Ok(0)
}

fn is_busy(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<MountError>();
    matches!(error, Some(MountError::Busy { .. }))
}

fn make_read_only(path: &Path) -> Result<u8> {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    mount::remount(path, &options)?;
    Ok(0)
}
