//! Changes to dictionaries, collected to be committed as one.

use crate::Dictionary;
use stitch_base::TreeId;
use stitch_kv::{Batch, Message, StreamName};

/// Changes in their order, applied whole or not at all by [`crate::View::commit`]. `clear` keeps
/// the memory, so that one serves many operations.
#[derive(Clone, Debug, Default)]
pub struct Changes<'v> {
    batch: Batch<'v>,
}

impl<'v> Changes<'v> {
    /// No changes yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            batch: Batch::new(),
        }
    }

    /// Sets a key.
    pub fn put(&mut self, dictionary: Dictionary, key: &[u8], value: &[u8]) {
        self.batch.put(dictionary.tree(), key, value);
    }

    /// As [`Self::put`], without copying the value.
    pub fn put_borrowed(&mut self, dictionary: Dictionary, key: &[u8], value: &'v [u8]) {
        self.batch.put_borrowed(dictionary.tree(), key, value);
    }

    /// As [`Self::put`], of a value that is soon changed or put again: see [`Batch::put_partial`].
    pub fn put_partial(&mut self, dictionary: Dictionary, key: &[u8], value: &[u8]) {
        self.batch.put_partial(dictionary.tree(), key, value);
    }

    /// Names the write stream of the last change, a put: see [`Batch::name_stream`].
    pub fn name_stream(&mut self, name: StreamName) {
        self.batch.name_stream(name);
    }

    /// Removes a key, present or not.
    pub fn delete(&mut self, dictionary: Dictionary, key: &[u8]) {
        self.batch.delete(dictionary.tree(), key);
    }

    /// Removes every key in `[start, end)`, at a cost that does not depend on how many there are.
    pub fn delete_range(&mut self, dictionary: Dictionary, start: &[u8], end: &[u8]) {
        self.batch.delete_range(dictionary.tree(), start, end);
    }

    /// Folds `delta` into the key's value by a registered function, without reading the value now.
    pub fn upsert(&mut self, dictionary: Dictionary, key: &[u8], function: u32, delta: &[u8]) {
        self.batch.upsert(dictionary.tree(), key, function, delta);
    }

    /// Makes room for so many bytes of changes.
    pub fn reserve(&mut self, bytes: usize) {
        self.batch.reserve(bytes);
    }

    /// Number of changes.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.batch.count()
    }

    /// True without changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Size as the engine counts it against its limit on batches.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.batch.len_bytes()
    }

    /// Returns the changes in their order, each with the tree that it is of.
    pub fn messages(&self) -> impl Iterator<Item = (TreeId, Message<'_>)> {
        self.batch.messages()
    }

    /// Takes all changes out and keeps the memory.
    pub fn clear(&mut self) {
        self.batch.clear();
    }

    pub(crate) const fn batch(&self) -> &Batch<'v> {
        &self.batch
    }
}
