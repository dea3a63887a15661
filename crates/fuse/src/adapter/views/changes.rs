//! Requests to create, delete, hold and release snapshots; see [`crate::snapshots`].

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{FileKind, FileSystem, FsError, FsResult, RollbackRights, SnapshotInfo};

use super::node::{ControlDir, number_of_source};
use super::policies::PolicyRunner;
use super::rollback::{RollbackJob, RollbackRunner, RollbackTo};
use super::table::Past;
use super::unasked::UnaskedChange;
use super::writable::WritableDir;
use super::{Views, is_of};
use crate::adapter::OrErrno as _;
use crate::adapter::process::Process;
use crate::adapter::report::check_caller;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::notify::Notifier;
use crate::snapshots::{Change, RollbackTerms};
use crate::survive::is_resent;
use crate::wire::reply::{Entry, Lookup};

/// Name of an attribute of a snapshot's directory that tells what the snapshot is of. It is not
/// stored, and not listed.
pub const SNAPSHOT_XATTR: &str = "stitchfs.snapshot";

/// How long a request waits until the kernel has dropped its list of snapshots.
const PATIENCE: Duration = Duration::from_secs(2);

impl Views {
    pub(super) fn change_snapshots(
        &self,
        context: &Context<'_>,
        ino: Ino,
        input: &[u8],
    ) -> Answer<()> {
        let change = Change::parse(input).ok_or(Errno::EINVAL)?;
        if change.is_refused_read_only() {
            self.check_mode()?;
        }
        // One after the other: whose snapshot has a name is looked at first.
        let changing = self.changing.lock();
        let changed = match change {
            Change::Create(name) => self.create(context, ino, name),
            Change::Delete(name) => self.delete(context, name),
            Change::Hold(name, tag) => return self.hold(context, name, tag),
            Change::Release(name, tag) => return self.release(context, name, tag),
            Change::RollBack(name, terms) => self.roll_back(context, ino, name, terms),
            Change::RolledBack(before) => return self.rolled_back(before),
            Change::Undo(moment, terms) => self.undo(context, ino, moment, terms),
            Change::HasChanged(from, to) => {
                drop(changing);
                return self.has_changed(context, ino, (from, to));
            }
            // These two wait for a round of the policies, which compares directories.
            Change::SetPolicy(rule) => {
                drop(changing);
                return self.change_policy(context, ino, |dir| dir.set_policy(&rule));
            }
            Change::DeletePolicy => {
                drop(changing);
                return self.change_policy(context, ino, |dir| match dir.delete_policy() {
                    Err(FsError::NotFound) if is_resent(context.unique) => Ok(()),
                    other => other,
                });
            }
        };
        drop(changing);
        self.drop_lists(changed?);
        Ok(())
    }

    /// Has the kernel drop its lists of snapshots, after one of a directory came or went.
    fn drop_lists(&self, dir: Ino) {
        let changed = UnaskedChange::SnapshotLists(BTreeSet::from([dir]));
        for list in changed.notices().inodes {
            if !self.mainline.pages.drop_range(list, 0..0, PATIENCE) {
                tracing::debug!("the kernel may list snapshots as they were for a moment");
            }
        }
    }

    /// Serves mkdir(2) in a directory of snapshots.
    pub(super) fn make_snapshot(
        &self,
        context: &Context<'_>,
        place: ControlDir,
        name: &[u8],
    ) -> Answer<Entry> {
        let dir = place.of().ok_or(Errno::EROFS)?;
        let text = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        let changing = self.changing.lock();
        self.create(context, dir, text)?;
        drop(changing);
        self.drop_lists(dir);
        match self.table.named(name, Past::lookup_root)? {
            Lookup::Found(entry) => Ok(entry),
            Lookup::Missing { .. } => Err(Errno::ESTALE),
        }
    }

    /// Serves rmdir(2) in a directory of snapshots.
    pub(super) fn remove_snapshot(
        &self,
        context: &Context<'_>,
        place: ControlDir,
        name: &[u8],
    ) -> Answer<()> {
        place.of().ok_or(Errno::EROFS)?;
        let text = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let changing = self.changing.lock();
        if let (ControlDir::SnapshotsOf(dir), Ok(info)) =
            (place, self.mainline.fs().snapshots().get(text))
            && !is_of(&info, dir)
        {
            return Err(Errno::ENOENT);
        }
        let dir = self.delete(context, text)?;
        drop(changing);
        self.drop_lists(dir);
        Ok(())
    }

