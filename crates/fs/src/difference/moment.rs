//! Rows of a file system at a moment.

use super::names::{Name, NameSet};
use crate::FsResult;
use crate::locator::{Locator, RowKey, RowRange, SysRow, Tree};
use crate::schema::Store;
use crate::views::read_record;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::rc::Rc;
use stitch_base::{Ino, TreeId};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_shared::SharedRow;
use stitch_format::fs_sys::FsHeader;
use stitch_format::fs_view::{ViewRecord, ViewState};
use stitch_kv::{Direction, Engine, Scan, Snapshot};

/// The trees of a file system as a snapshot of the engine shows them.
#[derive(Clone)]
pub(super) struct Moment<'f> {
    pub(super) engine: &'f dyn Engine,
    pub(super) store: Rc<Store>,
    pub(super) at: Snapshot,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameTarget {
    pub(super) ino: Ino,
    /// The inode's row is under its number: it may have other names.
    pub(super) is_link: bool,
}

impl<'f> Moment<'f> {
    pub(super) fn new(engine: &'f dyn Engine, store: Rc<Store>, at: &Snapshot) -> Self {
        let at = at.clone();
        Self { engine, store, at }
    }

    pub(super) fn tree(&self, tree: Tree) -> TreeId {
        self.store.tree(tree)
    }

    pub(super) fn keys(&self) -> Locator {
        self.store.keys
    }

