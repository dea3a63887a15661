//! The trees of a file system, and how rows are read from them.
//!
//! | dictionary | tuned for |
//! |---|---|
//! | `meta` | lookups and directory scans: small blocks, compressed |
//! | `data` | sequential reads: large blocks, not compressed |
//! | `xattr` | as `meta` |
//! | `sys` | few rows |
//!
//! Which rows are in them: see `locator`.

use crate::inode::{Inode, Location};
use crate::locator::{Locator, RowKey, RowRange, Tree};
use crate::rows::{Dictionaries, RowBatch};
use crate::{FsError, FsResult};
use bytes::Bytes;
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_db::{
    CommitOptions, DbError, Dictionary, Direction, ReadHint, Scan, Schema, SpaceClass, TreeOptions,
    View,
};
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_sys::{FsHeader, decode_number, encode_number};
use stitch_kv::{Compression, Engine};

/// The schema of mainline. Those of writable views: [`view_schema`].
pub(crate) const SCHEMA: &str = "fs";
/// What comes before the number in the schema of a writable view.
const VIEW_PREFIX: &str = "fs~";
/// The first number that is handed out; those between the root's and it are kept.
pub(crate) const FIRST_INO: u64 = 16;
const _: () = assert!(FIRST_INO > Ino::ROOT.0, "the root has its number");

/// Returns the schema of the writable view of a number.
pub(crate) fn view_schema(number: u64) -> String {
    debug_assert!(number > 0, "mainline has a name of its own");
    format!("{VIEW_PREFIX}{number}")
}

/// Returns the number of the writable view that a tree of this name is in.
pub(crate) fn view_of_tree(name: &str) -> Option<u64> {
    let (schema, _) = name.split_once('/')?;
    let number = schema.strip_prefix(VIEW_PREFIX)?.parse().ok()?;
    (number > 0 && view_schema(number) == schema).then_some(number)
}

/// The trees of an open file system.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) keys: Locator,
    trees: Dictionaries,
    pub(crate) view: View,
    /// As it was at open.
    pub(crate) header: FsHeader,
}

fn dictionaries() -> [(&'static str, TreeOptions); 4] {
    let small = TreeOptions {
        block_bytes: 16 << 10,
        stitch_bytes: 64 << 10,
        compression: Compression::Lz4,
        value_block_bytes: 0,
    };
    let large = TreeOptions {
        block_bytes: 64 << 10,
        stitch_bytes: 64 << 10,
        compression: Compression::None,
        value_block_bytes: 2 << 10,
    };
    let all = [
        (Tree::Meta.name(), small.clone()),
        (Tree::Data.name(), large),
        (Tree::Xattr.name(), small.clone()),
        (Tree::Sys.name(), small),
    ];
    debug_assert_eq!(
        all.each_ref().map(|(name, _)| *name),
        Tree::ALL.map(Tree::name),
        "a dictionary for each tree"
    );
    all
}

/// How the trees of a file system are compressed. `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressOptions {
    /// Contents of files. Not compressed in a new file system.
    pub data: Option<Compression>,
    /// Names, attributes and extended attributes, and contents of files up to
    /// [`INLINE_BYTES_MAX`](crate::INLINE_BYTES_MAX). [`Compression::Lz4`] in a new file system.
    pub meta: Option<Compression>,
}

/// Sets how a file system is compressed. It holds for what is written from now on, and for good.
///
/// # Errors
/// [`FsError::NotFound`] if there is no file system; those of the engine.
///
/// # Durability
/// On the medium when this returns.
pub fn set_compression(engine: &Arc<dyn Engine>, wanted: CompressOptions) -> FsResult<()> {
    let schema = match Schema::open(Arc::clone(engine), SCHEMA) {
        Err(DbError::NoSchema(_)) => return Err(FsError::NotFound),
        other => other?,
    };
    for (name, dictionary) in schema.dictionaries() {
        let wanted = match name.as_str() {
            "data" => wanted.data,
            _ => wanted.meta,
        };
        let infos = engine.trees();
        let info = infos.iter().find(|info| info.id == dictionary.tree());
        if let (Some(compression), Some(info)) = (wanted, info) {
            let options = TreeOptions {
                compression,
                ..info.options.clone()
            };
            engine.alter_tree(info.id, &options)?;
        }
    }
    Ok(())
}

