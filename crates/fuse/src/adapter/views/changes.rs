//! Requests to create, delete, hold and release snapshots; see [`crate::snapshots`].

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{FileKind, FsError, FsResult, SnapshotInfo};

use super::Views;
use super::node::{ControlDir, Node};
use super::policies::PolicyRunner;
use super::rollback::{RollbackJob, RollbackTo};
use super::table::Past;
use crate::adapter::OrErrno as _;
use crate::adapter::process::Process;
use crate::adapter::report::check_caller;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::notify::Notifier;
use crate::snapshots::Change;
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
        // One after the other: whose snapshot has a name is looked at first.
        let changing = self.changing.lock();
        let changed = match change {
            Change::Create(name) => self.create(context, ino, name),
            Change::Delete(name) => self.delete(context, name),
            Change::Hold(name, tag) => return self.hold(context, name, tag),
            Change::Release(name, tag) => return self.release(context, name, tag),
            Change::RollBack(name, before) => self.roll_back(context, ino, name, before),
            Change::RolledBack(before) => return self.rolled_back(before),
            Change::Undo(moment, before) => self.undo(context, ino, moment, before),
            Change::HasChanged(from, to) => {
                drop(changing);
                return self.has_changed(context, ino, (from, to));
            }
            Change::SetPolicy(rule) => {
                let fs = self.mainline.fs();
                return self.change_policy(context, ino, || fs.set_policy(ino, &rule));
            }
            Change::DeletePolicy => {
                let fs = self.mainline.fs();
                return self.change_policy(context, ino, || match fs.delete_policy(ino) {
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
        for list in BTreeSet::from([Ino::ROOT, dir]) {
            let list = ControlDir::snapshots_of(list).number();
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
        if let (ControlDir::SnapshotsOf(dir), Ok(info)) = (place, self.mainline.fs().snapshot(text))
            && info.root != dir
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
            notifier: notifier.clone(),
        }
    }

    fn change_policy(
        &self,
        context: &Context<'_>,
        dir: Ino,
        change: impl FnOnce() -> FsResult<()>,
    ) -> Answer<()> {
        if self.node(dir) != Node::Mainline {
            return Err(Errno::EROFS);
        }
        let attr = self.mainline.fs().get_attr(dir).or_errno()?;
        if attr.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        check_owner(context, attr.uid)?;
        change().or_errno()?;
        self.policies.note();
        Ok(())
    }

    /// Creates a snapshot. Returns its directory.
    fn create(&self, context: &Context<'_>, dir: Ino, name: &str) -> Answer<Ino> {
        if self.node(dir) != Node::Mainline {
            return Err(Errno::EROFS);
        }
        let fs = self.mainline.fs();
        let attr = fs.get_attr(dir).or_errno()?;
        if attr.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        check_owner(context, attr.uid)?;
        let created = match fs.create_snapshot(dir, name) {
            // Perhaps this very request has done it, and only the answer is missing.
            Err(FsError::Exists) if is_resent(context.unique) => self.is_of(name, dir),
            other => other,
        };
        let info = created.or_errno()?;
        let shown = OsString::from_vec(info.path);
        tracing::info!(name, path = ?shown, "created a snapshot");
        Ok(dir)
    }

    /// Creates the snapshot `before`, and begins a rollback.
    fn roll_back(&self, context: &Context<'_>, dir: Ino, name: &str, before: &str) -> Answer<Ino> {
        let fs = self.mainline.fs();
        self.rollbacks.check_idle()?;
        let info = fs.snapshot(name).or_errno()?;
        if self.node(dir) == Node::Mainline && info.root != dir {
            return Err(Errno::EINVAL);
        }
        self.begin_rollback(context, dir, RollbackTo::Snapshot(name.to_owned()), before)
    }

    /// Creates the snapshot `before`, and begins to go back to a moment of the history.
    fn undo(&self, context: &Context<'_>, dir: Ino, name: &str, before: &str) -> Answer<Ino> {
        self.rollbacks.check_idle()?;
        let moment = self.table.moment(name.as_bytes())?;
        self.begin_rollback(context, dir, RollbackTo::Moment(moment), before)
    }

    fn has_changed(&self, context: &Context<'_>, dir: Ino, of: (&str, Option<&str>)) -> Answer<()> {
        if self.node(dir) != Node::Mainline {
            return Err(Errno::EROFS);
        }
        let fs = self.mainline.fs();
        check_owner(context, fs.get_attr(dir).or_errno()?.uid)?;
        let from = self.table.moment(of.0.as_bytes())?.id;
        let to = match of.1 {
            Some(name) => Some(self.table.moment(name.as_bytes())?.id),
            None => None,
        };
        match fs.has_changed(dir, from, to).or_errno()? {
            true => Ok(()),
            false => Err(Errno::ENODATA),
        }
    }

    fn begin_rollback(
        &self,
        context: &Context<'_>,
        dir: Ino,
        to: RollbackTo,
        before: &str,
    ) -> Answer<Ino> {
        // Checks the caller, too.
        self.create(context, dir, before)?;
        let is_root = check_caller(context).is_ok();
        self.rollbacks.begin(RollbackJob {
            to,
            dir,
            owner: if is_root {
                None
            } else {
                Process::of(context).uid()
            },
            before: before.to_owned(),
        });
        Ok(dir)
    }

    fn rolled_back(&self, before: &str) -> Answer<()> {
        let outcome = self.rollbacks.outcome(before);
        if outcome.is_ok() {
            // Some that were removed are to be emptied, others were not open.
            self.mainline.trees.note();
            self.mainline.reclaiming.note();
        }
        outcome
    }

    fn is_of(&self, name: &str, dir: Ino) -> FsResult<SnapshotInfo> {
        let info = self.mainline.fs().snapshot(name)?;
        if info.root == dir {
            Ok(info)
        } else {
            Err(FsError::Exists)
        }
    }

    fn hold(&self, context: &Context<'_>, name: &str, tag: &str) -> Answer<()> {
        let fs = self.mainline.fs();
        check_owner(context, fs.snapshot(name).or_errno()?.owner)?;
        match fs.hold_snapshot(name, tag) {
            // Perhaps this very request has done it.
            Err(FsError::Exists) if is_resent(context.unique) => Ok(()),
            other => other.or_errno(),
        }
    }

    fn release(&self, context: &Context<'_>, name: &str, tag: &str) -> Answer<()> {
        let fs = self.mainline.fs();
        check_owner(context, fs.snapshot(name).or_errno()?.owner)?;
        match fs.release_snapshot(name, tag) {
            Err(FsError::NoData) if is_resent(context.unique) => Ok(()),
            other => other.or_errno(),
        }
    }

    /// Deletes a snapshot. Returns the directory that it was of; the root's if that is not known.
    fn delete(&self, context: &Context<'_>, name: &str) -> Answer<Ino> {
        let fs = self.mainline.fs();
        let info = match fs.snapshot(name) {
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
        match fs.delete_snapshot(name) {
            Err(FsError::NotFound) if is_resent(context.unique) => {}
            other => other.or_errno()?,
        }
        let dir = info.as_ref().map_or(Ino::ROOT, |info| info.root);
        if let Some(past) = info.and_then(|info| self.table.take_deleted(&info)) {
            self.notices.drop_all(past.numbers());
        }
        tracing::info!(name, "deleted a snapshot");
        Ok(dir)
    }
}

/// Root, the user of the daemon and the owner of the directory may.
pub(super) fn check_owner(context: &Context<'_>, owner: u32) -> Answer<()> {
    if check_caller(context).is_ok() || Process::of(context).uid() == Some(owner) {
        return Ok(());
    }
    Err(Errno::EPERM)
}
