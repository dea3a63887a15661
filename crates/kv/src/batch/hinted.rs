//! The messages of a batch with the hints of their writer.

use super::StreamName;
use std::ops::Range;
use std::slice;
use stitch_base::TreeId;
use stitch_format::batch::{Message, Messages, Position};

/// A message of a batch and its hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintedMessage<'a> {
    /// The tree that it changes.
    pub tree: TreeId,
    /// The message.
    pub message: Message<'a>,
    /// Where it is in the batch.
    pub range: Range<Position>,
    /// The write stream that it continues, if its writer has named one.
    pub stream: Option<StreamName>,
    /// Its value is soon changed or put again.
    pub is_partial: bool,
}

/// Consecutive puts with one name.
#[derive(Clone, Debug)]
pub(super) struct NamedPuts {
    pub(super) range: Range<Position>,
    pub(super) name: StreamName,
}

/// Walks the messages of a batch beside the list of named puts, which has the same order.
pub(super) struct HintedMessages<'a> {
    messages: Messages<'a>,
    /// Where the put of a partial value begins.
    partial: Option<Position>,
    /// Named puts after those that the walk is in.
    named: slice::Iter<'a, NamedPuts>,
    /// The next named puts, or those that the walk is in.
    next: Option<&'a NamedPuts>,
    is_named: bool,
}

impl<'a> HintedMessages<'a> {
    pub(super) fn new(
        messages: Messages<'a>,
        partial: Option<Position>,
        named: &'a [NamedPuts],
    ) -> Self {
        let mut named = named.iter();
        Self {
            messages,
            partial,
            next: named.next(),
            named,
            is_named: false,
        }
    }

    /// Returns the name of the message with this range.
    #[inline]
    fn name_of(&mut self, range: &Range<Position>) -> Option<StreamName> {
        let named = self.next?;
        self.is_named |= named.range.start == range.start;
        let name = self.is_named.then_some(named.name);
        if named.range.end == range.end {
            debug_assert!(self.is_named, "the list names whole messages");
            self.next = self.named.next();
            self.is_named = false;
        }
        name
    }
}

impl<'a> Iterator for HintedMessages<'a> {
    type Item = HintedMessage<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let start = self.messages.position();
        let message = self.messages.next()?;
        let (tree, message) = message.expect("a batch encoded its own messages");
        let range = start..self.messages.position();
        Some(HintedMessage {
            tree,
            message,
            stream: self.name_of(&range),
            is_partial: self.partial == Some(range.start),
            range,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    const TREE: TreeId = TreeId(1);

    /// Messages as text: the first byte of the key, the number of the stream, and `p` if partial.
    fn text(batch: &Batch<'_>) -> String {
        let text = |hinted: HintedMessage<'_>| {
            let key = char::from(hinted.message.key()[0]);
            let stream = hinted.stream.map(|name| name.0.to_string());
            let partial = if hinted.is_partial { "p" } else { "" };
            format!("{key}{}{partial}", stream.unwrap_or_default())
        };
        let all: Vec<String> = batch.hinted_messages().map(text).collect();
        all.join(" ")
    }

    fn put_named(batch: &mut Batch<'_>, key: &[u8], name: u64) {
        batch.put(TREE, key, b"value");
        batch.name_stream(StreamName(name));
    }

    #[test]
    fn each_put_has_the_hints_of_its_writer() {
        let value = [7; 300];
        let mut batch = Batch::new();
        assert_eq!(text(&batch), "");
        batch.delete(TREE, b"a");
        put_named(&mut batch, b"b", 1);
        put_named(&mut batch, b"c", 1);
        put_named(&mut batch, b"d", 2);
        batch.put(TREE, b"e", b"");
        put_named(&mut batch, b"f", 2);
        batch.put_partial(TREE, b"g", b"part");
        batch.put_borrowed(TREE, b"h", &value);
        batch.name_stream(StreamName(3));
        batch.put_partial(TREE, b"i", b"part");
        batch.name_stream(StreamName(3));
        batch.delete_range(TREE, b"k", b"l");
        assert_eq!(
            text(&batch),
            "a b1 c1 d2 e f2 g h3 i3p k",
            "the last partial counts"
        );
        let mut ranges = batch.hinted_messages().map(|hinted| hinted.range);
        let first = ranges.next().expect("ten messages").start;
        let end = ranges.fold(first, |_, range| range.end);
        assert_eq!((first, end), (Position::default(), batch.end()));
        let mut other = Batch::new();
        put_named(&mut other, b"_", 3);
        let extended = other.extend_hinted(&batch, |_| Ok::<_, ()>(TreeId(2)));
        assert_eq!(extended, Ok(()));
        assert_eq!(text(&other), "_3 a b1 c1 d2 e f2 g h3 i3p k");
        assert_eq!(
            other.extend_hinted(&batch, |_| Err("no tree")),
            Err("no tree")
        );
        batch.clear();
        put_named(&mut batch, b"a", 9);
        assert_eq!(text(&batch), "a9");
    }

    #[test]
    #[should_panic(expected = "a put has one name")]
    fn a_second_name_of_a_put_is_refused() {
        let mut batch = Batch::new();
        put_named(&mut batch, b"a", 1);
        batch.name_stream(StreamName(2));
    }
}
