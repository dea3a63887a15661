//! The writable views of a store: their records, and those that are open.
//!
//! Mainline and all views of an engine share one set. What is stored of it is in mainline's `sys`
//! tree.

use super::ways::GraftWays;
use super::{CloneInfo, LiveView, ViewCommands};
use crate::locator::{Locator, SysRow, Tree};
use crate::rollback::RollbacksUnderWay;
use crate::rows::RowBatch;
use crate::schema::{Store, view_of_tree};
use crate::snapshot::{CloneNarrowing, Narrowing};
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Weak;
use stitch_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stitch_base::sync::{Arc, Mutex, MutexGuard};
use stitch_base::{Ino, TreeId};
use stitch_db::SpaceClass;
use stitch_format::fs_sys::encode_number;
use stitch_format::fs_view::{VIEW_NUMBER_MAX, ViewRecord, ViewState};
use stitch_kv::Engine;

/// All writable views.
#[derive(Debug)]
pub(crate) struct ViewSet {
    /// Mainline's trees; `None` in a snapshot, whose views do not change.
    store: Option<Store>,
    records: Mutex<Records>,
    /// Number of live records, to be read without the lock.
    live_count: AtomicUsize,
    /// Some record says *removed*.
    has_removed: AtomicBool,
    /// Held while a view is made: numbers are given out one by one.
    making: Mutex<()>,
    /// Held while a view is opened, which may remove views: it finishes a rollback.
    opening: Mutex<()>,
    open: Mutex<HashMap<u64, Weak<LiveView>>>,
    /// Held while trees are dropped.
    dropping: Mutex<()>,
    /// File systems whose back rows were asked for.
    without_back_rows: Mutex<BTreeSet<u64>>,
    /// Where the directories above clones are.
    pub(crate) ways: GraftWays,
    /// Held while a snapshot is created or deleted, its record is changed, or a directory of any
    /// view is rolled back: a snapshot shows several views.
    pub(crate) snapshot_change: Mutex<()>,
    pub(crate) under_way: RollbacksUnderWay,
    /// Commands on snapshots and clones: passes of the background make way for them.
    pub(crate) commands: ViewCommands,
    /// Snapshots that are narrowed to their directories.
    pub(crate) narrowing: Narrowing,
    /// Clones that hold of their sources what is in their directories.
    pub(crate) clone_narrowing: CloneNarrowing,
}

#[derive(Debug, Default)]
struct Records {
    by_number: BTreeMap<u64, ViewRecord>,
    /// By home and graft.
    by_graft: HashMap<(u64, Ino), u64>,
    next: u64,
}

/// Reads the record of a clone.
///
/// # Errors
/// [`FsError::Corrupt`], also for a clone that lies in itself or in a later one: ways up from
/// clones end since each is made after its home.
pub(crate) fn read_record(number: u64, row: &[u8]) -> FsResult<ViewRecord> {
    let record = ViewRecord::decode(row)?;
    if record.home >= number {
        let home = record.home;
        return Err(FsError::Corrupt(format!(
            "clone {number} lies in {home}, which was made later"
        )));
    }
    debug_assert!(number > 0, "its home has a smaller number");
    Ok(record)
}

impl Records {
    fn read(store: &Store) -> FsResult<Self> {
        let mut records = Self {
            next: 1,
            ..Self::default()
        };
        if store.header.has_views {
            records.next = store.number(&store.keys.next_view())?.max(1);
            let mut scan = store.scan(&store.keys.views())?;
            while let Some((key, row)) = scan.next()? {
                let Some(SysRow::View(number)) = Locator::sys_row(key) else {
                    continue;
                };
                match read_record(number, row) {
                    Ok(record) => records.insert(number, record),
                    Err(error) => tracing::warn!(number, %error, "a clone cannot be read"),
                }
                records.next = records.next.max(number + 1);
            }
        }
        records.check();
        debug_assert!(records.next > 0, "0 is mainline");
        Ok(records)
    }

    fn insert(&mut self, number: u64, record: ViewRecord) {
        debug_assert!(number > 0, "0 is mainline");
        debug_assert!(record.home < number, "it was made after its home");
        if record.state == ViewState::Live {
            let at = (record.home, record.graft);
            let first = *self.by_graft.entry(at).or_insert(number);
            if first != number {
                tracing::warn!(number, first, "two clones lie at one directory");
            }
        }
        self.by_number.insert(number, record);
    }

    /// Checks that what is found by a directory is in use, and that numbers are given out once.
    fn check(&self) {
        debug_assert!(
            self.by_graft.len() <= self.by_number.len(),
            "each lies at one directory"
        );
        let last = self.by_number.last_key_value();
        debug_assert!(
            last.is_none_or(|(number, _)| *number < self.next),
            "a number is not given out again"
        );
    }

