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
//! | part | has |
//! |---|---|
//! | [`NumberLookup`] | from a number to its inode, through the directories above it |
//! | [`below::ShownLookup`] | the same in a view that shows one directory |
//! | [`BackRowPass`] | reads back rows, and puts those that are missing |
//! | [`ViewBackRows`] | the pass in any view of a store |
//! | [`BackRows`] | what is in memory: whether they are kept, how far the pass has come |
//! | `operations.rs` | what [`crate::FileSystem`] offers of them |
//!
//! Locks: the progress of the pass first, before all others; a caller that needs the pass waits
//! there.

mod below;
mod lookup;
mod of_views;
mod operations;
mod pass;

pub(crate) use below::BeginRanges;
pub(crate) use lookup::NumberLookup;
pub(crate) use of_views::ViewBackRows;
pub(crate) use pass::BackRowPass;

use crate::FsResult;
use crate::locator::{RowKey, Tree};
use crate::schema::Store;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_format::fs_back::Place;

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
                Err(error) if error.is_unreadable() => {
                    tracing::warn!(%error, "unreadable progress of back rows: they are put anew");
                    None
                }
                read => read?,
            };
        }
        let progress = progress.unwrap_or(Place::FIRST);
        debug_assert!(
            store.header.has_back_rows || progress == Place::FIRST,
            "the pass begins when rows are kept"
        );
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
        let are_complete = self.are_complete.load(Ordering::Acquire);
        debug_assert!(
            !are_complete || self.are_kept(),
            "the pass begins when rows are kept"
        );
        are_complete
    }

    /// The pass is to run once more.
    fn give_up(&self) {
        self.are_damaged.store(true, Ordering::Release);
        self.are_complete.store(false, Ordering::Release);
    }
}

/// The place in a row of the sys tree.
fn place_in(store: &Store, key: &RowKey) -> FsResult<Option<Place>> {
    debug_assert!(key.tree() == Tree::Sys, "back rows are in the sys tree");
    let row = store.get(key)?;
    Ok(row.map(|row| Place::decode(&row)).transpose()?)
}

#[cfg(test)]
mod tests;
