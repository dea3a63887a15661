//! Policies: snapshots of a directory that are created every so often, and deleted by age.
//!
//! ```text
//! policy of d: every 15 min, hourly=24    12:14  12:15         12:30         13:00
//! rounds                                    |      create      | create      | create
//!                                                                | delete 12:15 (not 12:30)
//! ```
//!
//! - A policy is a row of mainline's sys tree. The first one sets a feature in the header, and the
//!   first one of a directory in a clone another. Those go with the clone ([`in_clone`]).
//! - Nothing else is stored: the newest automatic snapshot of the directory says whether the next
//!   one is due, so a policy goes on after a crash, or a time without a mount, where it was.
//! - None is created while nothing below the directory has changed since the last one.
//! - Only automatic snapshots of the directory are deleted, and none that is held.
//!
//! | part | has |
//! |---|---|
//! | [`Policies`] | what callers ask for: set, delete, list, run |
//! | [`PolicyDirs`] | the directories of policies, also in clones, and snapshots of them |
//! | [`keep`] | which snapshots are kept, and when one is due |
//! | [`PolicyState`] | what is in memory: how far each policy has come |
//!
//! Locks: one round at a time; `progress` is held for moments.

mod dirs;
mod in_clone;
mod keep;

use crate::change::Changes;
use crate::difference::Comparer;
use crate::locator::{Locator, SysRow, Tree};
use crate::pins::{PinMaker, Pins};
use crate::residents::Residents;
use crate::schema::Store;
use crate::snapshot::SnapshotInfo;
use crate::system::FileSystem;
use crate::unchanged::TreeState;
use crate::views::ViewSet;
use crate::{FsError, FsResult};
use std::collections::HashMap;
use stitch_base::calendar::UtcTime;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Mutex;
use stitch_base::{ErrorKind, Ino};
use stitch_db::SpaceClass;
use stitch_format::fs_policy::{PolicyRow, is_prefix};
use stitch_format::fs_sys::FsHeader;

use dirs::{HeldDir, PolicyDirs};
pub use stitch_format::fs_policy::{Keep, POLICY_EVERY_S_MAX, POLICY_PREFIX_BYTES_MAX};

/// Seconds until a policy that failed is tried again, at most.
const RETRY_S: i64 = 60;
const _: () = assert!(RETRY_S > 0, "a policy that failed is tried later");

/// What a policy is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// Seconds from one snapshot to the next. Intervals begin at whole multiples since 1970.
    pub every_s: u64,
    /// Which are kept.
    pub keep: Keep,
    /// What the names of the snapshots begin with; `-` and the time of UTC follow.
    pub prefix: String,
}

/// A policy of snapshots of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Number of the clone that the directory is in, 0 for mainline.
    pub view: u64,
    /// The directory, in the file system that it is in.
    pub dir: Ino,
    /// Its path when the policy last used it, from the root of mainline; through the directories
    /// at which clones lie.
    pub path: Vec<u8>,
    /// User that owned it when the policy was set.
    pub owner: u32,
    /// What it is to do.
    pub rule: PolicyRule,
    /// When it is looked at next.
    pub next: Timestamp,
    /// Why the last try failed; `None` if it did not.
    pub last_error: Option<String>,
}

/// What a round of all policies has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRound {
    /// Snapshots that were created.
    pub created: Vec<SnapshotInfo>,
    /// Snapshots that were deleted.
    pub deleted: Vec<SnapshotInfo>,
    /// Seconds until the next one is due; `None` without policies.
    pub next_s: Option<u64>,
}

/// How far a policy has come, since the file system was opened.
#[derive(Clone, Debug, Default)]
struct PolicyProgress {
    /// The last interval for which all was done.
    done: Option<i64>,
    last_error: Option<String>,
}

/// What a policy is of: a view, 0 for mainline, and a directory in it.
type PolicyKey = (u64, Ino);

/// The policies' state in memory.
#[derive(Debug, Default)]
pub(crate) struct PolicyState {
    progress: Mutex<HashMap<PolicyKey, PolicyProgress>>,
    /// Held for a round.
    running: Mutex<()>,
}

impl PolicyProgress {
    /// The second at which the policy is looked at next.
    fn next_s(&self, every_s: u64, now_s: i64) -> i64 {
        let every = every_s.cast_signed();
        debug_assert!(every > 0, "the row was checked");
        let due = (keep::interval_of(now_s, every_s) + 1) * every;
        debug_assert!(due > now_s, "the next interval has not begun");
        match &self.last_error {
            Some(_) => due.min(now_s + RETRY_S),
            None => due,
        }
    }
}

impl PolicyInfo {
    const fn key(&self) -> PolicyKey {
        (self.view, self.dir)
    }
}

