//! The history of a file system: moments that it keeps by itself, to go back to.
//!
//! 1. *Keep*: a moment is a pin of the file system, `history/NUMBER`. One is created in each
//!    interval in which something was written.
//! 2. *Thin*: the older they are, the fewer are kept ([`thin`]), and none beyond its time.
//! 3. *Yield*: in a store that is nine tenths full the oldest go, before writers find no space.
//! 4. *Pause*: while a rollback is interrupted, in mainline or in a clone, none is created: it
//!    would show a part of the rollback. The user repeats it, or the next open finishes it.
//!
//! [`FileSystem::history`] returns a handle, which callers ask for all of it. What lists and opens
//! moments are the [`Pins`]; what creates them is a [`PinMaker`].
//!
//! A moment says how long it is to be kept, so that it goes by its age also where no more are made.
//!
//! Locks: one round at a time.

mod thin;

use crate::difference::Comparer;
use crate::pins::{PinMaker, Pins};
use crate::residents::Residents;
use crate::room::Room;
use crate::snapshot::{SnapshotInfo, SnapshotView};
use crate::system::FileSystem;
use crate::unchanged::TreeState;
use crate::views::ViewSet;
use crate::{FsError, FsResult};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use stitch_base::calendar::UtcTime;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Mutex;
use stitch_base::{Ino, PinId, Seqno};
use stitch_format::fs_moment::{MomentRecord, moment_number, moment_pin};
use stitch_kv::PinInfo;

use thin::Aged;
pub use thin::HISTORY_S_MAX;

/// Part of the oldest moments that goes at once for want of space.
const YIELDED_PART: usize = 8;
/// Why no moments are created.
const PAUSED: &str = "a rollback was interrupted: repeat it, so that moments are created again";
/// Seconds until the next round where space is short.
const SHORT_S: u64 = 1;
const _: () = assert!(SHORT_S > 0, "rounds are apart");
const _: () = assert!(YIELDED_PART > 0, "it is a part");

/// A moment of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MomentInfo {
    /// Number of its pin: that of no snapshot, and never used again.
    pub id: PinId,
    /// When it was.
    pub created: Timestamp,
    /// Seconds after which it is dropped.
    pub keep_s: u64,
    number: u64,
    seqno: Seqno,
}

/// What a round has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryRound {
    /// The moment that was created.
    pub created: Option<MomentInfo>,
    /// Moments that were dropped.
    pub dropped: Vec<MomentInfo>,
    /// Seconds until the next round; `None` if there is nothing to keep or drop.
    pub next_s: Option<u64>,
}

/// The history's state in memory.
#[derive(Debug, Default)]
pub(crate) struct HistoryState {
    last_error: Mutex<Option<String>>,
    /// Held for a round.
    running: Mutex<()>,
}

impl MomentInfo {
    pub(crate) fn of(pin: &PinInfo) -> Option<Self> {
        let number = moment_number(&pin.name)?;
        match MomentRecord::decode(&pin.user) {
            Ok(record) => Some(Self {
                id: pin.id,
                created: Timestamp(record.created_ns),
                keep_s: record.keep_s,
                number,
                seqno: pin.seqno,
            }),
            Err(error) => {
                tracing::warn!(name = pin.name, %error, "a moment cannot be read: fsck drops it");
                None
            }
        }
    }

    /// Returns its name: the time of UTC, like `2026-11-26T20-00-05Z`.
    #[must_use]
    pub fn name(&self) -> String {
        let name = UtcTime::of(self.created.seconds()).file_name();
        debug_assert!(!name.contains('/'), "a directory can have the name");
        name
    }

    /// Returns the name of its pin.
    pub(crate) fn pin_name(&self) -> String {
        let name = moment_pin(self.number);
        debug_assert_eq!(
            moment_number(&name),
            Some(self.number),
            "the name leads back to the moment"
        );
        name
    }

    /// Returns it as if it were a snapshot of the root directory.
    #[must_use]
    pub fn as_snapshot(&self) -> SnapshotInfo {
        self.as_snapshot_of(Ino::ROOT, Vec::new())
    }

