//! `stitchfs defrag`: makes free zones of holes, and brings scattered data into order.

use super::{output, size, task};
use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use stitchfs::Task;

const AFTER: &str = "\
Compactions leave holes where data was written anew or deleted. Zones with many
are emptied into others, so that they are free. Data that was overwritten at
random lies scattered: it is copied into the order in which it is read. Both
happen by themselves when the store is idle, or when space is low; this does it
now, and to the end. It can be ended at any time.";

/// Free zones with holes and bring scattered data into order, mounted or not
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct DefragArgs {
    /// Print what was moved and freed as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or the store: file, directory or block device
    #[arg(value_name = "STORE|MNT")]
    pub(super) path: PathBuf,
}

pub(super) fn run(args: &DefragArgs) -> Result<u8> {
    let done = task::run(&args.path, Task::Defrag, "defragmenting")?;
    if args.json {
        output::print_json(&done)?;
    } else {
        let bytes = |name: &str| size::show(done[name].as_u64().unwrap_or_default());
        output::print(&format!(
            "{}: moved {}, freed {}; in holes {}, before {}",
            task::store(&done),
            bytes("moved_bytes"),
            bytes("freed_bytes"),
            bytes("holes_after_bytes"),
            bytes("holes_before_bytes"),
        ))?;
    }
    Ok(task::code(&done))
}
