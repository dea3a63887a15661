//! Reclaiming: the rows of inodes without names go once the inodes are forgotten, and the trees of
//! clones once these are removed.
//!
//! ```text
//! unlink of an open file   orphan: its row is under its number, and its number in a list
//! forget                   queued in memory
//! reclaim                  one batch: all its rows, and its entry in the list
//! crash before that        the next open reads the list
//! ```
//!
//! | stays | because |
//! |---|---|
//! | an inode that mainline has, in a transaction | mainline reclaims it after the commit |
//! | one that a rollback restores | it gets its name again |
//! | a directory with entries | it is a removed tree, which is emptied first |
//!
//! Locks: one thread at a time ([`Room::reclaiming`]).

use crate::change::{Change, Changes};
use crate::detach::DetachedTrees;
use crate::locator::{Locator, SysRow};
use crate::residents::Residents;
use crate::rollback::RollbackState;
use crate::room::Room;
use crate::schema::Store;
use crate::shared::SharedContents;
use crate::system::FileSystem;
use crate::transaction::BranchRules;
use crate::views::ViewSet;
use crate::{FsError, FsResult};
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_base::{ErrorKind, Ino};
use stitch_format::fs_inode::InodeHead;
use stitch_kv::Engine;

/// Orphans reclaimed in one batch.
const RECLAIM_BATCH: usize = 64;
const _: () = assert!(RECLAIM_BATCH > 0, "each batch purges something");

/// Gives back the space of what has no name and is not in use any more.
#[derive(Clone, Copy)]
pub(crate) struct Reclaimer<'fs> {
    store: &'fs Store,
    engine: &'fs dyn Engine,
    residents: &'fs Residents,
    room: &'fs Room,
    rollbacks: &'fs RollbackState,
    detached: DetachedTrees<'fs>,
    contents: SharedContents<'fs>,
    /// Clones that were removed have trees.
    views: &'fs ViewSet,
    /// Rules of a transaction's file system.
    branch: Option<BranchRules>,
    /// The file system is a view that was removed.
    is_removed: &'fs AtomicBool,
    changes: Changes<'fs>,
}

