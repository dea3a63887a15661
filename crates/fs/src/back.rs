//! From the number of an inode to the inode, for file handles: by back rows.
//!
//! A file handle (`name_to_handle_at`, overlayfs, NFS) is a number. An inode that is not known has
//! its row under its number, or under its only name; there its back row leads (see
//! `stitch_format::fs_back`).
//!
//! Most stores never open a handle, so back rows are kept from first demand on:
//!
//! 1. The first number that cannot be resolved sets the feature in the header. From then on every
//!    change of a name writes the back row in the same batch ([`crate::change`]).
//! 2. One pass over all names, in the order of their keys, puts the back rows of those that were
//!    there before, a slice of names in a batch. How far it has come is in the same batch: after a
//!    crash the next demand goes on from there.
//! 3. When the pass is done, a number without own row and back row belongs to no inode.
//!
//! Back rows follow from names. So one that cannot be read is no loss: the pass runs once more and
//! puts all of them anew.
//!
//! A slice is read and written while all names and inodes are locked shared. So no row moves
//! between the read of it and the commit of its back row. All rows of a slice are read once before,
//! without locks: the slice then waits for no device.
//!
//! Locks: the progress of the pass first, before all others; a caller that needs the pass waits
//! there.

mod of_views;

pub(crate) use of_views::ViewBackRows;

use crate::inode::{Hold, Location};
use crate::locator::{Locator, RowKey};
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{Attr, DirName, FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::{ErrorKind, Ino};
use stitch_db::SpaceClass;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{InodeHead, MetaRow};

/// Rows of the meta tree that the pass looks at in one go.
const SLICE_ROWS: usize = 512;
/// Slices that the pass does in one go in the background.
const SLICES_AHEAD: usize = 8;
/// How often directories may be found to be in each other before their rows are taken to be
/// damaged.
const RINGS_MAX: u32 = 16;

/// Whether back rows are kept, and how far the pass has come.
#[derive(Debug)]
pub(crate) struct BackRows {
    are_kept: AtomicBool,
    are_complete: AtomicBool,
    /// One of them cannot be read: the pass is to begin anew.
    are_damaged: AtomicBool,
    progress: Mutex<Place>,
}

impl BackRows {
    /// As the store has it.
    pub(crate) fn open(store: &Store) -> FsResult<Self> {
        let mut progress = None;
        if store.header.has_back_rows {
            progress = match place_in(store, &store.keys.back_progress()) {
                Err(error) if is_unreadable(&error) => {
                    tracing::warn!(%error, "unreadable progress of back rows: they are put anew");
                    None
                }
                read => read?,
            };
        }
        let progress = progress.unwrap_or(Place::FIRST);
        Ok(Self {
            are_kept: AtomicBool::new(store.header.has_back_rows),
            are_complete: AtomicBool::new(progress == Place::END),
            are_damaged: AtomicBool::new(false),
            progress: Mutex::new(progress),
        })
    }

    /// Reports whether changes of names write back rows. Does not change while a directory is
    /// locked.
    pub(crate) fn are_kept(&self) -> bool {
        self.are_kept.load(Ordering::Acquire)
    }

    fn are_complete(&self) -> bool {
        self.are_complete.load(Ordering::Acquire)
    }

    /// The pass is to run once more.
    fn give_up(&self) {
        self.are_damaged.store(true, Ordering::Release);
        self.are_complete.store(false, Ordering::Release);
    }
}

/// Reports whether an error is of the rows that were read, and of no others.
fn is_unreadable(error: &FsError) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io)
}

/// The place in a row of the sys tree.
fn place_in(store: &Store, key: &RowKey) -> FsResult<Option<Place>> {
    let row = store.get(key)?;
    Ok(row.map(|row| Place::decode(&row)).transpose()?)
}

/// What one try to learn an inode by its number comes to.
enum ResolveStep {
    /// It is known, and a lookup of it is counted.
    Learned(Attr),
    /// Its name is here, in a directory that is to be learned first.
    Above(Place),
    /// Its name has changed meanwhile.
    Again,
}

/// Some rows of the meta tree.
struct Slice {
    /// Inodes whose rows stand under names, with their places.
    found: Vec<(Ino, Place)>,
    /// Where the next slice begins.
    next: Place,
}

/// Directories that are known as long as this is: each has one lookup.
struct Ancestors<'fs> {
    fs: &'fs FileSystem,
    inos: Vec<Ino>,
}

impl Drop for Ancestors<'_> {
    fn drop(&mut self) {
        for &ino in &self.inos {
            self.fs.forget(ino, 1);
        }
    }
}

