//! The clones that are open in a mount: each has an [`Adapter`] of its own, which serves all
//! requests in it.
//!
//! A clone is opened when its name is looked up, and closed some time after the kernel has
//! forgotten all its inodes. Its slot follows from its number, as a snapshot's does. After a
//! restart of the daemon a clone's directory is known again; inodes below it are when they are
//! looked up again.
//!
//! Locks: `opening`, then `open`, which is held for moments.

use std::collections::HashMap;

use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{CloneInfo, DirName, FileSystem, FsError, FsResult, LiveView};

use super::node::Slot;
use super::served::{ServedView, ViewServer};
use crate::adapter::{Adapter, AdapterOptions, OrErrno as _, refused};
use crate::errno::Errno;
use crate::handler::Answer;
use crate::notify::Notifier;
use crate::wire::reply::{Entry, FOREVER, Lookup};

/// A clone that is open.
#[derive(Debug)]
pub(super) struct OpenClone {
    view: Arc<LiveView>,
    served: ServedView,
    graft: Mutex<Option<HeldGraft>>,
}

/// The directory that a clone lies at, known in its home as long as this is: so its path is known,
/// also after it is renamed.
#[derive(Debug)]
struct HeldGraft {
    home: Arc<FileSystem>,
    graft: Ino,
}

impl Drop for HeldGraft {
    fn drop(&mut self) {
        self.home.close_handle(self.graft);
    }
}

impl OpenClone {
    pub(super) const fn adapter(&self) -> &Adapter {
        self.served.adapter()
    }

    pub(super) fn info(&self) -> &CloneInfo {
        self.view.info()
    }

    pub(super) const fn view(&self) -> &Arc<LiveView> {
        &self.view
    }

    /// Keeps the directory that it lies at known in its home, where it was just looked up.
    pub(super) fn hold_graft(&self, home: &Arc<FileSystem>) {
        let mut held = self.graft.lock();
        let (number, graft) = (self.info().home, self.info().graft);
        debug_assert_eq!(number, home.view_number(), "its home has the directory");
        if held.is_none() && home.open_handle(graft).is_ok() {
            let home = Arc::clone(home);
            *held = Some(HeldGraft { home, graft });
        }
    }

    /// Lets the directory that it lay at go, after it was removed.
    pub(super) fn let_graft_go(&self) {
        let held = self.graft.lock().take();
        drop(held);
    }

    /// Looks up the clone's directory.
    pub(super) fn lookup_root(&self) -> Answer<Entry> {
        let root = DirName::new(self.info().root, b".");
        let attr = self.adapter().fs().lookup(root).or_errno()?;
        Ok(self.adapter().entry(&attr))
    }

    /// Looks up a name. What is above the clone's directory is in its home.
    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        self.served.lookup(self.info().root, parent, name)
    }

    /// Returns the numbers of all its inodes that the kernel may know.
    pub(super) fn numbers(&self) -> Vec<Ino> {
        self.served.numbers()
    }

    /// Ends its threads.
    pub(super) fn stop(&self) {
        self.served.stop();
    }
}

/// The clones that are open, by slot.
#[derive(Debug)]
pub(super) struct OpenClones {
    mainline: Arc<FileSystem>,
    server: ViewServer,
    opening: Mutex<()>,
    open: Mutex<HashMap<Slot, Arc<OpenClone>>>,
}

impl OpenClones {
    /// No clone is open.
    pub(super) fn new(mainline: Arc<FileSystem>, options: AdapterOptions) -> Self {
        Self {
            mainline,
            server: ViewServer::new(options),
            opening: Mutex::default(),
            open: Mutex::default(),
        }
    }

    /// Lets clones that are opened from now on send notices.
    pub(super) fn connect(&self, notifier: &Notifier) {
        if !self.server.connect(notifier) {
            tracing::error!("mounted twice: clones send notices to the first mount alone");
        }
    }

    /// Returns a clone, open.
    ///
    /// # Errors
    /// `ENOENT` if it was removed; `ENFILE` if another one that is open has its slot.
    pub(super) fn by_number(&self, number: u64) -> Answer<Arc<OpenClone>> {
        let slot = Slot::of_clone(number);
        let found = match self.find(slot) {
            Some(open) => open,
            None => self.open(slot, number).or_errno()?,
        };
        if found.info().number == number {
            return Ok(found);
        }
        Err(Errno::ENFILE)
    }

