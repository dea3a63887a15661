//! `stitchfs mkfs`: makes a store.

use super::{access, compress, output, size};
use anyhow::Result;
use clap::Parser;
use serde_json::json;
use std::path::PathBuf;
use stitchfs::{CompressOptions, Compression, Made, MakeOptions, RootOwner, set_path};

const AFTER: &str = "\
Examples:
  stitchfs mkfs --size 8G store.stitch   a file of 8 GiB, its space allocated
  stitchfs mkfs /dev/sdb1                a partition, whole
  stitchfs mkfs --size 8G /srv/data      the file /srv/data/store.stitch";

/// Make a store in a file, a directory or a block device
#[derive(Debug, Parser)]
#[command(name = "mkfs.stitchfs", version, after_help = AFTER, max_term_width = super::HELP_COLUMNS)]
pub(super) struct Args {
    /// Size of a new file, at least 16M
    #[arg(long, short, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,

    /// A name for the store, at most 64 bytes
    #[arg(long, short = 'L', value_name = "NAME", default_value = "")]
    label: String,

    /// Overwrite what is there
    #[arg(long, short)]
    force: bool,

    /// Unit in which space is set aside: a power of two from 64K
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    zone_size: Option<u64>,

    /// Size that the store can be grown to later [default: 16 times its size, at
    /// least 1G; without bound from 8G on]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,

    /// Compress contents of files: none, lz4 or zstd. Holds until a mount says otherwise
    #[arg(long, value_name = "HOW", default_value = "none", value_parser = compress::parse)]
    compress: Compression,

    /// Print what was made as JSON
    #[arg(long)]
    json: bool,

    /// File, directory or block device
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let options = MakeOptions {
        len_bytes: args.size,
        label: args.label.clone(),
        force: args.force,
        zone_bytes: args.zone_size,
        grown_bytes: args.max_size,
        root: RootOwner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o755,
        },
        compress: CompressOptions {
            data: Some(args.compress),
            meta: None,
        },
    };
    let bar = output::progress("making");
    let made = stitchfs::make(&args.path, &options, &mut |done, total| {
        output::advance(&bar, done, total);
    });
    bar.finish_and_clear();
    let Made { path, superblock } = made?;
    access::warn_if_wide(&path);
    let name = path.display();
    let uuid = uuid::Uuid::from_bytes(superblock.uuid);
    let areas = superblock.areas;
    if args.json {
        let mut made = json!({
            "bytes": areas.device_bytes,
            "uuid": uuid.to_string(),
            "label": superblock.label,
            "zone_bytes": areas.zone_bytes,
            "grow_max_bytes": stitch_volume::device_bytes_max(&superblock),
        });
        set_path(&mut made, "path", &path);
        output::print_json(&made)?;
    } else {
        let size = size::show(areas.device_bytes);
        output::print(&format!("{name}: made a store of {size}, uuid {uuid}"))?;
    }
    Ok(0)
}
