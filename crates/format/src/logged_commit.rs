//! A commit, as the payload of one record of the backup log.
//!
//! | part | layout |
//! |---|---|
//! | first | u64: sequence number of the first item |
//! | items | messages as in a batch, and direct runs |
//!
//! A message takes one sequence number. A direct run stands for as many puts as it counts: their
//! values are in data blocks already. It is `kind (1) | tree (varint) | count (varint) | index
//! (bytes)`, with kind 5 and, as index, what an index block holds of those blocks.
//!
//! `kind (1) | tree (varint)` with kind 6 marks a branch tree as absorbed: the messages of the same
//! record hold all that was written to it. A replay of the record drops the tree if it is still
//! there. The mark takes no sequence number. Only stores with branch trees (feature bit 2) have it.
//!
//! A record without items is the *closing mark* of an engine that was closed in good order. It says
//! that no table has versions which were kept for moments that nothing holds any more. It counts
//! only as the last record of the log, written by the generation that closed it: so a crash, or a
//! program that does not know it, takes it back. Such a program replays nothing for it. Its
//! sequence number is the next one to be given out.
//!
//! Do not renumber. Kind 0 is never valid.

use crate::FormatError;
use crate::batch::{Message, read_message, read_tree};
use crate::codec::{Reader, put_bytes, put_varint};
use stitch_base::{Seqno, TreeId};

const RECORD: &str = "logged commit";
/// Bytes of a record before its items.
pub const HEAD_BYTES: usize = 8;
const DIRECT_RUN: u8 = 5;
const ABSORBED: u8 = 6;

/// Appends the mark of a branch tree that was absorbed.
pub fn put_absorbed(out: &mut Vec<u8>, tree: TreeId) {
    debug_assert!(tree.0 > 0, "tree 0 is never given out");
    out.push(ABSORBED);
    put_varint(out, u64::from(tree.0));
}

/// Puts whose values are in data blocks already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedRun<'a> {
    /// Their tree.
    pub tree: TreeId,
    /// Their number; each has a sequence number, in key order.
    pub count: u64,
    /// The index entries of the data blocks.
    pub index: &'a [u8],
}

impl LoggedRun<'_> {
    /// Appends the run as an item.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(DIRECT_RUN);
        put_varint(out, u64::from(self.tree.0));
        put_varint(out, self.count);
        put_bytes(out, self.index);
    }
}

/// An item of a logged commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogItem<'a> {
    /// A message of the batch.
    Message(TreeId, Message<'a>),
    /// Puts of the batch whose values were written directly to their zone.
    Run(LoggedRun<'a>),
    /// The branch tree was absorbed by this commit.
    Absorbed(TreeId),
}

/// The bytes before the items.
#[must_use]
pub const fn head(first: Seqno) -> [u8; HEAD_BYTES] {
    first.0.to_le_bytes()
}

/// Returns the closing mark of an engine whose next sequence number is `next`.
#[must_use]
pub const fn closing_mark(next: Seqno) -> [u8; HEAD_BYTES] {
    debug_assert!(next.0 > 0, "0 is no number of a write");
    head(next)
}

/// Reports whether a record is a closing mark.
#[must_use]
pub const fn is_closing_mark(record: &[u8]) -> bool {
    record.len() == HEAD_BYTES
}

/// Walks the items of a logged commit. Ends after the first error.
#[derive(Clone, Debug)]
pub struct LogItems<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> LogItems<'a> {
    /// The first sequence number and the items of a record.
    ///
    /// # Errors
    /// [`FormatError`] if it is too short.
    pub fn read(record: &'a [u8]) -> Result<(Seqno, Self), FormatError> {
        let mut reader = Reader::new(RECORD, record);
        let first = Seqno(reader.u64()?);
        let items = Self {
            reader,
            failed: false,
        };
        Ok((first, items))
    }

    fn item(&mut self) -> Result<LogItem<'a>, FormatError> {
        let reader = &mut self.reader;
        let kind = reader.rest().first().copied();
        if !matches!(kind, Some(DIRECT_RUN | ABSORBED)) {
            let (tree, message) = read_message(reader, Reader::bytes)?;
            return Ok(LogItem::Message(tree, message));
        }
        reader.u8()?;
        let tree = read_tree(reader)?;
        if kind == Some(ABSORBED) {
            return Ok(LogItem::Absorbed(tree));
        }
        let count = reader.varint()?;
        if count == 0 {
            return Err(reader.field("count", "above 0", "0".to_owned()));
        }
        let index = reader.bytes()?;
        Ok(LogItem::Run(LoggedRun { tree, count, index }))
    }
}

