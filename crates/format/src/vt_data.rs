//! Data blocks of a VT-tree table: entries in order, as the payload of a block.
//!
//! | part | layout |
//! |---|---|
//! | base | u64: sequence number of the first entry |
//! | entries | see below |
//! | restarts | u32 each: offsets of every 16th entry, whose key is stored whole |
//! | count | u32: number of restarts, not 0 |
//!
//! Of an entry, numbers are varints:
//!
//! | part | meaning |
//! |---|---|
//! | shared | length of the prefix that its key shares with the key before |
//! | suffix length | length of the rest of the key |
//! | kind | u8: 1 put, 2 delete, 3 upsert |
//! | seqno | sequence number minus base, zigzag |
//! | function | number of the upsert function; upserts only |
//! | value length | length of value or delta; puts and upserts only |
//! | suffix, value | bytes |
//!
//! Entries are ordered by key, versions of a key newest first. Blocks compressed as a whole have
//! [`FLAG_LZ4`] or [`FLAG_ZSTD`] in their header; the length before compression stands in the
//! index.

use crate::FormatError;
use crate::codec::{Reader, put_varint};
use std::ops::Range;
use stitch_base::Seqno;

/// Flag in the block's header: the payload is LZ4, without a frame or a length.
pub const FLAG_LZ4: u8 = 1;
/// Flag in the block's header: the payload is one frame of Zstandard. Since format 2.1.
pub const FLAG_ZSTD: u8 = 2;
/// Every how many entries a key is stored whole.
pub const RESTART_INTERVAL: usize = 16;

const RECORD: &str = "table data block";
const BASE_BYTES: usize = 8;
const NUMBER_BYTES: usize = 4;
/// Most bytes that an entry takes beside key and value.
const ENTRY_OVERHEAD_BYTES_MAX: usize = 40;

/// The effect of a version on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets the value.
    Put(&'a [u8]),
    /// Removes the key.
    Delete,
    /// Folds a delta over the next older version's value.
    Upsert {
        /// Number of the fold function.
        function: u32,
        /// The delta to fold in.
        delta: &'a [u8],
    },
}

/// Kind of an entry. Do not renumber; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Sets the value.
    Put = 1,
    /// Removes the key.
    Delete = 2,
    /// Folds a delta over the next older version's value.
    Upsert = 3,
}

const fn zigzag(difference: u64) -> u64 {
    let sign = 0u64.wrapping_sub(difference >> 63);
    (difference << 1) ^ sign
}

const fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ 0u64.wrapping_sub(value & 1)
}

fn narrow(offset: usize) -> u32 {
    u32::try_from(offset).expect("a block is bounded")
}

/// Builds a data block's payload: `add+ finish`, and again.
#[derive(Debug)]
pub struct DataBuilder {
    interval: usize,
    out: Vec<u8>,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    entry_count: usize,
    base: u64,
}

impl Default for DataBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DataBuilder {
    /// An empty block.
    #[must_use]
    pub fn new() -> Self {
        Self::with_interval(RESTART_INTERVAL)
    }

    /// Creates an empty block that stores every `interval`-th key whole; readers accept any
    /// interval. With 1, no key shares a prefix.
    ///
    /// # Panics
    /// If it is 0.
    #[must_use]
    pub fn with_interval(interval: usize) -> Self {
        assert!(interval > 0, "the first key is stored whole");
        Self {
            interval,
            out: Vec::new(),
            restarts: Vec::new(),
            last_key: Vec::new(),
            entry_count: 0,
            base: 0,
        }
    }

    /// True if nothing was added.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entry_count == 0
    }

    /// The key that was added last.
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Length of the payload if it were finished now, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.out.len() + (self.restarts.len() + 1) * NUMBER_BYTES
    }

    /// A bound on what an entry would add, in bytes.
    #[must_use]
    pub const fn entry_bytes_max(key: &[u8], op: &Op<'_>) -> usize {
        let value = match op {
            Op::Put(value) => value.len(),
            Op::Delete => 0,
            Op::Upsert { delta, .. } => delta.len(),
        };
        key.len() + value + ENTRY_OVERHEAD_BYTES_MAX
    }

    /// Adds an entry, which must come after those before.
    pub fn add(&mut self, key: &[u8], seqno: Seqno, op: &Op<'_>) {
        if self.is_empty() {
            self.base = seqno.0;
            self.out.extend_from_slice(&self.base.to_le_bytes());
        }
        let mut shared = 0;
        if self.entry_count.is_multiple_of(self.interval) {
            self.restarts.push(narrow(self.out.len()));
        } else {
            debug_assert!(self.last_key.as_slice() <= key, "entries are in order");
            let pairs = self.last_key.iter().zip(key);
            shared = pairs.take_while(|(a, b)| a == b).count();
        }
        let (kind, function, value) = match *op {
            Op::Put(value) => (EntryKind::Put, None, Some(value)),
            Op::Delete => (EntryKind::Delete, None, None),
            Op::Upsert { function, delta } => (EntryKind::Upsert, Some(function), Some(delta)),
        };
        put_varint(&mut self.out, shared as u64);
        put_varint(&mut self.out, (key.len() - shared) as u64);
        self.out.push(kind as u8);
        put_varint(&mut self.out, zigzag(seqno.0.wrapping_sub(self.base)));
        if let Some(function) = function {
            put_varint(&mut self.out, u64::from(function));
        }
        if let Some(value) = value {
            put_varint(&mut self.out, value.len() as u64);
        }
        self.out.extend_from_slice(&key[shared..]);
        self.out.extend_from_slice(value.unwrap_or_default());
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        self.entry_count += 1;
    }

    /// Appends the payload to `out` and starts anew.
    ///
    /// # Panics
    /// If nothing was added.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        assert!(!self.is_empty(), "a data block holds an entry");
        out.extend_from_slice(&self.out);
        for restart in &self.restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&narrow(self.restarts.len()).to_le_bytes());
        self.out.clear();
        self.restarts.clear();
        self.last_key.clear();
        self.entry_count = 0;
    }
}