    /// Returns what the thread of policies needs.
    pub(super) fn policy_runner(&self, notifier: &Notifier) -> PolicyRunner {
        PolicyRunner {
            fs: Arc::clone(self.mainline.fs()),
            table: Arc::clone(&self.table),
            notices: Arc::clone(&self.notices),
            places: Arc::clone(&self.places),
            mode: Arc::clone(&self.mode),
            notifier: notifier.clone(),
        }
    }

    fn change_policy(
        &self,
        context: &Context<'_>,
        number: Ino,
        change: impl FnOnce(&WritableDir) -> FsResult<()>,
    ) -> Answer<()> {
        let dir = self.writable_dir(number)?;
        check_dir(context, dir.fs(), dir.ino())?;
        change(&dir).or_errno()?;
        self.policies.note();
        Ok(())
    }

    /// Creates a snapshot of a directory of mainline or of a clone. Returns the directory of
    /// mainline whose list of snapshots it is in, beside that of all.
    fn create(&self, context: &Context<'_>, number: Ino, name: &str) -> Answer<Ino> {
        let dir = self.writable_dir(number)?;
        check_dir(context, dir.fs(), dir.ino())?;
        let created = match dir.create_snapshot(name) {
            // Perhaps this very request has done it, and only the answer is missing.
            Err(FsError::Exists) if is_resent(context.unique) => self.is_made_of(name, number),
            other => other,
        };
        let info = created.or_errno()?;
        self.places.note();
        let shown = OsString::from_vec(info.path);
        tracing::info!(name, path = ?shown, "created a snapshot");
        Ok(dir.list())
    }

    /// Returns what the thread of rollbacks needs.
    pub(super) fn rollback_runner(&self, notifier: &Notifier) -> RollbackRunner {
        RollbackRunner {
            fs: Arc::clone(self.mainline.fs()),
            table: Arc::clone(&self.table),
            changing: Arc::clone(&self.changing),
            notifier: notifier.clone(),
        }
    }

    /// Creates the snapshot before, and begins a rollback.
    fn roll_back(
        &self,
        context: &Context<'_>,
        dir: Ino,
        name: &str,
        terms: RollbackTerms<'_>,
    ) -> Answer<Ino> {
        let fs = self.mainline.fs();
        self.rollbacks.check_idle()?;
        let info = fs.snapshots().get(name).or_errno()?;
        self.writable_dir(dir)?;
        if number_of_source(&info) != dir {
            return Err(Errno::EINVAL);
        }
        self.begin_rollback(context, dir, RollbackTo::Snapshot(name.to_owned()), terms)
    }

    /// Creates the snapshot before, and begins to go back to a moment of the history.
    fn undo(
        &self,
        context: &Context<'_>,
        dir: Ino,
        name: &str,
        terms: RollbackTerms<'_>,
    ) -> Answer<Ino> {
        self.rollbacks.check_idle()?;
        let moment = self.table.moment(name.as_bytes())?;
        self.begin_rollback(context, dir, RollbackTo::Moment(moment), terms)
    }

    fn has_changed(&self, context: &Context<'_>, dir: Ino, of: (&str, Option<&str>)) -> Answer<()> {
        let dir = self.writable_dir(dir)?;
        check_owner(context, dir.fs().get_attr(dir.ino()).or_errno()?.uid)?;
        let from = self.table.moment(of.0.as_bytes())?.id;
        let to = match of.1 {
            Some(name) => Some(self.table.moment(name.as_bytes())?.id),
            None => None,
        };
        match dir
            .fs()
            .history()
            .has_changed(dir.ino(), from, to)
            .or_errno()?
        {
            true => Ok(()),
            false => Err(Errno::ENODATA),
        }
    }

