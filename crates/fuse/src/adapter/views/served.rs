//! A writable view that is open in a mount, a clone or a transaction: an [`Adapter`] of its own
//! serves the requests in its slot.

use std::sync::OnceLock;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::FileSystem;

use super::node::Slot;
use crate::adapter::{Adapter, AdapterOptions};
use crate::errno::Errno;
use crate::handler::{Answer, Handler as _};
use crate::notify::Notifier;
use crate::wire::reply::Lookup;

/// A view that is open.
#[derive(Debug)]
pub(super) struct ServedView {
    slot: Slot,
    adapter: Adapter,
    /// Number of inodes that are known while the view is not in use.
    idle_count: usize,
}

impl ServedView {
    pub(super) const fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Looks up a name. What is above `root`, the view's directory, is not in it.
    pub(super) fn lookup(&self, root: Ino, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        if name == b".." && parent == root {
            return Err(Errno::ESTALE);
        }
        self.adapter.find(root, parent, name)
    }

    /// Returns the numbers of all its inodes that the kernel may know.
    pub(super) fn numbers(&self) -> Vec<Ino> {
        let inos = self.adapter.fs().known_numbers();
        inos.into_iter().map(|ino| self.slot.number(ino)).collect()
    }

    /// Takes lookups back.
    pub(super) fn forget(&self, ino: Ino, count: u64) {
        self.adapter.forget(ino, count);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.adapter.fs().known_inodes() <= self.idle_count
    }

    /// Ends its threads. Not from inside a request.
    pub(super) fn stop(&self) {
        self.adapter.destroy();
    }
}

/// Opens views of a mount.
#[derive(Debug)]
pub(super) struct ViewServer {
    options: AdapterOptions,
    notifier: OnceLock<Notifier>,
}

impl ViewServer {
    /// Views that are opened before [`Self::connect`] send no notices.
    pub(super) const fn new(options: AdapterOptions) -> Self {
        Self {
            options,
            notifier: OnceLock::new(),
        }
    }

    /// Lets views that are opened from now on send notices. Returns false if others do already.
    pub(super) fn connect(&self, notifier: &Notifier) -> bool {
        self.notifier.set(notifier.clone()).is_ok()
    }

    /// Serves a file system in a slot.
    pub(super) fn serve(&self, fs: Arc<FileSystem>, slot: Slot) -> ServedView {
        let idle_count = fs.known_inodes();
        let adapter = Adapter::new(fs, self.options).in_view(slot.base());
        if let Some(notifier) = self.notifier.get() {
            adapter.start(notifier);
        }
        ServedView {
            slot,
            adapter,
            idle_count,
        }
    }
}
