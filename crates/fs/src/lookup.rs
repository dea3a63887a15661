//! From names to inodes.

use crate::inode::{CHAIN_UNKNOWN, Inode, Location, Tick};
use crate::locator::RowKey;
use crate::system::FileSystem;
use crate::{Attr, DirName, FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_key::NAME_BYTES_MAX;

/// A row under a name.
#[derive(Clone, Debug)]
pub(crate) struct Dentry {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    /// The inode and what is behind it, where this is its only name.
    row: Option<(InodeHead, Bytes)>,
}

impl Dentry {
    pub(crate) fn decode(row: &Bytes) -> FsResult<Self> {
        Self::decode_with(row, |tail| row.slice_ref(tail))
    }

    /// As [`Self::decode`], without what is behind the inode.
    pub(crate) fn decode_head(row: &[u8]) -> FsResult<Self> {
        Self::decode_with(row, |_| Bytes::new())
    }

    fn decode_with(row: &[u8], keep: impl FnOnce(&[u8]) -> Bytes) -> FsResult<Self> {
        Ok(match MetaRow::decode(row)? {
            MetaRow::Inode(head, tail) => Self {
                ino: head.ino,
                kind: head.kind,
                row: Some((head, keep(tail))),
            },
            MetaRow::Link { ino, kind } => Self {
                ino,
                kind,
                row: None,
            },
        })
    }

    /// The row of an inode that is known, with nothing behind the inode.
    fn of_known(inode: &Inode) -> Self {
        debug_assert!(!inode.has_tail(), "all of it is known");
        Self {
            ino: inode.head.ino,
            kind: inode.head.kind,
            row: Some((inode.head, Bytes::new())),
        }
    }

    /// True if this is the row of an inode, with nothing behind the inode.
    pub(crate) fn is_row_of(&self, head: &InodeHead) -> bool {
        matches!(&self.row, Some((found, tail)) if found == head && tail.is_empty())
    }

    /// What is behind the inode in this row.
    pub(crate) fn tail(&self) -> Bytes {
        let tail = self.row.as_ref().map(|(_, tail)| tail.clone());
        tail.unwrap_or_default()
    }
}

/// What a name stands for, found while the inode was not locked.
pub(crate) struct Early {
    ino: Ino,
    kind: FileKind,
    /// The row, and the moment before it was read. `None` if all of it was known.
    row: Option<(Dentry, Tick)>,
}

impl Early {
    /// The inode that it names, which stays so while the directory is locked.
    pub(crate) const fn ino(&self) -> Ino {
        self.ino
    }

    pub(crate) const fn is_dir(&self) -> bool {
        matches!(self.kind, FileKind::Directory)
    }

    const fn read(dentry: Dentry, moment: Tick) -> Self {
        Self {
            ino: dentry.ino,
            kind: dentry.kind,
            row: Some((dentry, moment)),
        }
    }

    const fn known(inode: &Inode) -> Self {
        Self {
            ino: inode.head.ino,
            kind: inode.head.kind,
            row: None,
        }
    }
}

/// Checks a name that is to be made, removed or moved.
pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    match name {
        b"" => Err(FsError::NotFound),
        b"." | b".." => Err(FsError::Invalid("`.` and `..` stay as they are")),
        _ if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(FsError::Invalid(
            "a name has no slash and no zero byte in it",
        )),
        _ => Ok(()),
    }
}

impl FileSystem {
    /// A directory that names can be looked up in.
    pub(crate) fn dir(&self, ino: Ino) -> FsResult<Inode> {
        self.inodes.get_dir(ino)
    }

    /// The row of a name, if there is one. The directory is locked.
    pub(crate) fn find_dentry(&self, at: DirName<'_>) -> FsResult<Option<Dentry>> {
        let key = self.store.keys.dentry(at.parent, at.name);
        if self.names.is_missing(&key) {
            self.confirm_missing(&key);
            return Ok(None);
        }
        let found = self.read_dentry(&key)?;
        if found.is_none() {
            self.names.note_missing(&key);
        }
        Ok(found)
    }

    fn read_dentry(&self, key: &RowKey) -> FsResult<Option<Dentry>> {
        let row = self.store.get(key)?;
        row.map(|row| Dentry::decode(&row)).transpose()
    }

    /// Asks the trees as well, if that is wanted. What they cannot answer is no objection.
    fn confirm_missing(&self, key: &RowKey) {
        if self.options.confirm_names {
            let row = self.store.get(key);
            let is_there = matches!(row, Ok(Some(_)));
            assert!(!is_there, "a name is there that was known to be missing");
        }
    }

