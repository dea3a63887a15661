//! `stitchfs mkfs`: makes a store.

use super::{access, compress, output, size};
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;
use stitchfs::{
    CompressOptions, Compression, EngineKind, LARGE_FILES_MAX, LARGE_FILES_MIN, LargeFiles, Made,
    MakeOptions, RootOwner, set_path,
};

const AFTER: &str = "\
Examples:
  stitchfs mkfs --size 8G store.stitch   a file of 8 GiB, its space allocated
  stitchfs mkfs /dev/sdb1                a partition, whole
  stitchfs mkfs --size 8G /srv/data      the file /srv/data/store.stitch
  stitchfs mkfs --engine rocksdb /srv/r  the directory /srv/r, with RocksDB";

/// Make a store in a file, a directory or a block device
#[derive(Debug, Parser)]
#[command(name = "mkfs.stitchfs", version, after_help = AFTER)]
#[command(max_term_width = super::HELP_COLUMNS)]
pub(super) struct MkfsArgs {
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

    /// What keeps the records: vt, the VT-tree, or rocksdb, which has a directory
    /// of its own and no size
    #[arg(long, value_name = "ENGINE", default_value = "vt", value_parser = engine)]
    engine: EngineKind,

    /// With rocksdb: files that grow beyond SIZE, 4K to 1G, are plain files in the
    /// folder PATH/files; inside: none are [default: 4K]
    #[arg(long, value_name = "SIZE|inside", value_parser = large_files)]
    large_files: Option<LargeFiles>,

    /// Print what was made as JSON
    #[arg(long)]
    json: bool,

    /// File, directory or block device
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub(super) fn run(args: &MkfsArgs) -> anyhow::Result<u8> {
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
        engine: args.engine,
        large_files: args.large_files.unwrap_or_default(),
    };
    let bar = output::progress("making");
    let made = stitchfs::make(&args.path, &options, &mut |done, total| {
        output::advance(&bar, done, total);
    });
    bar.finish_and_clear();
    let made = made?;
    access::warn_if_wide(&made.path);
    match args.json {
        true => output::print_json(&as_json(&made))?,
        false => output::print(&as_text(&made))?,
    }
    Ok(0)
}

fn as_json(made: &Made) -> Value {
    let mut out = json!({
        "engine": made.engine.name(),
        "uuid": made.uuid.to_string(),
        "label": made.label,
    });
    if let Some(superblock) = &made.superblock {
        out["bytes"] = json!(superblock.areas.device_bytes);
        out["zone_bytes"] = json!(superblock.areas.zone_bytes);
        out["grow_max_bytes"] = json!(stitch_volume::device_bytes_max(superblock));
    }
    set_path(&mut out, "path", &made.path);
    out
}

fn as_text(made: &Made) -> String {
    let (name, uuid) = (made.path.display(), made.uuid);
    match &made.superblock {
        Some(superblock) => {
            let size = size::show(superblock.areas.device_bytes);
            format!("{name}: made a store of {size}, uuid {uuid}")
        }
        None => format!(
            "{name}: made a store of the {} engine, uuid {uuid}",
            made.engine
        ),
    }
}

/// Returns the engine that a word names.
fn engine(word: &str) -> Result<EngineKind, String> {
    EngineKind::of_name(word).ok_or_else(|| format!("{word:?}: give vt or rocksdb"))
}

/// Returns what a word says of large files.
fn large_files(word: &str) -> Result<LargeFiles, String> {
    if word == "inside" {
        return Ok(LargeFiles::Inside);
    }
    let range = LARGE_FILES_MIN..=LARGE_FILES_MAX;
    let bytes = size::parse(word).ok().filter(|bytes| range.contains(bytes));
    let refused = || format!("{word:?}: give inside, or a size of 4K to 1G");
    bytes.map(LargeFiles::External).ok_or_else(refused)
}
