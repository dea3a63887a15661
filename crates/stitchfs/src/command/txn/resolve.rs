//! `stitchfs txn conflicts`, `resolve` and `rebase`.

use super::super::output;
use super::CONFLICT;
use super::end::{self, path_of};
use super::merge;
use super::target::{TxnMount, TxnOf};
use anyhow::{Result, anyhow};
use clap::{Args, Parser};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use stitch_fs::Side;
use stitch_fuse::transactions::{self, CommitOutcome, ListedConflict};
use stitchfs::{path_text, set_path};

const AFTER: &str = "\
PATH is as `stitchfs txn conflicts` prints it: from the mount point on, `.` for
all. It stands for all conflicts there and below. The side that wins is kept
with the transaction, and the next commit or rebase takes it. If others change
what is there once more before, it is a conflict again.

A side is taken for whole files and directories: name, contents, attributes and
extended attributes. --ours brings back what others removed, and removes what
they put at the name; of a directory that one side removed, all below it follows.
Not resolved as --ours: a file with several names whose names have changed, an
immutable file in the way, and clones. The reason is told.

--merge is for contents of regular files. CMD is run by the shell with three
files as further arguments: BASE, as it was when the transaction began (empty
if it was not there), OURS and THEIRS. It leaves the result in OURS and succeeds,
as a merge driver of git does; %O, %A and %B in CMD stand for the three, and so
do the variables BASE, LOCAL and REMOTE, as for `git mergetool`, and MERGED for
the result. The result is written to the file in the transaction.

Examples:
  stitchfs txn resolve upgrade etc --theirs
  stitchfs txn resolve upgrade etc/hosts --merge 'git merge-file %A %O %B'";

/// Show what a transaction and others have both changed: exit code 75 if a side is to be chosen
#[derive(Debug, Parser)]
pub(super) struct TxnConflicts {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    of: TxnOf,
}

/// Say which side wins where a transaction and others have changed the same
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
#[command(
    override_usage = "stitchfs txn resolve --ours|--theirs|--merge CMD [--json] NAME PATH [MNT]"
)]
pub(super) struct TxnResolve {
    #[command(flatten)]
    side: SideArgs,

    /// Print what was resolved as JSON
    #[arg(long)]
    json: bool,

    /// Name
    #[arg(value_name = "NAME")]
    name: String,

    /// Path from the mount point on, `.` for all conflicts
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    mount: PathBuf,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SideArgs {
    /// Take what the transaction has
    #[arg(long)]
    ours: bool,

    /// Take what others have made of it
    #[arg(long)]
    theirs: bool,

    /// Merge the contents of a regular file by a command
    #[arg(long, value_name = "CMD")]
    merge: Option<String>,
}

/// Bring a transaction to the present state: as if it had begun now
#[derive(Debug, Parser)]
#[command(
    after_help = "All of its changes are made again on what others have made meanwhile, or none: \
then the conflicts are listed, the exit code is 75, and the transaction is as it was. Files and \
directories that are open in it are `Stale file handle` afterwards; programs find them again by \
their paths. The transaction of a run is not rebased."
)]
pub(super) struct TxnRebase {
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    of: TxnOf,
}

pub(super) fn conflicts(args: &TxnConflicts) -> Result<u8> {
    let target = TxnMount::find(&args.of.path)?;
    let name = &args.of.name;
    let all = listed(&target, name)?;
    if args.json {
        let conflicts: Vec<Value> = all.iter().map(to_json).collect();
        output::print_json(&json!({ "name": name, "conflicts": conflicts }))?;
    } else {
        all.iter()
            .try_for_each(|conflict| output::print(&line(conflict)))?;
    }
    match all.iter().any(|conflict| conflict.side.is_none()) {
        true => Ok(CONFLICT),
        false => Ok(0),
    }
}

pub(super) fn resolve(args: &TxnResolve) -> Result<u8> {
    let target = TxnMount::find(&args.mount)?;
    let path = from_root(target.mount(), &args.path)?;
    let (side, count) = match &args.side.merge {
        Some(command) => {
            let count = merge::run(&target, &args.name, &path, command)?;
            ("merge", count)
        }
        None if args.side.ours => ("ours", take(&target, &args.name, &path, Side::Ours)?),
        None => ("theirs", take(&target, &args.name, &path, Side::Theirs)?),
    };
    if args.json {
        let mut out = json!({ "name": args.name, "side": side, "count": count });
        set_path(&mut out, "path", &path_of(&path));
        output::print_json(&out)?;
    }
    Ok(0)
}

