//! The mount whose transactions a command is about.

use super::super::{live, snapshot, sync};
use super::names::{self, ViewPath};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use stitch_fs::NESTED_DEPTH_MAX;
use stitch_fuse::adapter::{CLONE_XATTR, CONTROL_DIR, TRANSACTIONS_DIR};
use stitch_fuse::mount::table::{self, MountEntry};

/// The transaction that a command is about.
#[derive(Debug, Args)]
pub(super) struct TxnOf {
    /// Name
    #[arg(value_name = "NAME")]
    pub(super) name: String,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    pub(super) path: PathBuf,
}

/// A mount, and a directory of it by which its daemon is asked. The directory stays that of the
/// file system as it is, or of the transaction that is mounted there, when this process enters
/// another one.
pub(super) struct TxnMount {
    mount: PathBuf,
    /// The transaction that is mounted there, whose names are asked for.
    within: ViewPath,
    dir: File,
}

impl TxnMount {
    /// Returns the mount that a path is in.
    ///
    /// # Errors
    /// It is in none of ours, or in one that has no transactions.
    pub(super) fn find(given: &Path) -> Result<Self> {
        let path = given
            .canonicalize()
            .with_context(|| snapshot::shown(given))?;
        let (mount, within) = whole_mount(&table::list()?, &path)?;
        let place = transactions_dir(&mount);
        let dir = snapshot::open_dir(&place).map_err(|error| not_there(&mount, &error))?;
        Ok(Self { mount, within, dir })
    }

    /// Returns the mount that a path is in, for a transaction that begins or is entered.
    ///
    /// # Errors
    /// Those of [`Self::find`]; the path or the working directory is in a clone.
    pub(super) fn find_outside_clones(given: &Path) -> Result<Self> {
        let target = Self::find(given)?;
        for dir in [given, Path::new(".")] {
            if let Some(clone) = target.clone_around(dir) {
                bail!(
                    "{}: is a clone; a transaction is of the file system as it is, not of its \
                     clones: change to a directory outside of it",
                    clone.display()
                );
            }
        }
        Ok(target)
    }

    /// Returns the directory of the clone that a directory of the mount is in.
    fn clone_around(&self, dir: &Path) -> Option<PathBuf> {
        let dir = dir.canonicalize().ok()?;
        let above = dir.ancestors();
        let mut above = above.take_while(|above| above.starts_with(&self.mount));
        let clone = above.find(|above| live::ask_for(above, CLONE_XATTR).is_ok())?;
        Some(clone.to_owned())
    }

    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    pub(super) const fn dir(&self) -> &File {
        &self.dir
    }

    /// Returns where the root of a transaction is found.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        names::place_in(&self.mount, name)
    }

    /// Returns the transaction that is mounted there; its root is empty for none.
    pub(super) const fn within(&self) -> &ViewPath {
        &self.within
    }

    /// Returns the name of a transaction from outside of all others.
    pub(super) fn full_name(&self, name: &str) -> String {
        let outer = self.within.names.iter().map(String::as_str);
        outer.chain([name]).collect::<Vec<_>>().join("/")
    }

    /// Has the kernel write back what programs wrote through mappings, in all views of the mount,
    /// and waits until the daemon has it.
    ///
    /// # Errors
    /// It could not.
    pub(super) fn write_back(&self) -> Result<()> {
        sync::write_back_by(&self.dir, &self.mount)
    }

    /// Why the daemon did not do it.
    pub(super) fn refused(&self, name: &str, error: &io::Error) -> anyhow::Error {
        let shown = self.mount.display();
        match Errno::from_io_error(error) {
            Some(Errno::EXIST) => anyhow!(
                "{name}: an open transaction has this name; `stitchfs txn list {shown}` shows it"
            ),
            Some(Errno::NOENT) => anyhow!(
                "{name}: there is no such open transaction; `stitchfs txn list {shown}` lists them"
            ),
            Some(Errno::STALE) => anyhow!("{name}: the transaction has ended"),
            Some(Errno::BUSY) => anyhow!("{name}: is being committed already"),
            Some(Errno::PERM | Errno::ACCESS) => anyhow!(
                "{name}: only root, the user who mounted {shown}, and the one who began it may"
            ),
            Some(Errno::OPNOTSUPP) => anyhow!(
                "{shown}: its store has no transactions: large files are beside it, or its engine \
                 cannot"
            ),
            Some(Errno::OVERFLOW) => anyhow!(
                "{shown}: its inode numbers are too large for transactions; copy the files to a \
                 new store"
            ),
            Some(Errno::DQUOT) => anyhow!(
                "{shown}: this user has as many transactions as one may have: 32 that are open, or \
                 256 that have ended with files in use; `stitchfs txn list {shown}` lists those \
                 that are open: commit or abort some"
            ),
            Some(Errno::LOOP) => anyhow!(
                "{name}: at most {NESTED_DEPTH_MAX} transactions are in each other; commit one of \
                 those that this one is in first"
            ),
            Some(Errno::MFILE | Errno::NFILE) => anyhow!(
                "{shown}: too many transactions are open; `stitchfs txn list {shown}` lists them"
            ),
            Some(Errno::SRCH) => anyhow!(
                "{shown}: its daemon cannot see this process, which is in another pid namespace, \
                 and so not notice its end; use `stitchfs txn begin`"
            ),
            Some(Errno::ROFS) => anyhow!("{shown}: is mounted for reading only"),
            Some(Errno::NOSPC) => anyhow!("{shown}: there is no space left"),
            Some(Errno::INVAL) => anyhow!(
                "{name:?}: is no name of a transaction: one is not empty, `.` or `..`, and has no \
                 slash"
            ),
            Some(Errno::NAMETOOLONG) => anyhow!("{name}: the name has more than 250 bytes"),
            Some(Errno::NOTTY) => anyhow!(
                "{shown}: its daemon is of an older stitchfs; unmount it and mount it again"
            ),
            Some(errno) => live::refusal(&self.mount, errno),
            None => anyhow!("{name:?}: is no name of a transaction"),
        }
    }
}