impl<'a> Iterator for LogItems<'a> {
    type Item = Result<LogItem<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let item = self.item();
        self.failed = item.is_err();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::put_message;

    fn sample() -> Vec<u8> {
        let mut out = head(Seqno(7)).to_vec();
        put_message(&mut out, TreeId(1), Message::Delete { key: b"k1" });
        let run = LoggedRun {
            tree: TreeId(300),
            count: 2,
            index: b"xyz",
        };
        run.put(&mut out);
        put_message(&mut out, TreeId(1), Message::Delete { key: b"k2" });
        out
    }

    #[test]
    fn the_closing_mark_is_pinned_and_is_nothing_to_programs_before_it() {
        let mark = closing_mark(Seqno(7));
        assert_eq!(mark, [7, 0, 0, 0, 0, 0, 0, 0]);
        assert!(is_closing_mark(&mark));
        assert!(!is_closing_mark(&sample()));
        let (first, mut items) = LogItems::read(&mark).expect("it is long enough");
        assert_eq!(first, Seqno(7));
        assert!(items.next().is_none(), "nothing is replayed");
    }

    #[test]
    fn the_mark_of_an_absorbed_branch_is_pinned() {
        let mut record = head(Seqno(7)).to_vec();
        put_message(&mut record, TreeId(1), Message::Delete { key: b"k1" });
        put_absorbed(&mut record, TreeId(300));
        assert_eq!(record[HEAD_BYTES..], [2, 1, 2, b'k', b'1', 6, 0xac, 0x02]);
        let (_, items) = LogItems::read(&record).unwrap();
        let items: Vec<_> = items.map(Result::unwrap).collect();
        assert_eq!(items[1..], [LogItem::Absorbed(TreeId(300))]);
        record.pop();
        let (_, items) = LogItems::read(&record).unwrap();
        assert!(items.last().is_some_and(|cut| cut.is_err()));
    }

    #[test]
    fn bytes_are_pinned() {
        let golden = [
            7, 0, 0, 0, 0, 0, 0, 0, // first
            2, 1, 2, b'k', b'1', // delete
            5, 0xac, 0x02, 2, 3, b'x', b'y', b'z', // direct run
            2, 1, 2, b'k', b'2', // delete
        ];
        assert_eq!(sample(), golden);
    }

    #[test]
    fn items_come_back() {
        let bytes = sample();
        let (first, items) = LogItems::read(&bytes).expect("valid");
        let items: Vec<_> = items.map(|item| item.expect("valid")).collect();
        assert_eq!((first, items.len()), (Seqno(7), 3));
        let LogItem::Run(run) = items[1] else {
            panic!("{:?}", items[1]);
        };
        assert_eq!(
            (run.tree, run.count, run.index),
            (TreeId(300), 2, &b"xyz"[..])
        );
    }

    #[test]
    fn every_cut_is_an_error_or_a_shorter_commit() {
        let bytes = sample();
        let boundaries = [8, 13, 21, 26];
        for cut in 0..bytes.len() {
            let items = LogItems::read(&bytes[..cut]).map(|(_, items)| items.collect::<Vec<_>>());
            let is_whole = items.is_ok_and(|items| items.iter().all(Result::is_ok));
            assert_eq!(is_whole, boundaries.contains(&cut), "cut at {cut}");
        }
    }

    #[test]
    fn runs_of_nothing_are_refused() {
        for bytes in [&[5, 1, 0, 1, 0][..], &[5, 0, 1, 1, 0], &[6, 0], &[7, 1, 0]] {
            let record = [&head(Seqno(1))[..], bytes].concat();
            let (_, mut items) = LogItems::read(&record).expect("long enough");
            assert!(items.next().is_some_and(|item| item.is_err()), "{bytes:?}");
            assert_eq!(items.next(), None);
        }
    }
}