    pub(super) fn get(&self, tree: Tree, key: &[u8]) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        Ok(self.engine.get(self.tree(tree), key, Some(&self.at))?)
    }

    pub(super) fn get_many(&self, tree: Tree, keys: &[&[u8]]) -> FsResult<Vec<Option<Bytes>>> {
        debug_assert!(
            keys.iter().all(|key| !key.is_empty()),
            "no row has an empty key"
        );
        let values = self
            .engine
            .get_many(self.tree(tree), keys, Some(&self.at))?;
        debug_assert_eq!(values.len(), keys.len(), "one for each key");
        Ok(values)
    }

    /// Reports whether it holds a key of a tree: a narrowed snapshot may not.
    pub(super) fn holds(&self, tree: Tree, key: &[u8]) -> bool {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let ranges = self.engine.held_ranges(self.tree(tree), &self.at);
        ranges.is_none_or(|ranges| ranges.has(key))
    }

    fn row(&self, key: &RowKey) -> FsResult<Option<Bytes>> {
        self.get(key.tree(), key)
    }

    fn scan(&self, range: &RowRange) -> FsResult<Box<dyn Scan + '_>> {
        debug_assert!(
            range.start() <= range.end(),
            "a range does not end before it starts"
        );
        let tree = self.store.tree(range.tree());
        let (keys, forward) = (range.keys(), Direction::Forward);
        Ok(self.engine.scan(tree, keys, forward, Some(&self.at))?)
    }

    /// Reports whether each inode whose row stands under a name has a back row.
    pub(super) fn has_all_back_rows(&self) -> FsResult<bool> {
        let Some(header) = self.row(&self.keys().header())? else {
            return Ok(false);
        };
        if !FsHeader::decode(&header)?.has_back_rows {
            return Ok(false);
        }
        let progress = self.row(&self.keys().back_progress())?;
        let progress = progress.map(|row| Place::decode(&row)).transpose()?;
        Ok(progress == Some(Place::END))
    }

    /// The records of clones in use, by number. These are the trees of mainline.
    pub(super) fn clones(&self) -> FsResult<BTreeMap<u64, ViewRecord>> {
        let mut clones = BTreeMap::new();
        let mut rows = self.scan(&self.keys().views())?;
        while let Some((key, row)) = rows.next()? {
            // A record that cannot be read shows no clone.
            if let Some(SysRow::View(number)) = Locator::sys_row(key)
                && let Ok(record) = read_record(number, row)
                && record.state == ViewState::Live
            {
                debug_assert!(number > 0, "mainline has no record");
                clones.insert(number, record);
            }
        }
        Ok(clones)
    }

    /// The head of the directory at a path.
    pub(super) fn head_at(&self, path: &[u8]) -> FsResult<Option<InodeHead>> {
        let mut head = self.own_head(Ino::ROOT)?;
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            debug_assert!(!name.contains(&b'/'), "one name at a time");
            let Some(above) = head else {
                break;
            };
            let row = self.row(&self.keys().dentry(above.ino, name))?;
            head = match row.as_deref().map(MetaRow::decode).transpose()? {
                Some(MetaRow::Inode(head, _)) => Some(head),
                Some(MetaRow::Link { .. }) | None => None,
            };
        }
        Ok(head)
    }

    /// The inodes that share contents, by the numbers under which their own chunks are.
    pub(super) fn inodes_of_chunks(&self) -> FsResult<BTreeMap<Ino, Ino>> {
        let mut inodes = BTreeMap::new();
        let mut rows = self.scan(&self.keys().all_shared())?;
        while let Some((key, row)) = rows.next()? {
            if let Some(SysRow::Shared(ino)) = Locator::sys_row(key) {
                inodes.insert(SharedRow::decode(row)?.own, ino);
            }
        }
        Ok(inodes)
    }

    /// Where the row of an inode is, if it stands under a name.
    pub(super) fn back_row(&self, ino: Ino) -> FsResult<Option<Place>> {
        let row = self.row(&self.keys().back(ino))?;
        Ok(row.map(|row| Place::decode(&row)).transpose()?)
    }

    /// The name of an inode whose row is at a place, and its head.
    pub(super) fn find(&self, place: Place, ino: Ino) -> FsResult<Option<(Name, InodeHead)>> {
        let mut rows = self.scan(&self.keys().dentries_at(place))?;
        while let Some((key, row)) = rows.next()? {
            if let MetaRow::Inode(head, _) = MetaRow::decode(row)?
                && head.ino == ino
            {
                debug_assert!(
                    Name::of_key(key).is_some_and(|name| name.dir == place.parent),
                    "names of one directory"
                );
                return Ok(Name::of_key(key).map(|name| (name, head)));
            }
        }
        Ok(None)
    }

    /// The head of an inode whose row is under its number.
    pub(super) fn own_head(&self, ino: Ino) -> FsResult<Option<InodeHead>> {
        let row = self.row(&self.keys().own(ino))?;
        let row = row.as_deref().map(MetaRow::decode).transpose()?;
        Ok(row.and_then(|row| match row {
            MetaRow::Inode(head, _) => Some(head),
            MetaRow::Link { .. } => None,
        }))
    }

    /// The inode that a name leads to.
    pub(super) fn ino_of(&self, name: &Name) -> FsResult<Option<Ino>> {
        Ok(self.target(name)?.map(|target| target.ino))
    }

    /// What a name leads to.
    pub(super) fn target(&self, name: &Name) -> FsResult<Option<NameTarget>> {
        debug_assert!(!name.name.is_empty(), "a name is not empty");
        let row = self.row(&self.keys().dentry(name.dir, &name.name))?;
        let row = row.as_deref().map(MetaRow::decode).transpose()?;
        Ok(row.map(|row| NameTarget {
            ino: row.ino(),
            is_link: matches!(row, MetaRow::Link { .. }),
        }))
    }

    /// Calls `visit` with each name in a directory and its row, until it breaks.
    pub(super) fn each_name(
        &self,
        dir: Ino,
        mut visit: impl FnMut(Name, &MetaRow<'_>) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let mut rows = self.scan(&self.keys().dentries(dir))?;
        while let Some((key, row)) = rows.next()? {
            let Some(name) = Name::of_key(key) else {
                continue;
            };
            debug_assert_eq!(name.dir, dir, "the range is of one directory");
            if visit(name, &MetaRow::decode(row)?)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Calls `visit` with each name below a directory and its row.
    fn walk(&self, dir: Ino, mut visit: impl FnMut(Name, &MetaRow<'_>)) -> FsResult<()> {
        // Damaged rows may form a ring.
        let (mut waiting, mut seen) = (vec![dir], BTreeSet::from([dir]));
        while let Some(dir) = waiting.pop() {
            debug_assert!(
                seen.contains(&dir),
                "each directory is seen before its names are"
            );
            let flow = self.each_name(dir, |name, row| {
                if let MetaRow::Inode(head, _) = row
                    && head.kind == FileKind::Directory
                    && seen.insert(head.ino)
                {
                    waiting.push(head.ino);
                }
                visit(name, row);
                Ok(ControlFlow::Continue(()))
            })?;
            debug_assert!(flow.is_continue(), "all names are visited");
        }
        Ok(())
    }

    /// Adds all names below a directory.
    pub(super) fn names_below(&self, dir: Ino, names: &mut NameSet) -> FsResult<()> {
        self.walk(dir, |name, _| {
            names.insert(name);
        })
    }

    /// Calls `visit` with each name below a directory that is one of several of an inode.
    pub(super) fn links_below(&self, dir: Ino, mut visit: impl FnMut(Ino, Name)) -> FsResult<()> {
        self.walk(dir, |name, row| {
            if let MetaRow::Link { ino, .. } = row {
                visit(*ino, name);
            }
        })
    }
}