    fn begin_rollback(
        &self,
        context: &Context<'_>,
        number: Ino,
        to: RollbackTo,
        terms: RollbackTerms<'_>,
    ) -> Answer<Ino> {
        let dir = self.writable_dir(number)?;
        let owner = limited_to(context)?;
        // Checks the caller, too.
        let list = self.create(context, number, terms.before)?;
        self.rollbacks.begin(RollbackJob {
            to,
            dir,
            rights: RollbackRights {
                owner,
                later_clones: terms.later_clones,
            },
            before: terms.before.to_owned(),
        });
        Ok(list)
    }

    fn rolled_back(&self, before: &str) -> Answer<()> {
        let outcome = self.rollbacks.outcome(before);
        if outcome.is_ok() {
            // Some that were removed are to be emptied, others were not open.
            self.mainline.trees.note();
            self.mainline.reclaiming.note();
            // Clones that were made after the snapshot.
            self.leave_removed();
        }
        outcome
    }

    /// Returns the snapshot of this name, if it is of a directory.
    fn is_made_of(&self, name: &str, dir: Ino) -> FsResult<SnapshotInfo> {
        let info = self.mainline.fs().snapshots().get(name)?;
        match number_of_source(&info) == dir {
            true => Ok(info),
            false => Err(FsError::Exists),
        }
    }

    fn hold(&self, context: &Context<'_>, name: &str, tag: &str) -> Answer<()> {
        let fs = self.mainline.fs();
        check_owner(context, fs.snapshots().get(name).or_errno()?.owner)?;
        match fs.snapshots().hold(name, tag) {
            // Perhaps this very request has done it.
            Err(FsError::Exists) if is_resent(context.unique) => Ok(()),
            other => other.or_errno(),
        }
    }

    fn release(&self, context: &Context<'_>, name: &str, tag: &str) -> Answer<()> {
        let fs = self.mainline.fs();
        check_owner(context, fs.snapshots().get(name).or_errno()?.owner)?;
        match fs.snapshots().release(name, tag) {
            Err(FsError::NoData) if is_resent(context.unique) => Ok(()),
            other => other.or_errno(),
        }
    }

    /// Deletes a snapshot. Returns the directory that it was of; the root's if that is not known.
    fn delete(&self, context: &Context<'_>, name: &str) -> Answer<Ino> {
        let fs = self.mainline.fs();
        let info = match fs.snapshots().get(name) {
            Ok(info) => Some(info),
            // Perhaps one whose record is not readable.
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error).or_errno(),
        };
        match &info {
            Some(info) => check_owner(context, info.owner)?,
            None if check_caller(context).is_err() => return Err(Errno::ENOENT),
            None => {}
        }
        match fs.snapshots().delete(name) {
            Err(FsError::NotFound) if is_resent(context.unique) => {}
            other => other.or_errno()?,
        }
        let dir = info.as_ref().map_or(Ino::ROOT, listed_in);
        if let Some(past) = info.and_then(|info| self.table.take_deleted(&info)) {
            self.notices.queue(UnaskedChange::View(past.numbers()));
        }
        tracing::info!(name, "deleted a snapshot");
        Ok(dir)
    }
}

/// Returns the user whose files alone a request may concern; `None` for root and the user who
/// mounted.
pub(super) fn limited_to(context: &Context<'_>) -> Answer<Option<u32>> {
    match check_caller(context) {
        Ok(()) => Ok(None),
        Err(_) => Process::of(context).uid().map(Some).ok_or(Errno::EPERM),
    }
}

/// Returns the directory of mainline whose list has a snapshot; the root's has all.
pub(super) const fn listed_in(info: &SnapshotInfo) -> Ino {
    match info.view {
        0 => info.root,
        _ => Ino::ROOT,
    }
}

/// Refuses an inode that is no directory, and callers that may not create snapshots of it.
fn check_dir(context: &Context<'_>, fs: &FileSystem, dir: Ino) -> Answer<()> {
    let attr = fs.get_attr(dir).or_errno()?;
    if attr.kind != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    check_owner(context, attr.uid)
}

/// Root, the user of the daemon and the owner of the directory may.
pub(super) fn check_owner(context: &Context<'_>, owner: u32) -> Answer<()> {
    if check_caller(context).is_ok() || Process::of(context).uid() == Some(owner) {
        return Ok(());
    }
    Err(Errno::EPERM)
}
