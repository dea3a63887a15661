//! Sends the notices of changes that the kernel did not ask for. Which ones those are is decided
//! where the change is made: in the file system ([`stitch_fs::Notices`]), or in a mount with views
//! (`views/unasked.rs`).
//!
//! Not here, since a request waits for them or the kernel is only asked: pages that a request needs
//! written back ([`super::pages`]), attributes that a request has changed ([`super::setid`]),
//! inodes to forget ([`super::prune`]).

use stitch_fs::Notices;

use crate::notify::Notifier;

/// Has the kernel drop what changes made stale: names first, so that no name leads to an inode
/// whose attributes are read anew. Returns after the last notice. Not from inside a request, and
/// not with a lock held.
pub(super) fn send(notices: &Notices, notifier: &Notifier) {
    for (dir, name) in &notices.names {
        if let Err(error) = notifier.invalidate_entry(*dir, name) {
            tracing::debug!(%error, dir = dir.0, "a name stays cached");
        }
    }
    for ino in &notices.inodes {
        if let Err(error) = notifier.invalidate_data(*ino, 0, 0) {
            tracing::debug!(%error, ino = ino.0, "pages stay cached");
        }
    }
    for ino in &notices.attrs {
        if let Err(error) = notifier.invalidate_attr(*ino) {
            tracing::debug!(%error, ino = ino.0, "attributes stay cached");
        }
    }
}