    /// The view, and all that lie in it.
    fn with_inner(&self, number: u64) -> Vec<u64> {
        debug_assert!(self.by_number.contains_key(&number), "a view with a record");
        let mut found = vec![number];
        let mut at = 0;
        while let Some(&home) = found.get(at) {
            let inner = self
                .by_number
                .iter()
                .filter(|(_, record)| record.state == ViewState::Live && record.home == home);
            found.extend(inner.map(|(number, _)| *number));
            at += 1;
        }
        debug_assert_eq!(found[0], number, "the outermost one is first");
        debug_assert!(found.len() <= self.by_number.len(), "each once");
        found
    }
}

impl ViewSet {
    /// The set of a file system that shows no views.
    pub(crate) fn none() -> Self {
        Self::of(None, Records::default())
    }

    /// Reads the records in mainline's trees at a moment that is past.
    pub(crate) fn read_past(store: &Store) -> FsResult<Self> {
        Ok(Self::of(None, Records::read(store)?))
    }

    /// Reads the views in use in mainline's trees, or in branches of these, by number.
    pub(crate) fn read_live(store: &Store) -> FsResult<Vec<CloneInfo>> {
        Ok(Self::read_past(store)?.live())
    }

    /// Reads the records in mainline's trees.
    pub(crate) fn read(store: &Store) -> FsResult<Self> {
        Ok(Self::of(Some(store.clone()), Records::read(store)?))
    }

    fn of(store: Option<Store>, records: Records) -> Self {
        debug_assert!(
            records.by_graft.len() <= records.by_number.len(),
            "each lies at one directory"
        );
        let removed = |record: &&ViewRecord| record.state == ViewState::Removed;
        let has_removed = records.by_number.values().any(|record| removed(&record));
        Self {
            store,
            live_count: AtomicUsize::new(records.by_graft.len()),
            has_removed: AtomicBool::new(has_removed),
            records: Mutex::new(records),
            making: Mutex::default(),
            opening: Mutex::default(),
            open: Mutex::default(),
            dropping: Mutex::default(),
            without_back_rows: Mutex::default(),
            ways: GraftWays::default(),
            snapshot_change: Mutex::default(),
            under_way: RollbacksUnderWay::default(),
            commands: ViewCommands::default(),
            narrowing: Narrowing::default(),
            clone_narrowing: CloneNarrowing::default(),
        }
    }

    /// Notes that the back rows of a file system are asked for.
    pub(super) fn want_back_rows(&self, view: u64) {
        self.without_back_rows.lock().insert(view);
    }

    /// Returns a file system whose back rows were asked for.
    pub(crate) fn wanted_back_rows(&self) -> Option<u64> {
        self.without_back_rows.lock().first().copied()
    }

    /// Notes that the back rows of a file system are not asked for any more.
    pub(crate) fn have_back_rows(&self, view: u64) {
        self.without_back_rows.lock().remove(&view);
    }

    /// Keeps others from making views, and gives the number of the next one. So many may follow.
    pub(super) fn begin_making(&self, count_max: u64) -> FsResult<(MutexGuard<'_, ()>, u64)> {
        let making = self.making.lock();
        let number = self.records.lock().next;
        if number == 0 || number.saturating_add(count_max) > VIEW_NUMBER_MAX {
            return Err(FsError::Unsupported);
        }
        debug_assert!(self.store.is_some(), "views of a snapshot do not change");
        debug_assert!(number + count_max <= VIEW_NUMBER_MAX, "a number for each");
        Ok((making, number))
    }

    /// Stages records of views with numbers from `first` on in a batch of any file system of the
    /// engine, and notes them before the commit: no lookup finds their grafts before.
    pub(super) fn stage_made(&self, batch: &mut RowBatch<'_>, first: u64, made: Vec<ViewRecord>) {
        debug_assert!(first > 0, "0 is mainline");
        debug_assert!(!made.is_empty(), "a view is made");
        debug_assert!(
            made.iter().all(|record| record.state == ViewState::Live),
            "it is in use from its commit on"
        );
        let store = self
            .store
            .as_ref()
            .expect("views of a snapshot do not change");
        let sys = store.dictionary(Tree::Sys);
        for (number, record) in (first..).zip(&made) {
            batch.put_in(sys, &store.keys.view(number), &record.encode());
        }
        let next = first + made.len() as u64;
        debug_assert!(next <= VIEW_NUMBER_MAX, "a reader takes no other number");
        batch.put_in(sys, &store.keys.next_view(), &encode_number(next));
        let mut records = self.records.lock();
        debug_assert_eq!(records.next, first, "numbers are given out in order");
        records.next = next;
        for (number, record) in (first..).zip(made) {
            records.insert(number, record);
        }
        records.check();
        self.live_count
            .store(records.by_graft.len(), Ordering::Release);
    }

