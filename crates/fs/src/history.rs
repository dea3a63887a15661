//! The history of a file system: moments that it keeps by itself, to go back to.
//!
//! 1. *Keep*: a moment is a pin of the file system, `history/NUMBER`. One is created in each
//!    interval in which something was written.
//! 2. *Thin*: the older they are, the fewer are kept ([`thin`]), and none beyond its time.
//! 3. *Yield*: in a store that is nine tenths full the oldest go, before writers find no space.
//!
//! A moment says how long it is to be kept, so that it goes by its age also where no more are made.
//!
//! Locks: one round at a time.

mod thin;

use crate::snapshot::{SnapshotInfo, SnapshotView};
use crate::system::FileSystem;
use crate::unchanged::TreeState;
use crate::{FsError, FsResult, Notices};
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
/// Seconds until the next round where space is short.
const SHORT_S: u64 = 1;

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
pub(crate) struct History {
    last_error: Mutex<Option<String>>,
    /// Held for a round.
    running: Mutex<()>,
}

impl MomentInfo {
    fn of(pin: &PinInfo) -> Option<Self> {
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
        UtcTime::of(self.created.seconds()).file_name()
    }

    /// Returns it as if it were a snapshot of the root directory.
    #[must_use]
    pub fn as_snapshot(&self) -> SnapshotInfo {
        self.as_snapshot_of(Ino::ROOT, Vec::new())
    }