fn transactions_dir(mount: &Path) -> PathBuf {
    mount.join(CONTROL_DIR).join(TRANSACTIONS_DIR)
}

fn not_there(mount: &Path, error: &io::Error) -> anyhow::Error {
    let shown = mount.display();
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => anyhow!(
            "{shown}: its store has no transactions, its daemon is of an older stitchfs, or a file \
             named {CONTROL_DIR} hides them"
        ),
        Some(errno) => live::refusal(mount, errno),
        None => anyhow!("{shown}: {error}"),
    }
}

/// Returns where the whole file system, or transaction, is mounted that a path is in, and which
/// transaction that is. The path is absolute, without links.
fn whole_mount(mounts: &[MountEntry], path: &Path) -> Result<(PathBuf, ViewPath)> {
    let around = mounts.iter().filter(|entry| path.starts_with(&entry.path));
    // Of two at one place the later one is on top.
    let around = around.max_by_key(|entry| entry.path.as_os_str().len());
    let shown = path.display();
    let Some(entry) = around.filter(|entry| entry.is_ours()) else {
        bail!("{shown}: is not in a mount of StitchFS");
    };
    let within = ViewPath::of(&entry.root);
    ensure!(
        !within.rest.starts_with(CONTROL_DIR),
        "{shown}: is in a snapshot here, which has no transactions: leave it first"
    );
    let root = Path::new("/").join(&within.root);
    let is_whole = |other: &&MountEntry| other.device == entry.device && other.root == root;
    let whole = match is_whole(&entry) {
        true => entry,
        false => mounts.iter().rev().find(is_whole).with_context(|| {
            format!(
                "{shown}: only a part of its file system is mounted here; mount the whole of it"
            )
        })?,
    };
    let rest = PathBuf::new();
    Ok((whole.path.clone(), ViewPath { rest, ..within }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::live::mount_entry as entry;

    #[test]
    fn the_whole_file_system_is_found_from_any_part() {
        let ours = "fuse.stitchfs";
        let mounts = [
            entry("/", "/", 1, "ext4"),
            entry("/srv", "/", 2, ours),
            entry("/part", "/home/ada", 2, ours),
            entry("/lone", "/home", 3, ours),
            entry("/in", "/.stitchfs/txn/work/root", 2, ours),
            entry(
                "/deep",
                "/.stitchfs/txn/work/root/.stitchfs/txn/a/root/home",
                2,
                ours,
            ),
            entry(
                "/deeper",
                "/.stitchfs/txn/work/root/.stitchfs/txn/a/root",
                2,
                ours,
            ),
            entry("/lost", "/.stitchfs/txn/other/root/home", 2, ours),
            entry("/old", "/.stitchfs/snap/mon", 2, ours),
        ];
        let found = |path: &str| whole_mount(&mounts, Path::new(path));
        let place = |path: &str| {
            let (mount, within) = found(path).unwrap();
            (mount.display().to_string(), within.names.join("/"))
        };
        let at = |mount: &str, names: &str| (mount.to_owned(), names.to_owned());
        assert_eq!(place("/srv/home/ada"), at("/srv", ""));
        assert_eq!(place("/part/x"), at("/srv", ""));
        assert_eq!(place("/in/x"), at("/in", "work"));
        assert_eq!(place("/deep/x"), at("/deeper", "work/a"));
        let why = |path: &str| found(path).unwrap_err().to_string();
        assert!(why("/home").contains("not in a mount"));
        assert!(why("/lone/x").contains("mount the whole"));
        assert!(why("/lost").contains("mount the whole"));
        assert!(why("/old/x").contains("is in a snapshot"));
    }
}
