//! Requests that come a second time because their daemon was killed. It may have done the operation
//! without sending the reply.
//!
//! Most requests may be done twice. Those that may not create, remove or move a name, or need an
//! attribute to exist or not to exist. If the operation was done already, repeating it fails, and
//! that error is turned into the reply of the first time. This is safe for names: the kernel keeps
//! the directory (or the inode) locked from before the first sending until the reply, so no other
//! request made the change, and it has checked that the name was missing (or existed). It has not
//! checked attributes, so their changes are noted in the ledger.
//! `docs/adr/0080-mount-survives-daemon.md` goes through all requests.

use stitch_base::Ino;
use stitch_fs::{
    Attr, Caller, DirName, FileKind, FileSystem, FsError, FsResult, RenameMode, XattrMode,
};

use crate::handler::Context;
use crate::survive::{first_unique, is_resent};

/// A request that may come again.
pub(super) struct Resent<'a> {
    fs: &'a FileSystem,
    unique: u64,
}

impl<'a> Resent<'a> {
    pub(super) const fn new(fs: &'a FileSystem, context: &Context<'_>) -> Self {
        let unique = context.unique;
        Self { fs, unique }
    }

    /// Turns the result of a creation of this kind.
    pub(super) fn made(
        &self,
        made: FsResult<Attr>,
        at: DirName<'_>,
        kind: FileKind,
    ) -> FsResult<Attr> {
        self.there(made, at, |attr| attr.kind == kind)
    }

    /// Turns the result of a new link.
    pub(super) fn linked(
        &self,
        linked: FsResult<Attr>,
        at: DirName<'_>,
        ino: Ino,
    ) -> FsResult<Attr> {
        self.there(linked, at, |attr| attr.ino == ino)
    }

    /// Looks up the name that was to be made, if it exists and is what was to be made. That counts
    /// as one lookup.
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

    /// Turns the result of a removal.
    pub(super) fn removed(&self, removed: FsResult<()>) -> FsResult<()> {
        match removed {
            Err(FsError::NotFound) if is_resent(self.unique) => Ok(()),
            other => other,
        }
    }

    /// Removes an attribute, unless that was done.
    pub(super) fn remove_xattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        let was_there = self.note_if(ino, || self.fs.get_xattr(caller, ino, name).is_ok());
        match self.fs.remove_xattr(caller, ino, name) {
            Err(FsError::NoData) if was_there => Ok(()),
            other => other,
        }
    }

    /// Creates an attribute that must not exist, unless that was done.
    pub(super) fn make_xattr(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        kill_sgid: bool,
    ) -> FsResult<()> {
        let is_missing = || matches!(self.fs.get_xattr(caller, ino, name), Err(FsError::NoData));
        let was_missing = self.note_if(ino, is_missing);
        let mode = XattrMode::Create;
        match self.fs.set_xattr(caller, ino, name, value, mode, kill_sgid) {
            Err(FsError::Exists) if was_missing => Ok(()),
            other => other,
        }
    }

    /// Notes that an attribute is about to be created or removed, since the kernel does not check
    /// whether it exists. Returns whether an earlier daemon has noted the same.
    fn note_if(&self, ino: Ino, makes_difference: impl FnOnce() -> bool) -> bool {
        let Some(ledger) = self.fs.ledger() else {
            return false;
        };
        let unique = first_unique(self.unique);
        if is_resent(self.unique) && ledger.noted(unique).is_some() {
            return true;
        }
        if makes_difference() {
            ledger.note(unique, ino);
        }
        false
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

    /// Reports whether an exchange or whiteout was done. Both leave the old name in place, and
    /// repeating them would undo or break them. So the inode of the old name is noted beforehand;
    /// if it is another now, the rename was done.
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