    /// The row of a name.
    pub(crate) fn dentry(&self, at: DirName<'_>) -> FsResult<Dentry> {
        self.find_dentry(at)?.ok_or(FsError::NotFound)
    }

    /// What a name stands for, if there is one, to know which inode to lock. The directory is locked.
    pub(crate) fn find_early(&self, at: DirName<'_>) -> FsResult<Option<Early>> {
        let moment = self.inodes.moment();
        let found = self.find_dentry(at)?;
        Ok(found.map(|dentry| Early::read(dentry, moment)))
    }

    /// As [`Self::find_early`], of a name that must be there: so that it is missing is not even considered, and
    /// nothing is read where all of its row is known.
    pub(crate) fn early(&self, at: DirName<'_>) -> FsResult<Early> {
        if let Some(known) = self.hinted(at) {
            return Ok(Early::known(&known));
        }
        let moment = self.inodes.moment();
        let key = self.store.keys.dentry(at.parent, at.name);
        let found = self.read_dentry(&key)?;
        let dentry = found.ok_or(FsError::NotFound)?;
        Ok(Early::read(dentry, moment))
    }

    /// The inode of a name, known or not, and the name's row. The directory and the inode are locked.
    /// What was found before the inode was locked may be old: a write, or a link made elsewhere,
    /// locks the inode and not this directory. Only then the row is read again.
    pub(crate) fn inode_of(&self, at: DirName<'_>, early: Early) -> FsResult<(Inode, Dentry)> {
        let ino = early.ino();
        let dentry = match early.row {
            Some((dentry, moment)) if self.inodes.is_as_of(ino, moment) => dentry,
            Some(_) => self.dentry(at)?,
            None => match self.known_row(ino, at) {
                Some(known) => {
                    self.confirm_row(at, &known)?;
                    let dentry = Dentry::of_known(&known);
                    return Ok((known, dentry));
                }
                None => self.dentry(at)?,
            },
        };
        debug_assert_eq!(dentry.ino, ino, "names do not change in a locked directory");
        if let Some(known) = self.inodes.find(dentry.ino) {
            return Ok((known, dentry));
        }
        let (head, location) = self.row_of(at, &dentry)?;
        let inode = Inode {
            head,
            location,
            chain: CHAIN_UNKNOWN,
            is_temp: false,
        };
        Ok((inode, dentry))
    }

    /// The inode of a name as its row says.
    pub(crate) fn row_of(
        &self,
        at: DirName<'_>,
        dentry: &Dentry,
    ) -> FsResult<(InodeHead, Location)> {
        let location = match dentry.row {
            Some(_) => Location::entry(at.parent, at.name),
            None => Location::Own,
        };
        Ok((self.head_of(dentry)?, location))
    }

    fn head_of(&self, dentry: &Dentry) -> FsResult<InodeHead> {
        if let Some((head, _)) = dentry.row {
            return Ok(head);
        }
        let own = self.store.own_row(dentry.ino)?;
        own.map(|(head, _)| head).ok_or_else(|| {
            let ino = dentry.ino;
            FsError::Corrupt(format!("a link names inode {ino}, which is not"))
        })
    }

    /// Counts a lookup of the inode of a name. The directory is locked.
    pub(crate) fn learn(&self, at: DirName<'_>, dentry: &Dentry, moment: Tick) -> FsResult<Attr> {
        self.hint(at, dentry.ino);
        if let Some(head) = self.inodes.look_up(dentry.ino) {
            return Ok(Attr::of(&head));
        }
        let (head, location) = self.row_of(at, dentry)?;
        if let Some(head) = self.inodes.learn(&head, location, moment)? {
            return Ok(Attr::of(&head));
        }
        self.learn_again(at)
    }

    /// Reads a name until no inode is changed and forgotten in between.
    fn learn_again(&self, at: DirName<'_>) -> FsResult<Attr> {
        loop {
            let moment = self.inodes.moment();
            let dentry = self.dentry(at)?;
            let (head, location) = self.row_of(at, &dentry)?;
            if let Some(head) = self.inodes.learn(&head, location, moment)? {
                return Ok(Attr::of(&head));
            }
        }
    }

    /// The inode of a name (`.` and `..` too). Counts a lookup.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDir`], [`FsError::NameTooLong`], [`FsError::Stale`].
    ///
    /// # Cost
    /// One point read, none if the name is known to be missing (see [`FsOptions::names_bytes`]); one more if
    /// the inode has several names.
    ///
    /// [`FsOptions::names_bytes`]: crate::FsOptions::names_bytes
    pub fn lookup(&self, at: DirName<'_>) -> FsResult<Attr> {
        self.look_up(at, false)
    }

