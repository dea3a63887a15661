//! Requests that come a second time, since the daemon that had them was killed: perhaps it had done what they
//! ask for, and only the answer is missing.
//!
//! Most may be done twice. What may not is a name that is made, removed or moved, and an attribute that must or
//! must not be there. For those, the refusal that our own work causes is turned into the answer that it had
//! earned: the kernel keeps the directory (or the inode) locked from before the first sending until the answer
//! comes, and has seen that the name was missing (or there) then, so nobody else can have made the difference.
//! All requests are gone through in `docs/adr/0080-a-mount-that-survives.md`.

use stitch_base::Ino;
use stitch_fs::{Attr, Caller, DirName, FileKind, FileSystem, FsError, FsResult, RenameMode};

use crate::handler::Context;
use crate::survive::{first_unique, is_resent};

/// One request that may come again.
pub(super) struct Resent<'a> {
    fs: &'a FileSystem,
    unique: u64,
}

impl<'a> Resent<'a> {
    pub(super) const fn new(fs: &'a FileSystem, context: &Context<'_>) -> Self {
        let unique = context.unique;
        Self { fs, unique }
    }

    /// Something of this kind was to be made.
    pub(super) fn made(
        &self,
        made: FsResult<Attr>,
        at: DirName<'_>,
        kind: FileKind,
    ) -> FsResult<Attr> {
        self.there(made, at, |attr| attr.kind == kind)
    }

    /// An inode was to get this name.
    pub(super) fn linked(
        &self,
        linked: FsResult<Attr>,
        at: DirName<'_>,
        ino: Ino,
    ) -> FsResult<Attr> {
        self.there(linked, at, |attr| attr.ino == ino)
    }

    /// If a name is there that was to be made, and is what was to be, it is looked up: the answer counts one.
    fn there(
        &self,
        made: FsResult<Attr>,
        at: DirName<'_>,
        is_it: impl Fn(&Attr) -> bool,
    ) -> FsResult<Attr> {
        let Err(FsError::Exists) = made else {
            return made;
        };
        if !is_resent(self.unique) {
            return made;
        }
        let found = self.fs.lookup(at)?;
        if is_it(&found) {
            return Ok(found);
        }
        self.fs.forget(found.ino, 1);
        Err(FsError::Exists)
    }

    /// A name was to be removed.
    pub(super) fn removed(&self, removed: FsResult<()>) -> FsResult<()> {
        match removed {
            Err(FsError::NotFound) if is_resent(self.unique) => Ok(()),
            other => other,
        }
    }

    /// An attribute was to be removed.
    pub(super) fn removed_xattr(&self, removed: FsResult<()>) -> FsResult<()> {
        match removed {
            Err(FsError::NoData) if is_resent(self.unique) => Ok(()),
            other => other,
        }
    }

    /// An attribute was to be made that must not be there.
    pub(super) fn made_xattr(
        &self,
        made: FsResult<()>,
        caller: &Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
    ) -> FsResult<()> {
        let Err(FsError::Exists) = made else {
            return made;
        };
        let is_it = || Ok::<_, FsError>(self.fs.get_xattr(caller, ino, name)? == value);
        if is_resent(self.unique) && is_it()? {
            return Ok(());
        }
        Err(FsError::Exists)
    }

    /// Moves a name, unless that was done.
    pub(super) fn rename(
        &self,
        caller: &Caller<'_>,
        from: DirName<'_>,
        to: DirName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        if self.is_renamed(from, mode)? {
            return Ok(());
        }
        let renamed = self.fs.rename(caller, from, to, mode);
        if !is_resent(self.unique) || !matches!(renamed, Err(FsError::NotFound)) {
            return renamed;
        }
        let is_done = self.fs.peek(from)?.is_none() && self.fs.peek(to)?.is_some();
        if is_done { Ok(()) } else { renamed }
    }

    /// After these two, the old name is there as before, and doing them again would undo or spoil them. So it
    /// is noted beforehand which inode has the old name; if that is another now, they were done.
    fn is_renamed(&self, from: DirName<'_>, mode: RenameMode) -> FsResult<bool> {
        let has_trace = matches!(mode, RenameMode::Exchange | RenameMode::Whiteout);
        let Some(ledger) = self.fs.ledger().filter(|_| has_trace) else {
            return Ok(false);
        };
        let unique = first_unique(self.unique);
        let now = self.fs.peek(from)?;
        if is_resent(self.unique)
            && let Some(before) = ledger.noted(unique)
        {
            return Ok(now != Some(before));
        }
        if let Some(ino) = now {
            ledger.note(unique, ino);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
