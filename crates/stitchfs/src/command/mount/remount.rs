//! `-o remount`: other flags for a file system that is mounted.
//!
//! The flags are the kernel's; the daemon keeps its store open as it was mounted. A store that is
//! open for writing can be made read-only and writable again. A store that was mounted read-only
//! has had nothing replayed or prepared for writing, so that it must be mounted anew.

use super::{Args, MountWords, Rights, live, mount_options};
use anyhow::{Result, ensure};
use std::path::Path;
use stitch_fuse::mount;

pub(super) fn run(args: &Args, words: &MountWords) -> Result<()> {
    let options = mount_options(words, Rights::of(words)?, &args.store);
    if !words.read_only {
        check_writable(&args.mount_point)?;
    }
    Ok(mount::remount(&args.mount_point, &options)?)
}

/// Refuses a mount whose daemon has its store open for reading only.
fn check_writable(mount_point: &Path) -> Result<()> {
    let entry = mount::mounted_at(mount_point)?;
    let Some(entry) = entry.filter(mount::table::MountEntry::is_ours) else {
        // The remount names what is wrong.
        return Ok(());
    };
    let document = live::ask(&entry.path)?;
    let shown = entry.path.display();
    ensure!(
        document["read_only"] != true,
        "{shown}: was mounted with ro, and its store is open for reading only; to write, unmount \
         it and mount it again with rw"
    );
    Ok(())
}
