//! Clears set-id bits when a file's contents change, and tells the kernel.
//!
//! With HANDLE_KILLPRIV_V2 the kernel leaves clearing to the daemon, and keeps its cached mode.
//! Attributes never expire, so it would go on running a changed file with its old rights. So
//! whenever bits were cleared, its attributes are dropped before the reply. WRITE and SETATTR carry
//! a flag whether to clear the bits. FALLOCATE and COPY_FILE_RANGE do not, so the bits are cleared
//! unless root is the caller.

use std::sync::OnceLock;

use stitch_base::Ino;
use stitch_fs::{Attr, ClearSetId, FileSystem, SetAttr};

use super::OrErrno;
use super::process::Process;
use crate::handler::{Answer, Context};
use crate::notify::Notifier;
use crate::survive::is_resent;

/// The kernel's cached attributes.
#[derive(Debug, Default)]
pub(super) struct AttrCache {
    notifier: OnceLock<Notifier>,
}

impl AttrCache {
    pub(super) fn connect(&self, notifier: &Notifier) {
        if self.notifier.set(notifier.clone()).is_err() {
            tracing::error!("mounted twice: only the first mount gets invalidations");
        }
    }

    /// Drops the kernel's attributes of an inode. May be called from inside a request.
    pub(super) fn drop_attr(&self, ino: Ino) {
        if let Some(Err(error)) = self.notifier.get().map(|n| n.invalidate_attr(ino)) {
            tracing::debug!(%error, ino = ino.0, "the kernel was not told of changed attributes");
        }
    }
}

/// Returns the bits that a change of an inode's contents clears, and whether the kernel's
/// attributes are stale after it. A caller that `is_stranger` may not keep the bits.
pub(super) fn taken(
    fs: &FileSystem,
    context: &Context<'_>,
    ino: Ino,
    is_stranger: bool,
) -> Answer<(ClearSetId, bool)> {
    if !is_stranger {
        return Ok((ClearSetId::None, false));
    }
    let attr = fs.get_attr(ino).or_errno()?;
    let taken = taken_by(context, &attr);
    let clears = taken.apply(attr.perm) != attr.perm;
    // The first attempt may have cleared them without a notice.
    Ok((taken, clears || is_resent(context.unique)))
}

/// Returns the bits that a change of contents by this caller clears.
///
/// Set-group-id without the right to execute is cleared only if the caller is outside the file's
/// group, as on Linux since 6.2. The request names one group of the caller. The others are read
/// from the kernel's list, for such files only.
fn taken_by(context: &Context<'_>, attr: &Attr) -> ClearSetId {
    let depends_on_group =
        ClearSetId::All.apply(attr.perm) != ClearSetId::Executable.apply(attr.perm);
    // Without a status the caller counts as outside: clearing one bit too many is safe.
    if depends_on_group && !is_in_group(context, attr.gid) {
        ClearSetId::All
    } else {
        ClearSetId::Executable
    }
}

fn is_in_group(context: &Context<'_>, gid: u32) -> bool {
    context.caller.gid == gid || Process::of(context).is_in_group(gid)
}

/// Clears the bits that a change of contents must clear, unless root is the caller.
pub(super) fn clear(
    fs: &FileSystem,
    cache: &AttrCache,
    context: &Context<'_>,
    ino: Ino,
) -> Answer<()> {
    let attr = fs.get_attr(ino).or_errno()?;
    let perm = taken_by(context, &attr).apply(attr.perm);
    if perm == attr.perm {
        if is_resent(context.unique) {
            // The first attempt may have cleared them without a notice.
            cache.drop_attr(ino);
        }
        return Ok(());
    }
    if Process::of(context).uid() == Some(0) {
        return Ok(());
    }
    let set = SetAttr {
        perm: Some(u32::from(perm)),
        ..SetAttr::default()
    };
    fs.set_attr(&stitch_fs::Caller::ROOT, ino, &set)
        .or_errno()?;
    cache.drop_attr(ino);
    Ok(())
}
