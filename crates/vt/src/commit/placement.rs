//! Placement: where the messages of a batch go when they are committed.
//!
//! The first rule that fits a segment of a batch decides:
//!
//! | rule | segment | state of the store | destination |
//! |---|---|---|---|
//! | 1 | any | no room for what the commit would write at once | log |
//! | 2 | records: deletes, upserts, short values | any | log |
//! | 3 | the partial value at the end of puts | any | log |
//! | 4 | puts with the length of a run | any | zone, direct run |
//! | 5 | puts with value blocks in a long stream | no sync is near | zone, append extent |
//! | 6 | other puts | any | log |
//!
//! - A value is *short* if it is not long beside its key: see [`is_long_value`].
//! - The *length of a run* is `direct_bytes_min` (64 KiB) of complete values. A write stream with
//!   at least this length before the puts is *long*.
//! - A *sync is near* if this commit asks for one, or if less than `unsynced_bytes_min` (256 KiB)
//!   was committed since one was requested. Its caller waits less for one write to the log than for
//!   one to the log and one to each stream.
//! - What goes to the *log* is in the memtable, too. The write-out puts values of at least
//!   `value_block_bytes` of their tree into value blocks, and all else into data blocks. It goes by
//!   the options that the tree has by then ([`TreeOptions::has_value_block`]). The commit promises
//!   room for value blocks by the options of now ([`is_value_block`]).
//!
//! [`Placement::decide`] is a pure function: it knows no volume, lock or memtable. The commit
//! gathers the [`PlacementState`] and the continued streams before, and carries the parts out
//! after.

use super::segments::{BatchSegment, Segments};
use crate::direct::WriteStreamId;
use std::ops::{Deref, Range};
use std::slice;
use stitch_base::TreeId;
use stitch_format::logged_commit::HEAD_BYTES;
use stitch_kv::{Batch, Message, Position, TreeOptions};

/// A value is long beside its key if it has four times its bytes, and these: then the index entry
/// of a block is at most half as long as the messages in it.
const VALUE_BYTES_MIN: usize = 256;

/// Reports whether a value is long enough to be written apart from its key.
pub(super) const fn is_long_value(key: &[u8], value: &[u8]) -> bool {
    value.len() >= 4 * key.len() + VALUE_BYTES_MIN
}

/// Reports whether a message is a put whose value gets a value block in a tree with these options.
pub(super) fn is_value_block(message: &Message<'_>, options: Option<&TreeOptions>) -> bool {
    let Message::Put { value, .. } = message else {
        return false;
    };
    options.is_some_and(|options| options.has_value_block(value.len()))
}

/// What a placement depends on beside the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementState {
    /// Fewest bytes of a direct run, and of a write stream whose values go to its append extent.
    pub(super) run_bytes_min: u64,
    /// A sync is near.
    pub(super) is_synced_soon: bool,
    /// The zones have room for what would go there at once, as far as this commit knows.
    pub(super) has_zone_room: bool,
}

impl PlacementState {
    /// Reports whether the write streams of a batch make a difference. Looking for them costs a
    /// search in the memtable for each put without a name.
    pub(super) const fn follows_streams(&self, segments: &Segments<'_>) -> bool {
        let has_value_blocks = segments.tally.overhead_bytes > 0;
        has_value_blocks && self.run_bytes_min < u64::MAX && !self.is_synced_soon
    }

    /// Decides where the complete values of a segment go.
    fn destination_of(&self, segment: &BatchSegment<'_>) -> Destination {
        debug_assert!(segment.count > 0, "a segment is not empty");
        let Some(puts) = &segment.puts else {
            return Destination::Log;
        };
        let tree = puts.puts.tree;
        debug_assert!(
            puts.are_blocks || puts.continued.is_none(),
            "only value blocks continue a stream"
        );
        let complete = segment.complete();
        if complete.end.since(&complete.start) as u64 >= self.run_bytes_min {
            return Destination::Run { tree };
        }
        match puts.continued {
            Some(Continued { stream, bytes })
                if puts.are_blocks && !self.is_synced_soon && bytes >= self.run_bytes_min =>
            {
                Destination::Stream { tree, stream }
            }
            _ => Destination::Log,
        }
    }
}

/// The write stream that puts continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continued {
    pub(super) stream: WriteStreamId,
    /// Length of the stream before them.
    pub(super) bytes: u64,
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To the log and the memtable; to a zone with the write-out.
    Log,
    /// To data blocks in a zone at once. The log holds their index entries.
    Run { tree: TreeId },
    /// To the append extent of a write stream at once. The log holds their index entries.
    Stream { tree: TreeId, stream: WriteStreamId },
}

impl Destination {
    /// Returns the tree of puts that go to a zone at once.
    pub(super) const fn direct_tree(self) -> Option<TreeId> {
        match self {
            Self::Log => None,
            Self::Run { tree } | Self::Stream { tree, .. } => Some(tree),
        }
    }
}

/// Consecutive messages of a batch with one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Where its messages are in the batch.
    pub(super) range: Range<Position>,
    /// Number of its messages.
    pub(super) count: u64,
    pub(super) destination: Destination,
}

