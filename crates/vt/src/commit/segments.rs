//! The segments of a batch: what its one pass finds out.
//!
//! A segment is consecutive messages of one kind. A batch with deletes and the puts of two files:
//!
//! ```text
//! batch     delete x | put a1 4K | put a2 4K | put a3 1K, partial | put b1 4K | upsert y | put z 9
//! segments  records  | puts of a, the last one partial            | puts of b | records
//! ```
//!
//! Puts of one segment are in one tree, in the order of their keys, with values that are long
//! beside their keys, and with one name of a write stream or none. Only the last may be partial.
//! All other messages are records. The segments are in the order of the batch and cover it.

use super::placement::{Continued, is_long_value, is_value_block};
use crate::batch_trees::BatchTrees;
use crate::direct::Puts;
use std::ops::Range;
use stitch_base::TreeId;
use stitch_format::vt_index::value_block_bytes;
use stitch_kv::{Batch, HintedMessage, KvError, Message, Position, TreeOptions};
use stitch_volume::PAGE_BYTES;

/// What a value block takes beyond its value: padding, and an index entry without the key.
const VALUE_BLOCK_OVERHEAD_BYTES: u64 = 512 + 64;

/// Consecutive messages of a batch that are placed together.
#[derive(Debug)]
pub(super) struct BatchSegment<'a> {
    /// Where its messages are in the batch.
    pub(super) range: Range<Position>,
    /// Number of its messages.
    pub(super) count: u64,
    /// `None` for records.
    pub(super) puts: Option<SegmentPuts<'a>>,
}

/// The puts of a segment, and the facts that decide where they go.
#[derive(Debug)]
pub(super) struct SegmentPuts<'a> {
    /// The puts, as a write stream sees them.
    pub(super) puts: Puts<'a>,
    /// Each complete value gets a value block when it is written out.
    pub(super) are_blocks: bool,
    /// Where the last put begins, if its value is partial.
    pub(super) partial: Option<Position>,
    /// The write stream that they continue, if one was looked for and found.
    pub(super) continued: Option<Continued>,
}

/// The segments of a batch, and its figures.
pub(super) struct Segments<'a> {
    pub(super) tally: Tally,
    /// All but the last. Most batches have one segment, so that most commits allocate none.
    before: Vec<BatchSegment<'a>>,
    last: Option<BatchSegment<'a>>,
}

/// The figures of a batch.
pub(super) struct Tally {
    pub(super) trees: BatchTrees,
    pub(super) data_bytes: u64,
    pub(super) has_deletes: bool,
    /// Bytes that value blocks will take beyond what is put.
    pub(super) overhead_bytes: u64,
    /// Bytes of value blocks that are of whole pages: they need no run longer than themselves.
    pub(super) page_bytes: u64,
    /// The longest of these.
    pub(super) pages_run: u64,
    pub(super) longest_key: u64,
    /// The longest operand that goes into a block with others, or does not take whole pages.
    pub(super) longest_operand: u64,
}

impl<'a> Segments<'a> {
    /// Those of an empty batch.
    pub(super) const fn new() -> Self {
        Self {
            tally: Tally::new(),
            before: Vec::new(),
            last: None,
        }
    }

    /// Walks a batch once, and adds its messages where they are: the segments are not moved, which
    /// a commit of one message would feel. `check` refuses messages; `options_of` returns the
    /// options of a tree.
    ///
    /// # Errors
    /// Those of `check`.
    pub(super) fn fill<'o>(
        &mut self,
        batch: &'a Batch<'_>,
        options_of: impl Fn(TreeId) -> Option<&'o TreeOptions>,
        check: impl Fn(Message<'_>) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        debug_assert!(self.last.is_none(), "segments are of one batch");
        let mut known: Option<(TreeId, Option<&TreeOptions>)> = None;
        for hinted in batch.hinted_messages() {
            check(hinted.message)?;
            let options = match known {
                Some((tree, options)) if tree == hinted.tree => options,
                _ => options_of(hinted.tree),
            };
            known = Some((hinted.tree, options));
            self.tally.add(hinted.tree, &hinted.message, options);
            self.add(&hinted, options);
        }
        debug_assert_eq!(
            self.iter().map(|segment| segment.count).sum::<u64>(),
            batch.count() as u64,
            "each message is in one segment"
        );
        debug_assert!(
            self.last
                .as_ref()
                .is_none_or(|last| last.range.end == batch.end()),
            "the segments cover the batch"
        );
        debug_assert!(
            batch.is_empty() || self.tally.trees.iter().next().is_some(),
            "each message is of a tree"
        );
        Ok(())
    }

