//! Names, the inodes that they lead to, and the directories that they are in.
//!
//! A name is resolved in this order; each step may know, and then none after it is asked:
//! 1. negative entries: the name is missing;
//! 2. name hints and the inode table: the name leads to an inode whose whole row is known;
//! 3. the row of the name in the trees.
//!
//! What is found of a name stays while its directory is locked. What is found of the inode may be
//! old until the inode is locked too: the table counts changes, and the row is read again only then
//! ([`Namespace::inode_of`]).
//!
//! | part | has |
//! |---|---|
//! | [`Namespace`] | lookups: it reads rows, and changes only what is remembered of them |
//! | [`changes::NameChanges`] | make, link, remove, rename: each is one batch ([`crate::change`]) |
//! | `operations.rs` | what [`crate::FileSystem`] offers of both |
//!
//! Invariant: an answer of a locked directory is what the trees have. So memory is asked only
//! through [`Residents`], which is right while the directory is locked, and in debug builds what it
//! says is compared with the rows.

mod changes;
mod dentry;
mod make;
mod operations;
mod remove;
mod rename;

pub(crate) use changes::NameChanges;
pub(crate) use dentry::{Dentry, Early};
pub use make::SYMLINK_BYTES_MAX;
pub(crate) use make::low_bits;

use crate::inode::{CHAIN_UNKNOWN, Inode, Location, Tick};
use crate::locator::{Locator, RowKey, Tree};
use crate::lock::Held;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::{Grafts, ReadSet};
use crate::{Attr, DirName, FsError, FsResult};
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_format::fs_key::NAME_BYTES_MAX;

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

/// The names of a file system: rows of the trees, and what is in memory of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Namespace<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    /// Where a serializable transaction notes what it reads.
    reads: Option<&'fs ReadSet>,
    /// Directories in which no name is looked up.
    grafts: &'fs Grafts,
    /// Everything that is known without the trees is compared with them.
    confirms: bool,
}

impl<'fs> Namespace<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            reads: fs.reads.as_deref(),
            grafts: &fs.grafts,
            confirms: fs.options.confirm_names,
        }
    }
}

impl<'fs> Namespace<'fs> {
    /// Refuses the graft of a clone in a transaction, whose contents are not there.
    ///
    /// # Errors
    /// [`FsError::Unsupported`].
    pub(crate) fn refuse_graft(&self, ino: Ino) -> FsResult<()> {
        self.grafts.refuse(ino)
    }

    /// Checks that names of the directory can be read, and notes that this one is, where that is
    /// wanted. Before anything in memory is asked.
    fn note_name(&self, at: DirName<'_>) -> FsResult<()> {
        debug_assert!(!at.name.is_empty(), "a name has a byte");
        debug_assert!(at.name.len() <= NAME_BYTES_MAX, "a row can have the name");
        self.refuse_graft(at.parent)?;
        match self.reads {
            Some(reads) => reads.note_name(at.parent, self.store.keys.name_hash(at.name)),
            None => Ok(()),
        }
    }

    /// Notes that the attributes of the inode of a name are read, where that is wanted.
    fn note_inode(&self, at: DirName<'_>, dentry: &Dentry) -> FsResult<()> {
        debug_assert!(dentry.ino.0 > 0, "0 is no inode");
        match (self.reads, &dentry.row) {
            (None, _) => Ok(()),
            (Some(reads), Some(_)) => {
                reads.note_named_inode(at.parent, self.store.keys.name_hash(at.name))
            }
            (Some(reads), None) => reads.note_own_inode(dentry.ino),
        }
    }

    /// The row of a name, if there is one. The directory is locked.
    pub(crate) fn find_dentry(&self, at: DirName<'_>) -> FsResult<Option<Dentry>> {
        self.note_name(at)?;
        let key = self.store.keys.dentry(at.parent, at.name);
        if self.residents.names.is_missing(&key) {
            self.confirm_missing(&key);
            return Ok(None);
        }
        let found = self.read_dentry(&key)?;
        if found.is_none() {
            self.residents.names.note_missing(&key);
        }
        Ok(found)
    }

    fn read_dentry(&self, key: &RowKey) -> FsResult<Option<Dentry>> {
        debug_assert_eq!(key.tree(), Tree::Meta, "names are in this tree");
        let row = self.store.get(key)?;
        row.map(|row| Dentry::decode(&row)).transpose()
    }