/// Reports whether some files of the file system may be plain files beside the store.
///
/// # Errors
/// [`FsError::NotFound`] if there is no file system; [`FsError::Format`].
pub fn has_external_files(engine: &Arc<dyn Engine>) -> FsResult<bool> {
    Ok(Store::open(engine, SCHEMA)?.header.has_external)
}

impl Store {
    /// Makes the trees, the header and the root directory.
    pub(crate) fn create(
        engine: &Arc<dyn Engine>,
        header: &FsHeader,
        root: &InodeHead,
    ) -> FsResult<()> {
        debug_assert_eq!(root.ino, Ino::ROOT, "the root has its number");
        debug_assert_eq!(root.kind, FileKind::Directory, "names are in directories");
        debug_assert!(root.nlink >= 2, "a directory has two links");
        let schema = match Schema::create(Arc::clone(engine), SCHEMA, &dictionaries()) {
            Err(DbError::SchemaExists(_)) => Self::start_over(engine)?,
            other => other?,
        };
        let store = Self::of(&schema, *header)?;
        let (mut batch, keys) = (store.batch(), store.keys);
        batch.put(&keys.own(Ino::ROOT), &root.encode());
        batch.put(&keys.next_ino(), &encode_number(FIRST_INO));
        batch.put(&keys.inode_count(), &encode_number(1));
        batch.put(&keys.header(), &header.encode());
        let options = CommitOptions {
            sync: true,
            space: SpaceClass::Normal,
        };
        debug_assert!(!batch.is_empty(), "rows are committed");
        store.view.commit(batch.changes(), options)?;
        Ok(())
    }

    /// Takes away what a `create` that did not finish has left.
    fn start_over(engine: &Arc<dyn Engine>) -> FsResult<Schema> {
        let found = Schema::open(Arc::clone(engine), SCHEMA)?;
        let is_whole = match found.dictionary(Tree::Sys.name()) {
            Ok(sys) => {
                let header = Locator::default().header();
                found.now().get(sys, &header)?.is_some()
            }
            Err(_) => false,
        };
        if is_whole {
            return Err(FsError::Exists);
        }
        debug_assert!(!is_whole, "nothing that can be opened goes");
        for (_, dictionary) in found.dictionaries() {
            engine.drop_tree(dictionary.tree())?;
        }
        Ok(Schema::create(Arc::clone(engine), SCHEMA, &dictionaries())?)
    }

    fn of(schema: &Schema, header: FsHeader) -> FsResult<Self> {
        let trees = Dictionaries::new(schema)?;
        debug_assert_ne!(
            trees.of(Tree::Meta).tree(),
            trees.of(Tree::Sys).tree(),
            "each tree is one"
        );
        debug_assert_ne!(
            trees.of(Tree::Data).tree(),
            trees.of(Tree::Xattr).tree(),
            "each tree is one"
        );
        Ok(Self {
            keys: Locator::new(&header),
            trees,
            view: schema.now(),
            header,
        })
    }

    /// Opens the trees of a schema in an engine: [`SCHEMA`], or branches of its trees.
    pub(crate) fn open(engine: &Arc<dyn Engine>, schema: &str) -> FsResult<Self> {
        let schema = Schema::open(Arc::clone(engine), schema)?;
        let sys = schema.dictionary(Tree::Sys.name())?;
        let key = Locator::default().header();
        let Some(header) = schema.now().get(sys, &key)? else {
            return Err(FsError::NotFound);
        };
        Self::of(&schema, FsHeader::decode(&header)?)
    }

    /// The dictionary of a tree.
    pub(crate) const fn dictionary(&self, tree: Tree) -> Dictionary {
        self.trees.of(tree)
    }

    /// The number of a tree in the engine.
    pub(crate) const fn tree(&self, tree: Tree) -> TreeId {
        self.trees.of(tree).tree()
    }