    fn as_snapshot_of(&self, root: Ino, path: Vec<u8>) -> SnapshotInfo {
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

impl FileSystem {
    /// Returns the moments of the history in the order of their creation. Reads nothing from the
    /// medium.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn moments(&self) -> FsResult<Vec<MomentInfo>> {
        if !self.engine().capabilities().pins || self.view_number() != 0 {
            return Ok(Vec::new());
        }
        let pins = self.engine().pins()?;
        Ok(pins.iter().filter_map(MomentInfo::of).collect())
    }

    /// Returns a moment.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it was dropped.
    pub fn moment(&self, id: PinId) -> FsResult<MomentInfo> {
        let found = self.moments()?.into_iter().find(|moment| moment.id == id);
        found.ok_or(FsError::NotFound)
    }

    /// Creates a moment if one is due, and drops those that are not kept any more. Creates none
    /// unless [`FsOptions::history_s`](crate::FsOptions::history_s) is set, and drops by age in any
    /// case. To be called by a thread of its own, again after [`HistoryRound::next_s`].
    ///
    /// # Errors
    /// Those of [`Self::create_snapshot`] but for names and paths; what was done before stays done.
    /// The same one is logged once, and [`Self::history_error`] tells it.
    ///
    /// # Cost
    /// None if nothing was written since the last moment and none is too old. Otherwise a sync of
    /// the log and a record for a new one, and a record for each that is dropped.
    pub fn run_history(&self) -> FsResult<HistoryRound> {
        if self.is_read_only() || self.branch.is_some() {
            return Ok(HistoryRound::default());
        }
        let _running = self.history.running.lock();
        let done = self.history_round();
        let error = done.as_ref().err().map(ToString::to_string);
        let mut last = self.history.last_error.lock();
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

    /// Returns why the last round failed; `None` if it did not.
    pub fn history_error(&self) -> Option<String> {
        self.history.last_error.lock().clone()
    }

    fn history_round(&self) -> FsResult<HistoryRound> {
        let mut round = HistoryRound::default();
        let mut moments = self.moments()?;
        let now = Timestamp(self.now());
        // The rollback is finished from its moment.
        let may_drop = !self.header.lock().rolls_back;
        let is_short = self.is_space_short();
        if is_short && may_drop {
            let count = moments.len().div_ceil(YIELDED_PART);
            for moment in moments.drain(..count) {
                self.drop_moment(&moment, &mut round)?;
            }
        }
        if let Some(keep_s) = self.options.history_s.filter(|_| !is_short) {
            self.check_takes_snapshots()?;
            round.created = self.create_moment(moments.last(), keep_s, now)?;
            moments.extend(round.created.clone());
        }
        let aged: Vec<Aged> = moments.iter().map(|moment| self.aged(moment)).collect();
        let old = thin::dropped(&aged, now.seconds());
        for (moment, _) in moments
            .iter()
            .zip(old)
            .filter(|(_, is_old)| *is_old && may_drop)
        {
            self.drop_moment(moment, &mut round)?;
        }
        round.next_s = self.next_round_s(&moments, is_short);
        Ok(round)
    }

    fn aged(&self, moment: &MomentInfo) -> Aged {
        Aged {
            created_s: moment.created.seconds(),
            // What is asked for now is what holds for those that are there.
            keep_s: self.options.history_s.unwrap_or(moment.keep_s),
        }
    }

    fn next_round_s(&self, moments: &[MomentInfo], is_short: bool) -> Option<u64> {
        let keep_s = self.options.history_s;
        let keep_s = keep_s.or_else(|| moments.iter().map(|moment| moment.keep_s).min())?;
        let interval = thin::interval_s(keep_s).cast_unsigned();
        Some(if is_short { SHORT_S } else { interval })
    }

    fn create_moment(
        &self,
        last: Option<&MomentInfo>,
        keep_s: u64,
        now: Timestamp,
    ) -> FsResult<Option<MomentInfo>> {
        let last_s = last.map(|last| last.created.seconds());
        let is_unchanged = last.is_some_and(|last| last.seqno == self.engine().snapshot().seqno());
        if is_unchanged || !thin::is_due(last_s, now.seconds(), thin::interval_s(keep_s)) {
            return Ok(None);
        }
        let record = MomentRecord {
            created_ns: now.0,
            keep_s,
        };
        // No moment shows half of a rollback.
        let _changing = self.snapshot_change.lock();
        let number = match last.map_or(Some(1), |last| last.number.checked_add(1)) {
            Some(number) => number,
            None => self.free_moment_number()?,
        };
        let pin = self.pin_views(&moment_pin(number), &record.encode(), 0)?;
        Ok(MomentInfo::of(&pin))
    }

    /// Returns the smallest number that no moment has: no writer of moments comes to the largest.
    fn free_moment_number(&self) -> FsResult<u64> {
        let pins = self.engine().pins()?;
        let used: BTreeSet<u64> = pins
            .iter()
            .filter_map(|pin| moment_number(&pin.name))
            .collect();
        let free = (1..).find(|number| !used.contains(number));
        Ok(free.expect("fewer pins than numbers"))
    }

    fn drop_moment(&self, moment: &MomentInfo, round: &mut HistoryRound) -> FsResult<()> {
        self.engine().drop_pin(&moment_pin(moment.number))?;
        round.dropped.push(moment.clone());
        Ok(())
    }

    /// Reports whether nine tenths of the store are in use.
    fn is_space_short(&self) -> bool {
        let space = self.engine().space();
        space.free_bytes < space.total_bytes / 10
    }

    /// Drops the older half of the moments, for an operation that found no space. Reports whether
    /// there were any.
    pub(crate) fn yield_history(&self) -> FsResult<bool> {
        if self.is_read_only() || self.branch.is_some() || self.header.lock().rolls_back {
            return Ok(false);
        }
        let _running = self.history.running.lock();
        let moments = self.moments()?;
        let count = moments.len().div_ceil(2);
        let mut round = HistoryRound::default();
        for moment in &moments[..count] {
            self.drop_moment(moment, &mut round)?;
        }
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
    pub fn open_moment(&self, id: PinId) -> FsResult<SnapshotView> {
        self.open_moment_at(&self.moment(id)?, Ino::ROOT, Vec::new())
    }

    pub(crate) fn open_moment_at(
        &self,
        moment: &MomentInfo,
        root: Ino,
        path: Vec<u8>,
    ) -> FsResult<SnapshotView> {
        let info = moment.as_snapshot_of(root, path);
        let pin = moment_pin(moment.number);
        SnapshotView::open_pin(self.engine(), &self.options, &pin, info)
    }

    /// Returns the numbers of the pins of all snapshots and moments, in rising order.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn pinned(&self) -> FsResult<Vec<PinId>> {
        let mut ids: Vec<PinId> = self.snapshots()?.iter().map(|info| info.id).collect();
        ids.extend(self.moments()?.iter().map(|moment| moment.id));
        ids.sort_unstable();
        Ok(ids)
    }

    /// Opens the snapshot or moment that a pin is.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub fn open_pinned(&self, id: PinId) -> FsResult<SnapshotView> {
        let snapshots = self.snapshots()?;
        match snapshots.into_iter().find(|info| info.id == id) {
            Some(info) => SnapshotView::open(self.engine(), &self.options, info),
            None => self.open_moment(id),
        }
    }

    /// Opens a moment with a directory that is known in the present; `None` if its path led
    /// elsewhere then.
    fn open_dir_at(&self, id: PinId, dir: Ino, path: &[u8]) -> FsResult<Option<SnapshotView>> {
        match self.open_moment_at(&self.moment(id)?, dir, path.to_vec()) {
            Ok(view) => Ok(Some(view)),
            Err(FsError::Stale(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reports whether a directory that is known, or anything below it, is different at two
    /// moments, the second one being the present for `None`. Times of access make no difference. A
    /// directory that had another path then counts as one that was not there.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if a moment was dropped; [`FsError::NotDir`]; those of a read.
    ///
    /// # Cost
    /// None if nothing was written between them. Otherwise, for a directory with many names, that
    /// of reading what was written in the store between them, if file handles or a comparison of
    /// moments have put back rows before. Else a scan of all names below the directory on both
    /// sides, up to the first difference.
    pub fn has_changed(&self, dir: Ino, from: PinId, to: Option<PinId>) -> FsResult<bool> {
        let path = self.path_of(dir)?;
        let seqno = |id: PinId| Ok::<_, FsError>(self.moment(id)?.seqno);
        let to_seqno = match to {
            Some(to) => seqno(to)?,
            None => self.engine().snapshot().seqno(),
        };
        if seqno(from)? == to_seqno {
            return Ok(false);
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
            None => TreeState::Now(self),
        };
        let states = (TreeState::Past(&then), now);
        Ok(!self.is_same_tree(dir, (from, to), states)?)
    }

    /// Makes a directory what it was at a moment, as [`Self::roll_back`] does with a snapshot.
    ///
    /// # Errors
    /// As [`Self::roll_back`]; [`FsError::Stale`] for a directory that had another path then.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn roll_back_to_moment(
        &self,
        id: PinId,
        dir: Ino,
        owner: Option<u32>,
    ) -> FsResult<Notices> {
        let moment = self.moment(id)?;
        let path = self.path_of(dir)?;
        self.roll_back_with(dir, owner, || self.open_moment_at(&moment, dir, path))
    }
}

#[cfg(test)]
mod tests;
