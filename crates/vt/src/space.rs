//! The space ledger of a store: what its commits may still be promised.
//!
//! What commits put into memtables will need space when it is written out, so it is promised to
//! them beforehand. Some is kept back for compactions, without which nothing would ever come back.
//!
//! Free bytes are of use only in runs as long as a block. So three sums are kept apart: bytes that
//! are free, bytes in runs for any data or index block, and bytes in runs for value blocks of whole
//! pages, which leave holes of their own length. Where the first suffice and another does not,
//! holes are made into room: zones with many holes are evacuated.
//!
//! The formulas ([`formulas`]); a difference below zero is zero:
//!
//! | bytes | are |
//! |---|---|
//! | share of a reserve | `Normal`: all; `Allocated`: 3/4; `Reserve`: 1/2 |
//! | kept | max(share of the reserve, planned by compactions) - written by them |
//! | kept in runs | the same of runs, planned no more than the reserve; at most kept |
//! | unpromised | available in the volume - kept |
//! | free | unpromised - set aside; `Allocated`: by other stores only |
//! | roomy | in long runs - (promised - pages) - kept in runs |
//! | room for pages | in runs of that many pages - promised - kept in runs |
//! | reserve of the volume | sum of the stores' reserves, at most 1/4 of the zones |
//! | left | min(unpromised, roomy); low below 1/10 of the zones |
//!
//! What changes the figures is a guard:
//! - [`Promising`]: the only way to promise space to a memtable, one at a time on the volume; the
//!   promise is a [`Reservation`], given up when dropped;
//! - [`UnderWay`]: what a compaction may write, until it ends.
//!
//! Invariants:
//! - a promise leaves all that is kept and set aside;
//! - figures only ever refuse: what was promised is never taken back.

mod formulas;
mod ledgers;

pub(crate) use ledgers::Ledgers;

use crate::sizing::Sizing;
use crate::under_way::{CompactionWork, UnderWay};
use crate::view::Views;
use formulas::{Aside, Promised, Reserved};
use std::sync::Arc;
use stitch_base::sync::MutexGuard;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::{KvError, SpaceClass, SpaceUsage, TreeOptions, check_free};
use stitch_volume::{Class, PAGE_BYTES, Reservation, Volume, VolumeError};

/// What a store keeps of the space of its volume, and what is left to its commits.
pub(crate) struct SpaceLedger {
    volume: Arc<Volume>,
    sizing: Arc<Sizing>,
    /// Memtables and tables, for what is promised to them and what compactions may rewrite.
    views: Arc<Views>,
    /// The ledgers of all stores on the volume, this one among them.
    ledgers: Arc<Ledgers>,
    /// Any value may be copied by a compaction.
    copies_values: bool,
    /// Space of compactions that run now.
    work: Arc<CompactionWork>,
    /// Bytes that are left to commits of [`SpaceClass::Allocated`].
    aside_bytes: AtomicU64,
    /// Length of a run that holds any block which may have to be written now.
    longest_run: AtomicU64,
    /// Length of a run that held the value blocks of whole pages of the last batch that asked.
    pages_run: AtomicU64,
}

/// A promise of space that is being made; no other store of the volume makes one meanwhile.
pub(crate) struct Promising<'a> {
    ledger: &'a SpaceLedger,
    _one_at_a_time: MutexGuard<'a, ()>,
}