    pub(crate) fn as_snapshot_of(&self, root: Ino, path: Vec<u8>) -> SnapshotInfo {
        debug_assert!(root.0 > 0, "a number of a directory");
        SnapshotInfo {
            id: self.id,
            name: self.name(),
            root,
            view: 0,
            path,
            owner: 0,
            created: self.created,
            is_automatic: true,
            tags: Vec::new(),
        }
    }
}

/// The history of a file system: see [`FileSystem::history`].
#[derive(Clone, Copy)]
pub struct History<'fs> {
    state: &'fs HistoryState,
    pins: Pins<'fs>,
    maker: PinMaker<'fs>,
    /// No moment is of a part of a rollback, and none goes that one needs.
    views: &'fs ViewSet,
    /// Counts what was given back.
    room: &'fs Room,
    /// Paths of directories.
    residents: &'fs Residents,
    comparer: Comparer<'fs>,
    /// The file system as it is.
    present: TreeState<'fs>,
    /// Moments are created and dropped here.
    is_kept: bool,
}

impl std::fmt::Debug for History<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History")
            .field("state", self.state)
            .finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Returns the handle of this file system's history. It borrows what it uses: to take it costs
    /// nothing.
    #[must_use]
    pub fn history(&self) -> History<'_> {
        History {
            state: &self.history,
            pins: Pins::of(self),
            maker: PinMaker::of(self),
            views: &self.standing.views,
            room: &self.room,
            residents: &self.residents,
            comparer: self.comparer(),
            present: TreeState::Now(self),
            is_kept: !self.is_read_only() && self.branch.is_none(),
        }
    }
}

