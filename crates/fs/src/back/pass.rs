//! The pass that puts back rows.

use super::{BackRows, SLICE_ROWS, SLICES_AHEAD, place_in};
use crate::FsResult;
use crate::change::Changes;
use crate::locator::Locator;
use crate::lock::Locks;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::views::ViewCommands;
use stitch_base::Ino;
use stitch_base::sync::atomic::Ordering;
use stitch_db::SpaceClass;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::MetaRow;

/// Some rows of the meta tree.
struct Slice {
    /// Inodes whose rows stand under names, with their places.
    found: Vec<(Ino, Place)>,
    /// Where the next slice begins.
    next: Place,
}

/// Reads the back rows of a file system, and puts those that are missing.
///
/// Invariant: beside the feature in the header it writes nothing but back rows and how far it has
/// come.
#[derive(Clone, Copy)]
pub(crate) struct BackRowPass<'fs> {
    store: &'fs Store,
    state: &'fs BackRows,
    locks: &'fs Locks,
    changes: Changes<'fs>,
    pub(super) is_read_only: bool,
}

impl<'fs> BackRowPass<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            state: &fs.back_rows,
            locks: &fs.residents.locks,
            changes: Changes::of(fs),
            is_read_only: fs.is_read_only(),
        }
    }

    /// Reports whether a number without own row and back row belongs to no inode.
    pub(crate) fn is_complete(&self) -> bool {
        self.state.are_complete()
    }

    /// Runs the pass, or waits until another caller has.
    pub(crate) fn complete(&self) -> FsResult<()> {
        let is_complete = self.put_in(usize::MAX, &|| false)?;
        debug_assert!(is_complete, "no slice is left");
        Ok(())
    }

    /// Puts some of the back rows that are missing: that of one row while a command on snapshots or
    /// clones is under way. Returns whether there are more. A caller that needs all of them waits
    /// for these alone.
    pub(crate) fn put_some(&self, commands: &ViewCommands) -> FsResult<bool> {
        let is_complete = self.put_in(SLICES_AHEAD, &|| commands.are_under_way())?;
        Ok(!is_complete)
    }

    /// Goes on with the pass for so many slices, or until it is to stop. Reports whether it has
    /// come to its end.
    fn put_in(&self, slices: usize, is_to_stop: &dyn Fn() -> bool) -> FsResult<bool> {
        debug_assert!(slices > 0, "the pass comes further");
        let mut progress = self.state.progress.lock();
        if self.state.are_complete() {
            return Ok(true);
        }
        if self.state.are_damaged.swap(false, Ordering::AcqRel) {
            *progress = Place::FIRST;
        }
        self.keep()?;
        for _ in 0..slices {
            if *progress == Place::END {
                break;
            }
            *progress = self.put_slice(*progress, SLICE_ROWS, is_to_stop)?;
            if is_to_stop() {
                break;
            }
        }
        let is_complete = *progress == Place::END;
        if is_complete {
            self.state.are_complete.store(true, Ordering::Release);
            tracing::info!("every inode can be found by its number now, as file handles need it");
        }
        Ok(is_complete)
    }

    /// From now on every change of a name writes back rows.
    pub(super) fn keep(&self) -> FsResult<()> {
        if self.state.are_kept() {
            return Ok(());
        }
        tracing::info!("a number is to lead to its inode: the place of every inode is noted");
        // No change of a name is under way.
        debug_assert!(!self.is_read_only, "the header is about to change");
        let _still = self.locks.all_read();
        self.changes
            .mark_header(|header| header.has_back_rows = true)?;
        self.state.are_kept.store(true, Ordering::Release);
        Ok(())
    }

    /// Puts the back rows of one slice of about `count` rows, fewer if it is to stop. Returns where
    /// the next one begins.
    pub(super) fn put_slice(
        &self,
        start: Place,
        count: usize,
        is_to_stop: &dyn Fn() -> bool,
    ) -> FsResult<Place> {
        debug_assert!(start < Place::END, "the pass has not ended");
        debug_assert!(!self.is_read_only, "rows are about to be put");
        // Blocks are read before anything is locked.
        self.slice(start, count, is_to_stop)?;
        let _still = self.locks.all_read();
        let slice = self.slice(start, count, is_to_stop)?;
        debug_assert!(
            slice.found.iter().all(|(_, at)| *at >= start),
            "of the slice"
        );
        let (mut batch, keys) = (self.store.batch(), self.store.keys);
        for (ino, place) in slice.found {
            batch.put(&keys.back(ino), &place.encode());
        }
        batch.put(&keys.back_progress(), &slice.next.encode());
        self.store.commit(&batch, SpaceClass::Normal)?;
        debug_assert!(slice.next > start, "each slice comes further");
        Ok(slice.next)
    }

    /// The `count_max` rows from a place on, or the first ones if it is to stop, and more where
    /// several names have the hash of the last one.
    fn slice(
        &self,
        start: Place,
        count_max: usize,
        is_to_stop: &dyn Fn() -> bool,
    ) -> FsResult<Slice> {
        debug_assert!(count_max > 0, "a slice has rows");
        let mut rows = self.store.scan(&self.store.keys.meta_from(start))?;
        let mut found = Vec::new();
        let (mut count, mut last) = (0, start);
        while let Some((key, row)) = rows.next()? {
            // An inode under its own number is before the names in it.
            let own = Locator::ino_of(key).map(|parent| Place { parent, hash: 0 });
            let Some(at) = Locator::place_of(key).or(own) else {
                continue;
            };
            if count > 0 && at != last && (count >= count_max || is_to_stop()) {
                debug_assert!(at > last, "rows come in the order of their places");
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
        debug_assert!(
            found.is_sorted_by_key(|(_, at)| *at),
            "in the order of their places"
        );
        let next = Place::END;
        Ok(Slice { found, next })
    }

    /// Returns the back row of an inode, if back rows are kept. It may be one that was not put yet.
    pub(crate) fn row_if_kept(&self, ino: Ino) -> FsResult<Option<Place>> {
        match self.state.are_kept() {
            true => self.row(ino),
            false => Ok(None),
        }
    }

    /// Returns the back row of an inode. One that cannot be read is as one that is missing, if it
    /// can be put anew.
    pub(super) fn row(&self, ino: Ino) -> FsResult<Option<Place>> {
        match place_in(self.store, &self.store.keys.back(ino)) {
            Err(error) if error.is_unreadable() && !self.is_read_only => {
                tracing::warn!(%ino, %error, "a back row cannot be read: all are put anew");
                self.state.give_up();
                Ok(None)
            }
            read => read,
        }
    }
}