impl<'fs> Reclaimer<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            engine: fs.engine().as_ref(),
            residents: &fs.residents,
            room: &fs.room,
            rollbacks: &fs.rollbacks,
            detached: DetachedTrees::of(fs),
            contents: SharedContents::of(fs),
            views: &fs.standing.views,
            branch: fs.branch,
            is_removed: &fs.is_removed,
            changes: Changes::of(fs),
        }
    }

    /// Reports whether an inode may be purged here: no other file system has it.
    fn owns(&self, ino: Ino) -> bool {
        self.branch.is_none_or(|rules| rules.owns(ino))
    }

    /// See [`FileSystem::reclaim`].
    pub(crate) fn reclaim(&self) -> FsResult<usize> {
        let _one_at_a_time = self.room.reclaiming.lock();
        let mut done = self.views.drop_removed(self.engine)?;
        self.room.note_given_back(done);
        if self.is_removed.load(Ordering::Acquire) {
            return Ok(done);
        }
        done += self.reclaim_forgotten()?;
        let contents = self.contents.reclaim()?;
        self.room.note_given_back(contents);
        Ok(done)
    }

    /// Reclaims all that a crash has left, too.
    pub(crate) fn reclaim_all(&self) -> FsResult<()> {
        loop {
            self.reclaim()?;
            if !self.has_more() {
                return Ok(());
            }
        }
    }

    /// Reports whether the next [`Self::reclaim`] looks further for what a crash has left.
    pub(crate) fn has_more(&self) -> bool {
        !self.is_removed.load(Ordering::Acquire) && self.contents.has_unseen()
    }

    fn reclaim_forgotten(&self) -> FsResult<usize> {
        let mut done = 0;
        loop {
            let heads = self.residents.take_forgotten(RECLAIM_BATCH);
            if heads.is_empty() {
                return Ok(done);
            }
            debug_assert!(heads.len() <= RECLAIM_BATCH, "they fit a batch");
            debug_assert!(
                heads.iter().all(|head| head.ino != Ino::ROOT),
                "the root has a name"
            );
            match self.purge_all(&heads) {
                Ok(count) => {
                    self.room.note_given_back(count);
                    done += count;
                }
                Err(error) => {
                    self.residents.queue_forgotten(heads);
                    return Err(error);
                }
            }
        }
    }

    fn purge_all(&self, heads: &[InodeHead]) -> FsResult<usize> {
        debug_assert!(!heads.is_empty(), "a batch purges something");
        let mut change = self.changes.begin_giving_back();
        let mut count = 0;
        for head in heads {
            debug_assert_eq!(head.nlink, 0, "it was forgotten without a name");
            if self.owns(head.ino)
                && self.rollbacks.may_purge(self.store, head)?
                && self.detached.is_bare(head)?
            {
                change.purge(head, true)?;
                change.batch.delete(&self.store.keys.orphan(head.ino));
                count += 1;
            }
        }
        debug_assert!(count <= heads.len(), "each is purged once");
        change.commit()?;
        Ok(count)
    }

    /// Reclaims what a crash has left. To be called at open, before anything is known.
    ///
    /// # Errors
    /// Those of the engine, but for a lack of space: what does not go now is queued.
    pub(crate) fn reclaim_after_crash(&self) -> FsResult<()> {
        let mut orphans = Vec::new();
        let mut scan = self.store.scan(&self.store.keys.orphans())?;
        while let Some((key, _)) = scan.next()? {
            if let Some(SysRow::Orphan(ino)) = Locator::sys_row(key) {
                orphans.push(ino);
            }
        }
        drop(scan);
        debug_assert!(orphans.is_sorted(), "keys come in order");
        let mut found = 0;
        for inos in orphans.chunks(RECLAIM_BATCH) {
            debug_assert!(!inos.is_empty(), "a batch purges something");
            let mut change = self.changes.begin_giving_back();
            let mut heads = Vec::new();
            for &ino in inos {
                match self.purge_orphan(ino, &mut change) {
                    Ok(head) => heads.extend(head),
                    Err(error) if error.kind() == ErrorKind::Corrupt => tracing::warn!(
                        %ino,
                        %error,
                        "a removed file keeps its space: its rows cannot be read; a check finds it"
                    ),
                    Err(error) => return Err(error),
                }
            }
            match change.commit() {
                Ok(()) => found += heads.len(),
                // There may be some later; a full file system opens, so that something can be
                // deleted.
                Err(FsError::NoSpace) => self.residents.queue_forgotten(heads),
                Err(error) => return Err(error),
            }
        }
        debug_assert!(found <= orphans.len(), "each is removed once");
        if found > 0 {
            tracing::info!(
                found,
                "removed files that were unlinked and open at the end"
            );
        }
        Ok(())
    }

    /// Stages the purge of an inode without names, unless it is in use. Returns it if it is purged.
    ///
    /// # Errors
    /// What cannot be read of it: then nothing was added.
    fn purge_orphan(&self, ino: Ino, change: &mut Change<'_>) -> FsResult<Option<InodeHead>> {
        if !self.owns(ino) {
            return Ok(None);
        }
        let row = self.store.own_row(ino)?.map(|(head, _)| head);
        let nameless = row.filter(|head| head.nlink == 0);
        if let Some(head) = &nameless {
            debug_assert_eq!(head.ino, ino, "the row of the inode");
            // What is known still goes when it is forgotten.
            if !self.detached.is_bare(head)? || self.residents.inodes.find(ino).is_some() {
                return Ok(None);
            }
            change.purge(head, true)?;
        }
        change.batch.delete(&self.store.keys.orphan(ino));
        Ok(nameless)
    }
}