pub(super) fn rebase(args: &TxnRebase) -> Result<u8> {
    let target = TxnMount::find(&args.of.path)?;
    let name = &args.of.name;
    target.write_back()?;
    let number = transactions::rebase(target.dir(), name);
    let number = number.map_err(|error| refused(&target, name, &error))?;
    let outcome = end::wait_for(&target, name, number)?;
    if args.json {
        output::print_json(&end::to_json(name, &outcome))?;
    }
    end::report(name, &outcome, "stays as it was", args.json)
}

/// Returns the conflicts of a transaction.
pub(super) fn listed(target: &TxnMount, name: &str) -> Result<Vec<ListedConflict>> {
    target.write_back()?;
    let all = transactions::conflicts(target.dir(), name);
    all.map_err(|error| refused(target, name, &error))
}

/// Takes a side, and returns the number of conflicts.
pub(super) fn take(target: &TxnMount, name: &str, path: &[u8], side: Side) -> Result<usize> {
    let resolved = transactions::resolve(target.dir(), name, side, path);
    let resolved = resolved.map_err(|error| refused(target, name, &error))?;
    let shown = path_text(&path_of(path));
    resolved.map_err(|outcome| match outcome {
        CommitOutcome::Refused { errno, .. } if errno == Errno::NOENT.raw_os_error() => {
            no_conflict(name, &shown)
        }
        CommitOutcome::Refused { why, .. } => anyhow!("{shown}: {why}"),
        other => anyhow!("{shown}: was not resolved: {other:?}"),
    })
}

pub(super) fn no_conflict(name: &str, shown: &str) -> anyhow::Error {
    anyhow!("{shown}: there is no conflict; `stitchfs txn conflicts {name}` lists them")
}

fn refused(target: &TxnMount, name: &str, error: &io::Error) -> anyhow::Error {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => anyhow!(
            "{name}: cannot be resolved or rebased: it ends with the command that runs in it, is \
             serializable, or has deleted a range of keys; commit or abort it"
        ),
        _ => target.refused(name, error),
    }
}

/// Returns a path from the root of the file system, without a slash at either end. One that begins
/// with the mount point may be given as well.
fn from_root(mount: &Path, given: &Path) -> Result<Vec<u8>> {
    let path = given.strip_prefix(mount).unwrap_or(given);
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => names.push(name.as_bytes()),
            _ => {
                let (given, mount) = (given.display(), mount.display());
                return Err(anyhow!("{given}: is no path from {mount} on"));
            }
        }
    }
    Ok(names.join(&b'/'))
}

const fn side_text(side: Option<Side>) -> Option<&'static str> {
    match side {
        Some(Side::Ours) => Some("ours"),
        Some(Side::Theirs) => Some("theirs"),
        None => None,
    }
}

fn line(conflict: &ListedConflict) -> String {
    let path = path_text(&path_of(&conflict.path));
    match side_text(conflict.side) {
        Some(side) => format!("{path}: {} (resolved: {side})", conflict.kind),
        None => format!("{path}: {}", conflict.kind),
    }
}

fn to_json(conflict: &ListedConflict) -> Value {
    let mut out = json!({ "kind": conflict.kind, "resolved": side_text(conflict.side) });
    set_path(&mut out, "path", &path_of(&conflict.path));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_from_the_mount_point_on() {
        let of = |given: &str| from_root(Path::new("/srv"), Path::new(given));
        for given in ["a/b", "./a/b", "/srv/a/b", "a//b/"] {
            assert_eq!(of(given).unwrap(), b"a/b", "{given}");
        }
        assert_eq!(of(".").unwrap(), b"");
        assert_eq!(of("/srv").unwrap(), b"");
        assert!(of("../a").is_err() && of("/home/a").is_err());
    }

    #[test]
    fn conflicts_are_shown_with_the_side_that_wins() {
        let open = ListedConflict {
            kind: "name".to_owned(),
            path: b"a/b".to_vec(),
            side: None,
        };
        assert_eq!(line(&open), "a/b: name");
        assert_eq!(to_json(&open)["resolved"], Value::Null);
        let resolved = ListedConflict {
            side: Some(Side::Theirs),
            path: Vec::new(),
            ..open
        };
        assert_eq!(line(&resolved), ".: name (resolved: theirs)");
        let expected = json!({ "kind": "name", "resolved": "theirs", "path": "." });
        assert_eq!(to_json(&resolved), expected);
    }
}
