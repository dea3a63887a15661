//! What a transaction, or another file system over branch trees, has changed.
//!
//! Its own keys say what to look at, so it takes as long as there are changes. A name is a
//! directory's number and the name in it: what is below a directory that was renamed has the same
//! names as before, and only the directory itself is shown.

use super::TransactionView;
use super::own::{BranchTrees, Own, OwnRow};
use super::path::{NameSource, SidePaths};
use crate::FsError;
use crate::FsResult;
use crate::locator::{Locator, SysRow, Tree};
use crate::system::FileSystem;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// A difference. SidePaths are from the root, without a slash at either end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathChange {
    /// The name is gone.
    Removed(Vec<u8>),
    /// The name or the directory changed.
    Renamed {
        /// The path before.
        from: Vec<u8>,
        /// The path now.
        to: Vec<u8>,
    },
    /// The name is new.
    Added(Vec<u8>),
    /// Contents, size, owner, mode, link target or attributes are others; of the root, with an
    /// empty path.
    Modified(Vec<u8>),
}

impl PathChange {
    /// Where it is in a list.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Removed(path) | Self::Added(path) | Self::Modified(path) => path,
            Self::Renamed { to, .. } => to,
        }
    }
}

/// A row, which has its value now, with the value before.
struct Pair<'o> {
    row: &'o OwnRow,
    old: Option<Bytes>,
}

/// Changes, gathered row by row.
#[derive(Default)]
struct Gathered<'o> {
    gone: BTreeMap<Ino, Vec<&'o [u8]>>,
    come: Vec<(Ino, &'o [u8])>,
    /// Heads of inodes, before and now.
    old: BTreeMap<Ino, InodeHead>,
    new: BTreeMap<Ino, InodeHead>,
    /// Inodes of which a name has come or gone.
    moved: BTreeSet<Ino>,
}

impl<'o> Gathered<'o> {
    fn of(pairs: &'o [Pair<'_>]) -> FsResult<Self> {
        let mut gathered = Self::default();
        for pair in pairs {
            let key = &pair.row.key[..];
            let (old, new) = (pair.old.as_deref(), pair.row.ours.as_deref());
            let old = old.map(MetaRow::decode).transpose()?;
            let new = new.map(MetaRow::decode).transpose()?;
            gathered.take(key, old, new);
        }
        debug_assert!(
            gathered.come.len() + gathered.gone.values().map(Vec::len).sum::<usize>()
                <= 2 * pairs.len(),
            "a row tells of two names at most"
        );
        debug_assert!(gathered.moved.len() <= 2 * pairs.len());
        Ok(gathered)
    }

    fn take(&mut self, key: &'o [u8], old: Option<MetaRow<'_>>, new: Option<MetaRow<'_>>) {
        if let Some(MetaRow::Inode(head, _)) = old {
            self.old.insert(head.ino, head);
        }
        if let Some(MetaRow::Inode(head, _)) = new {
            self.new.insert(head.ino, head);
        }
        let (old, new) = (old.map(|row| row.ino()), new.map(|row| row.ino()));
        if Locator::name_of(key).is_none() || old == new {
            return;
        }
        debug_assert!(old.is_some() || new.is_some(), "a name that came or went");
        if let Some(ino) = old {
            self.gone.entry(ino).or_default().push(key);
            self.moved.insert(ino);
        }
        if let Some(ino) = new {
            self.come.push((ino, key));
            self.moved.insert(ino);
        }
    }

    /// Names that have come and gone. `written` are inodes with other contents or extended
    /// attributes.
    fn changes(
        mut self,
        old: &SidePaths<'_>,
        new: &SidePaths<'_>,
        written: &BTreeSet<Ino>,
    ) -> FsResult<Vec<PathChange>> {
        let mut changes = Vec::new();
        for (ino, key) in &self.come {
            let to = new.of_key(key)?.unwrap_or_default();
            let names = self.gone.get_mut(ino).filter(|names| !names.is_empty());
            debug_assert!(self.moved.contains(ino), "a name of it has come");
            changes.push(match names {
                Some(names) => PathChange::Renamed {
                    from: old.of_key(names.remove(0))?.unwrap_or_default(),
                    to,
                },
                None => PathChange::Added(to),
            });
        }
        for key in self.gone.values().flatten() {
            changes.push(PathChange::Removed(old.of_key(key)?.unwrap_or_default()));
        }
        let inodes: BTreeSet<Ino> = self.new.keys().copied().collect();
        for ino in inodes.union(written) {
            if self.is_modified(*ino, written)
                && let Some(path) = new.of(*ino)?
            {
                changes.push(PathChange::Modified(path));
            }
        }
        debug_assert!(
            self.gone.keys().all(|ino| self.moved.contains(ino)),
            "a name of each has gone"
        );
        changes.sort_by(|a, b| (a.path(), a).cmp(&(b.path(), b)));
        changes.dedup();
        Ok(changes)
    }

    fn is_modified(&self, ino: Ino, written: &BTreeSet<Ino>) -> bool {
        debug_assert!(
            self.new.contains_key(&ino) || written.contains(&ino),
            "a row of it was written"
        );
        match (self.old.get(&ino), self.new.get(&ino)) {
            (Some(old), Some(new)) => {
                written.contains(&ino) || is_changed(old, new, self.moved.contains(&ino))
            }
            // A row of its contents alone is another one.
            (None, None) => true,
            // It was made.
            _ => false,
        }
    }
}

