//! Finding the mount that is meant, and asking its daemon.

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fuse::adapter::{CONTROL_DIR, HISTORY_DIR, is_control_number, is_number_in_transaction};
use stitch_fuse::mount;
use stitch_fuse::mount::table::{self, MountEntry};

/// What a path on the command line stands for.
#[derive(Debug)]
pub(super) enum Place {
    /// A mount of ours: the path is its mount point, or the store that it serves.
    Mount(MountEntry),
    /// Anything else: a store, perhaps.
    Store(PathBuf),
}

impl Place {
    /// Finds out.
    pub(super) fn of(path: &Path) -> Result<Self> {
        // A mount that lost its daemon answers no question about the path, so the table comes
        // first.
        if let Ok(Some(entry)) = mount::mounted_at(path)
            && entry.is_ours()
        {
            return Ok(Self::Mount(entry));
        }
        let store = stitchfs::store_path(path);
        Ok(match mount_of(&store)? {
            Some(entry) => Self::Mount(entry),
            None => Self::Store(store),
        })
    }
}

/// The mount that a path stands for.
///
/// # Errors
/// It stands for none.
pub(super) fn mounted(path: &Path) -> Result<MountEntry> {
    match Place::of(path)? {
        Place::Mount(entry) => Ok(entry),
        Place::Store(_) => bail!(
            "{}: no StitchFS is mounted there; `findmnt -t fuse.stitchfs` lists the mounts",
            path.display()
        ),
    }
}

/// Returns the mount that a path is in, and where in it. The path is absolute, without links.
///
/// # Errors
/// It is in none of ours.
pub(super) fn around(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let mounts = table::list()?;
    let longest = |entry: &&MountEntry| entry.path.as_os_str().len();
    // Of two at one place the later one is on top.
    let around = mounts.iter().filter(|entry| path.starts_with(&entry.path));
    match around.max_by_key(longest) {
        Some(entry) if entry.is_ours() => {
            let inside = path.strip_prefix(&entry.path).unwrap_or(path);
            Ok((entry.path.clone(), inside.to_owned()))
        }
        _ => bail!("{}: is not in a mount of StitchFS", path.display()),
    }
}

/// Refuses a directory of `.stitchfs` as what is made or filled: these are made up, and a name that
/// is made in them is a snapshot. Of a path that is not there, the nearest directory above it that
/// is there counts. A file of the user's own that is named `.stitchfs` is one as others.
///
/// # Errors
/// It is such a directory.
pub(super) fn check_target(path: &Path) -> Result<()> {
    let here = path.is_relative().then_some(Path::new("."));
    let above = path.ancestors().filter(|above| *above != Path::new(""));
    let mut about = above.chain(here).map(|at| (at, at.symlink_metadata()));
    let is_made_up = about
        .find_map(|(at, about)| Some((at, about.ok()?)))
        .is_some_and(|(at, about)| is_control_number(about.ino()) && is_in_ours(at));
    if is_made_up {
        bail!(
            "{}: is in {CONTROL_DIR}, where no files are made; give a path outside of it",
            path.display()
        );
    }
    Ok(())
}

/// Reports whether a path of a mount of ours is in a transaction, or in a clone that one shows.
pub(super) fn is_in_transaction(path: &Path) -> bool {
    let found = path.canonicalize().ok();
    let Some((path, (mount, _))) = found.and_then(|path| Some((path.clone(), around(&path).ok()?)))
    else {
        return false;
    };
    // What a transaction shows of a clone has numbers of a snapshot.
    let mut within = path.ancestors().take_while(|at| at.starts_with(&mount));
    within.any(|at| {
        let about = at.symlink_metadata();
        about.is_ok_and(|about| is_number_in_transaction(about.ino()))
    })
}

/// Reports whether a path is in a moment of the history of a mount of ours.
pub(super) fn is_in_history(path: &Path) -> bool {
    is_in_control_dir(path, HISTORY_DIR)
}

fn is_in_control_dir(path: &Path, name: &str) -> bool {
    let dir = Path::new(CONTROL_DIR).join(name);
    let found = path.canonicalize().ok().and_then(|path| around(&path).ok());
    found.is_some_and(|(_, inside)| inside.starts_with(dir))
}

/// Reports whether a path is in a mount of ours.
fn is_in_ours(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| around(&path).is_ok())
}

