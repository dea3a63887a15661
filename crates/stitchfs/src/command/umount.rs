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
use anyhow::{Result, bail};
use clap::Parser;
use daemon::{Daemon, Ended, HELD_AFTER};
use std::path::PathBuf;
use std::time::Duration;
use stitch_fuse::mount::table::MountEntry;
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

/// Refuses the mount of another user, of which fusermount3 would say that there is none.
fn check_user(entry: &MountEntry) -> Result<()> {
    check_user_is(entry, rustix::process::geteuid().as_raw())
}

fn check_user_is(entry: &MountEntry, user: u32) -> Result<()> {
    let (shown, by) = (entry.path.display(), entry.user());
    match by {
        _ if user == 0 => Ok(()),
        Some(0) => bail!("{shown}: was mounted by root, who alone can unmount it: use sudo"),
        Some(other) if other != user => bail!(
            "{shown}: was mounted by the user with number {other}; only that user and root can \
             unmount it"
        ),
        _ => Ok(()),
    }
}

pub(super) fn run(args: &UmountArgs) -> Result<u8> {
    if mount::detach_dead(&args.path).unwrap_or(0) > 0 {
        output::note("the mount had lost its daemon and is cleared");
        return Ok(0);
    }
    let entry = live::mounted(&args.path)?;
    check_user(&entry)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_unmounts_what_the_user_has_mounted() {
        let mut entry = live::mount_entry("/srv", "/", 1, "fuse.stitchfs");
        let refusal = |entry: &MountEntry, user| {
            let refused = check_user_is(entry, user).err();
            refused.map(|error| error.to_string())
        };
        assert_eq!(refusal(&entry, 7), None, "the table does not tell");
        entry.super_options = "rw,user_id=0,group_id=0".to_owned();
        assert_eq!(refusal(&entry, 0), None);
        let said = refusal(&entry, 7).unwrap();
        assert!(said.contains("/srv: was mounted by root"), "{said}");
        entry.super_options = "rw,user_id=8".to_owned();
        assert_eq!((refusal(&entry, 0), refusal(&entry, 8)), (None, None));
        let said = refusal(&entry, 7).unwrap();
        assert!(said.contains("number 8"), "{said}");
    }
}