impl Promising<'_> {
    /// Promises bytes to a memtable. The caller has compared them with what is free.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] if they are not there any more.
    pub(crate) fn promise(&self, bytes: u64) -> Result<Reservation, VolumeError> {
        let space = self.ledger.volume.space();
        let promised = space.reserve(bytes, Class::Internal)?;
        debug_assert_eq!(promised.bytes(), bytes, "all of it is promised");
        Ok(promised)
    }

    /// Sets how much is left to commits of [`SpaceClass::Allocated`].
    ///
    /// # Errors
    /// [`KvError::NoSpace`] if it is more than before, and not free.
    pub(crate) fn set_aside(&self, bytes: u64) -> Result<(), KvError> {
        let ledger = self.ledger;
        let before = ledger.aside_bytes();
        if bytes > before {
            check_free(bytes - before, ledger.free_bytes(SpaceClass::Normal))?;
        }
        ledger.aside_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl SpaceLedger {
    /// Returns the ledger of a store that is opened now, without trees.
    pub(crate) fn new(
        volume: &Arc<Volume>,
        sizing: &Arc<Sizing>,
        views: &Arc<Views>,
        ledgers: &Arc<Ledgers>,
        copies_values: bool,
    ) -> Self {
        debug_assert!(
            volume.zones().zone_bytes() >= 2 * PAGE_BYTES,
            "half a zone holds a page"
        );
        Self {
            volume: Arc::clone(volume),
            sizing: Arc::clone(sizing),
            views: Arc::clone(views),
            ledgers: Arc::clone(ledgers),
            copies_values,
            work: Arc::default(),
            aside_bytes: AtomicU64::new(0),
            longest_run: AtomicU64::new(0),
            pages_run: AtomicU64::new(PAGE_BYTES),
        }
    }

    /// Begins a promise: waits until no other store makes one.
    pub(crate) fn promising(&self) -> Promising<'_> {
        Promising {
            _one_at_a_time: self.ledgers.promising.lock(),
            ledger: self,
        }
    }

    /// Promises space to tables that are written outside of a memtable.
    ///
    /// # Errors
    /// [`KvError::NoSpace`].
    pub(crate) fn promise_tables(
        &self,
        needed_bytes: u64,
        class: SpaceClass,
    ) -> Result<Reservation, KvError> {
        debug_assert!(needed_bytes > 0, "a table takes space");
        let promising = self.promising();
        let free_bytes = self.free_bytes(class).min(self.roomy_bytes(class));
        let refused = KvError::NoSpace {
            needed_bytes,
            free_bytes,
        };
        if needed_bytes > free_bytes {
            return Err(refused);
        }
        promising.promise(needed_bytes).map_err(|_| refused)
    }

    /// Keeps space for a compaction that may write so many bytes, until it ends.
    pub(crate) fn begin_compaction(&self, planned_bytes: u64) -> Arc<UnderWay> {
        let under_way = UnderWay::begin(&self.work, planned_bytes);
        debug_assert!(
            self.work.planned_bytes() >= planned_bytes,
            "space is kept for it"
        );
        under_way
    }

    /// Returns how full the store is.
    pub(crate) fn usage(&self) -> SpaceUsage {
        let total = self.volume.zones().total_bytes();
        SpaceUsage {
            total_bytes: total.saturating_sub(self.reserve_bytes()),
            free_bytes: self.free_bytes(SpaceClass::Normal),
        }
    }

    /// Returns the bytes that commits of this class may still have promised to them.
    pub(crate) fn free_bytes(&self, class: SpaceClass) -> u64 {
        let aside = Aside {
            all: self.all_aside_bytes(),
            own: self.aside_bytes(),
        };
        let total = self.volume.zones().total_bytes();
        formulas::free(self.unpromised_bytes(class), total, aside, class)
    }

    /// Returns the bytes in long runs that commits of this class may have promised to them. Value
    /// blocks of whole pages need none.
    pub(crate) fn roomy_bytes(&self, class: SpaceClass) -> u64 {
        let in_runs = self.volume.zones().roomy_bytes(self.room_run_bytes());
        formulas::roomy(in_runs, self.promised(), self.kept_in_runs(class))
    }

    /// Returns the bytes in runs for value blocks of `run_bytes`, whole pages, that commits of this
    /// class may have promised to them.
    pub(crate) fn pages_room_bytes(&self, run_bytes: u64, class: SpaceClass) -> u64 {
        debug_assert!(run_bytes.is_multiple_of(PAGE_BYTES), "whole pages");
        if run_bytes <= PAGE_BYTES {
            return self.free_bytes(class);
        }
        let in_runs = self.volume.zones().roomy_bytes(run_bytes);
        formulas::pages_room(in_runs, self.promised(), self.kept_in_runs(class))
    }

    /// Returns the bytes that this class leaves neither to compactions nor to memtables, with what
    /// is set aside.
    pub(crate) fn unpromised_bytes(&self, class: SpaceClass) -> u64 {
        self.available_bytes()
            .saturating_sub(formulas::kept(self.kept(), class))
    }

    /// Returns the bytes of the volume that are neither in use nor promised.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.volume.space().available_bytes(Class::Internal)
    }

    /// Returns what is left to commits, in bytes and in long runs, including what is set aside.
    pub(crate) fn left_bytes(&self) -> u64 {
        let class = SpaceClass::Normal;
        self.unpromised_bytes(class).min(self.roomy_bytes(class))
    }

    /// Returns what is left to writers. Where they put little but value blocks of whole pages, runs
    /// for such blocks are enough.
    pub(crate) fn left_to_writers(&self) -> u64 {
        let class = SpaceClass::Normal;
        let promised = self.promised();
        let roomy = match promised.pages > promised.all / 2 {
            true => self.pages_room_bytes(self.pages_run.load(Ordering::Relaxed), class),
            false => self.roomy_bytes(class),
        };
        self.free_bytes(class).min(roomy)
    }

    /// Reports whether space is low.
    pub(crate) fn is_low(&self) -> bool {
        self.left_bytes() < formulas::low(self.volume.zones().total_bytes())
    }

    /// Returns what may be rewritten to give space back, in multiples of what hides it, while
    /// others write: as much as space is short.
    pub(crate) fn cost_max(&self) -> u64 {
        formulas::cost_max(self.volume.zones().total_bytes(), self.left_bytes())
    }

    /// Returns the length of a run that holds any block.
    pub(crate) fn run_bytes(&self) -> u64 {
        let run_bytes = self.volume.zones().zone_bytes() / 2;
        debug_assert!(run_bytes >= PAGE_BYTES, "a run holds a page");
        run_bytes
    }

    /// Returns the length of a run that holds any block that may have to be written now: of
    /// messages like those committed so far.
    pub(crate) fn room_run_bytes(&self) -> u64 {
        let longest = self.longest_run.load(Ordering::Relaxed);
        longest.min(self.run_bytes())
    }

    /// Notes messages that are to be committed.
    pub(crate) fn note_longest(&self, key_bytes: u64, value_bytes: u64) {
        self.note_run(formulas::entry_run(key_bytes, value_bytes));
    }

    /// Notes a tree.
    pub(crate) fn note_tree(&self, options: &TreeOptions) {
        debug_assert!(options.block_bytes > 0, "a block has bytes");
        self.note_run(formulas::block_run(u64::from(options.block_bytes)));
    }

    fn note_run(&self, run_bytes: u64) {
        // Nearly always the longest is known: commits of several threads should write nothing here.
        debug_assert!(run_bytes > 0, "a run is not empty");
        if run_bytes > self.longest_run.load(Ordering::Relaxed) {
            self.longest_run.fetch_max(run_bytes, Ordering::Relaxed);
        }
        debug_assert!(
            self.longest_run.load(Ordering::Relaxed) >= run_bytes,
            "the longest run only grows"
        );
    }

    /// Notes the longest value blocks of whole pages of a batch that asks for space.
    pub(crate) fn note_pages_run(&self, run_bytes: u64) {
        debug_assert!(run_bytes.is_multiple_of(PAGE_BYTES), "whole pages");
        debug_assert!(run_bytes > 0, "a run is not empty");
        self.pages_run.store(run_bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that all stores of the volume set aside.
    pub(crate) fn all_aside_bytes(&self) -> u64 {
        self.ledgers.sum_of(Self::aside_bytes)
    }

    fn aside_bytes(&self) -> u64 {
        self.aside_bytes.load(Ordering::Relaxed)
    }

    /// Returns what all stores would keep for compactions on so many bytes of zones.
    pub(crate) fn reserve_bytes_on(&self, zones_bytes: u64) -> u64 {
        let of = |ledger: &Self| ledger.sizing.on(zones_bytes).reserve;
        formulas::reserves(self.ledgers.sum_of(of), of(self), zones_bytes)
    }

    /// Returns what all stores would keep for compactions if there was one more like this.
    pub(crate) fn reserve_bytes_with_another(&self) -> u64 {
        let own = self.own_reserve();
        let sum = self.ledgers.sum_of(Self::own_reserve) + own;
        let kept = formulas::reserves(sum, own, self.volume.zones().total_bytes());
        kept.max(self.volume.space().reserve_bytes())
    }

    fn own_reserve(&self) -> u64 {
        self.sizing.now().reserve
    }

    /// Returns what all stores keep for compactions, when none runs.
    fn reserve_bytes(&self) -> u64 {
        let sum = self.ledgers.sum_of(Self::own_reserve);
        let zones_bytes = self.volume.zones().total_bytes();
        let kept = formulas::reserves(sum, self.own_reserve(), zones_bytes);
        kept.max(self.volume.space().reserve_bytes())
    }

    fn kept(&self) -> Reserved {
        Reserved {
            reserve: self.reserve_bytes(),
            planned: self.ledgers.sum_of(|ledger| ledger.work.planned_bytes()),
            written: self.ledgers.sum_of(|ledger| ledger.work.written_bytes()),
        }
    }

    /// Returns how many of these have to be in long runs. Compactions carry value blocks over, so
    /// that a store of long values needs little more than its indexes.
    fn kept_in_runs(&self, class: SpaceClass) -> u64 {
        let all = self.kept();
        let sum = self.ledgers.sum_of(Self::run_reserve);
        let zones_bytes = self.volume.zones().total_bytes();
        let runs = Reserved {
            reserve: formulas::reserves(sum, self.run_reserve(), zones_bytes),
            written: self.ledgers.sum_of(|ledger| ledger.work.run_bytes()),
            ..all
        };
        formulas::kept_in_runs(runs, all, class)
    }

    /// Returns the most that this store's compactions write at a time outside of value blocks.
    fn run_reserve(&self) -> u64 {
        let sizes = self.sizing.now();
        if self.copies_values {
            return sizes.reserve;
        }
        let view = self.views.get();
        let promised: u64 = view.buffers.iter().map(|b| b.promised_bytes()).sum();
        let pages: u64 = view.buffers.iter().map(|b| b.page_bytes()).sum();
        let trees = view.version.trees.values();
        let written: u64 = trees.map(|tree| tree.rewritten_bytes()).sum();
        let most = written + promised.saturating_sub(pages);
        most.saturating_add(sizes.pick.table_bytes)
            .min(sizes.reserve)
    }

    /// Returns what is promised on the volume, and what of it this store has for whole pages.
    fn promised(&self) -> Promised {
        let view = self.views.get();
        Promised {
            all: self.volume.space().promised_bytes(),
            pages: view.buffers.iter().map(|b| b.page_bytes()).sum(),
        }
    }
}

#[cfg(test)]
mod tests;