    /// Changes of rows of these trees; none yet.
    pub(crate) const fn batch<'v>(&self) -> RowBatch<'v> {
        RowBatch::new(self.trees)
    }

    pub(crate) fn get(&self, key: &RowKey) -> FsResult<Option<Bytes>> {
        debug_assert!(!key.is_empty(), "no row has an empty key");
        Ok(self.view.get(self.trees.of(key.tree()), key)?)
    }

    /// An inode and its inline contents, from its own row.
    pub(crate) fn own_row(&self, ino: Ino) -> FsResult<Option<(InodeHead, Bytes)>> {
        let Some(row) = self.get(&self.keys.own(ino))? else {
            return Ok(None);
        };
        match MetaRow::decode(&row)? {
            MetaRow::Inode(head, tail) if head.ino == ino => Ok(Some((head, row.slice_ref(tail)))),
            MetaRow::Inode(InodeHead { ino: found, .. }, _) => Err(FsError::Corrupt(format!(
                "the own row of inode {ino} is that of {found}"
            ))),
            MetaRow::Link { .. } => Err(FsError::Corrupt(format!(
                "the own row of inode {ino} is a link"
            ))),
        }
    }

    /// What is in an inode's row behind the head: inline contents, or a symlink's target.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] if the row is missing, or is another inode's.
    pub(crate) fn tail(&self, inode: &Inode) -> FsResult<Bytes> {
        if let Location::Memory(tail) = &inode.location {
            return Ok(Bytes::clone(tail));
        }
        let Some(key) = self.keys.inode(inode).filter(|_| inode.has_tail()) else {
            return Ok(Bytes::new());
        };
        let ino = inode.head.ino;
        let Some(row) = self.get(&key)? else {
            return Err(FsError::Corrupt(format!("inode {ino} has no row")));
        };
        match MetaRow::decode(&row)? {
            MetaRow::Inode(head, tail) if head.ino == ino => {
                debug_assert_eq!(head.kind, inode.head.kind, "a type never changes");
                Ok(row.slice_ref(tail))
            }
            other => {
                let found = other.ino();
                Err(FsError::Corrupt(format!(
                    "the row of inode {ino} is that of {found}"
                )))
            }
        }
    }

    /// A number of the sys tree; 0 if its row does not exist.
    pub(crate) fn number(&self, key: &RowKey) -> FsResult<u64> {
        debug_assert_eq!(key.tree(), Tree::Sys, "numbers are in the sys tree");
        let row = self.get(key)?;
        Ok(row.map_or(Ok(0), |row| decode_number(&row))?)
    }

    /// Scans a range, the lowest key first.
    pub(crate) fn scan(&self, range: &RowRange) -> FsResult<Box<dyn Scan + '_>> {
        debug_assert!(
            range.start() <= range.end(),
            "a range does not end before it starts"
        );
        let tree = self.trees.of(range.tree());
        Ok(self.view.scan(tree, range.keys(), Direction::Forward)?)
    }

    /// Scans a range of which the caller reads all.
    pub(crate) fn scan_whole(&self, range: &RowRange) -> FsResult<Box<dyn Scan + '_>> {
        debug_assert!(
            range.start() <= range.end(),
            "a range does not end before it starts"
        );
        let tree = self.trees.of(range.tree());
        Ok(self.view.scan_whole(tree, range.keys())?)
    }

    /// Prefetches rows that are likely to be read. Reports whether there was memory for them.
    pub(crate) fn read_ahead(&self, tree: Tree, hint: &ReadHint<'_>) -> bool {
        self.view.read_ahead(self.trees.of(tree), hint)
    }

    /// Commits a batch: again after a conflict, and after an unknown outcome that turns out to be
    /// none (ADR 0176).
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn commit(&self, batch: &RowBatch<'_>, space: SpaceClass) -> FsResult<()> {
        let options = CommitOptions { sync: false, space };
        debug_assert!(!batch.is_empty(), "an empty commit is none");
        match self.view.commit(batch.changes(), options) {
            Ok(_) => Ok(()),
            Err(error) => self.commit_again(batch, options, error),
        }
    }
}
