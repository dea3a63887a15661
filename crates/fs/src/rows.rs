//! The trees of an open file system, and changes of their rows.

use crate::FsResult;
use crate::locator::{RowKey, RowRange, Tree};
use stitch_base::TreeId;
use stitch_db::{Changes, Dictionary, Schema};
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

    /// Returns the dictionary whose tree has this number.
    fn by_number(&self, tree: TreeId) -> Option<Dictionary> {
        let all = [self.meta, self.data, self.xattr, self.sys];
        all.into_iter().find(|found| found.tree() == tree)
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
        self.trees.by_number(tree)
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
        self.changes.put(self.trees.of(key.tree()), key, value);
    }

    /// Puts a row of another file system in the same engine.
    pub(crate) fn put_in(&mut self, dictionary: Dictionary, key: &RowKey, value: &[u8]) {
        self.changes.put(dictionary, key, value);
    }

    /// Puts a value without copying it.
    pub(crate) fn put_borrowed(&mut self, key: &RowKey, value: &'v [u8]) {
        let tree = self.trees.of(key.tree());
        self.changes.put_borrowed(tree, key, value);
    }

    /// Puts a value that is about to be put again.
    pub(crate) fn put_partial(&mut self, key: &RowKey, value: &[u8]) {
        let tree = self.trees.of(key.tree());
        self.changes.put_partial(tree, key, value);
    }

    /// Names the write stream that the last change, a put, continues.
    pub(crate) fn name_stream(&mut self, name: StreamName) {
        self.changes.name_stream(name);
    }

    /// Folds a delta into a row by a registered function, without reading the row.
    pub(crate) fn upsert(&mut self, key: &RowKey, function: u32, delta: &[u8]) {
        let tree = self.trees.of(key.tree());
        self.changes.upsert(tree, key, function, delta);
    }

    pub(crate) fn delete(&mut self, key: &RowKey) {
        self.changes.delete(self.trees.of(key.tree()), key);
    }

    pub(crate) fn delete_range(&mut self, range: &RowRange) {
        let tree = self.trees.of(range.tree());
        self.changes.delete_range(tree, range.start(), range.end());
    }
}