impl Part {
    /// Length of its messages.
    const fn len_bytes(&self) -> u64 {
        self.range.end.since(&self.range.start) as u64
    }

    const fn is_logged(&self) -> bool {
        matches!(self.destination, Destination::Log)
    }
}

/// The parts of a batch, in its order. They cover it.
pub(super) enum Parts {
    /// One that goes to the log, as nearly always.
    Logged(Part),
    Some(Vec<Part>),
}

impl Deref for Parts {
    type Target = [Part];

    fn deref(&self) -> &[Part] {
        match self {
            Self::Logged(part) => slice::from_ref(part),
            Self::Some(parts) => parts,
        }
    }
}

/// Where each message of a batch goes.
pub(super) struct Placement {
    pub(super) parts: Parts,
    /// Bytes of the messages that go to the log and the memtable.
    pub(super) logged_bytes: u64,
    /// Number of these messages.
    pub(super) logged_count: u64,
    /// Bytes of the messages that go to a zone at once.
    pub(super) direct_bytes: u64,
    /// Of these, bytes in direct runs.
    pub(super) run_bytes: u64,
}

impl Placement {
    /// Decides by the table in the head of this file.
    pub(super) fn decide(
        batch: &Batch<'_>,
        segments: &Segments<'_>,
        state: &PlacementState,
    ) -> Self {
        let is_logged = |segment| state.destination_of(segment) == Destination::Log;
        if !state.has_zone_room || segments.iter().all(is_logged) {
            return Self::logged(batch);
        }
        let mut parts = Vec::new();
        for segment in segments.iter() {
            let destination = state.destination_of(segment);
            let complete = segment.complete();
            let partial = complete.end..segment.range.end;
            let partial_count = u64::from(segment.is_partial());
            push(
                &mut parts,
                complete,
                segment.count - partial_count,
                destination,
            );
            push(&mut parts, partial, partial_count, Destination::Log);
        }
        debug_assert!(
            parts
                .last()
                .is_some_and(|last| last.range.end == batch.end()),
            "the parts cover the batch"
        );
        Self::of(batch, Parts::Some(parts))
    }

    /// Places the whole batch in the log.
    pub(super) fn logged(batch: &Batch<'_>) -> Self {
        let part = Part {
            range: Position::default()..batch.end(),
            count: batch.count() as u64,
            destination: Destination::Log,
        };
        Self::of(batch, Parts::Logged(part))
    }

    fn of(batch: &Batch<'_>, parts: Parts) -> Self {
        debug_assert!(
            parts.is_sorted_by(|part, next| part.range.end == next.range.start),
            "parts follow each other"
        );
        let logged = || parts.iter().filter(|part| part.is_logged());
        let logged_bytes = logged().map(Part::len_bytes).sum();
        let is_run = |part: &&Part| matches!(part.destination, Destination::Run { .. });
        let count: u64 = parts.iter().map(|part| part.count).sum();
        debug_assert_eq!(count, batch.count() as u64, "the parts cover the batch");
        debug_assert!(
            logged_bytes <= batch.len_bytes() as u64,
            "what is logged is a part of the batch"
        );
        let run_bytes = parts.iter().filter(is_run).map(Part::len_bytes).sum();
        debug_assert!(
            parts.is_sorted_by(|part, next| !part.is_logged() || !next.is_logged()),
            "what goes to the log together is one part"
        );
        debug_assert_eq!(
            parts.iter().map(Part::len_bytes).sum::<u64>(),
            batch.len_bytes() as u64,
            "each byte is in one part"
        );
        debug_assert!(
            run_bytes <= batch.len_bytes() as u64 - logged_bytes,
            "values in runs are not logged"
        );
        Self {
            run_bytes,
            logged_bytes,
            logged_count: logged().map(|part| part.count).sum(),
            direct_bytes: batch.len_bytes() as u64 - logged_bytes,
            parts,
        }
    }

    /// Most that the log record takes: index entries are short beside the values.
    pub(super) fn record_bytes_max(&self) -> u64 {
        debug_assert!(self.run_bytes <= self.direct_bytes, "runs are direct");
        HEAD_BYTES as u64 + self.logged_bytes + self.index_bytes_max()
    }

    pub(super) fn index_bytes_max(&self) -> u64 {
        debug_assert!(self.run_bytes <= self.direct_bytes, "runs are direct");
        self.direct_bytes / 2
    }
}

/// Appends messages to the parts of a batch: to the last part, if both go to the log.
fn push(parts: &mut Vec<Part>, range: Range<Position>, count: u64, destination: Destination) {
    if count == 0 {
        return;
    }
    debug_assert!(range.end.since(&range.start) > 0, "each message has bytes");
    debug_assert!(
        parts
            .last()
            .is_none_or(|last| last.range.end == range.start),
        "parts follow each other"
    );
    if let Some(last) = parts.last_mut()
        && last.is_logged()
        && destination == Destination::Log
    {
        last.range.end = range.end;
        last.count += count;
        debug_assert!(last.count > count, "it was not empty before");
        return;
    }
    parts.push(Part {
        range,
        count,
        destination,
    });
}

#[cfg(test)]
mod tests;
