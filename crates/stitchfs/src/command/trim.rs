//! `stitchfs trim`: tells the device what is free.

use super::{output, size, task};
use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use stitchfs::Task;

const AFTER: &str = "\
A solid-state disk works better when it knows; a file gives the space back to
the file system that it is in. Then a later write may find that one full, which
is as a device that fails: the store takes no more writes until it is mounted
again. `mount -o discard` does this all the time, zone by zone.";

/// Tell the device what is free in a store, mounted or not
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct TrimArgs {
    /// Print the number of bytes as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or the store: file, directory or block device
    #[arg(value_name = "STORE|MNT")]
    pub(super) path: PathBuf,
}

pub(super) fn run(args: &TrimArgs) -> Result<u8> {
    let done = task::run(&args.path, Task::Trim, "trimming")?;
    if args.json {
        output::print_json(&done)?;
    } else {
        let bytes = done["discarded_bytes"].as_u64().unwrap_or_default();
        let shown = size::show(bytes);
        output::print(&format!(
            "{}: discarded {shown} ({bytes} bytes)",
            task::store(&done)
        ))?;
    }
    Ok(task::code(&done))
}
