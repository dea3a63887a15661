//! The trees of a file system, and how rows are read from them.
//!
//! | dictionary | holds | tuned for |
//! |---|---|---|
//! | `meta` | inodes and names | lookups and directory scans: small blocks, compressed |
//! | `data` | chunks of contents | sequential reads: large blocks, not compressed |
//! | `xattr` | extended attributes | as `meta` |
//! | `sys` | header, counters, orphans | little |

use crate::{FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::{
    Caching, Changes, Coming, CommitOptions, DbError, Dictionary, Direction, KeyRange, Scan,
    Schema, SpaceClass, TreeOptions, View,
};
use stitch_format::fs_inode::{InodeHead, MetaRow};
use stitch_format::fs_key::{self, FsKey, SYS_HEADER, SYS_INODE_COUNT, SYS_NEXT_INO};
use stitch_format::fs_sys::{FsHeader, decode_number, encode_number};
use stitch_kv::{Compression, Engine};

const SCHEMA: &str = "fs";
/// The first number that is handed out; those between the root's and it are kept.
pub(crate) const FIRST_INO: u64 = 16;

/// The trees of an open file system.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) meta: Dictionary,
    pub(crate) data: Dictionary,
    pub(crate) xattr: Dictionary,
    pub(crate) sys: Dictionary,
    view: View,
    seed: u64,
    /// Some contents may be beside the store.
    pub(crate) has_external: bool,
    /// Changes of names write back rows.
    pub(crate) has_back_rows: bool,
    /// Generation of inode numbers.
    pub(crate) generation: u32,
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
    [
        ("meta", small.clone()),
        ("data", large),
        ("xattr", small.clone()),
        ("sys", small),
    ]
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

/// Whether some files of the file system may be plain files beside the store.
///
/// # Errors
/// [`FsError::NotFound`] if there is no file system; [`FsError::Format`].
pub fn has_external_files(engine: &Arc<dyn Engine>) -> FsResult<bool> {
    Ok(Store::open(engine)?.has_external)
}

impl Store {
    /// Makes the trees, the header and the root directory.
    pub(crate) fn create(
        engine: &Arc<dyn Engine>,
        header: &FsHeader,
        root: &InodeHead,
    ) -> FsResult<()> {
        debug_assert_eq!(root.ino, Ino::ROOT, "the root has its number");
        let schema = match Schema::create(Arc::clone(engine), SCHEMA, &dictionaries()) {
            Err(DbError::SchemaExists(_)) => Self::start_over(engine)?,
            other => other?,
        };
        let store = Self::of(&schema, header.name_seed)?;
        let mut changes = Changes::new();
        changes.put(store.meta, &fs_key::own(Ino::ROOT), &root.encode());
        changes.put(store.sys, SYS_NEXT_INO, &encode_number(FIRST_INO));
        changes.put(store.sys, SYS_INODE_COUNT, &encode_number(1));
        changes.put(store.sys, SYS_HEADER, &header.encode());
        let options = CommitOptions {
            sync: true,
            space: SpaceClass::Normal,
        };
        store.view.commit(&changes, options)?;
        Ok(())
    }

    /// Takes away what a `create` that did not finish has left.
    fn start_over(engine: &Arc<dyn Engine>) -> FsResult<Schema> {
        let found = Schema::open(Arc::clone(engine), SCHEMA)?;
        let is_whole = match found.dictionary("sys") {
            Ok(sys) => found.now().get(sys, SYS_HEADER)?.is_some(),
            Err(_) => false,
        };
        if is_whole {
            return Err(FsError::Exists);
        }
        for (_, dictionary) in found.dictionaries() {
            engine.drop_tree(dictionary.tree())?;
        }
        Ok(Schema::create(Arc::clone(engine), SCHEMA, &dictionaries())?)
    }

    fn of(schema: &Schema, seed: u64) -> FsResult<Self> {
        Ok(Self {
            meta: schema.dictionary("meta")?,
            data: schema.dictionary("data")?,
            xattr: schema.dictionary("xattr")?,
            sys: schema.dictionary("sys")?,
            view: schema.now(),
            seed,
            has_external: false,
            has_back_rows: false,
            generation: 0,
        })
    }

    /// Opens the trees in an engine.
    pub(crate) fn open(engine: &Arc<dyn Engine>) -> FsResult<Self> {
        let schema = Schema::open(Arc::clone(engine), SCHEMA)?;
        let mut store = Self::of(&schema, 0)?;
        let Some(header) = store.view.get(store.sys, SYS_HEADER)? else {
            return Err(FsError::NotFound);
        };
        let header = FsHeader::decode(&header)?;
        store.seed = header.name_seed;
        store.has_external = header.has_external;
        store.has_back_rows = header.has_back_rows;
        store.generation = header.generation();
        Ok(store)
    }

    /// The header as it is by now.
    pub(crate) fn header(&self) -> FsResult<FsHeader> {
        let row = self.get(self.sys, SYS_HEADER)?;
        let row = row.ok_or_else(|| FsError::Corrupt("the header is gone".to_owned()))?;
        Ok(FsHeader::decode(&row)?)
    }

    /// Where a name is in the order of its directory.
    pub(crate) fn name_hash(&self, name: &[u8]) -> u64 {
        fs_key::name_hash(self.seed, name)
    }

    /// Key of a name.
    pub(crate) fn dentry_key(&self, parent: Ino, name: &[u8]) -> FsKey {
        fs_key::dentry(self.seed, parent, name)
    }

    pub(crate) fn get(&self, dictionary: Dictionary, key: &[u8]) -> FsResult<Option<Bytes>> {
        Ok(self.view.get(dictionary, key)?)
    }

    /// An inode and its inline contents, from its own row.
    pub(crate) fn own_row(&self, ino: Ino) -> FsResult<Option<(InodeHead, Bytes)>> {
        let Some(row) = self.get(self.meta, &fs_key::own(ino))? else {
            return Ok(None);
        };
        match MetaRow::decode(&row)? {
            MetaRow::Inode(head, tail) => Ok(Some((head, row.slice_ref(tail)))),
            MetaRow::Link { .. } => Err(FsError::Corrupt(format!(
                "the own row of inode {ino} is a link"
            ))),
        }
    }

    /// A number of the sys tree; 0 if it is not there.
    pub(crate) fn number(&self, key: &[u8]) -> FsResult<u64> {
        let row = self.get(self.sys, key)?;
        Ok(row.map_or(Ok(0), |row| decode_number(&row))?)
    }

    pub(crate) fn scan(
        &self,
        dictionary: Dictionary,
        start: &[u8],
        end: &[u8],
    ) -> FsResult<Box<dyn Scan + '_>> {
        let range = KeyRange::new(start, end);
        Ok(self.view.scan(dictionary, range, Direction::Forward)?)
    }

    /// As [`Self::scan`], for who will read all of it.
    pub(crate) fn scan_whole(
        &self,
        dictionary: Dictionary,
        start: &[u8],
        end: &[u8],
    ) -> FsResult<Box<dyn Scan + '_>> {
        Ok(self
            .view
            .scan_whole(dictionary, KeyRange::new(start, end))?)
    }

    /// Says that [`Self::scan_whole`] will soon be asked for a range.
    pub(crate) fn read_ahead(
        &self,
        dictionary: Dictionary,
        (start, end): (&[u8], &[u8]),
        (coming, caching): (Coming<'_>, Caching),
    ) -> bool {
        let range = KeyRange::new(start, end);
        self.view.read_ahead(dictionary, range, coming, caching)
    }

    pub(crate) fn commit(&self, changes: &Changes, space: SpaceClass) -> FsResult<()> {
        let options = CommitOptions { sync: false, space };
        self.view.commit(changes, options)?;
        Ok(())
    }
}
