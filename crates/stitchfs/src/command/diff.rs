//! `stitchfs diff`: what changed between a snapshot and another one, or the directory as it is, and
//! between a clone and its source.
//!
//! The daemon tells it by the rows that were written between. Where it leaves that to a walk, or is
//! older, both sides are walked; both ways find the same.

mod attributes;
mod compare;
mod listing;

use super::quoted::{quoted, quoted_rename};
use super::{live, numbers, output, snapshot, sync};
use anyhow::{Context, Result, bail};
use clap::Parser;
pub(super) use compare::Change;
use compare::compare;
use listing::Listing;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fuse::adapter::CLONE_XATTR;
use stitch_fuse::differences;
use stitchfs::set_path;

const AFTER: &str = "\
One line for each change, with paths from the directory on:
  M  contents, size, owner, mode, link target or attributes are others
  +  the name is new
  -  the name is gone
  R  the name or the directory changed: OLD -> NEW

Names with control characters, quotes or backslashes are quoted as git does, and
in a line of R those with an arrow. Files are known by their inode number,
whatever their name. Of a directory whose entries changed, the entries are
shown. It takes as long as what was written since. The first time in the life of
a store it takes as long as `find`. Both sides are walked, as by `find`, for a
directory of fewer than 512 names, after some 260,000 changes, and if a
directory with changes is not the caller's own. Changes in a clone that lies in
the directory on both sides are shown, too; of a clone that one side alone has,
the name is.

A clone is compared with what it is a clone of, a snapshot of that, or another
clone of the same. Such a comparison takes as long as what was written since the
clone was made. A clone that lies in one of them is compared with its copy in
the other, if it was there when the outer clone was made; else it is a name.
Exit code 0, whether anything changed or not.

Examples:
  stitchfs diff mnt/.stitchfs/snap/mon
  stitchfs diff mnt/.stitchfs/snap/mon mnt/.stitchfs/snap/tue
  stitchfs diff mon tue mnt
  stitchfs diff mnt/project mon           # what going back would change
  stitchfs diff mnt/project mnt/project-test
  stitchfs diff mnt/.stitchfs/snap/mon mnt/made-of-mon";

/// Show what changed since a snapshot, between two, or in a clone
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct DiffArgs {
    /// Print the changes as JSON
    #[arg(long)]
    json: bool,

    /// Walk both sides: do not ask the daemon for what was written since
    #[arg(long)]
    walk: bool,

    /// Snapshot: its directory MNT/.stitchfs/snap/NAME, or its name; with a second directory a
    /// clone or its source, or the directory of that snapshot
    #[arg(value_name = "SNAP|DIR")]
    old: PathBuf,

    /// The snapshot or directory to compare it with; by default the directory of the snapshot as it
    /// is now
    #[arg(value_name = "SNAP2|DIR2")]
    new: Option<PathBuf>,

    /// Directory in the mount that has snapshots given by name; by default the other directory, or
    /// the working directory
    #[arg(value_name = "MNT")]
    at: Option<PathBuf>,
}

pub(super) fn run(args: &DiffArgs) -> Result<u8> {
    let at = args.at.as_deref().or(args.new.as_deref());
    let old = path_or_name(&args.old, at)?;
    let (mount, _) = live::around(&old)?;
    let (new, info) = match &args.new {
        None => {
            let info = snapshot::information(&args.old, &old, &mount)?;
            let new = snapshot::present(&mount, &info, "give the directory to compare with")?;
            (new, info)
        }
        Some(new) => {
            let new = path_or_name(new, Some(args.at.as_deref().unwrap_or(&old)))?;
            let info = since(args, (&old, &new), &mount)?;
            (new, info)
        }
    };
    let (other, _) = live::around(&new)?;
    if other != mount {
        bail!(
            "{}: is in another mount than {}",
            new.display(),
            old.display()
        );
    }
    // Times and sizes of what was written to are the kernel's until then.
    sync::write_back(&mount)?;
    if args.walk {
        print(&walked(&old, &new, &info)?, args.json)?;
        return Ok(0);
    }
    show(&old, &new, &info, args.json)
}

/// Returns since when two directories may be different: since one was a snapshot or since a clone
/// was made, whichever is earliest.
fn since(args: &DiffArgs, (old, new): (&Path, &Path), mount: &Path) -> Result<Value> {
    let taken = |dir: &Path| snapshot::about(dir)?["created_ns"].as_i64();
    let taken = [old, new].map(taken);
    let made = [old, new].map(|dir| clone_made(dir, mount));
    let created = taken.into_iter().chain(made).flatten();
    let created = created.min().with_context(|| {
        format!(
            "{}: is neither the directory of a snapshot nor in a clone, and {} is in none; \
             `stitchfs snapshot list {}` lists snapshots",
            args.old.display(),
            new.display(),
            mount.display()
        )
    })?;
    Ok(json!({ "created_ns": created }))
}

