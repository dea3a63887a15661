//! Set-id bits that go when a file's contents change, and that the kernel must hear of.
//!
//! With HANDLE_KILLPRIV_V2 the kernel leaves the clearing to us, and keeps the mode that it has in
//! its cache: with timeouts for ever it would go on to run a changed file with its old rights. So
//! where bits were cleared, it is told to forget the attributes, before the answer. With WRITE and
//! SETATTR it says whether bits are to go; with FALLOCATE and COPY_FILE_RANGE it does not, so they
//! go unless root asks.

use std::sync::OnceLock;

use stitch_base::Ino;
use stitch_fs::{Caller, FileSystem, SetAttr};

use super::OrErrno;
use crate::handler::{Answer, Context};
use crate::notify::Notifier;
use crate::survive::is_resent;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// What the kernel keeps of attributes.
#[derive(Debug, Default)]
pub(super) struct AttrCache {
    notifier: OnceLock<Notifier>,
}

impl AttrCache {
    pub(super) fn connect(&self, notifier: &Notifier) {
        if self.notifier.set(notifier.clone()).is_err() {
            tracing::error!("a file system is served twice; its first mount hears of changes");
        }
    }

    /// Makes the kernel ask for attributes again. May be called from inside a request.
    pub(super) fn drop_attr(&self, ino: Ino) {
        if let Some(Err(error)) = self.notifier.get().map(|n| n.invalidate_attr(ino)) {
            tracing::debug!(%error, ino = ino.0, "the kernel was not told of changed attributes");
        }
    }
}

/// The permission bits without those that change when a stranger changes the contents.
const fn without_setid(perm: u16) -> u16 {
    let perm = perm & !SETUID;
    if perm & GROUP_EXECUTE != 0 {
        perm & !SETGID
    } else {
        perm
    }
}

/// Has this inode bits that a change of its contents would clear?
pub(super) fn is_set(fs: &FileSystem, ino: Ino) -> Answer<bool> {
    let perm = fs.get_attr(ino).or_errno()?.perm;
    Ok(without_setid(perm) != perm)
}

/// Clears them, unless root asked.
pub(super) fn clear(
    fs: &FileSystem,
    cache: &AttrCache,
    context: &Context<'_>,
    ino: Ino,
) -> Answer<()> {
    if context.caller.uid == 0 {
        return Ok(());
    }
    if !is_set(fs, ino)? {
        if is_resent(context.unique) {
            // The first time they may have gone, untold.
            cache.drop_attr(ino);
        }
        return Ok(());
    }
    let perm = without_setid(fs.get_attr(ino).or_errno()?.perm);
    let set = SetAttr {
        perm: Some(u32::from(perm)),
        ..SetAttr::default()
    };
    fs.set_attr(&Caller::ROOT, ino, &set).or_errno()?;
    cache.drop_attr(ino);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_bit_without_execution_means_locking_and_stays() {
        assert_eq!(without_setid(0o6755), 0o755);
        assert_eq!(without_setid(0o2644), 0o2644);
        assert_eq!(without_setid(0o4644), 0o644);
        assert_eq!(without_setid(0o1777), 0o1777);
    }
}