    /// Compares a missing name with the trees, where that is wanted. A row that cannot be read is
    /// no contradiction.
    ///
    /// # Panics
    /// If the trees have the name.
    fn confirm_missing(&self, key: &RowKey) {
        debug_assert_eq!(key.tree(), Tree::Meta, "names are in this tree");
        if self.confirms {
            let row = self.store.get(key);
            let is_there = matches!(row, Ok(Some(_)));
            assert!(!is_there, "a name is there that was known to be missing");
        }
    }

    /// The row of a name.
    pub(crate) fn dentry(&self, at: DirName<'_>) -> FsResult<Dentry> {
        self.find_dentry(at)?.ok_or(FsError::NotFound)
    }

    /// Returns what a name leads to, if it exists, to know which inode to lock. The directory is
    /// locked.
    pub(crate) fn find_early(&self, at: DirName<'_>) -> FsResult<Option<Early>> {
        let moment = self.residents.inodes.moment();
        let found = self.find_dentry(at)?;
        Ok(found.map(|dentry| Early::read(dentry, moment)))
    }

    /// Returns what a name leads to that must exist. So negative entries are not asked, and nothing
    /// is read where its whole row is known. The directory is locked.
    pub(crate) fn early(&self, at: DirName<'_>) -> FsResult<Early> {
        debug_assert!(
            !matches!(at.name, b"." | b".."),
            "the caller has refused them"
        );
        self.note_name(at)?;
        if let Some(known) = self.residents.hinted(at) {
            return Ok(Early::known(&known));
        }
        let moment = self.residents.inodes.moment();
        let key = self.store.keys.dentry(at.parent, at.name);
        let found = self.read_dentry(&key)?;
        let dentry = found.ok_or(FsError::NotFound)?;
        Ok(Early::read(dentry, moment))
    }

