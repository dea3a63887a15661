//! A batch: messages that are applied together or not at all.
//!
//! The writer of a put may add *hints*: the name of its write stream, and that its value is
//! partial. A hint costs or saves time alone. It is not stored, and any engine may ignore it.

mod hinted;

pub use hinted::HintedMessage;
use hinted::{HintedMessages, NamedPuts};
use stitch_base::TreeId;
use stitch_format::batch::{
    BorrowedValue, Message, Messages, Position, Stretch, put_borrowed, put_message,
};

/// The name of a write stream: puts that their writer makes in the order of their keys, commit
/// after commit, such as the chunks of one file.
///
/// The same number in two trees names two streams. A writer may reuse a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName(pub u64);

/// Messages over any trees, applied in their order as one atomic step.
///
/// Built once, in the form in which the log stores it. `clear` keeps the memory, so that one batch
/// serves many operations without allocating. Long values may be borrowed by it, for `'v`, and are
/// not copied then.
#[derive(Clone, Debug, Default)]
pub struct Batch<'v> {
    bytes: Vec<u8>,
    borrowed: Vec<BorrowedValue<'v>>,
    borrowed_bytes: usize,
    count: usize,
    /// Where the last message begins.
    last: Position,
    /// Where the last put of a partial value begins.
    partial: Option<Position>,
    /// Puts that name their write stream, in the order of the batch; none is empty.
    named: Vec<NamedPuts>,
}

impl<'v> Batch<'v> {
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            borrowed: Vec::new(),
            borrowed_bytes: 0,
            count: 0,
            last: Position::new(0, (0, 0)),
            partial: None,
            named: Vec::new(),
        }
    }

    /// As [`Self::put`], without copying the value.
    pub fn put_borrowed(&mut self, tree: impl Into<TreeId>, key: &[u8], value: &'v [u8]) {
        let tree = tree.into();
        assert!(tree.0 > 0, "tree 0 is never given out");
        self.last = self.end();
        self.borrowed
            .push(put_borrowed(&mut self.bytes, tree, key, value));
        self.borrowed_bytes += value.len();
        self.count += 1;
    }

    /// Sets a key.
    pub fn put(&mut self, tree: impl Into<TreeId>, key: &[u8], value: &[u8]) {
        self.push(tree.into(), Message::Put { key, value });
    }

    /// As [`Self::put`], with the hint that the value is soon changed or put again, such as the
    /// part of a record that was written so far. An engine that writes values once leaves this one
    /// to its log. Of several such puts in a batch the last counts.
    pub fn put_partial(&mut self, tree: impl Into<TreeId>, key: &[u8], value: &[u8]) {
        self.partial = Some(self.end());
        self.put(tree, key, value);
    }

    /// Adds a hint to the last message, a put: it continues the write stream of this name.
    ///
    /// An engine may write values of a stream once, one behind the other. They lie in key order
    /// there, so a put of a key that is not greater than those before it does not continue the
    /// stream: the engine treats it like a put without a name. A wrong name costs speed alone.
    ///
    /// # Panics
    /// If the batch is empty, or its last message has a name already.
    pub fn name_stream(&mut self, name: StreamName) {
        assert!(self.count > 0, "a message to name the stream of");
        let (start, end) = (self.last, self.end());
        if let Some(named) = self.named.last_mut() {
            assert_ne!(named.range.end, end, "a put has one name");
            if named.name == name && named.range.end == start {
                named.range.end = end;
                return;
            }
        }
        let range = start..end;
        self.named.push(NamedPuts { range, name });
    }

    /// Removes a key, present or not.
    pub fn delete(&mut self, tree: impl Into<TreeId>, key: &[u8]) {
        self.push(tree.into(), Message::Delete { key });
    }

    /// Removes every key in `[start, end)`, at a cost that does not depend on how many there are.
    /// An empty range does nothing.
    pub fn delete_range(&mut self, tree: impl Into<TreeId>, start: &[u8], end: &[u8]) {
        if start < end {
            self.push(tree.into(), Message::DeleteRange { start, end });
        }
    }

    /// Folds `delta` into the key's value by the function registered under `function`, without
    /// reading the value now.
    pub fn upsert(&mut self, tree: impl Into<TreeId>, key: &[u8], function: u32, delta: &[u8]) {
        self.push(
            tree.into(),
            Message::Upsert {
                key,
                function,
                delta,
            },
        );
    }

    /// Appends any message.
    pub fn push(&mut self, tree: TreeId, message: Message<'_>) {
        assert!(tree.0 > 0, "tree 0 is never given out");
        self.last = self.end();
        put_message(&mut self.bytes, tree, message);
        self.count += 1;
    }

    /// Makes room for so many bytes of messages, so that a long batch does not move while it grows.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Number of messages.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// True without messages.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The batch as the log stores it, but for the values it borrows.
    #[must_use]
    pub fn stretch(&self) -> Stretch<'_> {
        Stretch::new(&self.bytes, &self.borrowed)
    }

    /// Where its last message ends.
    #[must_use]
    pub const fn end(&self) -> Position {
        Position::new(self.bytes.len(), (self.borrowed.len(), self.borrowed_bytes))
    }

    /// Its length as the log stores it.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.bytes.len() + self.borrowed_bytes
    }

    /// Takes all messages out and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.borrowed.clear();
        self.borrowed_bytes = 0;
        self.count = 0;
        self.last = Position::default();
        self.partial = None;
        self.named.clear();
    }

    /// The messages in order.
    pub fn messages(&self) -> impl Iterator<Item = (TreeId, Message<'_>)> {
        let messages: Messages<'_> = self.stretch().messages();
        messages.map(|m| m.expect("this batch encoded its own messages"))
    }

    /// Returns the messages in order, each with its position and hints.
    pub fn hinted_messages(&self) -> impl Iterator<Item = HintedMessage<'_>> {
        HintedMessages::new(self.stretch().messages(), self.partial, &self.named)
    }

    /// Adds the messages of another batch with their hints, each to the tree that `to` returns.
    ///
    /// # Errors
    /// That of `to`. The batch has the messages before then.
    pub fn extend_hinted<E>(
        &mut self,
        other: &Batch<'_>,
        to: impl Fn(TreeId) -> Result<TreeId, E>,
    ) -> Result<(), E> {
        for hinted in other.hinted_messages() {
            let tree = to(hinted.tree)?;
            if hinted.is_partial {
                self.partial = Some(self.end());
            }
            self.push(tree, hinted.message);
            if let Some(name) = hinted.stream {
                self.name_stream(name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_order_and_empty_ranges_vanish() {
        let mut batch = Batch::new();
        batch.put(TreeId(1), b"k", b"v");
        batch.delete_range(TreeId(1), b"b", b"b");
        batch.delete(TreeId(2), b"k");
        assert_eq!(batch.count(), 2);
        let trees: Vec<u32> = batch.messages().map(|(tree, _)| tree.0).collect();
        assert_eq!(trees, [1, 2]);
        batch.clear();
        assert!(batch.is_empty() && batch.len_bytes() == 0);
        assert_eq!(batch.hinted_messages().count(), 0);
    }
}
