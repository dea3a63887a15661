//! A batch, as users have it.

use super::Tree;
use crate::StoreError;
use crate::engine::Instance;
use crate::owner::Owner;
use stitch_base::TreeId;
use stitch_kv::{Message, SpaceClass};

/// Messages over any trees of one instance, applied in their order as one atomic step by
/// [`Database::commit`](crate::Database::commit).
///
/// `clear` keeps the memory, so that one batch serves many commits without allocating. Long values
/// may be lent to it, for `'v`, and are not copied then. A batch belongs to the instance of its
/// trees until it is cleared.
#[derive(Clone, Debug, Default)]
pub struct Batch<'v> {
    messages: stitch_kv::Batch<'v>,
    /// The first tree.
    first: Option<(TreeId, Owner)>,
    /// The first tree of another owner: the batch cannot be committed.
    stranger: Option<(TreeId, Owner)>,
}

impl<'v> Batch<'v> {
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            messages: stitch_kv::Batch::new(),
            first: None,
            stranger: None,
        }
    }

    /// Sets a key.
    pub fn put(&mut self, tree: &Tree, key: &[u8], value: &[u8]) {
        self.note(tree);
        self.messages.put(tree.id(), key, value);
    }

    /// Sets a key to a value that is not copied.
    pub fn put_borrowed(&mut self, tree: &Tree, key: &[u8], value: &'v [u8]) {
        self.note(tree);
        self.messages.put_borrowed(tree.id(), key, value);
    }

    /// Removes a key, present or not.
    pub fn delete(&mut self, tree: &Tree, key: &[u8]) {
        self.note(tree);
        self.messages.delete(tree.id(), key);
    }

    /// Removes every key in `[start, end)`, at a cost that does not depend on how many there are.
    /// An empty range does nothing.
    pub fn delete_range(&mut self, tree: &Tree, start: &[u8], end: &[u8]) {
        self.note(tree);
        self.messages.delete_range(tree.id(), start, end);
    }

    /// Folds `delta` into the key's value by the function registered under `function`, without
    /// reading the value now.
    pub fn upsert(&mut self, tree: &Tree, key: &[u8], function: u32, delta: &[u8]) {
        self.note(tree);
        self.messages.upsert(tree.id(), key, function, delta);
    }

    /// Reserves memory for `bytes` of messages, so that a long batch does not move while it grows.
    pub fn reserve(&mut self, bytes: usize) {
        self.messages.reserve(bytes);
    }

    /// Number of messages.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.messages.count()
    }

    /// True without messages.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Size in bytes, as [`Limits::batch_bytes_max`](crate::Limits::batch_bytes_max) counts it.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.messages.len_bytes()
    }

    /// Removes all messages and keeps the memory.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.first = None;
        self.stranger = None;
    }

    fn note(&mut self, tree: &Tree) {
        match &self.first {
            Some((_, owner)) if owner.is(tree.instance()) => {}
            None => self.first = Some((tree.id(), Owner::new(tree.instance()))),
            Some(_) if self.stranger.is_none() => {
                self.stranger = Some((tree.id(), Owner::new(tree.instance())));
            }
            Some(_) => {}
        }
    }

    /// The messages, for an engine that has all of their trees.
    ///
    /// # Errors
    /// [`StoreError::Foreign`].
    pub(crate) fn messages_for(
        &self,
        asked: &Instance,
    ) -> Result<&stitch_kv::Batch<'v>, StoreError> {
        for (tree, owner) in self.first.iter().chain(&self.stranger) {
            owner.check(|| format!("tree {tree}"), asked)?;
        }
        Ok(&self.messages)
    }

    /// The space that it may use: only a batch that gives space back may take of the reserve.
    pub(crate) fn space(&self) -> SpaceClass {
        space_of(&self.messages)
    }
}

/// The space that messages may use.
pub(super) fn space_of(messages: &stitch_kv::Batch<'_>) -> SpaceClass {
    let removes = |message: Message<'_>| {
        matches!(
            message,
            Message::Delete { .. } | Message::DeleteRange { .. }
        )
    };
    if messages.messages().all(|(_, message)| removes(message)) {
        SpaceClass::Reserve
    } else {
        SpaceClass::Normal
    }
}