    /// Returns the segments in the order of the batch.
    pub(super) fn iter(&self) -> impl Iterator<Item = &BatchSegment<'a>> {
        self.before.iter().chain(&self.last)
    }

    /// Looks for the write stream that each segment of puts with value blocks continues.
    pub(super) fn continue_streams(
        &mut self,
        mut follow: impl FnMut(&SegmentPuts<'a>) -> Option<Continued>,
    ) {
        for segment in self.before.iter_mut().chain(&mut self.last) {
            if let Some(puts) = segment.puts.as_mut().filter(|puts| puts.are_blocks) {
                debug_assert!(puts.continued.is_none(), "its stream is looked for once");
                puts.continued = follow(puts);
            }
        }
    }

    fn add(&mut self, hinted: &HintedMessage<'a>, options: Option<&TreeOptions>) {
        if let Some(last) = &mut self.last
            && last.puts.is_none()
            && !is_long_put(&hinted.message)
        {
            // Most batches are records alone.
            debug_assert_eq!(
                last.range.end, hinted.range.start,
                "messages follow each other"
            );
            last.range.end = hinted.range.end;
            last.count += 1;
            return;
        }
        debug_assert!(
            self.last
                .as_ref()
                .is_none_or(|last| last.range.end == hinted.range.start),
            "messages follow each other"
        );
        let next = BatchSegment::of(hinted, options);
        match &mut self.last {
            Some(last) if last.takes(&next) => last.append(next),
            last => self.before.extend(last.replace(next)),
        }
    }
}

/// Reports whether a message is a put whose value is long beside its key.
const fn is_long_put(message: &Message<'_>) -> bool {
    match message {
        Message::Put { key, value } => is_long_value(key, value),
        _ => false,
    }
}

impl<'a> BatchSegment<'a> {
    /// Makes a segment of one message.
    fn of(hinted: &HintedMessage<'a>, options: Option<&TreeOptions>) -> Self {
        debug_assert!(
            hinted.range.end.since(&hinted.range.start) > 0,
            "a message has bytes"
        );
        let puts = match hinted.message {
            Message::Put { key, value } if is_long_value(key, value) => Some(SegmentPuts {
                puts: Puts {
                    tree: hinted.tree,
                    first: key,
                    last: key,
                    bytes: hinted.range.end.since(&hinted.range.start) as u64,
                    name: hinted.stream,
                },
                // The length of a partial value does not matter: it has no block.
                are_blocks: options.is_some_and(|options| {
                    let len = if hinted.is_partial {
                        usize::MAX
                    } else {
                        value.len()
                    };
                    options.has_value_block(len)
                }),
                partial: hinted.is_partial.then_some(hinted.range.start),
                continued: None,
            }),
            _ => None,
        };
        Self {
            range: hinted.range.clone(),
            count: 1,
            puts,
        }
    }

    /// Reports whether its last put has a partial value.
    pub(super) fn is_partial(&self) -> bool {
        debug_assert!(self.count > 0, "a segment is not empty");
        self.puts
            .as_ref()
            .is_some_and(|puts| puts.partial.is_some())
    }

    /// Returns where its messages are, without a put of a partial value.
    pub(super) fn complete(&self) -> Range<Position> {
        let partial = self.puts.as_ref().and_then(|puts| puts.partial);
        self.range.start..partial.unwrap_or(self.range.end)
    }

    /// Reports whether the next message is a put that belongs to this segment of puts.
    fn takes(&self, next: &Self) -> bool {
        let (Some(before), Some(next)) = (&self.puts, &next.puts) else {
            return false;
        };
        before.puts.tree == next.puts.tree
            && before.puts.last < next.puts.first
            && before.puts.name == next.puts.name
            && before.partial.is_none()
    }

    fn append(&mut self, next: Self) {
        debug_assert!(!self.is_partial(), "a partial value is the last one");
        debug_assert_eq!(
            self.range.end, next.range.start,
            "messages follow each other"
        );
        self.range.end = next.range.end;
        self.count += next.count;
        if let (Some(before), Some(next)) = (&mut self.puts, next.puts) {
            before.puts.last = next.puts.last;
            before.puts.bytes += next.puts.bytes;
            debug_assert!(before.puts.first < before.puts.last, "keys rise");
            before.are_blocks &= next.are_blocks;
            before.partial = next.partial;
        }
    }
}

impl Tally {
    const fn new() -> Self {
        Self {
            trees: BatchTrees::new(),
            data_bytes: 0,
            has_deletes: false,
            overhead_bytes: 0,
            page_bytes: 0,
            pages_run: 0,
            longest_key: 0,
            longest_operand: 0,
        }
    }

    fn add(&mut self, tree: TreeId, message: &Message<'_>, options: Option<&TreeOptions>) {
        let operand_bytes = message.operand().len() as u64;
        let key_bytes = message.key().len() as u64;
        debug_assert!(
            self.page_bytes <= self.data_bytes,
            "pages are a part of the data"
        );
        self.longest_key = self.longest_key.max(key_bytes);
        self.data_bytes += key_bytes + operand_bytes;
        self.has_deletes |= matches!(
            message,
            Message::Delete { .. } | Message::DeleteRange { .. }
        );
        let is_block = is_value_block(message, options);
        if is_block {
            self.overhead_bytes += key_bytes + VALUE_BLOCK_OVERHEAD_BYTES;
        }
        let block_bytes = value_block_bytes(operand_bytes);
        if is_block && block_bytes.is_multiple_of(PAGE_BYTES) {
            self.page_bytes += operand_bytes;
            self.pages_run = self.pages_run.max(block_bytes);
            debug_assert!(
                self.pages_run.is_multiple_of(PAGE_BYTES),
                "a run of whole pages"
            );
        } else {
            self.longest_operand = self.longest_operand.max(operand_bytes);
        }
        debug_assert!(
            self.longest_operand <= self.data_bytes,
            "an operand is a part of the data"
        );
        self.trees.insert(tree);
    }
}

#[cfg(test)]
mod tests;
