//! Installing: one edit, appended to the version log and synced, makes a new version.
//!
//! 1. The edit is applied to the current version in memory.
//! 2. The edit (or, when the version log wants one, the whole new version) is committed with the
//!    start of the backup log. The volume makes the tables' blocks and the backup log durable
//!    first; without new tables the log alone, which costs nothing if it is durable already.
//! 3. The new version is published. Space of removed tables goes with their last reader.
//!
//! What an edit says of temporary trees ([`Version::stored_edit`]) is left out at 2. An edit that
//! says nothing else is not committed.
//!
//! Invariant: the version that readers see is the one on the medium and temporary trees, or, while
//! an edit is installed, the one before it.

use crate::VtError;
use crate::branches::Branches;
use crate::buffer::Buffer;
use crate::cache::BlockCache;
use crate::gate::Gate;
use crate::pace::Pace;
use crate::pins::Pins;
use crate::rules::assert_sound;
use crate::runs::subtract;
use crate::signals::{Signals, Worker};
use crate::sizing::Sizing;
use crate::snapshots::Snapshots;
use crate::tables::Tables;
use crate::version::{TableHandle, TreeVersion, Version, VersionBuilder};
use crate::view::Views;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::sync::{Mutex, MutexGuard};
use stitch_base::{Lsn, TableId, TreeId};
use stitch_format::vt_manifest::{PinChanges, Run, TableMeta, VersionEdit};
use stitch_kv::KvError;
use stitch_volume::{VersionChange, Volume, VolumeError};

/// What goes along with an edit.
#[derive(Default)]
pub(crate) struct Install {
    /// The change.
    pub(crate) edit: VersionEdit,
    /// The memtable whose entries are in the edit's tables, and where the log goes on after it.
    pub(crate) written: Option<(Arc<Buffer>, Lsn)>,
    /// What takes the place of the active memtable, which is empty.
    pub(crate) fresh: Option<Arc<Buffer>>,
    /// The trees of the edit that are temporary: the medium does not get them.
    pub(crate) temporary: Vec<TreeId>,
}

impl Install {
    /// Asserts that nothing is lost between two versions.
    fn assert_within(&self, before: &Version, after: &Version) {
        debug_assert!(after.last_seqno >= before.last_seqno, "writes stay");
        debug_assert!(after.next_table >= before.next_table, "numbers rise");
        debug_assert!(after.next_tree >= before.next_tree, "numbers of trees rise");
        debug_assert!(after.last_pin >= before.last_pin, "numbers of pins rise");
        debug_assert!(
            before
                .temporary
                .iter()
                .all(|tree| after.is_temporary(*tree) || !after.trees.contains_key(tree)),
            "a temporary tree stays so until it is dropped"
        );
        let parent_of = |tree: &TreeVersion| tree.info.branch.map(|branch| branch.parent);
        debug_assert!(
            after.trees.values().all(|tree| {
                let parent = parent_of(tree);
                after.is_temporary(tree.info.id) || !parent.is_some_and(|of| after.is_temporary(of))
            }),
            "a branch of a temporary tree is temporary"
        );
        debug_assert!(
            self.edit.added.iter().all(|(_, table)| {
                let branch = after.trees[&table.tree].info.branch;
                branch.is_none_or(|branch| branch.seqno < table.min_seqno)
            }),
            "all that is written to a branch is newer than its moment"
        );
        if let Some((written, log_start)) = &self.written {
            let last = written.last_seqno();
            debug_assert!(after.last_seqno >= last, "the memtable is in tables");
            debug_assert!(written.log_start <= *log_start, "its records may go");
        }
    }
}

/// The tables that an edit brings.
#[derive(Default)]
struct Successors {
    tables: Vec<Arc<TableHandle>>,
    /// What they own, sorted.
    runs: Vec<Run>,
}

