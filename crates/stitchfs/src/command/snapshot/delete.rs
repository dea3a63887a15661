//! `stitchfs snapshot delete`.

use super::super::output;
use super::{is_in_list, open_mount, refused, shown};
use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::json;
use std::path::{Path, PathBuf};
use stitch_fuse::snapshots;

/// Delete snapshots; their space comes back in the background
#[derive(Debug, Parser)]
#[command(override_usage = "stitchfs snapshot delete [--json] MNT NAME...
       stitchfs snapshot delete [--json] PATH...")]
pub(super) struct SnapshotDelete {
    /// Print what was deleted as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or any directory in the mount, and names of snapshots; or
    /// paths of snapshots, as MNT/.stitchfs/snap/NAME
    #[arg(value_name = "MNT NAME|PATH", required = true)]
    given: Vec<PathBuf>,
}

/// A snapshot, and a directory of the mount that has it.
#[derive(Debug, PartialEq, Eq)]
struct SnapshotToDelete {
    dir: PathBuf,
    name: String,
    /// The path by which it was given.
    path: Option<PathBuf>,
}

impl SnapshotToDelete {
    /// Takes the path of a snapshot apart; `None` for any other path.
    fn by_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_owned();
        let dir = path.parent().filter(|_| is_in_list(path))?;
        Some(Self {
            // Empty for a name in the working directory.
            dir: Path::new(".").join(dir),
            name,
            path: Some(path.to_owned()),
        })
    }

    fn delete(&self) -> Result<()> {
        if let Some(path) = &self.path {
            let found = path.symlink_metadata();
            found.with_context(|| shown(path))?;
        }
        let (mount, opened) = open_mount(&self.dir)?;
        let deleted = snapshots::delete(&opened, &self.name);
        deleted.map_err(|error| refused(&mount, &self.name, &error))
    }
}

/// Returns what is to be deleted. With a mount in front names follow, else all are paths.
fn targets(given: &[PathBuf]) -> Result<Vec<SnapshotToDelete>> {
    let (mount, rest) = match given {
        [first, rest @ ..] if SnapshotToDelete::by_path(first).is_none() => (Some(first), rest),
        all => (None, all),
    };
    if rest.is_empty() {
        return Err(output::bad_argument(format!(
            "{}: is no snapshot; give the names of snapshots behind the mount point",
            shown(&given[0])
        )));
    }
    let target = |one: &PathBuf| {
        let by_name = |dir: &PathBuf| {
            let name = one.to_str().filter(|_| one.components().count() == 1)?;
            Some(SnapshotToDelete {
                dir: dir.clone(),
                name: name.to_owned(),
                path: None,
            })
        };
        let found = SnapshotToDelete::by_path(one).or_else(|| mount.and_then(by_name));
        found.ok_or_else(|| {
            output::bad_argument(format!("{}: is no path of a snapshot", shown(one)))
        })
    };
    rest.iter().map(target).collect()
}

/// Deletes all that can be deleted.
pub(super) fn run(args: &SnapshotDelete) -> Result<u8> {
    let targets = targets(&args.given)?;
    let (mut deleted, mut is_all) = (Vec::new(), true);
    for target in &targets {
        match target.delete() {
            Ok(()) => deleted.push(&target.name),
            Err(error) if targets.len() == 1 => return Err(error),
            Err(error) => {
                output::note(&output::explain(&error));
                is_all = false;
            }
        }
    }
    if args.json {
        output::print_json(&json!({ "deleted": deleted }))?;
    }
    Ok(u8::from(!is_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_a_mount() {
        let words = |words: &[&str]| words.iter().map(PathBuf::from).collect::<Vec<_>>();
        let found = targets(&words(&["/srv", "mon", "tue"])).unwrap();
        let names: Vec<&str> = found.iter().map(|target| &*target.name).collect();
        assert_eq!(names, ["mon", "tue"]);
        assert!(found.iter().all(|target| target.dir == Path::new("/srv")));
        for wrong in [
            &["/srv"][..],
            &["/srv", "mon", "a/b"],
            &["/srv", "/srv/mon"],
        ] {
            let error = targets(&words(wrong)).unwrap_err();
            assert!(output::is_bad_argument(&error), "{wrong:?}: {error}");
        }
    }
}