/// Offsets in a payload. Every method takes the payload again, so that a cursor can own both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLayout {
    base: u64,
    entries_end: usize,
    restart_count: usize,
}

/// An entry as it lies in a payload; ranges are offsets in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEntry {
    /// Length of the prefix that the key shares with the key before.
    pub shared: usize,
    /// The rest of the key.
    pub suffix: Range<usize>,
    /// Its kind.
    pub kind: EntryKind,
    /// When it was written.
    pub seqno: Seqno,
    /// Number of the upsert function; 0 if it is no upsert.
    pub function: u32,
    /// Value or delta; empty if it has none.
    pub value: Range<usize>,
    /// Offset of the next entry.
    pub next: usize,
}

impl RawEntry {
    /// Returns the effect of the entry, from the payload that it was read from.
    #[inline]
    #[must_use]
    pub fn op<'a>(&self, payload: &'a [u8]) -> Op<'a> {
        let value = &payload[self.value.clone()];
        match self.kind {
            EntryKind::Put => Op::Put(value),
            EntryKind::Delete => Op::Delete,
            EntryKind::Upsert => Op::Upsert {
                function: self.function,
                delta: value,
            },
        }
    }
}

impl DataLayout {
    /// Reads the fixed parts of a payload.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn read(payload: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(RECORD, payload);
        let base = reader.u64()?;
        let tail = payload.len().saturating_sub(NUMBER_BYTES).max(BASE_BYTES);
        let mut tail_reader = Reader::new(RECORD, &payload[tail..]);
        let restart_count = tail_reader.u32()? as usize;
        let restarts = restart_count.saturating_mul(NUMBER_BYTES);
        if restart_count == 0 || restarts > tail - BASE_BYTES {
            let found = restart_count.to_string();
            return Err(reader.field("count", "restarts that fit", found));
        }
        let layout = Self {
            base,
            entries_end: tail - restarts,
            restart_count,
        };
        let first = layout.restart(payload, 0)?;
        if first != BASE_BYTES {
            return Err(reader.field("restart", "the first entry", first.to_string()));
        }
        Ok(layout)
    }

    /// Number of restarts, at least 1.
    #[must_use]
    pub const fn restart_count(&self) -> usize {
        self.restart_count
    }

    /// Offset after the last entry.
    #[inline]
    #[must_use]
    pub const fn entries_end(&self) -> usize {
        self.entries_end
    }

    /// Offset of the entry of a restart.
    ///
    /// # Errors
    /// [`FormatError`] if it is not that of an entry.
    ///
    /// # Panics
    /// If there is no such restart.
    pub fn restart(&self, payload: &[u8], index: usize) -> Result<usize, FormatError> {
        assert!(index < self.restart_count, "a restart of this block");
        let at = self.entries_end + index * NUMBER_BYTES;
        let mut reader = Reader::new(RECORD, payload.get(at..).unwrap_or_default());
        let offset = reader.u32()? as usize;
        if offset < BASE_BYTES || offset >= self.entries_end {
            return Err(reader.field("restart", "offset of an entry", offset.to_string()));
        }
        Ok(offset)
    }

    /// The whole key of a restart's entry.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    ///
    /// # Panics
    /// If there is no such restart.
    pub fn restart_key<'a>(
        &self,
        payload: &'a [u8],
        index: usize,
    ) -> Result<(&'a [u8], Seqno), FormatError> {
        let entry = self.entry(payload, self.restart(payload, index)?)?;
        if entry.shared != 0 {
            return Err(Reader::new(RECORD, payload).field(
                "shared",
                "0 at a restart",
                entry.shared.to_string(),
            ));
        }
        Ok((&payload[entry.suffix], entry.seqno))
    }

    /// The entry that begins at `at`, which is before [`Self::entries_end`].
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    #[inline]
    pub fn entry(&self, payload: &[u8], at: usize) -> Result<RawEntry, FormatError> {
        let entries = payload.get(..self.entries_end).unwrap_or_default();
        let mut r = Reader::new(RECORD, entries.get(at..).unwrap_or_default());
        let shared = r.varint_usize()?;
        let suffix_len = r.varint_usize()?;
        let kind = match r.u8()? {
            1 => EntryKind::Put,
            2 => EntryKind::Delete,
            3 => EntryKind::Upsert,
            other => return Err(r.field("kind", "1 to 3", other.to_string())),
        };
        let seqno = Seqno(self.base.wrapping_add(unzigzag(r.varint()?)));
        let mut function = 0;
        if kind == EntryKind::Upsert {
            let number = r.varint()?;
            function = u32::try_from(number)
                .map_err(|_| r.field("function", "at most 32 bits", number.to_string()))?;
        }
        let value_len = match kind {
            EntryKind::Delete => 0,
            EntryKind::Put | EntryKind::Upsert => r.varint_usize()?,
        };
        let suffix_at = at + r.at();
        r.take(suffix_len)?;
        r.take(value_len)?;
        let value_at = suffix_at + suffix_len;
        let next = value_at + value_len;
        Ok(RawEntry {
            shared,
            suffix: suffix_at..value_at,
            kind,
            seqno,
            function,
            value: value_at..next,
            next,
        })
    }
}

#[cfg(test)]
mod tests;
