//! The trees of an open file system, and changes of their rows.

use crate::locator::{Locator, RowKey, RowRange, SysRow, Tree};
use crate::upsert::RowUpsert;
use crate::{FsResult, XATTR_VALUE_BYTES_MAX, fixed};
use stitch_base::TreeId;
use stitch_db::{Changes, Dictionary, Schema};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::MetaRow;
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_policy::PolicyRow;
use stitch_format::fs_reads;
use stitch_format::fs_shared::SharedRow;
use stitch_format::fs_sys::{AllocatedRow, ExternalRow, FsHeader, RollbackRow, decode_number};
use stitch_format::fs_transaction::TransactionRecord;
use stitch_format::fs_view::ViewRecord;
use stitch_kv::StreamName;

/// The dictionary of each tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dictionaries {
    meta: Dictionary,
    data: Dictionary,
    xattr: Dictionary,
    sys: Dictionary,
}

impl Dictionaries {
    pub(crate) fn new(schema: &Schema) -> FsResult<Self> {
        Ok(Self {
            meta: schema.dictionary(Tree::Meta.name())?,
            data: schema.dictionary(Tree::Data.name())?,
            xattr: schema.dictionary(Tree::Xattr.name())?,
            sys: schema.dictionary(Tree::Sys.name())?,
        })
    }

    pub(crate) const fn of(&self, tree: Tree) -> Dictionary {
        match tree {
            Tree::Meta => self.meta,
            Tree::Data => self.data,
            Tree::Xattr => self.xattr,
            Tree::Sys => self.sys,
        }
    }
}

/// Changes of rows, applied whole or not at all by one commit, in their order.
#[derive(Debug)]
pub(crate) struct RowBatch<'v> {
    trees: Dictionaries,
    changes: Changes<'v>,
}

impl<'v> RowBatch<'v> {
    pub(crate) const fn new(trees: Dictionaries) -> Self {
        Self {
            trees,
            changes: Changes::new(),
        }
    }

    pub(crate) const fn changes(&self) -> &Changes<'v> {
        &self.changes
    }

    /// Returns the dictionary of a message.
    pub(crate) fn dictionary(&self, tree: TreeId) -> Option<Dictionary> {
        let trees = Tree::ALL.map(|tree| self.trees.of(tree));
        trees.into_iter().find(|found| found.tree() == tree)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the size, as the engine counts it against its limit.
    pub(crate) const fn len_bytes(&self) -> usize {
        self.changes.len_bytes()
    }

    /// Makes room for a number of bytes of changes.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.changes.reserve(bytes);
    }

    pub(crate) fn put(&mut self, key: &RowKey, value: &[u8]) {
        self.put_in(self.trees.of(key.tree()), key, value);
    }

    /// Puts a row of any file system in the same engine, such as mainline.
    pub(crate) fn put_in(&mut self, dictionary: Dictionary, key: &RowKey, value: &[u8]) {
        debug_assert!(
            is_readable(key.tree(), key, value),
            "a row is written as it is read"
        );
        self.changes.put(dictionary, key, value);
    }

    /// Puts a value without copying it.
    pub(crate) fn put_borrowed(&mut self, key: &RowKey, value: &'v [u8]) {
        debug_assert!(!value.is_empty(), "a short value is copied");
        debug_assert!(
            is_readable(key.tree(), key, value),
            "a row is written as it is read"
        );
        let tree = self.trees.of(key.tree());
        self.changes.put_borrowed(tree, key, value);
    }

    /// Puts a value that is about to be put again.
    pub(crate) fn put_partial(&mut self, key: &RowKey, value: &[u8]) {
        debug_assert!(!value.is_empty(), "some bytes are there");
        debug_assert!(
            is_readable(key.tree(), key, value),
            "a row is written as it is read"
        );
        let tree = self.trees.of(key.tree());
        self.changes.put_partial(tree, key, value);
    }

    /// Names the write stream that the last change, a put, continues.
    pub(crate) fn name_stream(&mut self, name: StreamName) {
        debug_assert!(
            !self.changes.is_empty(),
            "a put comes before the name of its stream"
        );
        self.changes.name_stream(name);
    }

    /// Folds a delta into a row by a registered function, without reading the row.
    pub(crate) fn upsert(&mut self, key: &RowKey, function: u32, delta: &[u8]) {
        let folds = RowUpsert::find(function);
        debug_assert!(
            folds.is_some_and(|folds| folds.tree == key.tree()),
            "a function folds its own rows"
        );
        debug_assert!(
            folds.is_some_and(|folds| (folds.is_delta)(delta)),
            "one that is not folds into nothing"
        );
        let tree = self.trees.of(key.tree());
        self.changes.upsert(tree, key, function, delta);
    }

    pub(crate) fn delete(&mut self, key: &RowKey) {
        debug_assert!(
            key.tree() != Tree::Sys || Locator::sys_row(key).is_some(),
            "the key of a row"
        );
        self.changes.delete(self.trees.of(key.tree()), key);
    }

    pub(crate) fn delete_range(&mut self, range: &RowRange) {
        debug_assert!(
            range.start() <= range.end(),
            "a range does not end before it starts"
        );
        debug_assert!(
            range.tree() != Tree::Sys || range.start().first() == range.end().first(),
            "rows of one kind"
        );
        let tree = self.trees.of(range.tree());
        self.changes.delete_range(tree, range.start(), range.end());
    }
}

/// Reports whether a reader takes the value of a row: the other half of what is checked when it is
/// read.
pub(crate) fn is_readable(tree: Tree, key: &[u8], value: &[u8]) -> bool {
    match tree {
        Tree::Meta => {
            let is_own = Locator::name_of(key).is_none();
            match MetaRow::decode(value) {
                Ok(MetaRow::Inode(head, _)) => !is_own || Locator::ino_of(key) == Some(head.ino),
                Ok(MetaRow::Link { .. }) => !is_own,
                Err(_) => false,
            }
        }
        Tree::Data => value.len() as u64 <= CHUNK_BYTES,
        Tree::Xattr => value.len() <= XATTR_VALUE_BYTES_MAX,
        Tree::Sys => Locator::sys_row(key).is_some_and(|row| is_readable_as(row, value)),
    }
}

fn is_readable_as(row: SysRow, value: &[u8]) -> bool {
    match row {
        SysRow::Header => FsHeader::decode(value).is_ok(),
        SysRow::NextIno
        | SysRow::InodeCount
        | SysRow::Unwritten
        | SysRow::NextView
        | SysRow::Contents(_) => decode_number(value).is_ok(),
        SysRow::Fixed => value == fixed::MARK,
        SysRow::Orphan(_) | SysRow::ContentsUser(..) => value.is_empty(),
        SysRow::BackProgress | SysRow::Back(_) => Place::decode(value).is_ok(),
        SysRow::Rollback => RollbackRow::decode(value).is_ok(),
        SysRow::External(_) => ExternalRow::decode(value).is_ok(),
        SysRow::Extent(..) => AllocatedRow::decode(value).is_ok(),
        SysRow::View(_) => ViewRecord::decode(value).is_ok(),
        SysRow::Transaction(_) => TransactionRecord::decode(value).is_ok(),
        SysRow::Reads(..) => fs_reads::decode(value).is_ok(),
        SysRow::Policy(..) => PolicyRow::decode(value).is_ok(),
        SysRow::Shared(_) => SharedRow::decode(value).is_ok(),
    }
}
