//! `-o remount`: other flags for a file system that is mounted.
//!
//! The flags are the kernel's; the daemon keeps its store open as it was mounted. A store that is
//! open for writing can be made read-only and writable again. A store that was mounted read-only
//! has had nothing replayed or prepared for writing, so that it must be mounted anew. So must one
//! whose operations are to be durable at once (`sync`, `dirsync`) from now on.

use super::rights::{Rights, mount_options};
use super::{MountArgs, MountWords};
use crate::command::live;
use anyhow::{Result, ensure};
use std::path::Path;
use stitch_fuse::mount;

pub(super) fn run(args: &MountArgs, words: &MountWords) -> Result<()> {
    let options = mount_options(words, Rights::of(words)?, &args.store);
    check(&args.mount_point, words)?;
    Ok(mount::remount(&args.mount_point, &options)?)
}

/// Refuses what the daemon, which goes on as it was mounted, would not do.
fn check(mount_point: &Path, words: &MountWords) -> Result<()> {
    let wants_sync = words.sync || words.dir_sync;
    if words.read_only && !wants_sync {
        return Ok(());
    }
    let entry = mount::mounted_at(mount_point)?;
    let Some(entry) = entry.filter(mount::table::MountEntry::is_ours) else {
        // The remount names what is wrong.
        return Ok(());
    };
    let document = live::ask(&entry.path)?;
    let shown = entry.path.display();
    ensure!(
        words.read_only || document["read_only"] != true,
        "{shown}: was mounted with ro, and its store is open for reading only; to write, unmount \
         it and mount it again with rw"
    );
    ensure!(
        !wants_sync || document["sync"] == true,
        "{shown}: was mounted without sync and dirsync, and its daemon does not sync each \
         operation; unmount it and mount it again with the option"
    );
    Ok(())
}
