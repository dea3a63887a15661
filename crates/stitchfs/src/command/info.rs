//! `stitchfs info`: what a store is.

use super::live::{self, Place};
use super::{output, size};
use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use stitch_device::OpenOptions;
use stitch_volume::Volume;
use stitchfs::set_path;

/// Show what a store is: size, label, uuid, and where it is mounted
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,

    /// File, directory, block device or mount point
    #[arg(value_name = "STORE|MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let mut document = match Place::of(&args.path)? {
        Place::Mount(entry) => {
            let mut document = live::ask(&entry.path)?;
            set_path(&mut document, "mounted_at", &entry.path);
            document
        }
        Place::Store(path) => of_store(&path)?,
    };
    if let Some(fields) = document.as_object_mut() {
        fields.remove("counters");
        if !args.json {
            // Paths as bytes: the text is for people.
            fields.retain(|name, _| !name.ends_with("_raw"));
        }
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&for_people(&document).join("\n"))?;
    }
    Ok(0)
}

fn of_store(path: &Path) -> Result<Value> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = stitch_device::open_path(path, options)?;
    let superblock = Volume::identify(device.as_ref())?;
    let full = path
        .canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))?;
    let mut out = stitchfs::identity(&full, &superblock);
    if let Some((count, bytes)) = stitchfs::large_files_of(&full) {
        out["large_files"] = json!(count);
        out["large_files_bytes"] = json!(bytes);
    }
    Ok(out)
}

/// What people look for first; the rest follows in the order of the alphabet.
const FIRST: [&str; 7] = [
    "store",
    "mounted_at",
    "label",
    "uuid",
    "bytes",
    "space_total_bytes",
    "space_free_bytes",
];

fn for_people(document: &Value) -> Vec<String> {
    let Some(fields) = document.as_object() else {
        return Vec::new();
    };
    let rest = fields.keys().map(String::as_str);
    let names = FIRST
        .into_iter()
        .filter(|name| fields.contains_key(*name))
        .chain(rest.filter(|name| !FIRST.contains(name)));
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    names
        .map(|name| {
            let line = format!("{name:width$}  {}", show(name, &fields[name]));
            line.trim_end().to_owned()
        })
        .collect()
}

fn show(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let words = items.iter().filter_map(Value::as_str);
            words.collect::<Vec<_>>().join(", ")
        }
        Value::Number(number) if name.ends_with("bytes") => {
            let bytes = number.as_u64().unwrap_or_default();
            format!("{bytes} ({})", size::show(bytes))
        }
        other => other.to_string(),
    }
}
