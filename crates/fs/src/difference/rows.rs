//! Rows that may be others on two sides, as each of them has them.

use super::moment::Moment;
use super::names::{Name, NameSet};
use super::side::Side;
use super::spans::{Relation, Span, for_each_page};
use crate::locator::{Locator, Tree};
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// Rows of one comparison that are held in memory, about 500 bytes each; fewer in tests. With more
/// changes a walk reads little more than what is needed, in the memory of whoever asks.
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
            after.engine(),
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
        Ok((old, new))
    }

    fn take(&mut self, key: &[u8], row: &MetaRow<'_>) {
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

    /// The row of an inode, if it was written.
    pub(super) fn inode(&self, ino: Ino) -> Option<&InodeRow> {
        self.inodes.get(&ino)
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
        self.links.get(&ino).unwrap_or(&NONE).iter()
    }
}

fn hash_of(tail: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tail.hash(&mut hasher);
    hasher.finish()
}

/// The first key of the inodes behind that of a key, in the trees whose keys begin with an inode.
fn behind_inode(moment: &Moment<'_>, key: &[u8]) -> Option<Vec<u8>> {
    let ino = Locator::ino_of(key)?;
    Some(moment.keys().own(Ino(ino.0 + 1)).to_vec())
}

/// Whose chunks are under which number, at two moments.
struct ChunkOwners {
    by_number: BTreeMap<Ino, Ino>,
    /// Inodes whose own chunks are under another number, or were.
    elsewhere: BTreeSet<Ino>,
}

impl ChunkOwners {
    fn of(old: &Side<'_>, new: &Side<'_>) -> FsResult<Self> {
        let mut by_number = old.moment.inodes_of_chunks()?;
        by_number.extend(new.moment.inodes_of_chunks()?);
        let apart = by_number.iter().filter(|(number, ino)| number != ino);
        let elsewhere = apart.map(|(_, ino)| *ino).collect();
        Ok(Self {
            by_number,
            elsewhere,
        })
    }

    /// The inode whose own chunks are, or were, under a number. Of chunks that others share there
    /// is none: they never change.
    fn find(&self, number: Ino) -> Option<Ino> {
        match self.by_number.get(&number) {
            Some(ino) => Some(*ino),
            None => (!self.elsewhere.contains(&number)).then_some(number),
        }
    }
}

/// Returns the inodes with other contents whose heads tell nothing of it: those that were written
/// within one tick of the clock. A chunk that is not there is one of zeros.
pub(super) fn written_contents(
    relation: &Relation,
    old: &Side<'_>,
    new: &Side<'_>,
) -> FsResult<BTreeSet<Ino>> {
    let is_known = |ino| match (old.rows.inode(ino), new.rows.inode(ino)) {
        _ if !relation.has_ino(ino) => true,
        (None, None) => false,
        (Some(old), Some(new)) => {
            (old.head.mtime, old.head.size) != (new.head.mtime, new.head.size)
        }
        // It was made or removed.
        _ => true,
    };
    let written = std::cell::RefCell::new(BTreeSet::new());
    let owners = ChunkOwners::of(old, new)?;
    let is_done = |number| match owners.find(number) {
        Some(ino) => is_known(ino) || written.borrow().contains(&ino),
        None => true,
    };
    let skip = |last: &[u8]| {
        let is_done = Locator::ino_of(last).is_some_and(&is_done);
        is_done.then(|| behind_inode(&new.moment, last)).flatten()
    };
    let engine = new.moment.engine();
    for_each_page(engine, &relation.spans, Tree::Data, skip, |page| {
        for key in page {
            let number = Locator::ino_of(key).filter(|number| !is_done(*number));
            let Some(ino) = number.and_then(|number| owners.find(number)) else {
                continue;
            };
            // A file that is below both directories has its contents in both moments.
            if [old, new]
                .iter()
                .any(|side| !side.moment.holds(Tree::Data, key))
            {
                continue;
            }
            let value = |side: &Side<'_>| side.moment.get(Tree::Data, key);
            let (old, new) = (
                value(old)?.unwrap_or_default(),
                value(new)?.unwrap_or_default(),
            );
            if without_zeros(&old) != without_zeros(&new) {
                written.borrow_mut().insert(ino);
            }
        }
        Ok(())
    })?;
    Ok(written.into_inner())
}

/// Returns the inodes with other contents or extended attributes whose heads may tell nothing of
/// it. Others may be among them.
pub(super) fn written_inodes(
    relation: &Relation,
    old: &Side<'_>,
    new: &Side<'_>,
) -> FsResult<BTreeSet<Ino>> {
    let mut written = written_contents(relation, old, new)?;
    let last_ino = |last: &[u8]| behind_inode(&new.moment, last);
    let engine = new.moment.engine();
    for_each_page(engine, &relation.spans, Tree::Xattr, last_ino, |page| {
        written.extend(page.iter().filter_map(|key| Locator::ino_of(key)));
        match written.len() > ROWS_MAX {
            true => Err(FsError::Unsupported),
            false => Ok(()),
        }
    })?;
    Ok(written)
}

fn without_zeros(chunk: &[u8]) -> &[u8] {
    let last = chunk.iter().rposition(|byte| *byte != 0);
    &chunk[..last.map_or(0, |last| last + 1)]
}