    /// Takes back what was noted, after a commit that failed.
    pub(super) fn unmake(&self, numbers: Range<u64>) {
        debug_assert!(numbers.start < numbers.end, "a view was made");
        debug_assert!(numbers.start > 0, "0 is mainline");
        let mut records = self.records.lock();
        debug_assert!(numbers.end <= records.next, "they were given out");
        for number in numbers {
            if let Some(record) = records.by_number.remove(&number) {
                records.by_graft.remove(&(record.home, record.graft));
            }
        }
        records.check();
        self.live_count
            .store(records.by_graft.len(), Ordering::Release);
    }

    /// Takes back what was noted of views that were staged in one batch, if the store does not have
    /// them. A commit that failed may have been done.
    pub(super) fn unmake_unless_stored(&self, numbers: Range<u64>) -> FsResult<()> {
        let store = self
            .store
            .as_ref()
            .expect("views of a snapshot do not change");
        debug_assert!(!numbers.is_empty(), "a view was staged");
        if store.get(&store.keys.view(numbers.start))?.is_none() {
            self.unmake(numbers);
        }
        Ok(())
    }

    /// Stages the removal of a view and all that lie in it. Returns their numbers, for
    /// [`Self::note_removed`] after the commit.
    pub(crate) fn stage_removed(&self, batch: &mut RowBatch<'_>, number: u64) -> Vec<u64> {
        let store = self
            .store
            .as_ref()
            .expect("views of a snapshot do not change");
        let sys = store.dictionary(Tree::Sys);
        let records = self.records.lock();
        let numbers = records.with_inner(number);
        for number in &numbers {
            debug_assert_eq!(
                records.by_number[number].state,
                ViewState::Live,
                "it is in use up to now"
            );
            let record = ViewRecord {
                state: ViewState::Removed,
                ..records.by_number[number].clone()
            };
            batch.put_in(sys, &store.keys.view(*number), &record.encode());
        }
        debug_assert_eq!(numbers.first(), Some(&number), "with what lies in it");
        numbers
    }

    /// Notes that views were removed. Their trees go with [`Self::drop_removed`].
    pub(crate) fn note_removed(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let mut records = self.records.lock();
        let mut grafts = BTreeSet::new();
        for number in numbers {
            let Some(record) = records.by_number.get_mut(number) else {
                continue;
            };
            record.state = ViewState::Removed;
            let at = (record.home, record.graft);
            records.by_graft.remove(&at);
            debug_assert!(*number > 0, "mainline stays");
            grafts.insert(at);
        }
        records.check();
        self.live_count
            .store(records.by_graft.len(), Ordering::Release);
        drop(records);
        self.ways.forget(numbers, &grafts);
        self.has_removed.store(true, Ordering::Release);
        let opened = self.open.lock();
        for view in numbers.iter().filter_map(|number| opened.get(number)) {
            if let Some(view) = view.upgrade() {
                view.fs().is_removed.store(true, Ordering::Release);
            }
        }
    }

    /// Drops the trees of removed views, then their records. Reports how many are gone.
    pub(crate) fn drop_removed(&self, engine: &dyn Engine) -> FsResult<usize> {
        let Some(store) = &self.store else {
            return Ok(0);
        };
        if !self.has_removed.load(Ordering::Acquire) {
            return Ok(0);
        }
        let _one_at_a_time = self.dropping.lock();
        self.has_removed.store(false, Ordering::Release);
        let removed: Vec<u64> = {
            let records = self.records.lock();
            let all = records.by_number.iter();
            let removed = all.filter(|(_, record)| record.state == ViewState::Removed);
            removed.map(|(number, _)| *number).collect()
        };
        let gone = self.drop_all(engine, store, &removed);
        if gone.is_err() {
            self.has_removed.store(true, Ordering::Release);
        }
        gone
    }

    fn drop_all(&self, engine: &dyn Engine, store: &Store, numbers: &[u64]) -> FsResult<usize> {
        for number in numbers {
            debug_assert!(*number > 0, "mainline stays");
            debug_assert!(self.record(*number).is_none(), "it is not in use");
            drop_trees(engine, |of| of == *number)?;
            let mut batch = store.batch();
            batch.delete(&store.keys.view(*number));
            delete_policies(store, *number, &mut batch)?;
            store.commit(&batch, SpaceClass::Reserve)?;
            self.records.lock().by_number.remove(number);
        }
        Ok(numbers.len())
    }

