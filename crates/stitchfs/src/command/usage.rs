//! `stitchfs usage`: what snapshots, clones, transactions, the history and directories need of the
//! space.

use super::live::{self, Place};
use super::quoted::quoted;
use super::{output, size, snapshot, sync, task};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_base::calendar::UtcTime;
use stitchfs::{Task, UsageOf, path_in, set_path};

const NS_PER_S: i64 = 1_000_000_000;

const AFTER: &str = "\
For a mount point or a store, one line for each snapshot, clone and open
transaction, and one for the history; for a directory, snapshot or clone in a
mount, one line. Columns:
  EXCLUSIVE  what comes back when it alone is deleted; when a transaction is
             aborted, with those in it; when all moments of the history are gone
  REFERENCED what one sees in it takes, without clones that lie in it
  SHARED     of that, what something else needs too
Snapshots keep replaced data of all directories, so exclusive may be more than
referenced. They keep no replaced keys. What two of them need comes back with
the last one, so exclusive figures do not add up. All are bytes on the medium,
after compression, to a few percent. `garbage` is what nothing needs any more:
it comes back in the background. Root and the user who mounted may ask; of a
directory, its owner may, too.

Examples:
  stitchfs usage /srv
  stitchfs usage /srv/home /srv/.stitchfs/snap/monday /srv/project-test
  stitchfs usage --json disk.stitch";

/// Show what snapshots, clones, transactions and directories need of the space
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct UsageArgs {
    /// Print it as JSON, in bytes
    #[arg(long)]
    json: bool,

    /// Mount points, directories in mounts, or stores that are not mounted
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &UsageArgs) -> Result<u8> {
    let mut all = Vec::new();
    let mut code = 0;
    for path in &args.paths {
        let done = of_path(path)?;
        code = code.max(task::code(&done));
        all.push(done);
    }
    if args.json {
        output::print_json(&json!({ "usage": all }))?;
    } else {
        output::print(&table(&all).join("\n"))?;
    }
    Ok(code)
}

/// What is told of a path, with the path as it was given.
fn of_path(given: &Path) -> Result<Value> {
    let mut done = match Place::of(given)? {
        Place::Mount(entry) => {
            sync::write_back(&entry.path)?;
            task::run(given, Task::Usage(UsageOf::Everything), "adding up")?
        }
        Place::Store(_) => match directory_in_mount(given)? {
            Some((mount, _)) if !live::is_told_all(&mount) => of_own_directory(given, &mount)?,
            Some((mount, number)) => {
                sync::write_back(&mount)?;
                task::run(&mount, Task::Usage(UsageOf::Directory(number)), "adding up")?
            }
            None => task::run(given, Task::Usage(UsageOf::Everything), "adding up")?,
        },
    };
    set_path(&mut done, "asked", given);
    Ok(done)
}

/// Asks the daemon what a directory needs, as its owner.
fn of_own_directory(given: &Path, mount: &Path) -> Result<Value> {
    let shown = snapshot::shown(given);
    let dir = snapshot::open_dir(given).with_context(|| shown.clone())?;
    sync::write_back_by(&dir, mount)?;
    let told = stitch_fuse::usage::of_directory(&dir);
    let told = told.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::ACCESS) => anyhow!(
            "{shown}: only root, the user who mounted it, and the owner of the directory may ask"
        ),
        Some(Errno::BUSY) => anyhow!("{shown}: another usage is under way; try again"),
        Some(Errno::INTR) => anyhow!("{shown}: ended early by a signal"),
        Some(Errno::OPNOTSUPP) => {
            anyhow!("{shown}: is in a transaction, or its store does not know who needs its space")
        }
        Some(Errno::NOTTY) => {
            anyhow!("{shown}: its daemon is of an older stitchfs; unmount it and mount it again")
        }
        _ => anyhow::Error::new(error).context(format!("{shown}: its daemon refuses to tell")),
    })?;
    serde_json::from_slice(&told).with_context(|| format!("{shown}: the answer makes no sense"))
}

/// The mount that a directory is in, and its inode number there; `None` if it is in no mount of
/// ours, as a store is.
fn directory_in_mount(given: &Path) -> Result<Option<(PathBuf, u64)>> {
    let shown = || given.display().to_string();
    let path = given.canonicalize().with_context(shown)?;
    let Ok((mount, _)) = live::around(&path) else {
        return Ok(None);
    };
    let about = path.metadata().with_context(shown)?;
    if !about.is_dir() {
        bail!("{}: is no directory; `du` tells what a file takes", shown());
    }
    Ok(Some((mount, about.ino())))
}