impl Successors {
    fn of(after: &Version, edit: &VersionEdit) -> Self {
        if edit.added.is_empty() {
            return Self::default();
        }
        let added: BTreeSet<TableId> = edit.added.iter().map(|(_, t)| t.id).collect();
        let tables: Vec<Arc<TableHandle>> = after
            .tables()
            .filter(|(_, t)| added.contains(&t.meta().id))
            .map(|(_, t)| Arc::clone(t))
            .collect();
        let mut runs: Vec<Run> = tables.iter().flat_map(|t| t.meta().runs.clone()).collect();
        runs.sort();
        debug_assert_eq!(
            tables.len(),
            added.len(),
            "each added table is in the version"
        );
        let is_apart = |pair: &[Run]| pair[0].end() <= pair[1].addr;
        debug_assert!(runs.windows(2).all(is_apart), "a byte has one owner");
        Self { tables, runs }
    }
}

/// The version log, and what goes with each new version.
pub(crate) struct VersionLog {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) sizing: Arc<Sizing>,
    pub(crate) views: Arc<Views>,
    pub(crate) tables: Arc<Tables>,
    /// Changed with `installer`.
    pub(crate) pins: Arc<Pins>,
    /// Changed with `installer`.
    pub(crate) branches: Arc<Branches>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) pace: Arc<Pace>,
    /// Each version is checked when it is installed.
    pub(crate) is_paranoid: bool,
    /// One edit at a time.
    pub(crate) installer: Mutex<Installer>,
}

/// What installations change.
pub(crate) struct Installer {
    /// Where live records of the backup log start.
    pub(crate) log_start: Lsn,
}