    /// As [`Self::lookup`], on the way along a path: a directory stays known for a while after it is
    /// forgotten, so that the next path that leads through it reads nothing.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    ///
    /// # Cost
    /// As [`Self::lookup`]; no read of a directory that paths led through lately.
    pub fn step(&self, at: DirName<'_>) -> FsResult<Attr> {
        self.look_up(at, true)
    }

    /// Checks a name that is asked for. Answers what it stands for, if it is `.` or `..`.
    pub(crate) fn dots(&self, at: DirName<'_>) -> FsResult<Option<Ino>> {
        let dir = self.dir(at.parent)?;
        match at.name {
            _ if dir.head.nlink == 0 && at.name != b"." => Err(FsError::NotFound),
            b"." => Ok(Some(at.parent)),
            b".." => dir.parent().map(Some).ok_or(FsError::NotFound),
            b"" => Err(FsError::NotFound),
            _ if at.name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
            _ => Ok(None),
        }
    }

    /// Attributes of what a name stands for. Counts no lookup.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    ///
    /// # Cost
    /// As [`Self::lookup`].
    pub fn stat(&self, at: DirName<'_>) -> FsResult<Attr> {
        if let Some(ino) = self.dots(at)? {
            return self.get_attr(ino);
        }
        let _names = self.locks.dir_read(at.parent);
        let dentry = self.dentry(at)?;
        self.attr_of(&dentry)
    }

    /// Attributes of the inode of a name. The directory is locked.
    pub(crate) fn attr_of(&self, dentry: &Dentry) -> FsResult<Attr> {
        if let Ok(head) = self.inodes.head(dentry.ino) {
            return Ok(Attr::of(&head));
        }
        // If it was known in between, this is what it was when its name was read.
        Ok(Attr::of(&self.head_of(dentry)?))
    }

    fn look_up(&self, at: DirName<'_>, is_step: bool) -> FsResult<Attr> {
        if let Some(ino) = self.dots(at)? {
            return self.look_up_known(ino);
        }
        let _names = self.locks.dir_read(at.parent);
        if is_step && let Some(known) = self.known_step(at) {
            return Ok(known);
        }
        let moment = self.inodes.moment();
        let dentry = self.dentry(at)?;
        let attr = self.learn(at, &dentry, moment)?;
        if is_step {
            self.keep_step(at, &attr);
        }
        Ok(attr)
    }

    fn look_up_known(&self, ino: Ino) -> FsResult<Attr> {
        let head = self.inodes.look_up(ino).ok_or(FsError::Stale(ino))?;
        Ok(Attr::of(&head))
    }

    /// The number of the inode of a name, if there is one. Counts no lookup.
    ///
    /// # Errors
    /// [`FsError::Storage`].
    ///
    /// # Cost
    /// One point read at most.
    pub fn peek(&self, at: DirName<'_>) -> FsResult<Option<Ino>> {
        let _names = self.locks.dir_read(at.parent);
        Ok(self.find_dentry(at)?.map(|dentry| dentry.ino))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is none; [`FsError::Stale`].
    pub fn read_link(&self, ino: Ino) -> FsResult<Bytes> {
        let target = {
            let _inode = self.locks.inode_read(ino);
            let inode = self.inodes.get(ino)?;
            if inode.head.kind != FileKind::Symlink {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            self.store.tail(&inode)?
        };
        self.touch_atime(ino);
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, FsOptions, NewNode, WriteOptions};

    const FILE: NewNode = NewNode {
        perm: 0o644,
        umask: 0,
    };

    #[test]
    fn a_row_that_was_changed_meanwhile_is_read_again() {
        let engine = crate::testing::formatted(&FsOptions::default());
        let fs = FileSystem::open(engine, FsOptions::default()).expect("opens");
        let at = DirName::new(Ino::ROOT, b"f");
        let made = fs.create(&Caller::ROOT, at, &FILE).expect("creates");
        let ino = made.ino;
        let write = |byte: u8| {
            let options = WriteOptions::default();
            fs.write(ino, 0, &[byte; 5], options).expect("writes");
        };
        let early = || fs.early(at).expect("is there");
        let tail_of = |early| fs.inode_of(at, early).expect("is there").1.tail();

        write(1);
        assert_eq!(tail_of(early()), [1; 5][..]);
        let before = early();
        write(2);
        assert_eq!(tail_of(before), [2; 5][..], "it is known");
        let before = early();
        write(3);
        fs.forget(ino, 1);
        assert_eq!(tail_of(before), [3; 5][..], "it was known");
        let unknown = early();
        let (_, moment) = unknown.row.as_ref().expect("it was read");
        assert!(fs.inodes.is_as_of(ino, *moment));
        assert_eq!(tail_of(unknown), [3; 5][..], "nobody has changed it");
    }
}