/// The policies of a store: see [`FileSystem::policies`].
#[derive(Clone, Copy)]
pub struct Policies<'fs> {
    state: &'fs PolicyState,
    /// Rows of mainline, which has those of all policies.
    store: &'fs Store,
    header: &'fs Mutex<FsHeader>,
    pins: Pins<'fs>,
    maker: PinMaker<'fs>,
    dirs: PolicyDirs<'fs>,
    /// Records of clones.
    views: &'fs ViewSet,
    residents: &'fs Residents,
    comparer: Comparer<'fs>,
    changes: Changes<'fs>,
    is_mainline: bool,
    is_read_only: bool,
}

impl std::fmt::Debug for Policies<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policies")
            .field("state", self.state)
            .finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Returns the handle of this file system's policies. It borrows what it uses: to take it costs
    /// nothing.
    #[must_use]
    pub fn policies(&self) -> Policies<'_> {
        Policies {
            state: &self.policies,
            store: &self.store,
            header: &self.header,
            pins: Pins::of(self),
            maker: PinMaker::of(self),
            dirs: PolicyDirs::of(self),
            views: &self.standing.views,
            residents: &self.residents,
            comparer: self.comparer(),
            changes: Changes::of(self),
            is_mainline: self.is_mainline(),
            is_read_only: self.is_read_only(),
        }
    }
}

