//! Requests to create and delete snapshots; see [`crate::snapshots`].

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::{FileKind, FsError, FsResult, SnapshotInfo};

use super::Views;
use super::node::{ControlDir, Node};
use crate::adapter::OrErrno as _;
use crate::adapter::process::Process;
use crate::adapter::report::check_caller;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::snapshots::Change;
use crate::survive::is_resent;

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
        };
        drop(changing);
        if changed.is_ok() {
            let list = ControlDir::Snapshots.number();
            if !self.mainline.pages.drop_range(list, 0..0, PATIENCE) {
                tracing::debug!("the kernel may list snapshots as they were for a moment");
            }
        }
        changed
    }

    fn create(&self, context: &Context<'_>, dir: Ino, name: &str) -> Answer<()> {
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
        Ok(())
    }

    fn is_of(&self, name: &str, dir: Ino) -> FsResult<SnapshotInfo> {
        let info = self.mainline.fs().snapshot(name)?;
        if info.root == dir {
            Ok(info)
        } else {
            Err(FsError::Exists)
        }
    }

    fn delete(&self, context: &Context<'_>, name: &str) -> Answer<()> {
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
        if let Some(past) = info.and_then(|info| self.table.take_deleted(&info)) {
            self.notices.drop_all(past.numbers());
        }
        tracing::info!(name, "deleted a snapshot");
        Ok(())
    }
}

/// Root, the user of the daemon and the owner of the directory may.
pub(super) fn check_owner(context: &Context<'_>, owner: u32) -> Answer<()> {
    if check_caller(context).is_ok() || Process::of(context).uid() == Some(owner) {
        return Ok(());
    }
    Err(Errno::EPERM)
}
