//! Requests that come a second time, since the daemon that had them was killed: perhaps it had done what they
//! ask for, and only the answer is missing.
//!
//! Most may be done twice. What may not is a name that is made, removed or moved, and an attribute that must or
//! must not be there. For those, the refusal that our own work causes is turned into the answer that it had
//! earned: the kernel keeps the directory (or the inode) locked from before the first sending until the answer
//! comes, so nobody else can have made the difference; and that the name was missing (or there) then, it has seen
//! itself. Of attributes it has not, so we note that.
//! All requests are gone through in `docs/adr/0080-mount-survives-daemon.md`.

use stitch_base::Ino;
use stitch_fs::{
    Attr, Caller, DirName, FileKind, FileSystem, FsError, FsResult, RenameMode, XattrMode,
};

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

    /// Removes an attribute, unless that was done.
    pub(super) fn remove_xattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        let was_there = self.note_if(ino, || self.fs.get_xattr(caller, ino, name).is_ok());
        match self.fs.remove_xattr(caller, ino, name) {
            Err(FsError::NoData) if was_there => Ok(()),
            other => other,
        }
    }

    /// Makes an attribute that must not be there, unless that was done.
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

    /// The kernel does not know of attributes whether they are there. So it is noted before one is made or removed
    /// that this is about to make a difference. Answers whether an earlier daemon has noted it.
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
