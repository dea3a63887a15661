//! `stitchfs instance`: several stores in one.

use super::live::{self, Place};
use super::{output, size};
use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};
use stitchfs::{InstanceOptions, MakeOptions, RootOwner, Store, StoreOptions, path_in, set_path};

const AFTER: &str = "\
Instances are stores of their own on one medium: each has its files or records,
its log and its background work, and all share the space. Every store has the
instance `main`. A program opens another one by its name, and `stitchfs mount -o
instance=NAME` mounts it; fsck, defrag, trim, grow and shrink are always for all
of them. Programs that know nothing of instances refuse a store that has more
than one.

Examples:
  stitchfs instance create --fs store.stitch mail
  stitchfs mount -o instance=mail store.stitch /srv/mail";

/// List, create or remove instances: further file systems or databases in a store
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct InstanceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(ListArgs),
    Create(CreateArgs),
    Remove(RemoveArgs),
}

/// List the instances of a store, mounted or not
#[derive(Debug, Parser)]
struct ListArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    /// File, directory, block device or mount point
    #[arg(value_name = "STORE|MNT")]
    path: PathBuf,
}

/// Create an empty instance in a store that is not mounted
#[derive(Debug, Parser)]
struct CreateArgs {
    /// Make a file system in it, so that it can be mounted
    #[arg(long)]
    fs: bool,

    /// Length of its log; by default as that of the store
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,

    /// Print what was made as JSON
    #[arg(long)]
    json: bool,

    /// File, directory or block device
    #[arg(value_name = "STORE")]
    store: PathBuf,

    /// Name: 1 to 32 letters, digits, and, but for the first, - _ .
    #[arg(value_name = "NAME")]
    name: String,
}

/// Remove an instance, with all that is in it, from a store that is not mounted
#[derive(Debug, Parser)]
struct RemoveArgs {
    /// Also if it holds anything
    #[arg(long, short)]
    force: bool,

    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,

    /// File, directory or block device
    #[arg(value_name = "STORE")]
    store: PathBuf,

    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
}

pub(super) fn run(args: &InstanceArgs) -> Result<u8> {
    match &args.what {
        What::List(args) => list(args),
        What::Create(args) => create(args),
        What::Remove(args) => remove(args),
    }
}

fn list(args: &ListArgs) -> Result<u8> {
    let (store, names) = match Place::of(&args.path)? {
        Place::Mount(entry) => {
            let document = live::ask(&entry.path)?;
            let names = match document["instances"].as_array() {
                Some(names) => names.clone(),
                None => vec![json!("main")],
            };
            (path_in(&document, "store").unwrap_or_default(), names)
        }
        Place::Store(path) => {
            let known = stitchfs::identify(&path)?;
            let names = known.instances.into_iter();
            (known.path, names.map(|name| json!(name)).collect())
        }
    };
    if args.json {
        let mut out = json!({ "instances": names });
        set_path(&mut out, "store", &store);
        output::print_json(&out)?;
    } else {
        let words = names.iter().filter_map(serde_json::Value::as_str);
        output::print(&words.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(0)
}

fn create(args: &CreateArgs) -> Result<u8> {
    let store = open(&args.store)?;
    let logs = InstanceOptions {
        backup_log_bytes: args.log_size,
        ..InstanceOptions::default()
    };
    let make = MakeOptions {
        root: RootOwner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o755,
        },
        ..MakeOptions::default()
    };
    let make = args.fs.then_some(&make);
    let made = store.create_instance(&args.name, &logs, make);
    closed(&store, made)?;
    report(args.json, &store, &args.name, "created")
}

fn remove(args: &RemoveArgs) -> Result<u8> {
    let store = open(&args.store)?;
    let removed = remove_from(&store, args);
    closed(&store, removed)?;
    report(args.json, &store, &args.name, "removed")
}

fn remove_from(store: &Store, args: &RemoveArgs) -> Result<()> {
    let name = &args.name;
    if name != "main" && !args.force && !store.is_instance_empty(name)? {
        bail!(
            "{}: instance {name} holds data; give --force to remove it with all that is in it",
            store.path().display()
        );
    }
    Ok(store.remove_instance(name)?)
}

/// Closes the store. What failed first says more.
fn closed<E: Into<anyhow::Error>>(store: &Store, done: Result<(), E>) -> Result<()> {
    let closed = store.close();
    done.map_err(Into::into)?;
    Ok(closed?)
}

fn open(path: &Path) -> Result<Store> {
    if let Place::Mount(entry) = Place::of(path)? {
        let (path, at) = (entry.source.display(), entry.path.display());
        bail!("{path}: is mounted at {at}; unmount it first");
    }
    let options = StoreOptions {
        memory_bytes: stitchfs::memory::default_budget(),
        ..StoreOptions::default()
    };
    Ok(Store::open(path, &options)?)
}

fn report(is_json: bool, store: &Store, name: &str, done: &str) -> Result<u8> {
    if is_json {
        let mut out = json!({
            "instance": name,
            "instances": store.instances(),
        });
        set_path(&mut out, "store", store.path());
        output::print_json(&out)?;
    } else {
        output::print(&format!(
            "{}: {done} instance {name}",
            store.path().display()
        ))?;
    }
    Ok(0)
}
