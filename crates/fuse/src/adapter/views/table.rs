//! The snapshots that are open in a mount, and the moments at which transactions began that show
//! clones.
//!
//! A snapshot is opened when its name is looked up, and closed when the kernel has forgotten all
//! its inodes and no request is under way in it. Its slot follows from its number, so a node id
//! that a daemon before this one gave out leads to the same snapshot.
//!
//! Lock: `open` is held for moments, never while the file system is asked for more than the list of
//! snapshots, which is in memory.

use std::collections::HashMap;

use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{Ino, PinId};
use stitch_fs::{FileSystem, FsError, FsResult, MomentInfo, SnapshotInfo, SnapshotView};

use super::node::Slot;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::wire::reply::Lookup;

/// A snapshot that is open, and how often the kernel looked up its inodes.
#[derive(Debug)]
pub(super) struct Past {
    slot: Slot,
    view: SnapshotView,
    generation: u64,
    lookups: AtomicU64,
}

impl Past {
    pub(super) const fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the generation of its inodes in file handles.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn view(&self) -> &SnapshotView {
        &self.view
    }

    /// Counts lookups that the kernel has from now on.
    pub(super) fn count_lookups(&self, count: u64) {
        self.lookups.fetch_add(count, Ordering::Relaxed);
    }

    fn uncount_lookups(&self, count: u64) {
        let left = |lookups: u64| Some(lookups.saturating_sub(count));
        // Those of the daemon before this one were not counted here.
        let _ = self
            .lookups
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    }

    /// Returns the numbers of all its inodes that the kernel may know.
    pub(super) fn numbers(&self) -> Vec<Ino> {
        self.of_parts(FileSystem::known_numbers)
    }

    /// Reports whether more inodes are known than are to be.
    pub(super) fn is_crowded(&self) -> bool {
        let parts = self.view.open_parts();
        parts.iter().any(|part| part.fs().is_crowded())
    }

    /// Returns the numbers of up to `count_max` inodes of each file system that is crowded, which
    /// were not asked for lately.
    pub(super) fn unused(&self, count_max: usize) -> Vec<Ino> {
        self.of_parts(|fs| fs.unused(count_max))
    }

    fn of_parts(&self, inos: impl Fn(&FileSystem) -> Vec<Ino>) -> Vec<Ino> {
        let mut numbers = Vec::new();
        for part in self.view.open_parts() {
            let found = inos(part.fs()).into_iter();
            numbers.extend(found.map(|ino| self.slot.number(part.number(ino))));
        }
        numbers
    }
}

/// The snapshots that are open, by slot.
#[derive(Debug)]
pub(super) struct OpenSnapshots {
    fs: Arc<FileSystem>,
    generation: u64,
    open: Mutex<HashMap<Slot, Arc<Past>>>,
}

impl OpenSnapshots {
    /// No snapshot of `fs` is open. Their inodes have this generation in file handles.
    pub(super) fn new(fs: Arc<FileSystem>, generation: u64) -> Self {
        Self {
            fs,
            generation,
            open: Mutex::default(),
        }
    }