    /// Returns the inode of a name, known or not, and the name's row. The directory and the inode
    /// are locked.
    ///
    /// What was found before the inode was locked may be old: a write, or a link made elsewhere,
    /// locks the inode and not this directory. Only then the row is read again.
    pub(crate) fn inode_of(&self, at: DirName<'_>, early: Early) -> FsResult<(Inode, Dentry)> {
        let ino = early.ino();
        let dentry = match early.row {
            Some((dentry, moment)) if self.residents.inodes.is_as_of(ino, moment) => dentry,
            Some(_) => self.dentry(at)?,
            None => match self.residents.known_row(ino, at) {
                Some(known) => {
                    debug_assert_eq!(known.head.ino, ino, "the inode of the number");
                    self.confirm_row(at, &known)?;
                    let dentry = Dentry::of_known(&known);
                    self.note_inode(at, &dentry)?;
                    return Ok((known, dentry));
                }
                None => self.dentry(at)?,
            },
        };
        debug_assert_eq!(dentry.ino, ino, "names do not change in a locked directory");
        self.note_inode(at, &dentry)?;
        if let Some(known) = self.residents.inodes.find(dentry.ino) {
            debug_assert_eq!(known.head.ino, ino, "the inode of the number");
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

    /// Returns the inode of a name, and where its row is.
    pub(crate) fn row_of(
        &self,
        at: DirName<'_>,
        dentry: &Dentry,
    ) -> FsResult<(InodeHead, Location)> {
        let location = match dentry.row {
            Some(_) => Location::entry(at.parent, at.name),
            None => Location::Own,
        };
        let head = self.head_of(dentry)?;
        debug_assert_eq!(head.ino, dentry.ino, "the inode of the name");
        Ok((head, location))
    }

    fn head_of(&self, dentry: &Dentry) -> FsResult<InodeHead> {
        if let Some((head, _)) = dentry.row {
            debug_assert_eq!(head.ino, dentry.ino, "the inode of the row");
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
        self.note_inode(at, dentry)?;
        self.residents.hint(at, dentry.ino);
        if let Some(head) = self.residents.inodes.look_up(dentry.ino) {
            debug_assert_eq!(head.ino, dentry.ino, "the inode of the name");
            return Ok(Attr::of(&head));
        }
        let (head, location) = self.row_of(at, dentry)?;
        if let Some(head) = self.residents.inodes.learn(&head, location, moment)? {
            debug_assert_eq!(head.ino, dentry.ino, "the inode of the name");
            return Ok(Attr::of(&head));
        }
        self.learn_again(at)
    }

    /// Reads a name until no inode is changed and forgotten between its read and its lookup.
    fn learn_again(&self, at: DirName<'_>) -> FsResult<Attr> {
        loop {
            let moment = self.residents.inodes.moment();
            let dentry = self.dentry(at)?;
            self.note_inode(at, &dentry)?;
            let (head, location) = self.row_of(at, &dentry)?;
            if let Some(head) = self.residents.inodes.learn(&head, location, moment)? {
                debug_assert_eq!(head.ino, dentry.ino, "the inode of the name");
                return Ok(Attr::of(&head));
            }
        }
    }

    /// Checks a name that is looked up. Returns the inode of `.` and `..`.
    pub(crate) fn dots(&self, at: DirName<'_>) -> FsResult<Option<Ino>> {
        let dir = self.residents.inodes.get_dir(at.parent)?;
        debug_assert!(dir.is_dir(), "names are in directories");
        match at.name {
            _ if dir.head.nlink == 0 && at.name != b"." => Err(FsError::NotFound),
            b"." => Ok(Some(at.parent)),
            b".." => dir.parent().map(Some).ok_or(FsError::NotFound),
            b"" => Err(FsError::NotFound),
            _ if at.name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
            _ => Ok(None),
        }
    }

    /// Attributes of the inode of a name. The directory is locked.
    pub(crate) fn attr_of(&self, at: DirName<'_>, dentry: &Dentry) -> FsResult<Attr> {
        self.note_inode(at, dentry)?;
        if let Ok(head) = self.residents.inodes.head(dentry.ino) {
            debug_assert_eq!(head.ino, dentry.ino, "the inode of the name");
            return Ok(Attr::of(&head));
        }
        // An inode that was known since then is as it was when its name was read.
        Ok(Attr::of(&self.head_of(dentry)?))
    }

    pub(crate) fn look_up(&self, at: DirName<'_>, is_step: bool) -> FsResult<Attr> {
        if let Some(ino) = self.dots(at)? {
            return self.look_up_known(ino);
        }
        let _names = self.residents.locks.dir_read(at.parent);
        if is_step && let Some(known) = self.residents.known_step(at) {
            debug_assert_eq!(
                known.kind,
                FileKind::Directory,
                "paths lead through directories"
            );
            // It is a directory, whose only name this is.
            if let Some(reads) = self.reads {
                reads.note_named_inode(at.parent, self.store.keys.name_hash(at.name))?;
            }
            return Ok(known);
        }
        let moment = self.residents.inodes.moment();
        let dentry = self.dentry(at)?;
        let attr = self.learn(at, &dentry, moment)?;
        debug_assert_eq!(
            attr.ino, dentry.ino,
            "names do not change in a locked directory"
        );
        if is_step {
            self.residents.keep_step(at, &attr);
        }
        Ok(attr)
    }

    /// Attributes of the inode of a name, which is neither `.` nor `..`. Counts no lookup.
    fn stat(&self, at: DirName<'_>) -> FsResult<Attr> {
        debug_assert!(
            !matches!(at.name, b"." | b".."),
            "the caller has resolved them"
        );
        let _names = self.residents.locks.dir_read(at.parent);
        let dentry = self.dentry(at)?;
        let attr = self.attr_of(at, &dentry)?;
        debug_assert_eq!(attr.ino, dentry.ino, "the inode of the name");
        Ok(attr)
    }

    /// The number of the inode of a name, if there is one. Counts no lookup.
    pub(crate) fn peek(&self, at: DirName<'_>) -> FsResult<Option<Ino>> {
        let _names = self.residents.locks.dir_read(at.parent);
        Ok(self.find_dentry(at)?.map(|dentry| dentry.ino))
    }

    fn look_up_known(&self, ino: Ino) -> FsResult<Attr> {
        // All others were noted when they came to be known.
        if let Some(reads) = self.reads.filter(|_| ino == Ino::ROOT) {
            reads.note_own_inode(ino)?;
        }
        let head = self
            .residents
            .inodes
            .look_up(ino)
            .ok_or(FsError::Stale(ino))?;
        debug_assert_eq!(head.ino, ino, "the inode of the number");
        Ok(Attr::of(&head))
    }

    /// Compares the row of a known inode with the trees, where that is wanted. Directory and inode
    /// are locked. A row that cannot be read is no contradiction.
    ///
    /// # Panics
    /// If the trees have another row.
    pub(crate) fn confirm_row(&self, at: DirName<'_>, known: &Inode) -> FsResult<()> {
        debug_assert!(!known.has_tail(), "all of the row is known");
        if !self.confirms {
            return Ok(());
        }
        let key = self.store.keys.dentry(at.parent, at.name);
        let Ok(row) = self.store.get(&key) else {
            return Ok(());
        };
        let row = row.map(|row| Dentry::decode(&row)).transpose()?;
        let is_it = row
            .and_then(|dentry| dentry.row)
            .is_some_and(|(head, tail)| head == known.head && tail.is_empty());
        assert!(is_it, "the row of a known inode is not what is known");
        Ok(())
    }

    /// Locks a directory, and the one that a name in it leads to.
    pub(crate) fn lock_with_child(&self, at: DirName<'_>) -> FsResult<(Held<'fs>, Early)> {
        let mut names = self.residents.locks.dirs_write(&[at.parent]);
        loop {
            let early = self.early(at)?;
            if self.residents.locks.try_add_dir(&mut names, early.ino()) {
                return Ok((names, early));
            }
            drop(names);
            names = self.residents.locks.dirs_write(&[at.parent, early.ino()]);
        }
    }

    /// Returns the first names of a directory, at most `count_max`. It need not be locked.
    pub(crate) fn some_names(&self, dir: Ino, count_max: usize) -> FsResult<Vec<Box<[u8]>>> {
        debug_assert!(count_max > 0, "some names are asked for");
        let mut scan = self.store.scan(&self.store.keys.dentries(dir))?;
        let mut names = Vec::new();
        while names.len() < count_max
            && let Some((key, _)) = scan.next()?
        {
            let Some((_, name)) = Locator::name_of(key) else {
                return Err(FsError::Corrupt(format!(
                    "directory {dir} has a row without name"
                )));
            };
            names.push(Box::from(name));
        }
        debug_assert!(names.len() <= count_max, "no more than was asked for");
        Ok(names)
    }

    /// Refuses a directory with names. It is locked.
    pub(crate) fn check_empty(&self, dir: Ino) -> FsResult<()> {
        if let Some(reads) = self.reads {
            reads.note_list(dir)?;
        }
        if !self.residents.names.is_empty(dir) {
            return self.check_no_rows(dir);
        }
        if self.confirms {
            let found = self.check_no_rows(dir);
            let has_names = matches!(found, Err(FsError::NotEmpty));
            assert!(
                !has_names,
                "a directory has names that was known to be empty"
            );
        }
        Ok(())
    }

    /// Refuses a directory with names in the trees.
    pub(crate) fn check_no_rows(&self, dir: Ino) -> FsResult<()> {
        let mut scan = self.store.scan(&self.store.keys.dentries(dir))?;
        match scan.next()? {
            Some(_) => Err(FsError::NotEmpty),
            None => Ok(()),
        }
    }

    /// The name of an inode among those of one hash. The directory is locked.
    pub(crate) fn find_at(&self, place: Place, ino: Ino) -> FsResult<Option<(Vec<u8>, Dentry)>> {
        if let Some(reads) = self.reads {
            reads.note_name(place.parent, place.hash)?;
        }
        let mut rows = self.store.scan(&self.store.keys.dentries_at(place))?;
        while let Some((key, row)) = rows.next()? {
            let dentry = Dentry::decode_head(row)?;
            if let Some((hash, name)) = Locator::name_of(key).filter(|_| dentry.ino == ino) {
                debug_assert_eq!(hash, place.hash, "names of one place");
                return Ok(Some((name.to_vec(), dentry)));
            }
        }
        Ok(None)
    }

    /// Reports whether a known directory can be reached from another one, or is that one. A
    /// directory that cannot be reached from the root was removed, or is below one that was removed
    /// with all in it.
    pub(crate) fn is_below(&self, dir: Ino, top: Ino) -> bool {
        self.is_below_through(dir, top, |_| true)
    }

    /// The same, if all directories between the two are `open`.
    pub(crate) fn is_below_through(
        &self,
        dir: Ino,
        top: Ino,
        is_open: impl Fn(Ino) -> bool,
    ) -> bool {
        debug_assert!(dir.0 > 0, "0 is no inode");
        debug_assert!(top.0 > 0, "0 is no inode");
        let _tree = self.residents.locks.tree();
        let mut at = dir;
        while at != top {
            if at != dir && !is_open(at) {
                return false;
            }
            let inode = self
                .residents
                .inodes
                .find(at)
                .filter(|inode| inode.head.nlink > 0 && at != Ino::ROOT);
            let Some(parent) = inode.and_then(|inode| inode.parent()) else {
                return false;
            };
            debug_assert_ne!(parent, at, "the root alone is in itself");
            at = parent;
        }
        true
    }
}

#[cfg(test)]
mod tests;
