//! The encoding of a write batch, in the backup log and for a commit.
//!
//! A batch is a sequence of messages, each `kind (1) | tree (varint) | key (bytes) | operand`:
//!
//! | kind | message | operand |
//! |---|---|---|
//! | 1 | put | value (bytes) |
//! | 2 | delete | none |
//! | 3 | delete range `[key, end)` | end (bytes) |
//! | 4 | upsert | function (varint), delta (bytes) |
//!
//! Do not renumber. Kind 0 is never valid.

use crate::FormatError;
use crate::codec::{Reader, put_bytes, put_varint};
use std::ops::Range;
use stitch_base::TreeId;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const UPSERT: u8 = 4;

/// One message of a batch, borrowed from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Sets a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Removes every key in `[start, end)`.
    DeleteRange {
        /// First key of the range.
        start: &'a [u8],
        /// First key after the range.
        end: &'a [u8],
    },
    /// Folds `delta` into a key's value by a registered function.
    Upsert {
        /// The key.
        key: &'a [u8],
        /// Number of the function.
        function: u32,
        /// The delta to fold in.
        delta: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// The key, or the start of the range.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } | Self::Upsert { key, .. } => key,
            Self::DeleteRange { start, .. } => start,
        }
    }

    /// The operand: the value, the delta, or the end of the range.
    #[must_use]
    pub const fn operand(&self) -> &'a [u8] {
        match self {
            Self::Put { value, .. } => value,
            Self::Delete { .. } => &[],
            Self::DeleteRange { end, .. } => end,
            Self::Upsert { delta, .. } => delta,
        }
    }
}

/// Appends one message.
pub fn put_message(out: &mut Vec<u8>, tree: TreeId, message: Message<'_>) {
    let kind = match message {
        Message::Put { .. } => PUT,
        Message::Delete { .. } => DELETE,
        Message::DeleteRange { .. } => DELETE_RANGE,
        Message::Upsert { .. } => UPSERT,
    };
    out.push(kind);
    put_varint(out, u64::from(tree.0));
    put_bytes(out, message.key());
    match message {
        Message::Put { value, .. } => put_bytes(out, value),
        Message::Delete { .. } => {}
        Message::DeleteRange { end, .. } => put_bytes(out, end),
        Message::Upsert {
            function, delta, ..
        } => {
            put_varint(out, u64::from(function));
            put_bytes(out, delta);
        }
    }
}

/// Appends a put without its value, which a reader gets as `value`; see [`Stretch`].
pub fn put_borrowed<'a>(
    out: &mut Vec<u8>,
    tree: TreeId,
    key: &[u8],
    value: &'a [u8],
) -> BorrowedValue<'a> {
    out.push(PUT);
    put_varint(out, u64::from(tree.0));
    put_bytes(out, key);
    put_varint(out, value.len() as u64);
    let at = out.len();
    BorrowedValue { at, value }
}

/// A borrowed value: it is not among the bytes of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowedValue<'a> {
    /// Offset at which it would begin.
    at: usize,
    value: &'a [u8],
}

/// Position of a message in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes before it, borrowed values before it, and their total length.
    bytes: usize,
    borrowed: usize,
    len_bytes: usize,
}

impl Position {
    /// Creates a position after this many bytes and borrowed values.
    #[must_use]
    pub const fn new(bytes: usize, (borrowed, borrowed_bytes): (usize, usize)) -> Self {
        let len_bytes = bytes + borrowed_bytes;
        Self {
            bytes,
            borrowed,
            len_bytes,
        }
    }

    /// Returns the length from another position to this one, including borrowed values.
    #[must_use]
    pub const fn since(&self, start: &Self) -> usize {
        self.len_bytes - start.len_bytes
    }
}

/// Consecutive messages of a batch: their bytes without the borrowed values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch<'a> {
    bytes: &'a [u8],
    /// Offset of the bytes in the batch.
    base: usize,
    borrowed: &'a [BorrowedValue<'a>],
}