impl FileSystem {
    /// The inode of a number, as a file handle has it; counts a lookup. The inode need not be
    /// known.
    ///
    /// # Errors
    /// [`FsError::Stale`] for a number that no inode has, or an inode without a name;
    /// [`FsError::NoSpace`] where back rows are not complete and there is no room for them.
    ///
    /// # Cost
    /// None for an inode that is known. Otherwise two point reads and a scan of one name, for it
    /// and for each directory above it that is not known. The first call that finds nothing runs a
    /// pass over all names, once in the life of a store. A file system that is read-only, and a
    /// transaction, has no pass: what has no back row is stale.
    pub fn look_up_number(&self, ino: Ino) -> FsResult<Attr> {
        match self.resolve(ino) {
            Err(FsError::Stale(_)) if self.may_lack_back_row(ino) => {
                self.complete_back_rows().inspect_err(|error| {
                    tracing::warn!(%error, "a file handle is stale: back rows are not complete");
                })?;
                self.resolve(ino)
            }
            resolved => resolved,
        }
    }

    /// Generation of all inode numbers, to stand beside them in file handles: another file system
    /// has another one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.store.header.generation()
    }

    fn may_lack_back_row(&self, ino: Ino) -> bool {
        !self.back_rows.are_complete()
            && !self.is_read_only()
            && self.branch.is_none()
            && self.is_used_number(ino)
    }

    /// Learns an inode, after the directories above it that are not known.
    fn resolve(&self, ino: Ino) -> FsResult<Attr> {
        // Each directory is that of the name before it.
        let start = || (vec![(ino, None)], BTreeSet::from([ino]));
        let (mut path, mut on_path) = start();
        let mut ancestors = Ancestors {
            fs: self,
            inos: Vec::new(),
        };
        let mut rings = 0;
        loop {
            let last = path.last_mut().expect("it ends with the inode itself");
            let next = last.0;
            match self.learn_number(next, last.1.take())? {
                ResolveStep::Again => {}
                ResolveStep::Above(place) if on_path.insert(place.parent) => {
                    last.1 = Some(place);
                    path.push((place.parent, None));
                }
                // Directories were moved meanwhile, or their rows are damaged.
                ResolveStep::Above(_) if rings < RINGS_MAX => {
                    rings += 1;
                    (path, on_path) = start();
                }
                ResolveStep::Above(Place { parent, .. }) => {
                    return Err(FsError::Corrupt(format!(
                        "directory {parent} is in a directory below it"
                    )));
                }
                ResolveStep::Learned(attr) if next == ino => return Ok(attr),
                ResolveStep::Learned(_) => {
                    ancestors.inos.push(next);
                    on_path.remove(&next);
                    path.pop();
                }
            }
        }
    }

    /// Counts a lookup of an inode that is known, or whose directory is. `place` is where its back
    /// row led before, if it was read.
    fn learn_number(&self, ino: Ino, place: Option<Place>) -> FsResult<ResolveStep> {
        let place = match place {
            Some(place) => place,
            None => match self.learn_or_locate(ino)? {
                ResolveStep::Above(place) => place,
                learned => return Ok(learned),
            },
        };
        // Keeps the directory known until the inode is.
        if self.residents.inodes.hold(place.parent, Hold::Pin).is_err() {
            return Ok(ResolveStep::Above(place));
        }
        let step = self.learn_at(ino, place);
        self.let_go(place.parent, Hold::Pin);
        step
    }

    /// Counts a lookup of an inode that is known, or has its row under its number; otherwise
    /// returns where its name is.
    fn learn_or_locate(&self, ino: Ino) -> FsResult<ResolveStep> {
        let learned = |head: Option<InodeHead>| {
            head.map_or(ResolveStep::Again, |head| {
                ResolveStep::Learned(Attr::of(&head))
            })
        };
        let _inode = self.residents.locks.inode_read(ino);
        if let Some(known) = self.residents.inodes.find(ino) {
            return match known.head.nlink {
                0 => Err(FsError::Stale(ino)),
                _ => Ok(learned(self.residents.inodes.look_up(ino))),
            };
        }
        let moment = self.residents.inodes.moment();
        if let Some(reads) = &self.reads {
            reads.note_own_inode(ino)?;
        }
        match self.store.own_row(ino)? {
            Some((head, _)) if head.nlink == 0 => Err(FsError::Stale(ino)),
            Some((head, _)) => {
                let head = self.residents.inodes.learn(&head, Location::Own, moment)?;
                Ok(learned(head))
            }
            None => {
                let place = self.back_row(ino)?;
                place.map(ResolveStep::Above).ok_or(FsError::Stale(ino))
            }
        }
    }

    /// The back row of an inode. One that cannot be read is as one that is missing, if it can be
    /// put anew.
    fn back_row(&self, ino: Ino) -> FsResult<Option<Place>> {
        match place_in(&self.store, &self.store.keys.back(ino)) {
            Err(error) if is_unreadable(&error) && !self.is_read_only() => {
                tracing::warn!(%ino, %error, "a back row cannot be read: all are put anew");
                self.back_rows.give_up();
                Ok(None)
            }
            read => read,
        }
    }

    /// Reports whether an inode without a row under its number has a name; `None` if that is known
    /// only once back rows are complete.
    pub(crate) fn has_place(&self, ino: Ino) -> FsResult<Option<bool>> {
        if !self.back_rows.are_complete() {
            return Ok(None);
        }
        match self.back_row(ino)? {
            Some(place) => Ok(Some(self.namespace().find_at(place, ino)?.is_some())),
            None => Ok(self.back_rows.are_complete().then_some(false)),
        }
    }

    /// Counts a lookup of an inode in a directory that is known and pinned.
    fn learn_at(&self, ino: Ino, place: Place) -> FsResult<ResolveStep> {
        let attr = {
            let _names = self.residents.locks.dir_read(place.parent);
            let moment = self.residents.inodes.moment();
            match self.namespace().find_at(place, ino)? {
                Some((name, dentry)) => {
                    self.namespace()
                        .learn(DirName::new(place.parent, &name), &dentry, moment)?
                }
                // As long as the back row is the same, it was not moved.
                None if self.back_row(ino)? == Some(place) => return Err(FsError::Stale(ino)),
                None => return Ok(ResolveStep::Again),
            }
        };
        if !self.namespace().is_below_root(place.parent) {
            self.forget(ino, 1);
            return Err(FsError::Stale(ino));
        }
        Ok(ResolveStep::Learned(attr))
    }

    /// Reports whether a number without own row and back row belongs to no inode.
    pub(crate) fn has_all_places(&self) -> bool {
        self.back_rows.are_complete()
    }

    /// Runs the pass, or waits until another caller has.
    pub(crate) fn complete_back_rows(&self) -> FsResult<()> {
        let is_complete = self.put_back_rows_in(usize::MAX)?;
        debug_assert!(is_complete, "no slice is left");
        Ok(())
    }

    /// Puts some of the back rows that are missing. Returns whether there are more. A caller that
    /// needs all of them waits for these alone.
    pub(crate) fn put_some_back_rows(&self) -> FsResult<bool> {
        Ok(!self.put_back_rows_in(SLICES_AHEAD)?)
    }

    /// Goes on with the pass for so many slices. Reports whether it has come to its end.
    fn put_back_rows_in(&self, slices: usize) -> FsResult<bool> {
        let mut progress = self.back_rows.progress.lock();
        if self.back_rows.are_complete() {
            return Ok(true);
        }
        if self.back_rows.are_damaged.swap(false, Ordering::AcqRel) {
            *progress = Place::FIRST;
        }
        self.keep_back_rows()?;
        for _ in 0..slices {
            if *progress == Place::END {
                break;
            }
            *progress = self.put_back_rows(*progress, SLICE_ROWS)?;
        }
        let is_complete = *progress == Place::END;
        if is_complete {
            self.back_rows.are_complete.store(true, Ordering::Release);
            tracing::info!("every inode can be found by its number now, as file handles need it");
        }
        Ok(is_complete)
    }

    /// From now on every change of a name writes back rows.
    fn keep_back_rows(&self) -> FsResult<()> {
        if self.back_rows.are_kept() {
            return Ok(());
        }
        tracing::info!("a number is to lead to its inode: the place of every inode is noted");
        // No change of a name is under way.
        let _still = self.residents.locks.all_read();
        self.mark_header(|header| header.has_back_rows = true)?;
        self.back_rows.are_kept.store(true, Ordering::Release);
        Ok(())
    }

    /// Puts the back rows of one slice of about `count` rows. Returns where the next one begins.
    fn put_back_rows(&self, start: Place, count: usize) -> FsResult<Place> {
        // Blocks are read before anything is locked.
        self.slice(start, count)?;
        let _still = self.residents.locks.all_read();
        let slice = self.slice(start, count)?;
        let (mut batch, keys) = (self.store.batch(), self.store.keys);
        for (ino, place) in slice.found {
            batch.put(&keys.back(ino), &place.encode());
        }
        batch.put(&keys.back_progress(), &slice.next.encode());
        self.store.commit(&batch, SpaceClass::Normal)?;
        Ok(slice.next)
    }

    /// The `count_max` rows from a place on, and more where several names have the hash of the last
    /// one.
    fn slice(&self, start: Place, count_max: usize) -> FsResult<Slice> {
        let mut rows = self.store.scan(&self.store.keys.meta_from(start))?;
        let mut found = Vec::new();
        let (mut count, mut last) = (0, start);
        while let Some((key, row)) = rows.next()? {
            // An inode under its own number is before the names in it.
            let own = Locator::ino_of(key).map(|parent| Place { parent, hash: 0 });
            let Some(at) = Locator::place_of(key).or(own) else {
                continue;
            };
            if count >= count_max && at != last {
                return Ok(Slice { found, next: at });
            }
            (count, last) = (count + 1, at);
            // A damaged row is for a check to find.
            if at.hash > 0
                && let Ok(MetaRow::Inode(head, _)) = MetaRow::decode(row)
            {
                found.push((head.ino, at));
            }
        }
        let next = Place::END;
        Ok(Slice { found, next })
    }
}

#[cfg(test)]
mod tests;