impl VersionLog {
    /// Waits until no other edit is made, and none begins until the lock is given up.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Installer> {
        self.installer.lock()
    }

    /// Installs an edit. The caller holds the installer's lock since it made the edit.
    ///
    /// # Errors
    /// [`VolumeError::VersionLogFull`]: nothing has changed, neither here nor on the medium. Others
    /// of [`VtError`]: the outcome on the medium is unknown, and the store takes no more writes.
    pub(crate) fn install(
        &self,
        installer: &mut Installer,
        mut install: Install,
    ) -> Result<Arc<Version>, VtError> {
        let before = self.views.version();
        install.edit.next_table = self.tables.next_id().max(before.next_table);
        let (version, new_temporary) = self.applied_with(&before, &install)?;
        let log_start = install
            .written
            .as_ref()
            .map_or(installer.log_start, |(_, log_start)| *log_start);
        assert!(
            log_start >= installer.log_start,
            "the start of the log moves on"
        );
        if let Some(stored) = stored_edit(&before, &install, &new_temporary) {
            self.commit_version(&before, &version, &stored, log_start)
                .inspect_err(|error| {
                    if !is_refused(error) {
                        self.gate.fail(error);
                    }
                })?;
        }
        installer.log_start = log_start;
        install.assert_within(&before, &version);
        let new = Successors::of(&version, &install.edit);
        self.retire(&before, &new, &install.edit);
        let shifted = new.tables.iter().filter(|table| table.meta().shift > 0);
        self.tables.superseded.look_again(shifted);
        if let Some((written, _)) = &install.written {
            written.direct.leave(&self.volume, &new.runs, &new.tables);
        }
        let view = self.views.change(|view| {
            view.version = Arc::clone(&version);
            if let Some(fresh) = &install.fresh {
                assert!(view.active().is_empty(), "nothing is lost with it");
                view.buffers[0] = Arc::clone(fresh);
            }
            if let Some((written, _)) = &install.written {
                let oldest = view.buffers.pop().expect("what was written out was there");
                assert!(
                    Arc::ptr_eq(&oldest, written),
                    "the oldest is written out first"
                );
            }
        });
        if !install.edit.new_trees.is_empty() {
            self.snapshots.note_trees(version.next_tree);
        }
        self.branches.remove(&install.edit.dropped_trees);
        if let Some((written, _)) = install.written {
            written.release_room();
        }
        drop(before);
        if self.is_paranoid {
            assert_sound(self.volume.zones(), &version);
        }
        self.fit_cache();
        self.pace.update(&view, &self.sizing.now());
        self.gate.wake_commits();
        self.signals.wake(Worker::Compaction);
        if self.pace.is_behind() {
            self.signals.wake(Worker::Help);
        }
        Ok(version)
    }

    /// Gives the cache what the lists of tables leave.
    pub(crate) fn fit_cache(&self) {
        let list_bytes = self.views.version().lists.bytes();
        let capacity = self.sizing.opened.cache_beside(list_bytes);
        self.cache.set_capacity(capacity);
    }

    /// Gives back the space of tables whose edit was refused.
    pub(crate) fn discard_refused(
        &self,
        error: &VtError,
        made: &[(u8, Arc<TableMeta>)],
        inputs: &[Run],
    ) {
        if is_refused(error) {
            let tables = made.iter().map(|(_, table)| TableMeta::clone(table));
            self.tables.discard(&tables.collect::<Vec<_>>(), inputs);
        }
    }

    /// Returns the version after an edit, and the trees that are temporary from then on.
    fn applied_with(
        &self,
        before: &Version,
        install: &Install,
    ) -> Result<(Arc<Version>, Vec<TreeId>), VtError> {
        let Install {
            edit, temporary, ..
        } = install;
        let mut version = self.applied(before, edit)?;
        let mut new = temporary.clone();
        debug_assert!(new.iter().all(|tree| version.trees.contains_key(tree)));
        if !new.is_empty() {
            let version = Arc::make_mut(&mut version);
            version.temporary.extend(new.iter().copied());
        }
        debug_assert!(edit.pins.dropped.len() <= 1, "pins go one by one");
        let gone = &edit.pins.dropped;
        let is_seen = |tree, unseen_by| self.pins.has_seer(tree, unseen_by, gone);
        let leaving = version.read_by_temporary(edit, &is_seen);
        if !leaving.is_empty() {
            let version = Arc::make_mut(&mut version);
            version.temporary.extend(leaving.iter().copied());
            new.extend(leaving);
        }
        debug_assert!(
            new.iter().all(|tree| version.is_temporary(*tree)),
            "new temporary trees are listed"
        );
        Ok((version, new))
    }

    fn applied(&self, before: &Version, edit: &VersionEdit) -> Result<Arc<Version>, VtError> {
        if let Some(after) = before.with_temporary_tables(edit)? {
            return Ok(Arc::new(after));
        }
        if edit.keeps_trees() {
            let after = before.counted(edit);
            debug_assert!(
                after.last_seqno >= before.last_seqno,
                "it is an edit of before"
            );
            debug_assert_eq!(after.trees.len(), before.trees.len(), "trees are kept");
            return Ok(Arc::new(after));
        }
        let mut builder = VersionBuilder::new(before.clone());
        builder.apply(edit)?;
        let after = builder.finish()?;
        debug_assert!(
            after.last_seqno >= before.last_seqno,
            "sequence numbers rise"
        );
        debug_assert!(
            after.next_table >= before.next_table,
            "numbers of tables rise"
        );
        debug_assert!(after.next_tree >= before.next_tree, "numbers of trees rise");
        Ok(Arc::new(after))
    }

    fn commit_version(
        &self,
        before: &Version,
        after: &Version,
        edit: &VersionEdit,
        log_start: Lsn,
    ) -> Result<(), VtError> {
        debug_assert!(
            edit.added
                .iter()
                .all(|(_, table)| !after.is_temporary(table.tree)),
            "the medium gets no temporary table"
        );
        let bytes_before = self.base_bytes(before, &PinChanges::default());
        let bytes_after = self.base_bytes(after, &edit.pins);
        // Whatever goes with a tree: it is the way out of a log that is full of trees.
        let may_use_reserve = bytes_after <= bytes_before || !edit.dropped_trees.is_empty();
        let encoded = edit.encode();
        debug_assert!(
            VersionEdit::decode(&encoded).is_ok_and(|read| read == *edit),
            "the next open reads the edit"
        );
        let change = VersionChange {
            edit: &encoded,
            base: &|| self.whole_base(after, &edit.pins),
            bytes_before,
            bytes_after,
            may_use_reserve,
            names_blocks: !edit.added.is_empty(),
        };
        Ok(self.volume.commit_change(&change, log_start)?)
    }

    /// Returns the base of a version, and of the pins after a change, as bytes.
    pub(crate) fn whole_base(&self, version: &Version, changes: &PinChanges) -> Vec<u8> {
        let mut base = version.base();
        self.pins.complete(&mut base, changes);
        let encoded = base.encode();
        debug_assert!(
            VersionEdit::decode(&encoded).is_ok_and(|read| read == base),
            "the next open reads the base"
        );
        debug_assert!(
            encoded.len() as u64 <= self.base_bytes(version, changes),
            "a base is no longer than was foreseen"
        );
        encoded
    }

    /// Returns the length of [`Self::whole_base`], or a little more.
    fn base_bytes(&self, version: &Version, changes: &PinChanges) -> u64 {
        let has_scopes = self.pins.has_scopes_after(changes);
        version.base_bytes(has_scopes) + self.pins.base_bytes_after(changes)
    }

    /// Refuses an edit of trees or pins after which the list of all of them and of
    /// the tables would be longer than what the version log takes at any time. The rest of the log
    /// is left for tables.
    ///
    /// # Errors
    /// [`KvError::Storage`] of [`VolumeError::VersionLogFull`], which says what to drop.
    pub(crate) fn check_trees_fit(&self, edit: &VersionEdit) -> Result<(), KvError> {
        debug_assert!(edit.added.is_empty(), "it is an edit of trees or pins");
        let before = self.views.version();
        let wanted_bytes = self.base_bytes(&*self.applied(&before, edit)?, &edit.pins);
        let base_bytes_max = self.volume.base_bytes_max();
        let bytes_before = self.base_bytes(&before, &PinChanges::default());
        if wanted_bytes <= base_bytes_max.max(bytes_before) {
            return Ok(());
        }
        let full = VtError::Volume(VolumeError::VersionLogFull {
            wanted_bytes,
            base_bytes_max,
        });
        Err(KvError::storage(full.kind(), full))
    }

    /// Tells the tables that are gone what they leave behind.
    fn retire(&self, before: &Version, new: &Successors, edit: &VersionEdit) {
        if edit.removed.is_empty() && edit.dropped_trees.is_empty() {
            return;
        }
        let removed: BTreeSet<TableId> = edit.removed.iter().copied().collect();
        let is_gone = |t: &TableHandle| {
            removed.contains(&t.meta().id) || edit.dropped_trees.contains(&t.meta().tree)
        };
        let mut removed_count = 0;
        for (_, table) in before.tables().filter(|(_, t)| is_gone(t)) {
            removed_count += usize::from(removed.contains(&table.meta().id));
            self.tables.superseded.forget(table.meta().id);
            let dead = subtract(&table.meta().runs, &new.runs);
            let left: u64 = dead.iter().map(|run| run.len_bytes).sum();
            debug_assert!(left <= table.owned_bytes(), "a table leaves what it owned");
            let successors = if left == table.owned_bytes() {
                Vec::new()
            } else {
                new.tables.clone()
            };
            table.leave(&self.volume, dead, successors);
        }
        debug_assert_eq!(
            removed_count,
            removed.len(),
            "each removed table was in the version"
        );
    }
}

/// Returns what is committed of an edit; `None` if that is nothing.
fn stored_edit<'i>(
    before: &Version,
    install: &'i Install,
    new_temporary: &[TreeId],
) -> Option<Cow<'i, VersionEdit>> {
    let stored = before.stored_edit(&install.edit, new_temporary);
    // The start of the log moves on with a write-out.
    let counters = || {
        let edit = &install.edit;
        Cow::Owned(VersionEdit {
            last_seqno: edit.last_seqno,
            next_table: edit.next_table,
            ..before.edit()
        })
    };
    let stored = stored.or_else(|| install.written.is_some().then(counters));
    debug_assert!(
        stored
            .as_ref()
            .is_none_or(|stored| stored.next_table == install.edit.next_table),
        "numbers of temporary tables count on the medium"
    );
    stored
}

/// Reports whether an edit was refused before anything was written.
pub(crate) const fn is_refused(error: &VtError) -> bool {
    matches!(error, VtError::Volume(VolumeError::VersionLogFull { .. }))
}