    /// Returns the snapshot of a name, open.
    ///
    /// # Errors
    /// `ENOENT` if there is none; `ENFILE` if another one that is open has its slot.
    fn by_name(&self, name: &[u8]) -> Answer<Arc<Past>> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let info = self.fs.snapshots().get(name).map_err(refused)?;
        debug_assert_eq!(info.name, name, "the snapshot that was asked for");
        self.by_id(info.id)
    }

    /// Returns a snapshot or moment, open.
    ///
    /// # Errors
    /// `ENOENT` if there is none; `ENFILE` if another one that is open has its slot.
    fn by_id(&self, id: PinId) -> Answer<Arc<Past>> {
        let slot = Slot::of(id);
        match self.find(slot) {
            Some(past) if past.view.info().id == id => Ok(past),
            Some(_) => Err(Errno::ENFILE),
            None => self.open(slot, id).map_err(refused)?.ok_or(Errno::ENFILE),
        }
    }

    /// Looks up the directory of the clone that lay at a directory of mainline when a transaction
    /// began, whose pin this is.
    ///
    /// # Errors
    /// `ESTALE` if the transaction has ended; those of a lookup.
    pub(super) fn lookup_clone(&self, pin: PinId, graft: Ino) -> Answer<Lookup> {
        let past = self.by_id(pin).map_err(|error| match error {
            Errno::ENOENT => Errno::ESTALE,
            error => error,
        })?;
        let found = past.lookup_clone(graft);
        self.let_go(past);
        found
    }

    /// Returns the newest moment of the history that has this name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(super) fn moment(&self, name: &[u8]) -> Answer<MomentInfo> {
        let moments = self.fs.history().moments().map_err(refused)?;
        let has_name = |moment: &MomentInfo| moment.name().as_bytes() == name;
        moments
            .into_iter()
            .rev()
            .find(has_name)
            .ok_or(Errno::ENOENT)
    }

    /// Runs a request in a moment that was looked up by name.
    ///
    /// # Errors
    /// `ENOENT` if there is none; those of the request.
    pub(super) fn at_moment<T>(
        &self,
        name: &[u8],
        request: impl FnOnce(&Past) -> Answer<T>,
    ) -> Answer<T> {
        let past = self.by_id(self.moment(name)?.id)?;
        debug_assert_eq!(
            past.view.info().name.as_bytes(),
            name,
            "as it was asked for"
        );
        let answer = request(&past);
        self.let_go(past);
        answer
    }

    /// Returns the snapshot that the inodes of a slot are in.
    ///
    /// # Errors
    /// `ESTALE` if it was deleted.
    fn by_slot(&self, slot: Slot) -> Answer<Arc<Past>> {
        if let Some(past) = self.find(slot) {
            return Ok(past);
        }
        let pinned = self.fs.history().pinned().map_err(refused)?;
        let found = pinned.into_iter().rev().find(|id| Slot::of(*id) == slot);
        match self.open(slot, found.ok_or(Errno::ESTALE)?) {
            Ok(past) => past.ok_or(Errno::ESTALE),
            Err(FsError::NotFound) => Err(Errno::ESTALE),
            Err(error) => Err(refused(error)),
        }
    }

    fn find(&self, slot: Slot) -> Option<Arc<Past>> {
        self.open.lock().get(&slot).map(Arc::clone)
    }

    /// Opens a snapshot, unless another request has done so meanwhile; `None` if what has its slot
    /// is another one.
    fn open(&self, slot: Slot, id: PinId) -> FsResult<Option<Arc<Past>>> {
        debug_assert_eq!(slot, Slot::of(id), "a snapshot has the slot of its number");
        let mut view = self.fs.history().open_pinned(id)?;
        view.readers_keep_contents();
        let past = Arc::new(Past {
            slot,
            view,
            generation: self.generation,
            lookups: AtomicU64::new(0),
        });
        let mut open = self.open.lock();
        // A deletion removes the pin before it closes the snapshot here.
        if !self.fs.history().is_pinned(id)? {
            return Err(FsError::NotFound);
        }
        let found = Arc::clone(open.entry(slot).or_insert(past));
        drop(open);
        debug_assert_eq!(found.slot, slot, "what is open is found by its slot");
        Ok((found.view.info().id == id).then_some(found))
    }

    /// Runs a request in a snapshot that node ids name.
    ///
    /// # Errors
    /// `ESTALE` if it was deleted; those of the request.
    pub(super) fn within<T>(
        &self,
        slot: Slot,
        request: impl FnOnce(&Past) -> Answer<T>,
    ) -> Answer<T> {
        let past = self.by_slot(slot)?;
        let answer = request(&past);
        self.let_go(past);
        answer
    }

    /// Runs a request in a snapshot that was looked up by name.
    ///
    /// # Errors
    /// `ENOENT` if there is none; those of the request.
    pub(super) fn named<T>(
        &self,
        name: &[u8],
        request: impl FnOnce(&Past) -> Answer<T>,
    ) -> Answer<T> {
        let past = self.by_name(name)?;
        let answer = request(&past);
        self.let_go(past);
        answer
    }

    /// Ends a request in a snapshot. Closes the snapshot if the kernel knows nothing of it.
    fn let_go(&self, past: Arc<Past>) {
        let (slot, lookups) = (past.slot, past.lookups.load(Ordering::Relaxed));
        drop(past);
        if lookups == 0 {
            self.close_unused(slot);
        }
    }

    /// Takes lookups back. Closes the snapshot with the last one.
    pub(super) fn forget(&self, slot: Slot, ino: Ino, count: u64) {
        let Some(past) = self.find(slot) else {
            return;
        };
        if let Some((part, ino)) = past.view.open_part(ino) {
            part.fs().forget(ino, count);
        }
        past.uncount_lookups(count);
        drop(past);
        self.close_unused(slot);
    }

    /// Closes a snapshot of which the kernel knows no inode and which no request uses.
    fn close_unused(&self, slot: Slot) {
        let mut open = self.open.lock();
        // No thread gets another reference while the table is locked.
        let is_unused = |past: &mut Arc<Past>| {
            Arc::get_mut(past).is_some_and(|past| *past.lookups.get_mut() == 0)
        };
        let closed = if open.get_mut(&slot).is_some_and(is_unused) {
            open.remove(&slot)
        } else {
            None
        };
        drop(open);
        drop(closed);
    }

    /// Takes a snapshot that was deleted out of the table. Requests in it are `ESTALE` from now on.
    pub(super) fn take_deleted(&self, info: &SnapshotInfo) -> Option<Arc<Past>> {
        let mut open = self.open.lock();
        let slot = Slot::of(info.id);
        let is_it = open
            .get(&slot)
            .is_some_and(|past| past.view.info().id == info.id);
        if is_it { open.remove(&slot) } else { None }
    }

    /// Takes those whose pins are gone out of the table. Requests in them are `ESTALE` from now on.
    pub(super) fn take_gone(&self) -> Vec<Arc<Past>> {
        if self.open.lock().is_empty() {
            return Vec::new();
        }
        let Ok(pinned) = self.fs.history().pinned() else {
            return Vec::new();
        };
        let mut open = self.open.lock();
        debug_assert!(pinned.is_sorted(), "it is searched by halves");
        let is_gone = |past: &Past| pinned.binary_search(&past.view.info().id).is_err();
        let slots: Vec<Slot> = open
            .iter()
            .filter_map(|(slot, past)| is_gone(past).then_some(*slot))
            .collect();
        slots.iter().filter_map(|slot| open.remove(slot)).collect()
    }

    /// Returns all that are open.
    pub(super) fn all(&self) -> Vec<Arc<Past>> {
        self.open.lock().values().map(Arc::clone).collect()
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.open.lock());
        drop(all);
    }
}

fn refused(error: FsError) -> Errno {
    crate::adapter::refused(&error)
}
