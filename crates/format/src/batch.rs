//! A write batch as bytes: what the backup log holds and what a commit applies.
//!
//! A batch is a row of messages, each `kind (1) | tree (varint) | key (bytes) | operand`:
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
        /// What it folds in.
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

/// Walks the messages of a batch. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Messages<'a> {
    /// The messages in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            reader: Reader::new("batch", bytes),
            failed: false,
        }
    }

    /// Bytes that were not walked yet.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.reader.rest().len()
    }
}

/// Reads a message, from its kind on.
pub(crate) fn read_message<'a>(
    reader: &mut Reader<'a>,
) -> Result<(TreeId, Message<'a>), FormatError> {
    let kind = reader.u8()?;
    let tree = read_tree(reader)?;
    let key = reader.bytes()?;
    let message = match kind {
        PUT => Message::Put {
            key,
            value: reader.bytes()?,
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
        other => return Err(reader.field("kind", "1 to 4", other.to_string())),
    };
    Ok((tree, message))
}

pub(crate) fn read_tree(reader: &mut Reader<'_>) -> Result<TreeId, FormatError> {
    let tree = read_u32(reader, "tree")?;
    if tree == 0 {
        return Err(reader.field("tree", "above 0", tree.to_string()));
    }
    Ok(TreeId(tree))
}

fn read_u32(reader: &mut Reader<'_>, field: &'static str) -> Result<u32, FormatError> {
    let value = reader.varint()?;
    u32::try_from(value).map_err(|_| reader.field(field, "at most 32 bits", value.to_string()))
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<(TreeId, Message<'a>), FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let message = read_message(&mut self.reader);
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