/// Returns when the clone was made that a directory is in; `None` if it is in none.
fn clone_made(dir: &Path, mount: &Path) -> Option<i64> {
    let above = dir.ancestors().take_while(|above| above.starts_with(mount));
    let mut told = above.filter_map(|above| live::ask_for(above, CLONE_XATTR).ok());
    told.next()?["created_ns"].as_i64()
}

/// Prints what changed from the snapshot that `info` tells of.
pub(super) fn show(old: &Path, new: &Path, info: &Value, is_json: bool) -> Result<u8> {
    print(&changes(old, new, info)?, is_json)?;
    Ok(0)
}

/// Returns what changed from the snapshot that `info` tells of.
pub(super) fn changes(old: &Path, new: &Path, info: &Value) -> Result<Vec<Change>> {
    match asked(old, new) {
        Some(changes) => Ok(changes),
        None => walked(old, new, info),
    }
}

/// Returns the paths of the clones among what was added to a directory.
pub(super) fn added_clones(dir: &Path, changes: &[Change]) -> Vec<String> {
    let added = changes.iter().filter_map(|change| match change {
        Change::Added(path) => Some(path),
        _ => None,
    });
    let is_clone = |path: &Path| {
        let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
        is_dir && live::ask_for(path, CLONE_XATTR).is_ok()
    };
    let clones = added.filter(|path| is_clone(&dir.join(path)));
    clones.map(quoted).collect()
}

/// Asks the daemon what changed; `None` where a walk has to tell.
fn asked(old: &Path, new: &Path) -> Option<Vec<Change>> {
    // As long as it is open the daemon has the snapshot open, too.
    let before = snapshot::open_dir(old).ok()?;
    let after = snapshot::open_dir(new).ok()?;
    let number = before.metadata().ok()?.ino();
    // An older daemon leaves it to a walk.
    let _ = differences::show(&before);
    let listed = differences::list(&after, number).ok()?;
    let changes = listed.iter().map(Change::of);
    let mut changes = changes.collect::<Option<Vec<Change>>>()?;
    changes.sort_by(Change::order);
    Some(changes)
}

/// Walks both sides.
fn walked(old: &Path, new: &Path, info: &Value) -> Result<Vec<Change>> {
    let created = info["created_ns"].as_i64().unwrap_or(i64::MIN);
    let (of_old, mut of_new) = (numbers::of(old), numbers::of(new));
    let is_one_view = of_old.home.is_none() || of_old.home == of_new.home;
    // In one view they tell of clones that a rollback has made again.
    let may_have_pairs = !is_one_view || !of_old.numbers.parts.is_empty();
    let paired = may_have_pairs.then(|| of_new.pair_with(old, new));
    let mut before = Listing::read(old, &of_old, paired.as_ref().filter(|_| !is_one_view))?;
    let mut after = Listing::read(new, &of_new, Some(&before.views))?;
    before.leave_out_views(&after.views);
    if may_have_pairs {
        after.set_apart(&before);
    }
    compare(&before, &after, created)
}

/// Returns the directory that was given by its path, or by a name of a snapshot in the mount that
/// `at`, or else the working directory, is in.
fn path_or_name(given: &Path, at: Option<&Path>) -> Result<PathBuf> {
    let here = Path::new(".");
    snapshot::path_or_name(given, &[at.unwrap_or(here), here])
}

/// Prints changes.
pub(super) fn print(changes: &[Change], is_json: bool) -> Result<()> {
    if !is_json {
        return changes
            .iter()
            .try_for_each(|change| output::print(&line(change)));
    }
    let changes: Vec<Value> = changes.iter().map(to_json).collect();
    output::print_json(&json!({ "changes": changes }))
}

fn line(change: &Change) -> String {
    match change {
        Change::Modified(path) => format!("M\t{}", quoted(path)),
        Change::Added(path) => format!("+\t{}", quoted(path)),
        Change::Removed(path) => format!("-\t{}", quoted(path)),
        Change::Renamed { from, to } => format!("R\t{}", quoted_rename(from, to)),
    }
}

fn to_json(change: &Change) -> Value {
    let (kind, path) = match change {
        Change::Modified(path) => ("modified", path),
        Change::Added(path) => ("added", path),
        Change::Removed(path) => ("removed", path),
        Change::Renamed { from, .. } => ("renamed", from),
    };
    let mut out = json!({ "kind": kind });
    set_path(&mut out, "path", path);
    if let Change::Renamed { to, .. } = change {
        set_path(&mut out, "to", to);
    }
    out
}