    /// Returns the clone that the inodes of a slot are in.
    ///
    /// # Errors
    /// `ESTALE` if it was removed.
    pub(super) fn by_slot(&self, slot: Slot) -> Answer<Arc<OpenClone>> {
        if let Some(open) = self.find(slot) {
            return Ok(open);
        }
        let clones = self.mainline.clones();
        let has_slot = |info: &&CloneInfo| Slot::of_clone(info.number) == slot;
        let info = clones.iter().rev().find(has_slot).ok_or(Errno::ESTALE)?;
        self.open(slot, info.number).map_err(|error| match error {
            FsError::NotFound => Errno::ESTALE,
            error => refused(&error),
        })
    }

    fn find(&self, slot: Slot) -> Option<Arc<OpenClone>> {
        self.open.lock().get(&slot).map(Arc::clone)
    }

    /// Opens a clone, unless another request has done so meanwhile.
    fn open(&self, slot: Slot, number: u64) -> FsResult<Arc<OpenClone>> {
        debug_assert_eq!(
            slot,
            Slot::of_clone(number),
            "a clone has the slot of its number"
        );
        let _one_at_a_time = self.opening.lock();
        if let Some(open) = self.find(slot) {
            return Ok(open);
        }
        let view = self.mainline.open_clone(number)?;
        debug_assert_eq!(view.info().number, number, "the clone that was asked for");
        let served = self.server.serve(Arc::clone(view.fs()), slot);
        let graft = Mutex::default();
        let opened = Arc::new(OpenClone {
            view,
            served,
            graft,
        });
        let before = self.open.lock().insert(slot, Arc::clone(&opened));
        debug_assert!(before.is_none(), "one is opened at a time");
        Ok(opened)
    }

    /// Runs a request in the clone that a node id names.
    ///
    /// # Errors
    /// `ESTALE` if it was removed; those of the request.
    pub(super) fn within<T>(
        &self,
        slot: Slot,
        request: impl FnOnce(&OpenClone) -> Answer<T>,
    ) -> Answer<T> {
        request(self.by_slot(slot)?.as_ref())
    }

    /// Takes lookups back. Reports whether the clone may be closed now.
    pub(super) fn forget(&self, slot: Slot, ino: Ino, count: u64) -> bool {
        let Some(open) = self.find(slot) else {
            return false;
        };
        open.served.forget(ino, count);
        open.served.is_idle()
    }

    /// Closes the clones that are not in use. Not from inside a request: it waits for their
    /// threads.
    pub(super) fn close_idle(&self) {
        let mut closed = Vec::new();
        {
            let mut open = self.open.lock();
            // No thread gets another reference while the table is locked.
            let idle = |clone: &mut Arc<OpenClone>| {
                Arc::get_mut(clone).is_some_and(|clone| clone.served.is_idle())
            };
            let slots: Vec<Slot> = open
                .iter_mut()
                .filter_map(|(slot, clone)| idle(clone).then_some(*slot))
                .collect();
            closed.extend(slots.iter().filter_map(|slot| open.remove(slot)));
        }
        for clone in closed {
            clone.stop();
            if let Err(error) = clone.adapter().fs().reclaim() {
                tracing::debug!(%error, "removed files of a clone are reclaimed when it is opened");
            }
        }
    }

    /// Takes the clones that were removed out of the table. Requests in them are `ESTALE` from now
    /// on.
    pub(super) fn take_removed(&self) -> Vec<Arc<OpenClone>> {
        let mut open = self.open.lock();
        let is_gone = |clone: &OpenClone| self.mainline.clone_of(clone.info().number).is_err();
        let slots: Vec<Slot> = open
            .iter()
            .filter_map(|(slot, clone)| is_gone(clone).then_some(*slot))
            .collect();
        slots.iter().filter_map(|slot| open.remove(slot)).collect()
    }

    /// Closes all, for good.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.open.lock());
        for clone in all.into_values() {
            clone.stop();
            if let Err(error) = clone.adapter().fs().close() {
                tracing::warn!(%error, "a clone was not closed in order");
            }
        }
    }

    /// Number of clones that are open.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }
}

/// Returns what takes the place of an entry that leads to a clone's graft.
pub(super) fn found(entry: Entry) -> Lookup {
    debug_assert_eq!(entry.entry_ttl, FOREVER, "as of any directory");
    Lookup::Found(entry)
}