impl History<'_> {
    /// Returns the moments of the history in the order of their creation. Reads nothing from the
    /// medium.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn moments(&self) -> FsResult<Vec<MomentInfo>> {
        self.pins.moments()
    }

    /// Returns a moment.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it was dropped.
    pub fn moment(&self, id: PinId) -> FsResult<MomentInfo> {
        self.pins.moment(id)
    }

    /// Creates a moment if one is due, and drops those that are not kept any more. Creates none
    /// unless [`FsOptions::history_s`](crate::FsOptions::history_s) is set, and drops by age in any
    /// case. To be called by a thread of its own, again after [`HistoryRound::next_s`].
    ///
    /// # Errors
    /// Those of [`crate::Snapshots::create`] but for names and paths; what was done before stays
    /// done. The same one is logged once, and [`Self::last_error`] tells it.
    ///
    /// # Cost
    /// None if nothing was written since the last moment and none is too old. Otherwise a sync of
    /// the log and a record for a new one, and a record for each that is dropped.
    pub fn run(&self) -> FsResult<HistoryRound> {
        if !self.is_kept {
            return Ok(HistoryRound::default());
        }
        let _running = self.state.running.lock();
        let done = self.round();
        let error = match &done {
            Ok(_) => self.is_paused().then(|| PAUSED.to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let mut last = self.state.last_error.lock();
        match &error {
            Some(error) if last.as_ref() != Some(error) => {
                tracing::warn!(error, "the history is not kept: it is tried again");
            }
            None if last.is_some() => tracing::info!("the history goes on"),
            _ => {}
        }
        *last = error;
        done
    }

    /// Returns why the last round failed, or created no moment though one may be due; `None` if
    /// neither.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.state.last_error.lock().clone()
    }

    fn round(&self) -> FsResult<HistoryRound> {
        let mut round = HistoryRound::default();
        let mut moments = self.pins.moments()?;
        let now = self.pins.options.clock.now();
        let space = self.pins.engine.space();
        let is_short = space.free_bytes < space.total_bytes / 10;
        if is_short {
            let count = moments.len().div_ceil(YIELDED_PART);
            debug_assert!(count <= moments.len(), "moments that are there");
            for moment in moments.drain(..count) {
                self.drop_moment(&moment, &mut round)?;
            }
        }
        if let Some(keep_s) = self.pins.options.history_s.filter(|_| !is_short) {
            self.maker.check_takes_pins()?;
            round.created = self.create_moment(moments.last(), keep_s, now)?;
            moments.extend(round.created.clone());
        }
        let aged: Vec<Aged> = moments.iter().map(|moment| self.aged(moment)).collect();
        let old = thin::dropped(&aged, now.seconds());
        debug_assert!(
            moments.is_sorted_by(|one, next| one.id < next.id),
            "in the order of their creation"
        );
        debug_assert_eq!(old.len(), moments.len(), "each moment is judged");
        for (moment, _) in moments.iter().zip(old).filter(|(_, is_old)| *is_old) {
            self.drop_moment(moment, &mut round)?;
        }
        debug_assert!(
            !is_short || round.created.is_none(),
            "none where space is short"
        );
        debug_assert!(
            round
                .created
                .as_ref()
                .is_none_or(|made| made.created == now),
            "a moment of now"
        );
        round.next_s = self.next_round_s(&moments, is_short);
        Ok(round)
    }

    /// Reports whether moments are to be created, and one would show a part of a rollback. Known
    /// for sure while snapshots cannot change.
    fn is_paused(&self) -> bool {
        let is_there = |view: u64| view == 0 || self.views.record(view).is_some();
        let mut interrupted = self.views.under_way.interrupted().into_iter();
        self.pins.options.history_s.is_some() && interrupted.any(is_there)
    }

    fn aged(&self, moment: &MomentInfo) -> Aged {
        Aged {
            created_s: moment.created.seconds(),
            // What is asked for now is what holds for those that are there.
            keep_s: self.pins.options.history_s.unwrap_or(moment.keep_s),
        }
    }

    fn next_round_s(&self, moments: &[MomentInfo], is_short: bool) -> Option<u64> {
        let keep_s = self.pins.options.history_s;
        let keep_s = keep_s.or_else(|| moments.iter().map(|moment| moment.keep_s).min())?;
        let interval = thin::interval_s(keep_s).cast_unsigned();
        debug_assert!(interval > 0, "rounds are apart");
        Some(if is_short { SHORT_S } else { interval })
    }

    fn create_moment(
        &self,
        last: Option<&MomentInfo>,
        keep_s: u64,
        now: Timestamp,
    ) -> FsResult<Option<MomentInfo>> {
        let last_s = last.map(|last| last.created.seconds());
        let is_unchanged =
            last.is_some_and(|last| last.seqno == self.pins.engine.snapshot().seqno());
        if is_unchanged || !thin::is_due(last_s, now.seconds(), thin::interval_s(keep_s)) {
            return Ok(None);
        }
        let record = MomentRecord {
            created_ns: now.0,
            keep_s,
        };
        // No moment shows half of a rollback.
        let _changing = self.views.snapshot_change.lock();
        if self.is_paused() {
            return Ok(None);
        }
        let number = match last.map_or(Some(1), |last| last.number.checked_add(1)) {
            Some(number) => number,
            None => self.free_moment_number()?,
        };
        debug_assert!(
            last.is_none_or(|last| last.number != number),
            "a new number"
        );
        let pin = self
            .maker
            .pin_views(&moment_pin(number), &record.encode(), 0)?;
        debug_assert!(
            last.is_none_or(|last| last.id < pin.id),
            "pins are numbered in their order"
        );
        debug_assert!(
            last.is_none_or(|last| last.seqno <= pin.seqno),
            "moments in their order"
        );
        let made = MomentInfo::of(&pin);
        debug_assert!(made.is_some(), "what was written can be read");
        debug_assert!(
            made.as_ref().is_none_or(|made| made.number == number),
            "the moment of the number"
        );
        Ok(made)
    }

    /// Returns the smallest number that no moment has: no writer of moments comes to the largest.
    fn free_moment_number(&self) -> FsResult<u64> {
        let pins = self.pins.engine.pins()?;
        let used: BTreeSet<u64> = pins
            .iter()
            .filter_map(|pin| moment_number(&pin.name))
            .collect();
        let free = (1..).find(|number| !used.contains(number));
        let free = free.expect("fewer pins than numbers");
        debug_assert!(free > 0, "the smallest one");
        debug_assert!(free <= used.len() as u64 + 1, "the smallest one");
        Ok(free)
    }

    /// Drops a moment, unless a rollback goes back to it.
    fn drop_moment(&self, moment: &MomentInfo, round: &mut HistoryRound) -> FsResult<()> {
        let drop_pin = || self.pins.engine.drop_pin(&moment.pin_name());
        let under_way = &self.views.under_way;
        if let Some(dropped) = under_way.drop_unless_used(moment.id, drop_pin) {
            debug_assert!(self.is_kept, "moments are dropped here");
            dropped?;
            round.dropped.push(moment.clone());
        }
        Ok(())
    }

    /// Drops the older half of the moments, for an operation that found no space. Reports whether
    /// there were any.
    pub(crate) fn yield_older(&self) -> FsResult<bool> {
        if !self.is_kept {
            return Ok(false);
        }
        let _running = self.state.running.lock();
        let moments = self.pins.moments()?;
        let count = moments.len().div_ceil(2);
        let mut round = HistoryRound::default();
        for moment in &moments[..count] {
            self.drop_moment(moment, &mut round)?;
        }
        debug_assert!(round.created.is_none(), "it drops moments alone");
        let count = round.dropped.len();
        debug_assert!(count <= moments.len(), "moments alone are dropped");
        self.room.note_given_back(count);
        Ok(count > 0)
    }

    /// Opens the whole file system as it was at a moment.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it was dropped.
    ///
    /// # Cost
    /// A few point reads.
    pub fn open(&self, id: PinId) -> FsResult<SnapshotView> {
        self.pins.open_moment(id)
    }

    /// Returns the numbers of the pins of all snapshots, moments and transactions, in rising order.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn pinned(&self) -> FsResult<Vec<PinId>> {
        self.pins.pinned()
    }

    /// Reports whether a pin with this number is of a snapshot, a moment or a transaction. Lists
    /// none.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn is_pinned(&self, id: PinId) -> FsResult<bool> {
        self.pins.is_pinned(id)
    }

    /// Opens the snapshot or moment that a pin is, or the moment at which a transaction began.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub fn open_pinned(&self, id: PinId) -> FsResult<SnapshotView> {
        self.pins.open_pinned(id)
    }

    /// Opens a moment with a directory that is known in the present; `None` if its path led
    /// elsewhere then, or the clone that it is in was made later.
    fn open_dir_at(&self, id: PinId, dir: Ino, path: &[u8]) -> FsResult<Option<SnapshotView>> {
        self.pins.moment(id)?;
        match self.pins.open_moment_of_view(id, dir, path.to_vec()) {
            Ok(view) => Ok(Some(view)),
            Err(FsError::Stale(_) | FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reports whether a directory that is known, or anything below it, is different at two
    /// moments, the second one being the present for `None`. This file system may be a clone's.
    /// Times of access make no difference. A directory that had another path then counts as one
    /// that was not there.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if a moment was dropped; [`FsError::Invalid`] if the second one is
    /// before the first; [`FsError::NotDir`]; those of a read.
    ///
    /// # Cost
    /// None if nothing was written between them. Otherwise, for a directory with many names, that
    /// of reading what was written in the store between them, if file handles or a comparison of
    /// moments have put back rows before. Else a scan of all names below the directory on both
    /// sides, up to the first difference.
    pub fn has_changed(&self, dir: Ino, from: PinId, to: Option<PinId>) -> FsResult<bool> {
        let path = self.residents.path_of(dir)?;
        let seqno = |id: PinId| Ok::<_, FsError>(self.pins.moment(id)?.seqno);
        let to_seqno = match to {
            Some(to) => seqno(to)?,
            None => self.pins.engine.snapshot().seqno(),
        };
        match seqno(from)?.cmp(&to_seqno) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(false),
            Ordering::Greater => {
                return Err(FsError::Invalid("the second moment is before the first"));
            }
        }
        let then = self.open_dir_at(from, dir, &path)?;
        let later = match to {
            Some(to) => match (self.open_dir_at(to, dir, &path)?, &then) {
                (None, then) => return Ok(then.is_some()),
                (later, _) => later,
            },
            None => None,
        };
        let Some(then) = then else {
            return Ok(true);
        };
        let now = match &later {
            Some(later) => TreeState::Past(later),
            None => self.present,
        };
        let states = (&then, now);
        debug_assert_eq!(then.info().id, from, "the moment that was asked for");
        Ok(!self.comparer.is_same_tree(dir, (from, to), states)?)
    }
}

#[cfg(test)]
mod tests;
