//! `stitchfs snapshot hold` and `release`.

use super::super::output;
use super::{about, open_mount, place, refused};
use anyhow::{Result, anyhow};
use clap::Parser;
use rustix::io::Errno;
use serde_json::json;
use std::path::{Path, PathBuf};
use stitch_fuse::snapshots;

/// Longest tag, in bytes.
const TAG_BYTES_MAX: usize = 64;

/// Hold a snapshot under a tag: until it is released, it cannot be deleted
#[derive(Debug, Parser)]
pub(super) struct SnapshotHold {
    #[command(flatten)]
    of: HoldArgs,
}

/// Release a snapshot that is held under a tag
#[derive(Debug, Parser)]
pub(super) struct SnapshotRelease {
    #[command(flatten)]
    of: HoldArgs,
}

#[derive(Debug, Parser)]
struct HoldArgs {
    /// Print the tags that are left as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT")]
    path: PathBuf,

    /// Name of the snapshot
    #[arg(value_name = "NAME")]
    name: String,

    /// Tag of the hold; at most 64 bytes
    #[arg(value_name = "TAG", default_value = "hold", value_parser = parse_tag)]
    tag: String,
}

fn parse_tag(text: &str) -> Result<String, String> {
    let is_tag = (1..=TAG_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
    match is_tag {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a tag has 1 to {TAG_BYTES_MAX} bytes, and no control characters"
        )),
    }
}

pub(super) fn hold(args: &SnapshotHold) -> Result<u8> {
    change(&args.of, |dir, name, tag| snapshots::hold(dir, name, tag))
}

pub(super) fn release(args: &SnapshotRelease) -> Result<u8> {
    change(&args.of, |dir, name, tag| {
        snapshots::release(dir, name, tag)
    })
}

fn change(
    args: &HoldArgs,
    ask: impl FnOnce(&std::fs::File, &str, &str) -> std::io::Result<()>,
) -> Result<u8> {
    let (name, tag) = (&args.name, &args.tag);
    let (mount, opened) = open_mount(&args.path)?;
    ask(&opened, name, tag).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::EXIST) => anyhow!("{name}: is held under the tag {tag} already"),
        Some(Errno::NODATA) => anyhow!(
            "{name}: is not held under the tag {tag}{}",
            tags_of(&mount, name)
        ),
        Some(Errno::INVAL) => {
            anyhow!("{tag:?}: is no tag: one has 1 to 64 bytes, and no control characters")
        }
        Some(Errno::TOOBIG) => anyhow!("{name}: has no room for another tag; release one first"),
        _ => refused(&mount, name, &error),
    })?;
    if args.json {
        let info = about(&place(&mount, name)).unwrap_or_default();
        output::print_json(&json!({ "name": name, "holds": info["holds"] }))?;
    }
    Ok(0)
}

/// Which tags a snapshot is held under, and what releases them; empty where that is not known.
pub(super) fn tags_of(mount: &Path, name: &str) -> String {
    let info = about(&place(mount, name)).unwrap_or_default();
    let tags = info["holds"].as_array().cloned().unwrap_or_default();
    let tags: Vec<&str> = tags.iter().filter_map(|tag| tag.as_str()).collect();
    if tags.is_empty() {
        return String::new();
    }
    let shown = mount.display();
    format!(
        "; its tags: {}; `stitchfs snapshot release {shown} {name} TAG` releases one",
        tags.join(", ")
    )
}