/// The living mount of this store, if there is one.
pub(super) fn mount_of(store: &Path) -> Result<Option<MountEntry>> {
    let Ok(store) = store.canonicalize() else {
        return Ok(None);
    };
    let mounts = table::list()?;
    let found = mounts
        .into_iter()
        .rev()
        .find(|entry| entry.is_ours() && Path::new(&entry.source) == store);
    Ok(found.filter(|entry| mount::is_dead(&entry.path).is_ok_and(|dead| !dead)))
}

/// Asks the daemon that serves `mount_point` what it is and has done.
pub(super) fn ask(mount_point: &Path) -> Result<Value> {
    ask_for(mount_point, stitchfs::STATS_XATTR)
}

/// What a daemon answers to one of its attributes, for callers that tell errors apart.
///
/// # Errors
/// What the daemon or the kernel refuses it with; `EPROTO` for an answer that makes no sense.
pub(super) fn told(path: &Path, name: &str) -> Result<Value, Errno> {
    serde_json::from_slice(&read(path, name)?).map_err(|_| Errno::PROTO)
}

/// What a daemon answers to one of its attributes.
pub(super) fn ask_for(mount_point: &Path, name: &str) -> Result<Value> {
    let answer = read(mount_point, name).map_err(|error| refusal(mount_point, error))?;
    serde_json::from_slice(&answer)
        .with_context(|| format!("{}: the answer makes no sense", mount_point.display()))
}

/// Reports whether the caller is root or the user who mounted, whom the daemon tells all.
pub(super) fn is_told_all(mount_point: &Path) -> bool {
    let told = read(mount_point, stitchfs::JOB_XATTR);
    !matches!(told, Err(Errno::ACCESS | Errno::PERM))
}

/// The attribute; by ioctl(2) in a mount without attributes. Older daemons know the first way
/// alone.
fn read(mount_point: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0u8; 64 << 10];
    match rustix::fs::getxattr(mount_point, name, &mut answer) {
        Ok(len) => {
            answer.truncate(len);
            Ok(answer)
        }
        Err(Errno::OPNOTSUPP) => read_by_ioctl(mount_point, name),
        Err(error) => Err(error),
    }
}

fn read_by_ioctl(mount_point: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mount_point, flags, Mode::empty())?;
    let answer = stitch_fuse::report::read(&root, name);
    answer.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTTY) => Errno::OPNOTSUPP,
        Some(errno) => errno,
        None => Errno::PROTO,
    })
}

/// Reports whether an error is that of a mount without a daemon.
pub(super) const fn is_gone(error: Errno) -> bool {
    // The second and third: it went while it was asked.
    matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

/// Why a daemon does not answer.
pub(super) fn refusal(mount_point: &Path, error: Errno) -> anyhow::Error {
    let shown = mount_point.display();
    match error {
        error if is_gone(error) => anyhow!(
            "{shown}: the mount has lost its daemon; `stitchfs mount` or `umount -l` clears it"
        ),
        Errno::ACCESS | Errno::PERM => {
            anyhow!("{shown}: only root and the user who mounted it may ask")
        }
        Errno::NOSPC => anyhow!("{shown}: there is no space left in the store"),
        Errno::TOOBIG => anyhow!("{shown}: the answer of its daemon has more than 64 KiB"),
        error => anyhow::Error::new(error).context(format!("{shown}: its daemon refuses to tell")),
    }
}

/// An entry of a mount table, for tests.
#[cfg(test)]
pub(super) fn mount_entry(path: &str, root: &str, device: u32, kind: &str) -> MountEntry {
    MountEntry {
        id: 1,
        parent: 1,
        root: root.into(),
        path: path.into(),
        device: (0, device),
        kind: kind.to_owned(),
        source: "x".into(),
        options: String::new(),
        super_options: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_without_a_daemon_is_named_and_cleared() {
        for errno in [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED] {
            assert!(is_gone(errno));
            let said = refusal(Path::new("/srv"), errno).to_string();
            assert!(
                said.contains("has lost its daemon; `stitchfs mount`"),
                "{said}"
            );
        }
        assert!(!is_gone(Errno::IO));
    }

    #[test]
    fn a_full_store_is_named_as_the_reason() {
        let said = refusal(Path::new("/srv"), Errno::NOSPC).to_string();
        assert_eq!(said, "/srv: there is no space left in the store");
    }
}
