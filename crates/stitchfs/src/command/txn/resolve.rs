//! `stitchfs txn conflicts`, `resolve` and `rebase`.

use super::super::output::{self, bad_argument};
use super::super::quoted::{quoted, unquoted};
use super::CONFLICT;
use super::end::{self, Left, path_of};
use super::keys::{self, KeyBytes};
use super::merge;
use super::target::{TxnMount, TxnOf};
use anyhow::{Result, anyhow};
use clap::{Args, Parser};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use stitch_fs::{RecordKey, Side};
use stitch_fuse::transactions::{self, CommitOutcome, ListedConflict};
use stitchfs::{KEYS_TREE, set_path};

const AFTER: &str = "\
PATH is as `stitchfs txn conflicts` prints it, quoted or not: from the mount
point on, `.` for all. It stands for all conflicts there and below. The side
that wins is kept with the transaction, and the next commit or rebase takes it.
If others change what is there once more before, it is a conflict again.

--key is for a key in conflict, as `stitchfs txn conflicts` prints it; \\xff and
the like stand for bytes that are no text, \\\\ for a backslash. --key-hex takes
its bytes as hexadecimal digits, as --json prints them. The key is what that
side has of it: of a hash or a sorted set all of it.

A serializable transaction of which others have changed what it has read is not
resolved: it decided by that. Copy from it what you need, abort it, begin again.

A side is taken for whole files and directories: name, contents, attributes and
extended attributes. --ours brings back what others removed, and removes what
they put at the name; of a directory that one side removed, all below it
follows. Not resolved as --ours: a file with several names whose names have
changed, an immutable file in the way, and clones. The reason is told.

--merge is for contents of regular files. CMD is run by the shell with three
files as further arguments: BASE, as it was when the transaction began (empty if
it was not there), OURS and THEIRS. It leaves the result in OURS and succeeds,
as a merge driver of git does; %O, %A and %B in CMD stand for the three, and so
do the variables BASE, LOCAL and REMOTE, as for `git mergetool`, and MERGED for
the result. The result is written to the file in the transaction.

Examples:
  stitchfs txn resolve upgrade etc --theirs
  stitchfs txn resolve upgrade --key app:version --ours
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
    override_usage = "stitchfs txn resolve --ours|--theirs|--merge CMD [--json] NAME PATH [MNT]
       stitchfs txn resolve --ours|--theirs [--json] --key KEY NAME [MNT]"
)]
pub(super) struct TxnResolve {
    #[command(flatten)]
    side: SideArgs,

    /// Print what was resolved as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    record: RecordArgs,

    /// Name
    #[arg(value_name = "NAME")]
    name: String,

    /// Path from the mount point on, `.` for all conflicts of files. Not with --key
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,

    /// Mount point, or any directory in the mount; by default the working directory
    #[arg(value_name = "MNT")]
    mount: Option<PathBuf>,
}

/// A record in conflict.
#[derive(Debug, Args)]
struct RecordArgs {
    /// Key in conflict, as `stitchfs txn conflicts` prints it
    #[arg(long, value_name = "KEY", value_parser = keys::parse_shown, conflicts_with = "merge")]
    key: Option<KeyBytes>,

    /// The same as hexadecimal digits
    #[arg(
        long,
        value_name = "DIGITS",
        value_parser = keys::parse_hex,
        conflicts_with_all = ["key", "merge"]
    )]
    key_hex: Option<KeyBytes>,

    /// Tree that the key is in
    #[arg(long, value_name = "TREE", default_value = KEYS_TREE)]
    tree: String,
}