impl<'a> Stretch<'a> {
    /// Wraps a whole batch, and its borrowed values in order.
    #[must_use]
    pub const fn new(bytes: &'a [u8], borrowed: &'a [BorrowedValue<'a>]) -> Self {
        let base = 0;
        Self {
            bytes,
            base,
            borrowed,
        }
    }

    /// The messages of a whole batch between two positions in it.
    ///
    /// # Panics
    /// If this is not the whole batch.
    #[must_use]
    pub fn part(&self, range: &Range<Position>) -> Self {
        assert_eq!(self.base, 0, "positions are in the whole");
        Self {
            bytes: &self.bytes[range.start.bytes..range.end.bytes],
            base: range.start.bytes,
            borrowed: &self.borrowed[range.start.borrowed..range.end.borrowed],
        }
    }

    /// The messages.
    #[must_use]
    pub const fn messages(&self) -> Messages<'a> {
        Messages {
            reader: Reader::new("batch", self.bytes),
            failed: false,
            stretch: *self,
            taken: 0,
            taken_bytes: 0,
        }
    }

    /// Returns the batch as bytes, if it has no borrowed values.
    #[must_use]
    pub const fn as_one(&self) -> Option<&'a [u8]> {
        match self.borrowed {
            [] => Some(self.bytes),
            _ => None,
        }
    }

    /// Returns the pieces that together are the batch as bytes.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        let starts =
            std::iter::once(0).chain(self.borrowed.iter().map(|borrowed| borrowed.at - self.base));
        let ends = self.borrowed.iter().map(|borrowed| borrowed.at - self.base);
        let (bytes, ends) = (self.bytes, ends.chain(std::iter::once(self.bytes.len())));
        let values = self.borrowed.iter().map(|borrowed| borrowed.value);
        let values = values.chain(std::iter::once(&[][..]));
        let pairs = starts.zip(ends).zip(values);
        pairs.flat_map(move |((start, end), value)| [&bytes[start..end], value])
    }
}

/// Walks the messages of a batch. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    reader: Reader<'a>,
    failed: bool,
    stretch: Stretch<'a>,
    /// Borrowed values that were walked, and their length.
    taken: usize,
    taken_bytes: usize,
}

impl<'a> Messages<'a> {
    /// The messages in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Stretch::new(bytes, &[]).messages()
    }

    /// Offset of the next message from the beginning of this walk.
    #[must_use]
    pub const fn position(&self) -> Position {
        Position::new(self.reader.at(), (self.taken, self.taken_bytes))
    }

    fn read(&mut self) -> Result<(TreeId, Message<'a>), FormatError> {
        let Some(borrowed) = self.stretch.borrowed.get(self.taken) else {
            return read_message(&mut self.reader, Reader::bytes);
        };
        let at = borrowed.at - self.stretch.base;
        let mut is_taken = false;
        let value = |reader: &mut Reader<'a>| {
            let len = reader.varint_usize()?;
            is_taken = reader.at() == at;
            match is_taken {
                true => Ok(borrowed.value),
                false => reader.take(len),
            }
        };
        let message = read_message(&mut self.reader, value);
        if is_taken {
            self.taken += 1;
            self.taken_bytes += borrowed.value.len();
        }
        message
    }
}

/// Reads a message, from its kind on. `value` reads that of a put, with its length.
#[inline]
pub(crate) fn read_message<'a>(
    reader: &mut Reader<'a>,
    value: impl FnOnce(&mut Reader<'a>) -> Result<&'a [u8], FormatError>,
) -> Result<(TreeId, Message<'a>), FormatError> {
    let kind = reader.u8()?;
    let tree = read_tree(reader)?;
    let key = reader.bytes()?;
    let message = match kind {
        PUT => Message::Put {
            key,
            value: value(reader)?,
        },
        DELETE => Message::Delete { key },
        DELETE_RANGE => Message::DeleteRange {
            start: key,
            end: reader.bytes()?,
        },
        UPSERT => {
            let function = read_u32(reader, "function")?;
            Message::Upsert {
                key,
                function,
                delta: reader.bytes()?,
            }
        }
        other => return Err(refused(reader, "kind", "1 to 4", other.into())),
    };
    Ok((tree, message))
}

#[inline]
pub(crate) fn read_tree(reader: &mut Reader<'_>) -> Result<TreeId, FormatError> {
    match read_u32(reader, "tree")? {
        0 => Err(refused(reader, "tree", "above 0", 0)),
        tree => Ok(TreeId(tree)),
    }
}

