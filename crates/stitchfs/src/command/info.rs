//! `stitchfs info`: what a store is.

mod udev;

use super::live::{self, Place};
use super::{output, size, tag};
use anyhow::{Context, Result, anyhow};
use clap::Parser;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use stitch_base::calendar::UtcTime;
use stitch_device::STORE_FILE_NAME;
use stitch_fuse::mount::table::MountEntry;
use stitchfs::{EngineKind, Identified, Store, StoreOptions, set_path};

/// Show what a store is: size, label, uuid, and where it is mounted
#[derive(Debug, Parser)]
pub(super) struct InfoArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,

    /// Print the variables that a udev rule imports, reading the superblock alone
    #[arg(long, conflicts_with = "json")]
    udev: bool,

    /// File, directory, block device or mount point
    #[arg(value_name = "STORE|MNT")]
    pub(super) path: PathBuf,
}

pub(super) fn run(args: &InfoArgs) -> Result<u8> {
    if args.udev {
        return for_udev(&args.path);
    }
    let mut document = match Place::of(&args.path)? {
        Place::Mount(entry) => {
            let mut document = live::ask(&entry.path)?;
            set_path(&mut document, "mounted_at", &entry.path);
            document["mount_options"] = json!(mount_options(&entry));
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

/// Returns the options of a mount and of its file system, each once.
fn mount_options(entry: &MountEntry) -> String {
    let mut options: Vec<&str> = entry.options.split(',').collect();
    for option in entry.super_options.split(',') {
        // A mount may be read-only where its file system is not.
        if !["rw", "ro"].contains(&option) && !options.contains(&option) {
            options.push(option);
        }
    }
    options.join(",")
}

/// A device in use is read too, without its lock: udev asks while a store is mounted.
fn for_udev(path: &Path) -> Result<u8> {
    if EngineKind::at(path) == EngineKind::RocksDb {
        anyhow::bail!(
            "{}: is a directory; udev asks for block devices",
            path.display()
        );
    }
    let read = tag::read_superblock(&stitchfs::store_path(path));
    let superblock = read.with_context(|| format!("cannot read {}", path.display()))?;
    let Some(superblock) = superblock else {
        anyhow::bail!("{}: not a StitchFS volume", path.display());
    };
    output::print(udev::variables(&superblock).trim_end())?;
    Ok(0)
}

fn no_store(path: &Path) -> anyhow::Error {
    let is_inside = path.file_name().is_some_and(|name| name == STORE_FILE_NAME);
    let dir = path.parent().filter(|dir| is_inside && dir.is_dir());
    match dir {
        Some(dir) => anyhow!(
            "{}: no StitchFS is mounted here, and no {STORE_FILE_NAME} is in it",
            dir.display()
        ),
        None => anyhow!("{}: no such file, device or mount point", path.display()),
    }
}

fn of_store(path: &Path) -> Result<Value> {
    if !path.exists() {
        return Err(no_store(path));
    }
    let Identified {
        path: full,
        facts: mut out,
        ..
    } = stitchfs::identify(path)?;
    if let Some((count, bytes)) = stitchfs::large_files_of(&full) {
        out["large_files"] = json!(count);
        out["large_files_bytes"] = json!(bytes);
    }
    add_space(&mut out, path);
    Ok(out)
}

/// Adds the free space of a store, which only its logs tell. Nothing is written.
fn add_space(out: &mut Value, path: &Path) {
    let options = StoreOptions {
        read_only: true,
        memory_bytes: stitchfs::memory::BUDGET_BYTES_MIN,
        ..StoreOptions::default()
    };
    match Store::open(path, &options) {
        Ok(store) => {
            let known = store.identity();
            for name in ["space_total_bytes", "space_free_bytes"] {
                out[name] = known[name].clone();
            }
        }
        Err(error) => out["space_unknown"] = json!(error.to_string()),
    }
}

/// What people look for first; the rest follows in the order of the alphabet.
const FIRST: [&str; 9] = [
    "store",
    "engine",
    "mounted_at",
    "mount_options",
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
            let value = show(name, &fields[name]);
            // People are shown a date.
            let name = name.strip_suffix("_ns").unwrap_or(name);
            let line = format!("{name:width$}  {value}");
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
        Value::Number(number) if name.ends_with("_ns") => {
            let at = number.as_i64().unwrap_or_default();
            UtcTime::of(at.div_euclid(1_000_000_000)).to_string()
        }
        Value::Number(number) => number.to_string(),
        Value::Object(fields) => {
            let one = |(name, value): (&String, &Value)| format!("{name} {}", show(name, value));
            fields.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        other @ (Value::Bool(_) | Value::Null) => other.to_string(),
    }
}
