//! `stitchfs rmtree`: removes directories with all that is in them, each in one step.

use super::{live, output};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::json;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::adapter::{
    CONTROL_DIR, HISTORY_DIR, REMOVE_TREE_XATTR, SNAPSHOTS_DIR, TRANSACTIONS_DIR,
};
use stitch_fuse::mount::table::{self, MountEntry};
use stitchfs::{DETACHED_DIRS, DETACHED_REMOVED};

const POLL: Duration = Duration::from_millis(50);
/// How often it is tried again if another command of the same user comes between.
const TRIES: usize = 5;

const AFTER: &str = "\
It takes as long for a million files as for one: the name goes at once, and the
space comes back in the background, also after an unmount or a crash. A user who
may remove the directory itself removes all below it too, also files of other
users. A directory with a file in it that chattr made immutable or append-only
is not removed; in a store that ever had one, this is looked for first. Only
root and the user who mounted may do this; other users have `rm -r`. All
directories are checked first: if one is missing, none is removed.";

/// Remove directories with all that is in them, in one step each
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct RmtreeArgs {
    /// Wait until the space has come back
    #[arg(long)]
    wait: bool,

    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,

    /// Directories in a mount of StitchFS
    #[arg(value_name = "DIR", required = true)]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &RmtreeArgs) -> Result<u8> {
    // All are looked at before the first goes.
    let mut trees = Vec::new();
    for path in &args.paths {
        let found = TreeToRemove::find(path).and_then(TreeToRemove::stored);
        let is_alone = args.paths.len() == 1;
        trees.push(if is_alone {
            found?
        } else {
            found.context("nothing was removed")?
        });
    }
    let mut removed_before = Vec::new();
    for tree in &trees {
        if args.wait && !removed_before.iter().any(|(mount, _)| *mount == tree.mount) {
            let (_, removed) = left(&tree.mount)?;
            removed_before.push((tree.mount.clone(), removed));
        }
        tree.remove()?;
    }
    let mut entries = 0;
    for (mount, before) in &removed_before {
        entries += wait(mount, *before)?;
    }
    if args.json {
        let paths: Vec<&Path> = trees.iter().map(|tree| tree.path.as_path()).collect();
        let mut out = json!({});
        stitchfs::set_paths(&mut out, "removed", &paths);
        if args.wait {
            out["entries"] = json!(entries);
        }
        output::print_json(&out)?;
    }
    Ok(0)
}

/// A directory that is to be removed.
#[derive(Debug)]
pub(super) struct TreeToRemove {
    /// Absolute, without links before the last name.
    path: PathBuf,
    /// Where its file system is mounted.
    mount: PathBuf,
}

impl TreeToRemove {
    /// Absolute, without links before the last name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn find(given: &Path) -> Result<Self> {
        let shown = given.display();
        let Some(name) = given.file_name() else {
            bail!("{shown}: has no name of its own to be removed; give it as DIR/NAME");
        };
        let parent = match given.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = parent.canonicalize();
        let path = parent.with_context(|| shown.to_string())?.join(name);
        let found = path.symlink_metadata().with_context(|| shown.to_string())?;
        if !found.is_dir() {
            bail!("{shown}: is no directory; `rm` removes it");
        }
        let mount = mount_for(&path, &table::list()?).with_context(|| shown.to_string())?;
        Ok(Self { path, mount })
    }

    fn stored(self) -> Result<Self> {
        self.check_stored().map(|()| self)
    }

    /// Refuses what is found in `.stitchfs`: other commands end that.
    ///
    /// # Errors
    /// It is a snapshot, a transaction or a moment, or in one of the first or last.
    pub(super) fn check_stored(&self) -> Result<()> {
        let inside = self.path.strip_prefix(&self.mount).unwrap_or(&self.path);
        let names: Vec<_> = inside.components().map(|name| name.as_os_str()).collect();
        let Some(at) = names.iter().rposition(|name| *name == CONTROL_DIR) else {
            return Ok(());
        };
        let (shown, mount) = (self.path.display(), self.mount.display());
        let kind = names.get(at + 1).and_then(|name| name.to_str());
        let name = names.get(at + 2).map(|name| name.display().to_string());
        match (kind, name) {
            (Some(SNAPSHOTS_DIR), Some(name)) if names.len() == at + 3 => bail!(
                "{shown}: is a snapshot; `stitchfs snapshot delete {mount} {name}` deletes it"
            ),
            (Some(SNAPSHOTS_DIR | HISTORY_DIR), Some(_)) => {
                bail!("{shown}: is in the past, where nothing can be removed")
            }
            (Some(TRANSACTIONS_DIR), Some(name)) if names.len() == at + 3 => {
                bail!("{shown}: is a transaction; `stitchfs txn abort {name} {mount}` ends it")
            }
            (Some(TRANSACTIONS_DIR), Some(_)) => Ok(()),
            _ => bail!("{shown}: is made up by the daemon, and cannot be removed"),
        }
    }

    /// Announces it, and has the kernel remove it.
    pub(super) fn remove(&self) -> Result<()> {
        let shown = self.path.display();
        for _ in 0..TRIES {
            let announced =
                rustix::fs::lsetxattr(&self.path, REMOVE_TREE_XATTR, b"1", XattrFlags::empty());
            announced.map_err(|error| self.refused(error))?;
            match std::fs::remove_dir(&self.path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => bail!(
                    "{shown}: may not be removed, or has something immutable or append-only in \
                     it; `lsattr -aR {shown}` shows what"
                ),
                other => return other.with_context(|| format!("{shown}: cannot be removed")),
            }
        }
        bail!("{shown}: others remove trees at the same time; try again")
    }

    fn refused(&self, error: Errno) -> anyhow::Error {
        let shown = self.path.display();
        match error {
            Errno::OPNOTSUPP => {
                anyhow!(
                    "{shown}: its daemon is of an older stitchfs; unmount it and mount it again"
                )
            }
            Errno::ACCESS | Errno::PERM => {
                anyhow!(
                    "{shown}: only root and the user who mounted it may, and the owner of a clone; \
                     `rm -r` removes it"
                )
            }
            error => anyhow::Error::new(error).context(format!("{shown}: cannot be removed")),
        }
    }
}

