//! `stitchfs shrink`: makes a store shorter.

use super::{size, task};
use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use stitchfs::Task;

const AFTER: &str = "\
What is behind the new end is moved first. A file gives the rest back; a block
device stays as it is, and can be made smaller afterwards. Ended early, it
changes nothing.
Example:
  stitchfs shrink store.stitch 4G";

/// Make a store smaller, mounted or not
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct ShrinkArgs {
    /// Print the sizes before and after as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or the store: file, directory or block device
    #[arg(value_name = "STORE|MNT")]
    pub(super) path: PathBuf,

    /// New size, at least 16M
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    size: u64,
}

pub(super) fn run(args: &ShrinkArgs) -> Result<u8> {
    let done = task::run(&args.path, Task::Shrink(args.size), "shrinking")?;
    task::print_resized(&done, args.json)
}
