//! The keys of a transaction, from within it or by its name.

use crate::command::txn::names::ViewPath;
use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use stitch_fuse::adapter::{CONTROL_DIR, SNAPSHOTS_DIR, TRANSACTION_ROOT};
use stitch_fuse::mount::table::{self, MountEntry};

/// Name of the link to a socket of keys.
const LINK: &str = "kv.sock";

/// What a path in a mount leads into.
#[derive(Debug, PartialEq, Eq)]
enum InView {
    /// Mainline.
    No,
    /// The root of a transaction is there.
    Transaction(PathBuf),
    Snapshot,
    /// A transaction whose root is not mounted.
    Part,
}

/// Returns the socket of the transaction that a path is the root of: a mount point within a
/// transaction, or `MNT/.stitchfs/txn/NAME`, with or without `/root`. `None` where it is in none.
///
/// # Errors
/// It is in a snapshot, or the transaction has no keys.
pub(super) fn socket_of(path: &Path) -> Result<Option<PathBuf>> {
    let Ok(full) = path.canonicalize() else {
        return Ok(None);
    };
    let shown = path.display();
    match in_view(&table::list()?, &full) {
        InView::No => Ok(None),
        InView::Transaction(root) => socket_in(&root).map(Some),
        InView::Snapshot => bail!(
            "{shown}: is a snapshot here, and keys of a snapshot are not served; read them outside \
             of it, as they are now"
        ),
        InView::Part => bail!(
            "{shown}: only a part of the file system is mounted in this transaction; mount the \
             whole of it"
        ),
    }
}

/// Finds out whether a mount point, or a directory in `.stitchfs`, is in a view.
fn in_view(mounts: &[MountEntry], path: &Path) -> InView {
    let around = mounts.iter().filter(|entry| path.starts_with(&entry.path));
    // Of two at one place the later one is on top.
    let around = around.max_by_key(|entry| entry.path.as_os_str().len());
    let Some(entry) = around.filter(|entry| entry.is_ours()) else {
        return InView::No;
    };
    let inside = path.strip_prefix(&entry.path).unwrap_or(Path::new(""));
    let is_mount_point = inside.as_os_str().is_empty();
    let within = entry.root.join(inside);
    if ViewPath::of(&within.join(TRANSACTION_ROOT)).is_root() {
        return InView::Transaction(path.join(TRANSACTION_ROOT));
    }
    let found = ViewPath::of(&within);
    if found
        .rest
        .starts_with(Path::new(CONTROL_DIR).join(SNAPSHOTS_DIR))
    {
        return match found.rest.components().count() {
            2 => InView::No,
            _ => InView::Snapshot,
        };
    }
    if found.names.is_empty() {
        return InView::No;
    }
    if found.is_root() {
        return InView::Transaction(path.to_owned());
    }
    if !is_mount_point {
        return InView::No;
    }
    let root = Path::new("/").join(&found.root);
    let mut others = mounts.iter().rev();
    let whole = others.find(|one| one.device == entry.device && one.root == root);
    whole.map_or(InView::Part, |one| InView::Transaction(one.path.clone()))
}

fn socket_in(root: &Path) -> Result<PathBuf> {
    let shown = root.display();
    let link = root.join(CONTROL_DIR).join(LINK);
    match fs::read_link(&link) {
        Ok(socket) => Ok(socket),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => bail!("{shown}: serves no keys; mount its store with -o kv"),
            Some(Errno::OPNOTSUPP) => bail!(
                "{shown}: the transaction began before the store had keys; they are not part of it"
            ),
            Some(Errno::ACCESS) => bail!(
                "{shown}: the transaction is of another user than the mount, who cannot reach its \
                 keys"
            ),
            Some(Errno::STALE) => bail!("{shown}: the transaction has ended"),
            _ => Err(error).with_context(|| format!("{}: cannot be read", link.display())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::live::mount_entry as entry;

    #[test]
    fn the_root_of_a_transaction_is_found_from_within_and_by_name() {
        let ours = "fuse.stitchfs";
        let mounts = [
            entry("/", "/", 1, "ext4"),
            entry("/srv", "/", 2, ours),
            entry("/in", "/.stitchfs/txn/work/root", 2, ours),
            entry("/part", "/.stitchfs/txn/work/root/home", 2, ours),
            entry("/lone", "/.stitchfs/txn/other/root/home", 2, ours),
            entry("/old", "/.stitchfs/snap/mon", 2, ours),
            entry(
                "/deep",
                "/.stitchfs/txn/work/root/.stitchfs/txn/a/root",
                2,
                ours,
            ),
        ];
        let found = |path: &str| in_view(&mounts, Path::new(path));
        let root = |path: &str| InView::Transaction(path.into());
        assert_eq!(found("/in"), root("/in"));
        assert_eq!(found("/part"), root("/in"));
        assert_eq!(found("/lone"), InView::Part);
        assert_eq!(found("/deep"), root("/deep"));
        let inner = "/in/.stitchfs/txn/a/root";
        assert_eq!(found(inner), root(inner));
        assert_eq!(found("/old"), InView::Snapshot);
        assert_eq!(
            found("/srv/.stitchfs/txn/work/root"),
            root("/srv/.stitchfs/txn/work/root")
        );
        assert_eq!(
            found("/srv/.stitchfs/txn/work"),
            root("/srv/.stitchfs/txn/work/root")
        );
        for path in ["/srv", "/srv/x", "/home", "/in/sub", "/srv/.stitchfs/txn"] {
            assert_eq!(found(path), InView::No, "{path}");
        }
    }
}
