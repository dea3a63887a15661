//! Sends the notices of changes that the kernel did not ask for. Which ones those are is decided
//! where the change is made: in the file system ([`stitch_fs::Notices`]), or in a mount with views
//! (`views/unasked.rs`).
//!
//! Not here, since a request waits for them or the kernel is only asked: pages that a request needs
//! written back ([`super::pages`]), attributes that a request has changed ([`super::setid`]),
//! inodes to forget ([`super::prune`]).

use stitch_base::Ino;
use stitch_fs::Notices;

use crate::notify::Notifier;

/// Has the kernel drop what changes made stale: names first, so that no name leads to an inode
/// whose attributes are read anew. Returns after the last notice. Not from inside a request, and
/// not with a lock held.
pub(super) fn send(notices: &Notices, notifier: &Notifier) {
    send_to_known(notices, notifier, |_| true);
}

/// Does so, too, but leaves out inodes that are not known any more when it comes to them: most of a
/// removed tree is forgotten as soon as the name of the tree is dropped. `is_known` reports whether
/// the kernel may have an inode of this number.
pub(super) fn send_to_known(
    notices: &Notices,
    notifier: &Notifier,
    is_known: impl Fn(Ino) -> bool,
) {
    for (dir, name) in &notices.names {
        debug_assert!(!notices.removed_dirs.contains_key(dir));
        drop_name(*dir, name, notifier);
    }
    for (dir, names) in &notices.removed_dirs {
        // Without the directory, the kernel has nothing that was in it. What it looks up in the
        // directory later is looked up after the change.
        if is_known(*dir) && has_dropped(*dir, notifier) {
            names
                .iter()
                .for_each(|name| drop_name(*dir, name, notifier));
        }
    }
    for ino in notices.inodes.iter().filter(|ino| is_known(**ino)) {
        has_dropped(*ino, notifier);
    }
    for ino in notices.attrs.iter().filter(|ino| is_known(**ino)) {
        if let Err(error) = notifier.invalidate_attr(*ino) {
            tracing::debug!(%error, ino = ino.0, "attributes stay cached");
        }
    }
}

fn drop_name(dir: Ino, name: &[u8], notifier: &Notifier) {
    if let Err(error) = notifier.invalidate_entry(dir, name) {
        tracing::debug!(%error, dir = dir.0, "a name stays cached");
    }
}

/// Has the kernel drop attributes and pages of an inode. Returns false if it has no such inode.
fn has_dropped(ino: Ino, notifier: &Notifier) -> bool {
    notifier.invalidate_known(ino).unwrap_or_else(|error| {
        tracing::debug!(%error, ino = ino.0, "pages stay cached");
        true
    })
}

#[cfg(test)]
mod tests;
