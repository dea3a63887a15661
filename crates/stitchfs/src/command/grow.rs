//! `stitchfs grow`: makes a store longer.

use super::{size, task};
use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use stitchfs::Task;

const AFTER: &str = "\
A file is made longer, with all its space allocated. A block device must have
been made larger before. `stitchfs info` shows the most as grow_max_bytes: 16
times the size at mkfs, at least 1G, and no bound from 8G on, unless mkfs was
given --max-size.

Examples:
  stitchfs grow store.stitch 16G
  stitchfs grow /srv    a mount of a partition: as large as the partition";

/// Make a store larger, mounted or not
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct GrowArgs {
    /// Print the sizes before and after as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or the store: file, directory or block device
    #[arg(value_name = "STORE|MNT")]
    pub(super) path: PathBuf,

    /// New size; by default that of the device
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
}

pub(super) fn run(args: &GrowArgs) -> Result<u8> {
    let done = task::run(&args.path, Task::Grow(args.size), "growing")?;
    task::print_resized(&done, args.json)
}