    /// Drops trees of views that have no record: a crash came before it was written.
    pub(crate) fn drop_unrecorded(&self, engine: &dyn Engine) -> FsResult<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        // Also one that cannot be read is a record.
        let mut recorded = BTreeSet::new();
        let mut scan = store.scan(&store.keys.views())?;
        while let Some((key, _)) = scan.next()? {
            if let Some(SysRow::View(number)) = Locator::sys_row(key) {
                recorded.insert(number);
            }
        }
        drop(scan);
        drop_trees(engine, |number| !recorded.contains(&number))
    }

    /// Returns the views in use.
    pub(crate) fn live(&self) -> Vec<CloneInfo> {
        let records = self.records.lock();
        let live = records.by_number.iter();
        live.filter(|(_, record)| record.state == ViewState::Live)
            .map(|(number, record)| CloneInfo::of(*number, record))
            .collect()
    }

    /// Returns the record of a view in use.
    pub(crate) fn record(&self, number: u64) -> Option<ViewRecord> {
        let records = self.records.lock();
        let record = records.by_number.get(&number)?;
        (record.state == ViewState::Live).then(|| record.clone())
    }

    /// Returns the clone of a number.
    pub(crate) fn clone_of(&self, number: u64) -> Option<CloneInfo> {
        let record = self.record(number)?;
        Some(CloneInfo::of(number, &record))
    }

    /// Reports whether there is any view in use.
    pub(crate) fn has_any(&self) -> bool {
        self.live_count.load(Ordering::Acquire) > 0
    }

    /// Returns the view that lies at a directory.
    pub(crate) fn at(&self, home: u64, graft: Ino) -> Option<CloneInfo> {
        if !self.has_any() {
            return None;
        }
        let records = self.records.lock();
        let number = *records.by_graft.get(&(home, graft))?;
        let record = &records.by_number[&number];
        debug_assert_eq!(
            record.state,
            ViewState::Live,
            "one that is removed lies nowhere"
        );
        debug_assert_eq!((record.home, record.graft), (home, graft));
        Some(CloneInfo::of(number, record))
    }

    /// Returns those that are open.
    pub(crate) fn opened(&self) -> Vec<Arc<LiveView>> {
        let opened = self.open.lock();
        opened.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the view of a number, opened unless it is open.
    pub(super) fn open_once(
        &self,
        number: u64,
        open: impl FnOnce(&ViewRecord) -> FsResult<LiveView>,
    ) -> FsResult<Arc<LiveView>> {
        let _one_at_a_time = self.opening.lock();
        let record = self.record(number).ok_or(FsError::NotFound)?;
        let found = self.open.lock().get(&number).and_then(Weak::upgrade);
        if let Some(view) = found {
            debug_assert_eq!(view.info().number, number, "the view of the number");
            return Ok(view);
        }
        let view = Arc::new(open(&record)?);
        debug_assert_eq!(view.info().number, number, "the view of the number");
        let mut opened = self.open.lock();
        opened.retain(|_, view| view.strong_count() > 0);
        opened.insert(number, Arc::downgrade(&view));
        drop(opened);
        // A removal meanwhile has not found it among those that are open.
        if self.record(number).is_none() {
            view.fs().is_removed.store(true, Ordering::Release);
        }
        Ok(view)
    }
}

/// Deletes the policies of directories in a view.
fn delete_policies(store: &Store, number: u64, batch: &mut RowBatch<'_>) -> FsResult<()> {
    debug_assert!(number > 0, "policies of mainline stay");
    let mut scan = store.scan(&store.keys.policies_in(number))?;
    while let Some((key, _)) = scan.next()? {
        if let Some(SysRow::Policy(view, dir)) = Locator::sys_row(key) {
            debug_assert_eq!(view, number, "the range is of this view");
            batch.delete(&store.keys.policy(view, dir));
        }
    }
    Ok(())
}

/// Lets the sources of all views give up what the views have replaced. A view is never merged into
/// its source, so nothing asks for what it began with.
pub(crate) fn release_replaced(engine: &dyn Engine) -> FsResult<()> {
    let all = engine.trees().into_iter();
    let of_views = all.filter(|info| view_of_tree(&info.name).is_some() && info.branch.is_some());
    let trees: Vec<TreeId> = of_views.map(|info| info.id).collect();
    debug_assert!(trees.is_sorted(), "trees are listed by number");
    Ok(engine.release_replaced(&trees)?)
}

/// Drops the trees of the views whose numbers are `wanted`.
pub(super) fn drop_trees(engine: &dyn Engine, wanted: impl Fn(u64) -> bool) -> FsResult<()> {
    let is_wanted = |name: &str| view_of_tree(name).is_some_and(&wanted);
    let all = engine.trees();
    let trees: Vec<_> = all
        .iter()
        .filter(|info| is_wanted(&info.name))
        .map(|info| info.id)
        .collect();
    if trees.is_empty() {
        return Ok(());
    }
    debug_assert!(trees.len() <= all.len(), "trees of the store");
    Ok(engine.drop_trees(&trees)?)
}