fn bytes(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

/// A line of the table.
fn line(exclusive: &str, referenced: &str, shared: &str, name: &str) -> String {
    format!("{exclusive:>10}  {referenced:>10}  {shared:>10}  {name}")
}

fn of_row(row: &Value) -> String {
    let exclusive = bytes(row, "used_bytes");
    let named = || quoted(row["name"].as_str().unwrap_or_default());
    let apart = match row["kind"].as_str() {
        Some("transaction") => Some(format!("transaction {}", named())),
        Some("history") => {
            let since = UtcTime::of(row["since_ns"].as_i64().unwrap_or_default() / NS_PER_S);
            let moments = bytes(row, "moments");
            Some(format!("history, moments: {moments}, since {since} UTC"))
        }
        _ => None,
    };
    if let Some(name) = apart {
        return line(&size::show(exclusive), "-", "-", &name);
    }
    let referenced = bytes(row, "referenced_bytes");
    let shared = referenced.saturating_sub(exclusive);
    let path = path_in(row, "path").map(|path| quoted(Path::new("/").join(path)));
    let path = path.unwrap_or_default();
    let name = match row["kind"].as_str() {
        Some("clone") => format!("clone {}  {path}", row["number"]),
        _ => format!("snapshot {}  {path}", named()),
    };
    let [exclusive, referenced, shared] = [exclusive, referenced, shared].map(size::show);
    line(&exclusive, &referenced, &shared, name.trim_end())
}

/// The lines for people.
fn table(all: &[Value]) -> Vec<String> {
    let mut lines = vec![line("EXCLUSIVE", "REFERENCED", "SHARED", "NAME")];
    for done in all {
        let name = quoted(path_in(done, "asked").unwrap_or_default());
        let Some(rows) = done["rows"].as_array() else {
            let of = |field: &str| size::show(bytes(done, field));
            lines.push(line(
                &of("exclusive_bytes"),
                &of("referenced_bytes"),
                &of("shared_bytes"),
                &name,
            ));
            continue;
        };
        lines.extend(rows.iter().map(of_row));
        let garbage = bytes(done, "garbage_bytes");
        if garbage > 0 {
            lines.push(line(&size::show(garbage), "-", "-", "garbage"));
        }
        let (total, free) = (
            bytes(done, "space_total_bytes"),
            bytes(done, "space_free_bytes"),
        );
        let used = size::show(total.saturating_sub(free));
        lines.push(line(
            "-",
            &used,
            "-",
            &format!("all of {name}, with reserves"),
        ));
    }
    lines
}

/// What is told of the snapshots of a mount, by their numbers: what each alone needs, and what it
/// refers to.
pub(super) fn of_snapshots(mount: &Path) -> Result<Vec<(u64, [u64; 2])>> {
    let done = task::run(mount, Task::Usage(UsageOf::Snapshots), "adding up")?;
    let rows = done["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |row: &Value| {
        let figures = ["used_bytes", "referenced_bytes"].map(|name| bytes(row, name));
        (bytes(row, "id"), figures)
    };
    debug_assert!(rows.iter().all(|row| row["kind"] == "snapshot"), "as asked");
    Ok(rows.iter().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_holder_and_the_sum() {
        let store = json!({
            "asked": "mnt",
            "rows": [
                { "kind": "snapshot", "name": "mon", "id": 1, "path": "a/b",
                  "used_bytes": 2048, "referenced_bytes": 4096 },
                { "kind": "clone", "number": 3, "used_bytes": 8192, "referenced_bytes": 4096 },
                { "kind": "transaction", "name": "a b", "number": 9, "owner": 0,
                  "used_bytes": 1024 },
                { "kind": "history", "moments": 1, "since_ns": 86_400_000_000_000_i64,
                  "used_bytes": 4096 },
            ],
            "garbage_bytes": 512,
            "space_total_bytes": 1 << 20,
            "space_free_bytes": 1 << 19,
        });
        let dir = json!({
            "asked": "mnt/x", "exclusive_bytes": 1024, "referenced_bytes": 3072,
            "shared_bytes": 2048,
        });
        assert_eq!(
            table(&[store, dir]),
            [
                " EXCLUSIVE  REFERENCED      SHARED  NAME",
                "     2 KiB       4 KiB       2 KiB  snapshot mon  /a/b",
                "     8 KiB       4 KiB         0 B  clone 3",
                "     1 KiB           -           -  transaction a b",
                concat!(
                    "     4 KiB           -           -  ",
                    "history, moments: 1, since 1970-01-02 00:00:00 UTC"
                ),
                "     512 B           -           -  garbage",
                "         -     512 KiB           -  all of mnt, with reserves",
                "     1 KiB       3 KiB       2 KiB  mnt/x",
            ]
        );
    }

    #[test]
    fn a_file_is_no_directory_and_a_store_is_in_no_mount() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(directory_in_mount(dir.path()).unwrap(), None);
        assert!(directory_in_mount(&dir.path().join("missing")).is_err());
    }
}
