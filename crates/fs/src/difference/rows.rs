//! Rows that may be others on two sides, as each of them has them.

use super::moment::Moment;
use super::names::{Name, NameSet};
use super::spans::{Span, for_each_page};
use crate::locator::Tree;
use crate::recent::hash_of;
use crate::{FsError, FsResult};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// Rows of one comparison that are held in memory, about 500 bytes each; fewer in tests. With more
/// changes a walk reads little more than what is needed, in the memory of the asking user.
pub(super) const ROWS_MAX: usize = if cfg!(test) { 2048 } else { 1 << 18 };

/// An inode's row at a moment.
#[derive(Clone, Debug)]
pub(super) struct InodeRow {
    pub(super) head: InodeHead,
    /// Stands for the contents that are in the row; 0 if the row was not written.
    pub(super) tail: u64,
    /// Under which name it is; `None` for its own number.
    pub(super) name: Option<Name>,
}

/// What one side has in the rows of the meta tree that were written in some spans.
#[derive(Debug, Default)]
pub(super) struct WrittenRows {
    inodes: BTreeMap<Ino, InodeRow>,
    /// Names of inodes that may have several.
    links: BTreeMap<Ino, NameSet>,
    names: NameSet,
}

impl WrittenRows {
    /// Reads them on both sides.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if there are too many; those of a read.
    pub(super) fn of_spans(
        spans: &[Span],
        (before, after): (&Moment<'_>, &Moment<'_>),
    ) -> FsResult<(Self, Self)> {
        let (mut old, mut new) = (Self::default(), Self::default());
        let mut count = 0;
        for_each_page(
            after.engine,
            spans,
            Tree::Meta,
            |_| None,
            |page| {
                count += page.len();
                if count > ROWS_MAX {
                    return Err(FsError::Unsupported);
                }
                for (rows, moment) in [(&mut old, before), (&mut new, after)] {
                    let values = moment.get_many(Tree::Meta, page)?;
                    for (key, value) in page.iter().zip(values) {
                        if let Some(value) = value {
                            rows.take(key, &MetaRow::decode(&value)?);
                        }
                    }
                }
                Ok(())
            },
        )?;
        debug_assert!(old.inodes.len() <= count, "an inode has a row");
        debug_assert!(new.inodes.len() <= count, "an inode has a row");
        debug_assert!(old.holds());
        debug_assert!(new.holds());
        Ok((old, new))
    }

    fn take(&mut self, key: &[u8], row: &MetaRow<'_>) {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let name = Name::of_key(key);
        self.names.extend(name.clone());
        match (row, name) {
            (MetaRow::Inode(head, tail), name) => {
                let (head, tail) = (*head, hash_of(tail));
                self.inodes.insert(head.ino, InodeRow { head, tail, name });
            }
            (MetaRow::Link { ino, .. }, Some(name)) => {
                self.links.entry(*ino).or_default().insert(name);
            }
            (MetaRow::Link { .. }, None) => {}
        }
    }

    /// Reports whether each name that leads to an inode is one of those that were written.
    fn holds(&self) -> bool {
        let of_rows = self.inodes.values().filter_map(|row| row.name.as_ref());
        of_rows
            .chain(self.links.values().flatten())
            .all(|name| self.names.contains(name))
    }

    /// The row of an inode, if it was written.
    pub(super) fn inode(&self, ino: Ino) -> Option<&InodeRow> {
        let row = self.inodes.get(&ino);
        debug_assert!(
            row.is_none_or(|row| row.head.ino == ino),
            "the row of this inode"
        );
        row
    }

    pub(super) fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.keys().copied()
    }

    /// The directories among the inodes.
    pub(super) fn dirs(&self) -> impl Iterator<Item = Ino> {
        let dirs = self.inodes.values();
        let dirs = dirs.filter(|row| row.head.kind == FileKind::Directory);
        dirs.map(|row| row.head.ino)
    }

    /// The names that were written and are there.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.iter()
    }

    /// The names of an inode under its number that were written.
    pub(super) fn links(&self, ino: Ino) -> impl ExactSizeIterator<Item = &Name> {
        static NONE: NameSet = NameSet::new();
        let links = self.links.get(&ino);
        debug_assert!(
            links.is_none_or(|names| !names.is_empty()),
            "an inode with a name"
        );
        links.unwrap_or(&NONE).iter()
    }
}
