//! `stitchfs umount`: takes a mount away and waits until its store is closed.
//!
//! The daemon closes the store when the last mount of the file system is gone and no process has a
//! file of it open. A bind mount or another mount namespace can put that off for ever, so that it
//! is not waited for.

mod daemon;
pub(super) mod helper;

use super::live;
use super::output;
use super::users::Users;
use anyhow::Result;
use clap::Parser;
use daemon::{Daemon, Ended, HELD_AFTER};
use std::path::PathBuf;
use std::time::Duration;
use stitch_fuse::mount::{self, Unmount};

/// The mount is gone, and the file system is in use elsewhere.
const HELD: u8 = 3;

const AFTER: &str = "\
Exit codes: 0 unmounted, and the store is closed (with --lazy: or will be); 1
failure; 2 wrong command line; 3 unmounted here, but a bind mount, another mount
namespace or a process keeps the file system, and so the store, in use.";

/// Unmount, and wait until everything is on the medium
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct UmountArgs {
    /// Detach the mount even if it is busy; the daemon ends when the last user leaves
    #[arg(long, short)]
    lazy: bool,

    /// Mount point, or the store that is mounted
    #[arg(value_name = "MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &UmountArgs) -> Result<u8> {
    if mount::detach_dead(&args.path).unwrap_or(0) > 0 {
        output::note("the mount had lost its daemon and is cleared");
        return Ok(0);
    }
    let entry = live::mounted(&args.path)?;
    let daemon = Daemon::of(&entry);
    let (how, patience) = match args.lazy {
        true => (Unmount::Lazy, Duration::ZERO),
        false => (Unmount::IfIdle, HELD_AFTER),
    };
    mount::unmount(&entry.path, how)?;
    match daemon.wait(patience) {
        Ended::Closed => Ok(0),
        Ended::Held => {
            let shown = entry.path.display();
            let users = Users::anywhere(entry.device);
            output::note(&format!(
                "{shown}: unmounted, but the file system is still {users}; its store stays in use"
            ));
            Ok(if args.lazy { 0 } else { HELD })
        }
    }
}