#[inline]
fn read_u32(reader: &mut Reader<'_>, field: &'static str) -> Result<u32, FormatError> {
    let value = reader.varint()?;
    u32::try_from(value).map_err(|_| refused(reader, field, "at most 32 bits", value))
}

/// The error of a field with a number that is not allowed there.
#[cold]
fn refused(reader: &Reader<'_>, field: &'static str, want: &'static str, got: u64) -> FormatError {
    reader.field(field, want, got.to_string())
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<(TreeId, Message<'a>), FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let message = self.read();
        self.failed = message.is_err();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        put_message(
            &mut out,
            TreeId(1),
            Message::Put {
                key: b"k1",
                value: b"v1",
            },
        );
        put_message(&mut out, TreeId(2), Message::Delete { key: b"k2" });
        put_message(
            &mut out,
            TreeId(300),
            Message::DeleteRange {
                start: b"a",
                end: b"b",
            },
        );
        put_message(
            &mut out,
            TreeId(4),
            Message::Upsert {
                key: b"k",
                function: 5,
                delta: b"d",
            },
        );
        out
    }

    #[test]
    fn lent_values_are_as_if_they_were_there() {
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        let mut borrowed = Vec::new();
        let tree = TreeId(3);
        for (key, value) in [
            (b"a", &b"one"[..]),
            (b"b", b""),
            (b"c", b"three"),
            (b"d", b"4"),
        ] {
            let put = Message::Put { key, value };
            put_message(&mut whole, tree, put);
            match key {
                b"a" => put_message(&mut rest, tree, put),
                _ => borrowed.push(put_borrowed(&mut rest, tree, key, value)),
            }
            let delete = Message::Delete { key };
            put_message(&mut whole, tree, delete);
            put_message(&mut rest, tree, delete);
        }
        let all = Stretch::new(&rest, &borrowed);
        assert_eq!(
            (all.as_one(), Stretch::new(&whole, &[]).as_one()),
            (None, Some(&whole[..]))
        );
        assert_eq!(all.pieces().flatten().copied().collect::<Vec<u8>>(), whole);
        let expected: Vec<_> = Messages::new(&whole).map(Result::unwrap).collect();
        let mut walk = all.messages();
        let mut positions = vec![walk.position()];
        for message in &expected {
            assert_eq!(walk.next().unwrap().unwrap(), *message);
            positions.push(walk.position());
        }
        assert!(walk.next().is_none());
        let last = walk.position();
        assert_eq!(last.since(&Position::default()), whole.len());
        for from in 0..positions.len() {
            for to in from..positions.len() {
                let range = positions[from]..positions[to];
                let part = all.part(&range);
                let found: Vec<_> = part.messages().map(Result::unwrap).collect();
                assert_eq!(found, expected[from..to]);
                let bytes: Vec<u8> = part.pieces().flatten().copied().collect();
                assert_eq!(bytes.len(), range.end.since(&range.start));
                let again: Vec<_> = Messages::new(&bytes).map(Result::unwrap).collect();
                assert_eq!(again, found);
            }
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let golden = [
            1, 1, 2, b'k', b'1', 2, b'v', b'1', // put
            2, 2, 2, b'k', b'2', // delete
            3, 0xac, 0x02, 1, b'a', 1, b'b', // delete range
            4, 4, 1, b'k', 5, 1, b'd', // upsert
        ];
        assert_eq!(sample(), golden);
    }

    #[test]
    fn messages_come_back() {
        let bytes = sample();
        let all: Vec<_> = Messages::new(&bytes).map(|m| m.expect("valid")).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(
            all[2],
            (
                TreeId(300),
                Message::DeleteRange {
                    start: b"a",
                    end: b"b"
                }
            )
        );
    }

    #[test]
    fn every_cut_and_every_kind_is_an_error_or_a_shorter_batch() {
        let bytes = sample();
        for cut in 0..bytes.len() {
            for message in Messages::new(&bytes[..cut]) {
                let _ = message.is_ok();
            }
        }
        let bad: Vec<_> = Messages::new(&[9, 1, 0]).collect();
        assert_eq!(bad.len(), 1);
        assert!(bad[0].is_err());
    }
}