impl Policies<'_> {
    /// Sets the policy of a directory that is known, instead of the one that it has. The automatic
    /// snapshots that the directory has are the policy's from then on.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for an interval of 0 or more than [`POLICY_EVERY_S_MAX`], and for what
    /// is no prefix: 1 to [`POLICY_PREFIX_BYTES_MAX`] bytes without slashes and control characters;
    /// those of [`crate::Snapshots::create`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn set(&self, dir: Ino, rule: &PolicyRule) -> FsResult<()> {
        let owner = self.residents.inodes.get_dir(dir)?.head.uid;
        self.put_new((0, dir), rule, owner, self.residents.path_of(dir)?)
    }

    fn put_new(
        &self,
        key: PolicyKey,
        rule: &PolicyRule,
        owner: u32,
        path: Vec<u8>,
    ) -> FsResult<()> {
        self.check_writable()?;
        self.maker.check_takes_pins()?;
        debug_assert!(self.is_mainline, "rows of policies are in mainline");
        if !(1..=POLICY_EVERY_S_MAX).contains(&rule.every_s) {
            return Err(FsError::Invalid("an interval is 1 s to ten years"));
        }
        if !is_prefix(&rule.prefix) {
            return Err(FsError::Invalid("no prefix of names of snapshots"));
        }
        self.changes.mark_header(|header| match key.0 {
            0 => header.has_policies = true,
            _ => header.has_clone_policies = true,
        })?;
        let _running = self.state.running.lock();
        debug_assert!(key.1.0 > 0, "a number of a directory");
        let row = rule.row(owner, path);
        self.put(key, &row, SpaceClass::Normal)?;
        self.state.progress.lock().remove(&key);
        Ok(self.pins.engine.sync()?)
    }

    fn put(&self, (view, dir): PolicyKey, row: &PolicyRow, space: SpaceClass) -> FsResult<()> {
        debug_assert!(dir.0 > 0, "a number of a directory");
        debug_assert_eq!(
            self.store.keys.policy(view, dir).tree(),
            Tree::Sys,
            "where policies are"
        );
        let mut batch = self.store.batch();
        let bytes = row.encode();
        debug_assert!(
            PolicyRow::decode(&bytes).is_ok(),
            "a reader takes what is written"
        );
        batch.put(&self.store.keys.policy(view, dir), &bytes);
        self.changes.commit_rows(&batch, space)
    }

    /// Deletes the policy of a directory. Its snapshots stay.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it has none; [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn delete(&self, dir: Ino) -> FsResult<()> {
        self.check_writable()?;
        let _running = self.state.running.lock();
        self.drop_of((0, dir))
    }

    fn drop_of(&self, key: PolicyKey) -> FsResult<()> {
        let row = self.store.keys.policy(key.0, key.1);
        self.store.get(&row)?.ok_or(FsError::NotFound)?;
        let mut batch = self.store.batch();
        batch.delete(&row);
        debug_assert!(!batch.is_empty(), "the row goes");
        self.changes.commit_rows(&batch, SpaceClass::Reserve)?;
        self.state.progress.lock().remove(&key);
        Ok(self.pins.engine.sync()?)
    }

    /// Returns all policies, those of mainline first, by the numbers of their directories. One
    /// whose row cannot be read is left out. Opens no clone.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    pub fn list(&self) -> FsResult<Vec<PolicyInfo>> {
        let mut found = self.stored()?;
        found.retain(|policy| policy.view == 0 || self.views.record(policy.view).is_some());
        debug_assert!(
            found.is_sorted_by(|a, b| a.key() < b.key()),
            "one of a directory"
        );
        Ok(found)
    }

    /// Returns all policies, also those in clones that were removed a moment ago.
    fn stored(&self) -> FsResult<Vec<PolicyInfo>> {
        let mut found = Vec::new();
        let header = *self.header.lock();
        if !header.has_policies && !header.has_clone_policies {
            return Ok(found);
        }
        let now_s = Timestamp(self.changes.now()).seconds();
        let mut scan = self.store.scan(&self.store.keys.policies())?;
        while let Some((key, row)) = scan.next()? {
            match (Locator::sys_row(key), PolicyRow::decode(row)) {
                (Some(SysRow::Policy(view, dir)), Ok(row)) => {
                    found.push(self.info_of((view, dir), row, now_s));
                }
                (_, row) => tracing::warn!(?row, "a policy cannot be read: fsck finds it"),
            }
        }
        // Rows of both kinds are mixed.
        found.sort_by_key(PolicyInfo::key);
        debug_assert!(
            found.is_sorted_by(|a, b| a.key() < b.key()),
            "one of a directory"
        );
        Ok(found)
    }

    fn info_of(&self, key: PolicyKey, row: PolicyRow, now_s: i64) -> PolicyInfo {
        let progress = self.state.progress.lock().get(&key).cloned();
        let progress = progress.unwrap_or_default();
        let next_s = progress.next_s(row.every_s, now_s);
        debug_assert!(next_s > now_s, "a policy is not looked at twice at once");
        PolicyInfo {
            view: key.0,
            dir: key.1,
            path: row.path,
            owner: row.owner,
            rule: PolicyRule {
                every_s: row.every_s,
                keep: row.keep,
                prefix: row.prefix,
            },
            next: Timestamp::from_parts(next_s, 0),
            last_error: progress.last_error,
        }
    }

    /// Creates the snapshots that are due, and deletes those that are not kept any more. To be
    /// called by a thread of its own, again after [`PolicyRound::next_s`].
    ///
    /// # Errors
    /// Those of reading the policies. What fails of one policy is logged once, and tried again in
    /// the next rounds; [`PolicyInfo::last_error`] tells it.
    ///
    /// # Cost
    /// For each policy that is due, a walk through its directory now and in its last snapshot, up
    /// to the first difference; none if nothing in the store has changed. A clone is opened when a
    /// policy in it is due.
    pub fn run(&self) -> FsResult<PolicyRound> {
        let mut round = PolicyRound::default();
        // A clone shows the rows of its source.
        if self.is_read_only || !self.is_mainline {
            return Ok(round);
        }
        let _running = self.state.running.lock();
        for policy in self.stored()? {
            let done = self.run_one(&policy, &mut round);
            self.note_outcome(&policy, done.err());
        }
        debug_assert!(
            round.created.iter().all(|info| info.is_automatic),
            "a policy may delete them"
        );
        debug_assert!(
            round.deleted.iter().all(|info| info.is_automatic),
            "what users create stays"
        );
        let now_s = Timestamp(self.changes.now()).seconds();
        for policy in self.list()? {
            let wait = policy.next.seconds().saturating_sub(now_s).max(1);
            let wait = wait.cast_unsigned();
            debug_assert!(wait > 0, "rounds are apart");
            round.next_s = Some(round.next_s.map_or(wait, |first| first.min(wait)));
        }
        Ok(round)
    }

    /// Records what came of a policy. The same failure is logged once.
    fn note_outcome(&self, policy: &PolicyInfo, error: Option<FsError>) {
        let path = policy.path.escape_ascii();
        let mut all = self.state.progress.lock();
        let progress = all.entry(policy.key()).or_default();
        let error = error.map(|error| error.to_string());
        match &error {
            Some(error) if progress.last_error.as_ref() != Some(error) => {
                tracing::warn!(%path, error, "a policy of snapshots failed: it is tried again");
            }
            None if progress.last_error.is_some() => {
                tracing::info!(%path, "a policy of snapshots goes on");
            }
            _ => {}
        }
        progress.last_error = error;
    }

    fn run_one(&self, policy: &PolicyInfo, round: &mut PolicyRound) -> FsResult<()> {
        let rule = &policy.rule;
        let now_s = Timestamp(self.changes.now()).seconds();
        let interval = keep::interval_of(now_s, rule.every_s);
        debug_assert!(rule.every_s > 0, "the row was checked");
        let last = self.automatic(policy.key())?.pop();
        let done = {
            let all = self.state.progress.lock();
            all.get(&policy.key()).and_then(|progress| progress.done)
        };
        let last_interval =
            |info: &SnapshotInfo| keep::interval_of(info.created.seconds(), rule.every_s);
        let done = done.or_else(|| last.as_ref().map(last_interval));
        if keep::is_due(interval, done) {
            match self.create_if_changed(policy, last.as_ref(), now_s) {
                Ok(created) => round.created.extend(created),
                Err(FsError::Stale(_)) => {
                    tracing::info!(
                        path = %policy.path.escape_ascii(),
                        "a directory is gone, and its policy of snapshots goes too"
                    );
                    return self.drop_of(policy.key());
                }
                Err(error) => return Err(error),
            }
            let mut all = self.state.progress.lock();
            all.entry(policy.key()).or_default().done = Some(interval);
        }
        self.delete_aged(policy, round)
    }

    fn delete_aged(&self, policy: &PolicyInfo, round: &mut PolicyRound) -> FsResult<()> {
        let mut all = self.automatic(policy.key())?;
        let last = all.last().map(|info| info.id);
        debug_assert!(
            all.iter()
                .all(|info| (info.view, info.root) == policy.key()),
            "snapshots of its directory"
        );
        all.sort_by_key(|info| std::cmp::Reverse((info.created, info.id)));
        let seconds: Vec<i64> = all.iter().map(|info| info.created.seconds()).collect();
        debug_assert!(
            all.iter().all(|info| info.is_automatic),
            "others are not the policy's"
        );
        debug_assert_eq!(seconds.len(), all.len(), "each is judged");
        for (info, is_kept) in all.into_iter().zip(keep::kept(&policy.rule.keep, &seconds)) {
            // The last one may not be the newest: clocks are set back.
            if is_kept || Some(info.id) == last || !info.tags.is_empty() {
                continue;
            }
            match self.maker.delete_snapshot(&info.name) {
                Ok(()) => round.deleted.push(info),
                Err(FsError::NotFound | FsError::Held(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the automatic snapshots of a directory in the order of their creation.
    fn automatic(&self, key: PolicyKey) -> FsResult<Vec<SnapshotInfo>> {
        let mut all = self.pins.snapshots()?;
        all.retain(|info| info.is_automatic && (info.view, info.root) == key);
        debug_assert!(
            all.is_sorted_by(|one, next| one.id < next.id),
            "the last one is the newest"
        );
        Ok(all)
    }

    /// Creates a snapshot, unless nothing has changed since the last one.
    fn create_if_changed(
        &self,
        policy: &PolicyInfo,
        last: Option<&SnapshotInfo>,
        now_s: i64,
    ) -> FsResult<Option<SnapshotInfo>> {
        let known = self.dirs.known(policy)?;
        match last.map(|last| self.is_unchanged_since(last, known.fs())) {
            Some(Ok(true)) => Ok(None),
            // What cannot be compared is kept.
            _ => self.create_automatic(policy, &known, now_s).map(Some),
        }
    }

    /// Reports whether nothing below the directory of a snapshot has changed since. The directory
    /// is known in `now`.
    fn is_unchanged_since(&self, last: &SnapshotInfo, now: &FileSystem) -> FsResult<bool> {
        let pin = self.pins.pin(last.id)?;
        if pin.seqno == self.pins.engine.snapshot().seqno() {
            return Ok(true);
        }
        let view = self.pins.open_snapshot(&last.name)?;
        debug_assert_eq!(view.info().id, last.id, "the snapshot of the policy");
        let states = (&view, TreeState::Now(now));
        self.comparer
            .is_same_tree(last.root, (last.id, None), states)
    }

    fn create_automatic(
        &self,
        policy: &PolicyInfo,
        known: &HeldDir<'_>,
        now_s: i64,
    ) -> FsResult<SnapshotInfo> {
        let name = format!("{}-{}", policy.rule.prefix, UtcTime::of(now_s).file_name());
        let info = match self.dirs.create(known, &name) {
            // One of another directory, or of before the clock was set back.
            Err(error) if error.kind() == ErrorKind::Exists => {
                let name = match policy.view {
                    0 => format!("{name}-{}", policy.dir),
                    view => format!("{name}-{view}-{}", policy.dir),
                };
                self.dirs.create(known, &name)?
            }
            other => other?,
        };
        debug_assert_eq!(
            (info.view, info.root),
            policy.key(),
            "the directory of the policy"
        );
        if info.path != policy.path {
            let row = policy.rule.row(policy.owner, info.path.clone());
            self.put(policy.key(), &row, SpaceClass::Normal)?;
        }
        Ok(info)
    }

    fn check_writable(&self) -> FsResult<()> {
        match self.is_read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }
}

impl PolicyRule {
    fn row(&self, owner: u32, path: Vec<u8>) -> PolicyRow {
        debug_assert!(is_prefix(&self.prefix), "a prefix was checked");
        PolicyRow {
            every_s: self.every_s,
            keep: self.keep,
            prefix: self.prefix.clone(),
            owner,
            path,
        }
    }
}

#[cfg(test)]
mod tests;
