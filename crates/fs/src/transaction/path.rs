//! Paths of inodes, for reports.
//!
//! The name of a directory is found, in this order, in the rows that the report is about, in the
//! inode table, and by one scan of all names, which is run at most once and only if an inode is not
//! known any more.

use super::own::OwnRow;
use crate::FsResult;
use crate::locator::Locator;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use bytes::Bytes;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, MetaRow};

/// Directories above a name: more are a ring, which damaged rows may form.
const DEPTH_MAX: usize = 4096;

type ParentMap = HashMap<Ino, (Ino, Vec<u8>)>;

/// Where the names of a file system are looked up: in its rows, and in its inode table.
#[derive(Clone, Copy)]
pub(super) struct NameSource<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
}

impl<'fs> NameSource<'fs> {
    pub(super) const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
        }
    }
}

/// Where inodes are, as one side has them.
pub(super) struct SidePaths<'a> {
    names: NameSource<'a>,
    /// From rows that are other ones on the other side.
    own: ParentMap,
    /// Files that the scan of all names looks for, beside directories and links.
    files: BTreeSet<Ino>,
    scanned: OnceCell<ParentMap>,
}

/// Enters a name of a directory or link, or of a file that is wanted.
fn enter(
    names: &mut ParentMap,
    key: &[u8],
    row: &[u8],
    is_wanted: impl Fn(Ino) -> bool,
) -> FsResult<()> {
    let (Some((_, name)), Some(parent)) = (Locator::name_of(key), Locator::ino_of(key)) else {
        return Ok(());
    };
    let row = MetaRow::decode(row)?;
    let is_needed = match row {
        MetaRow::Inode(head, _) => head.kind == FileKind::Directory,
        MetaRow::Link { .. } => true,
    };
    if is_needed || is_wanted(row.ino()) {
        debug_assert!(!name.is_empty(), "a name is not empty");
        let place = || (parent, name.to_vec());
        names.entry(row.ino()).or_insert_with(place);
    }
    Ok(())
}

impl<'a> SidePaths<'a> {
    /// Paths by `names`, but for the rows whose values are given by `side`.
    pub(super) fn new<'r>(
        names: NameSource<'a>,
        rows: impl IntoIterator<Item = (&'r OwnRow, Option<&'r Bytes>)>,
    ) -> FsResult<Self> {
        let mut own = ParentMap::new();
        for (row, value) in rows {
            if let Some(value) = value {
                enter(&mut own, &row.key, value, |_| true)?;
            }
        }
        let scanned = OnceCell::new();
        Ok(Self {
            names,
            own,
            files: BTreeSet::new(),
            scanned,
        })
    }

    /// Has the scan of all names look for these files, too: those that may not be known any more.
    pub(super) fn with_files(self, files: impl IntoIterator<Item = Ino>) -> Self {
        debug_assert!(self.scanned.get().is_none(), "nothing was asked yet");
        Self {
            files: files.into_iter().collect(),
            ..self
        }
    }

    fn scanned(&self) -> FsResult<&ParentMap> {
        if let Some(names) = self.scanned.get() {
            return Ok(names);
        }
        let mut names = ParentMap::new();
        let store = self.names.store;
        let mut scan = store.scan(&store.keys.meta_from(Place::FIRST))?;
        while let Some((key, row)) = scan.next()? {
            enter(&mut names, key, row, |ino| self.files.contains(&ino))?;
        }
        Ok(self.scanned.get_or_init(|| names))
    }

    /// A directory and the name in it that lead to an inode.
    fn name_of(&self, ino: Ino) -> FsResult<Option<(Ino, Vec<u8>)>> {
        if let Some(name) = self.own.get(&ino) {
            return Ok(Some(name.clone()));
        }
        let known = self.names.residents.inodes.find(ino);
        if let Some((parent, name)) = known.and_then(|inode| inode.name()) {
            return Ok(Some((parent, name.to_vec())));
        }
        Ok(self.scanned()?.get(&ino).cloned())
    }

    /// Returns the path of an inode from the root, without a slash at either end; `None` if it has
    /// no name.
    pub(super) fn of(&self, ino: Ino) -> FsResult<Option<Vec<u8>>> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT {
            let Some((parent, name)) = self.name_of(at)? else {
                return Ok(None);
            };
            if names.len() == DEPTH_MAX {
                return Ok(None);
            }
            debug_assert!(!name.is_empty(), "a name is not empty");
            names.push(name);
            at = parent;
        }
        debug_assert!(names.len() <= DEPTH_MAX, "a path that is spelled out");
        debug_assert_eq!(
            names.is_empty(),
            ino == Ino::ROOT,
            "the root alone has no name"
        );
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }

    /// Returns the path of a name, by its key.
    pub(super) fn of_key(&self, key: &[u8]) -> FsResult<Option<Vec<u8>>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        let (Some((_, name)), Some(dir)) = (Locator::name_of(key), Locator::ino_of(key)) else {
            return Ok(None);
        };
        let dir = self.of(dir)?;
        Ok(dir.map(|dir| match &dir[..] {
            b"" => name.to_vec(),
            _ => [&dir[..], b"/", name].concat(),
        }))
    }
}