/// Reports whether an inode is another one by its attributes. A name that came or went changes the
/// time of change alone; entries of a directory change both times.
pub(crate) fn is_changed(old: &InodeHead, new: &InodeHead, has_moved: bool) -> bool {
    debug_assert_eq!(old.ino, new.ino, "one inode");
    let attributes = |head: &InodeHead| (head.perm, head.uid, head.gid, head.rdev, head.iflags);
    let is_other = attributes(old) != attributes(new);
    let has_times = old.mtime != new.mtime;
    if old.kind == FileKind::Directory {
        return is_other || (!has_moved && old.ctime != new.ctime && !has_times);
    }
    let has_moved = has_moved || old.nlink != new.nlink;
    is_other || has_times || old.size != new.size || (!has_moved && old.ctime != new.ctime)
}

impl FileSystem {
    /// Returns what this file system has changed since it began, in the order of paths. It must be
    /// that of a transaction. What a clone began with is given up once the clone has replaced it:
    /// compare a clone with its source, or with a snapshot ([`FileSystem::differences`]).
    ///
    /// # Errors
    /// [`crate::FsError::Invalid`] if it is none; [`crate::FsError::Ended`].
    ///
    /// # Cost
    /// That of reading the changed rows. One scan of all names, if a directory above a change is
    /// not known.
    pub fn changes_since_begin(&self) -> FsResult<Vec<PathChange>> {
        if self.branch.is_none() {
            return Err(FsError::Invalid(
                "only a transaction keeps what it began with",
            ));
        }
        let _still = self.residents.locks.all_read();
        let ours = OurSide::read(self)?;
        ours.compare(ours.names, |row| Ok(row.base.clone()))
    }
}

/// What a file system over branch trees has written. It is locked.
struct OurSide<'fs> {
    names: NameSource<'fs>,
    trees: BranchTrees,
    own: Own,
}

impl<'fs> OurSide<'fs> {
    fn read(fs: &'fs FileSystem) -> FsResult<Self> {
        debug_assert!(
            fs.branch.is_some(),
            "others keep nothing that they began with"
        );
        let trees = BranchTrees::of(fs)?;
        let own = Own::read(&trees)?;
        let names = NameSource::of(fs);
        Ok(Self { names, trees, own })
    }

    /// Compares the rows of its own with those of another side, whose other names are in `other`.
    fn compare(
        &self,
        other: NameSource<'_>,
        side: impl Fn(&OwnRow) -> FsResult<Option<Bytes>>,
    ) -> FsResult<Vec<PathChange>> {
        let pair = |row| {
            let old = side(row)?;
            FsResult::Ok(Pair { row, old })
        };
        let pairs: FsResult<Vec<Pair<'_>>> = self.own.meta.iter().map(pair).collect();
        let pairs = pairs?;
        debug_assert_eq!(pairs.len(), self.own.meta.len(), "one for each row");
        let old = SidePaths::new(
            other,
            pairs.iter().map(|pair| (pair.row, pair.old.as_ref())),
        )?;
        let new = SidePaths::new(
            self.names,
            pairs.iter().map(|pair| (pair.row, pair.row.ours.as_ref())),
        )?;
        // Shared contents change no more; they are deleted as a whole.
        let contents = self
            .own
            .sys
            .iter()
            .filter_map(|row| match Locator::sys_row(&row.key) {
                Some(SysRow::Contents(number)) => Some(number),
                _ => None,
            });
        let contents: BTreeSet<Ino> = contents.collect();
        let written = self
            .own
            .data(&self.trees)?
            .iter()
            .filter_map(Locator::ino_of);
        let written = written.filter(|number| !contents.contains(number));
        let xattrs = self.own.xattr.iter().filter_map(Locator::ino_of);
        let written = written.chain(xattrs).collect();
        Gathered::of(&pairs)?.changes(&old, &new, &written)
    }
}

impl TransactionView {
    /// Returns what the transaction has changed since it began, in the order of paths.
    ///
    /// # Errors
    /// [`crate::FsError::Ended`].
    pub fn changes(&self) -> FsResult<Vec<PathChange>> {
        self.fs.changes_since_begin()
    }

    /// Returns the difference between mainline as it is now and the transaction, of all that the
    /// transaction has changed.
    ///
    /// # Errors
    /// [`crate::FsError::Ended`].
    pub fn changes_to(&self, mainline: &FileSystem) -> FsResult<Vec<PathChange>> {
        let _still = self.fs.residents.locks.all_read();
        let ours = OurSide::read(&self.fs)?;
        let theirs = |row: &OwnRow| ours.trees.theirs(Tree::Meta, &row.key);
        ours.compare(NameSource::of(mainline), theirs)
    }
}