/// Where the file system of a directory is mounted. It is one of ours, and nothing is mounted on
/// the directory or below it.
fn mount_for(path: &Path, mounts: &[MountEntry]) -> Result<PathBuf> {
    if let Some(entry) = mounts.iter().find(|entry| entry.path.starts_with(path)) {
        bail!(
            "{} is a mount point; unmount it first",
            entry.path.display()
        );
    }
    let longest = |entry: &&MountEntry| entry.path.as_os_str().len();
    // Of two at one place the later one is on top.
    let around = mounts.iter().filter(|entry| path.starts_with(&entry.path));
    match around.max_by_key(longest) {
        Some(entry) if entry.is_ours() => Ok(entry.path.clone()),
        _ => bail!("is not in a mount of StitchFS; `rm -r` removes it"),
    }
}

/// Directories of removed trees that are left, and entries that are gone.
fn left(mount: &Path) -> Result<(u64, u64)> {
    let document = live::ask(mount)?;
    let counter = |name: &str| document["counters"][name].as_u64().unwrap_or_default();
    Ok((counter(DETACHED_DIRS), counter(DETACHED_REMOVED)))
}

/// Waits until nothing is left. Answers how many entries went since there were `before`.
fn wait(mount: &Path, before: u64) -> Result<u64> {
    let bar = output::spinner("removing");
    let clock = SystemClock::default();
    loop {
        let (dirs, removed) = left(mount)?;
        output::advance_count(&bar, removed.saturating_sub(before));
        if dirs == 0 {
            bar.finish_and_clear();
            return Ok(removed.saturating_sub(before));
        }
        clock.sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: &str) -> MountEntry {
        live::mount_entry(path, "/", 0, kind)
    }

    #[test]
    fn the_mount_around_a_directory_is_found() {
        let mounts = [
            entry("/", "ext4"),
            entry("/m", "fuse.stitchfs"),
            entry("/m/in", "ext4"),
            entry("/over", "ext4"),
            entry("/over", "fuse.stitchfs"),
        ];
        let of = |path: &str| mount_for(Path::new(path), &mounts);
        assert_eq!(of("/m/a/b").unwrap(), Path::new("/m"));
        assert_eq!(of("/over/a").unwrap(), Path::new("/over"));
        for (path, reason) in [
            ("/m", "is a mount point"),
            ("/m/in/a", "not in a mount of StitchFS"),
            ("/a", "not in a mount of StitchFS"),
            ("/", "is a mount point"),
        ] {
            let error = of(path).unwrap_err().to_string();
            assert!(error.contains(reason), "{path}: {error}");
        }
        let below = mount_for(Path::new("/m"), &[entry("/m/a/in", "ext4")]);
        assert!(below.unwrap_err().to_string().contains("/m/a/in"));
    }
}