impl TxnResolve {
    /// The record that it is about, if it is about one, and a directory of the mount.
    fn record(&self) -> Result<Option<(RecordKey, PathBuf)>> {
        let RecordArgs { key, key_hex, tree } = &self.record;
        let Some(KeyBytes(key)) = key.clone().or_else(|| key_hex.clone()) else {
            return Ok(None);
        };
        let tree = tree.clone();
        match (&self.path, &self.mount) {
            (Some(path), Some(_)) => Err(anyhow!(
                "{}: a key has no path: give --key or a path",
                path.display()
            )),
            (mount, _) => {
                let mount = mount.clone().unwrap_or_else(here);
                Ok(Some((RecordKey { tree, key }, mount)))
            }
        }
    }
}

fn here() -> PathBuf {
    PathBuf::from(".")
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
then the conflicts are listed, the exit code is 75, and the transaction is as it was. A \
serializable one is rebased if others have changed nothing that it has read. Files and \
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
    if !args.json && all.iter().any(|conflict| end::is_read(&conflict.kind)) {
        output::note(&format!("{name}: {}", Left::Open.advice()));
    }
    match all.iter().any(|conflict| conflict.side.is_none()) {
        true => Ok(CONFLICT),
        false => Ok(0),
    }
}

pub(super) fn resolve(args: &TxnResolve) -> Result<u8> {
    if let Some((record, mount)) = args.record()? {
        return resolve_record(args, &record, &mount);
    }
    let Some(path) = &args.path else {
        return Err(bad_argument(format!(
            "which conflicts? `stitchfs txn conflicts {} {}` lists them: give a path (`.` for all \
             of files) or --key",
            args.name,
            args.mount.clone().unwrap_or_else(here).display()
        )));
    };
    let target = TxnMount::find(&args.mount.clone().unwrap_or_else(here))?;
    let path = from_root(target.mount(), path)?;
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

fn resolve_record(args: &TxnResolve, record: &RecordKey, mount: &Path) -> Result<u8> {
    let target = TxnMount::find(mount)?;
    target.write_back()?;
    let (name, shown) = (&args.name, record.key.escape_ascii());
    let side = match args.side.ours {
        true => Side::Ours,
        false => Side::Theirs,
    };
    let resolved = transactions::resolve_record(target.dir(), name, side, record);
    let resolved = resolved.map_err(|error| refused(&target, name, &error))?;
    resolved.map_err(|outcome| not_resolved(&target, name, &shown.to_string(), outcome))?;
    if args.json {
        let mut out = end::key_json(&record.tree, &record.key);
        out["name"] = json!(name);
        out["side"] = json!(side_text(Some(side)));
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
    end::report(name, &outcome, Left::NotRebased, args.json)
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
    let shown = quoted(path_of(path));
    resolved.map_err(|outcome| not_resolved(target, name, &shown, outcome))
}

fn not_resolved(
    target: &TxnMount,
    name: &str,
    shown: &str,
    outcome: CommitOutcome,
) -> anyhow::Error {
    match outcome {
        CommitOutcome::Refused { errno, .. } if errno == Errno::NOENT.raw_os_error() => {
            no_conflict(target, name, shown)
        }
        CommitOutcome::Refused { why, .. } => anyhow!("{shown}: {why}"),
        other => anyhow!("{shown}: was not resolved: {other:?}"),
    }
}

pub(super) fn no_conflict(target: &TxnMount, name: &str, shown: &str) -> anyhow::Error {
    let mount = target.mount().display();
    anyhow!("{shown}: there is no conflict; `stitchfs txn conflicts {name} {mount}` lists them")
}

fn refused(target: &TxnMount, name: &str, error: &io::Error) -> anyhow::Error {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => anyhow!(
            "{name}: cannot be resolved or rebased: it ends with the command that runs in it; run \
             that again"
        ),
        _ => target.refused(name, error),
    }
}

/// Returns a path from the root of the file system, without a slash at either end. One that begins
/// with the mount point may be given as well, and one that is quoted as a line shows it.
fn from_root(mount: &Path, given: &Path) -> Result<Vec<u8>> {
    let shown = unquoted(given.as_os_str()).map(PathBuf::from);
    let given = shown.as_deref().unwrap_or(given);
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
    let line = match &conflict.record {
        Some(record) => end::record_line(record),
        None => format!("{}: {}", quoted(path_of(&conflict.path)), conflict.kind),
    };
    match side_text(conflict.side) {
        Some(side) => format!("{line} (resolved: {side})"),
        None => line,
    }
}

fn to_json(conflict: &ListedConflict) -> Value {
    let mut out = match &conflict.record {
        Some(record) => end::record_json(record),
        None => {
            let mut out = json!({ "kind": conflict.kind });
            set_path(&mut out, "path", &path_of(&conflict.path));
            out
        }
    };
    out["resolved"] = json!(side_text(conflict.side));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_fuse::transactions::RecordConflict;

    #[test]
    fn paths_are_from_the_mount_point_on() {
        let of = |given: &str| from_root(Path::new("/srv"), Path::new(given));
        for given in ["a/b", "./a/b", "/srv/a/b", "a//b/"] {
            assert_eq!(of(given).unwrap(), b"a/b", "{given}");
        }
        assert_eq!(of(".").unwrap(), b"");
        assert_eq!(of("/srv").unwrap(), b"");
        assert_eq!(of(r#""a\nb/c""#).unwrap(), b"a\nb/c", "as it is printed");
        assert!(of("../a").is_err() && of("/home/a").is_err());
    }

    #[test]
    fn conflicts_are_shown_with_the_side_that_wins() {
        let open = ListedConflict {
            kind: "name".to_owned(),
            path: b"a/b".to_vec(),
            record: None,
            side: None,
        };
        assert_eq!(line(&open), "a/b: name");
        assert_eq!(to_json(&open)["resolved"], Value::Null);
        let resolved = ListedConflict {
            side: Some(Side::Theirs),
            path: Vec::new(),
            ..open.clone()
        };
        assert_eq!(line(&resolved), ".: name (resolved: theirs)");
        let expected = json!({ "kind": "name", "resolved": "theirs", "path": "." });
        assert_eq!(to_json(&resolved), expected);
        let record = RecordConflict {
            kind: "record".to_owned(),
            tree: KEYS_TREE.to_owned(),
            key: b"a\xff".to_vec(),
        };
        let of_key = ListedConflict {
            side: Some(Side::Ours),
            record: Some(record),
            ..open
        };
        assert_eq!(
            line(&of_key),
            "a\\xff: record of redis/rows (resolved: ours)"
        );
        let out = to_json(&of_key);
        assert_eq!(
            (&out["key_hex"], &out["key"]),
            (&json!("61ff"), &Value::Null)
        );
        assert_eq!(out["resolved"], "ours");
    }

    #[test]
    fn a_key_has_a_mount_and_no_path() {
        let parsed = |words: &[&str]| {
            let words = [&["resolve"], words].concat();
            TxnResolve::try_parse_from(words).map_err(|error| error.kind())
        };
        let given = ["--ours", "--key", "a\\xff", "work"];
        let (record, mount) = parsed(&given).unwrap().record().unwrap().unwrap();
        assert_eq!((&*record.tree, &*record.key), (KEYS_TREE, &b"a\xff"[..]));
        assert_eq!(mount, Path::new("."));
        let words = [&given[..], &["/srv"]].concat();
        let (_, mount) = parsed(&words).unwrap().record().unwrap().unwrap();
        assert_eq!(mount, Path::new("/srv"));
        let words = [&words[..], &["/mnt"]].concat();
        assert!(parsed(&words).unwrap().record().is_err());
        let words = ["--ours", "work", "a", "/srv"];
        assert_eq!(parsed(&words).unwrap().record().unwrap(), None);
        for wrong in [["--merge", "x"], ["--key-hex", "6"]] {
            assert!(
                parsed(&[&wrong[..], &given[1..]].concat()).is_err(),
                "{wrong:?}"
            );
        }
    }
}
