//! The stream of `stitchfs send`: a directory tree, or the changes from one to another, as steps
//! that are applied in order.
//!
//! ```text
//! head | record 0 | record 1 | ... | End
//! ```
//!
//! A stream is a head of fixed length and records. Each record is a header and a body; the checksum
//! covers both, salted with the head and with the number of records before it. A record that is
//! damaged, missing, doubled or of another stream is refused. The last record, `End`, holds the
//! number of records and the hash of all bytes before it.
//!
//! Records belong to steps. The steps of two snapshots are always the same, in the same order, so a
//! stream can begin at any of them: see [`SendToken`].

mod record;
#[cfg(test)]
mod tests;
mod token;

pub use record::{ObjectPath, SendRecord};
pub use token::{SendPosition, SendToken, TOKEN_TABLE};

use crate::FormatError;
use crate::codec::{checksum, checksum_append};
use crate::table::{Table, fields};
use record::{body, parse};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Format version of streams, the only one that this program reads and writes.
pub const SEND_VERSION: u32 = 1;
/// Length of the head of a stream.
pub const SEND_HEAD_BYTES: usize = 88;
/// Length of the header of a record.
pub const SEND_HEADER_BYTES: usize = 20;
/// Most bytes of contents in one record.
pub const SEND_DATA_BYTES_MAX: usize = 256 << 10;
/// Most bytes in the body of a record: contents and a path, or two long paths.
pub const SEND_BODY_BYTES_MAX: usize = 4 << 20;

const MAGIC: [u8; 8] = *b"stitchsd";
/// The stream changes what an earlier snapshot held.
const FLAG_INCREMENTAL: u32 = 1;
/// Files that the sender was not allowed to read are left out.
const FLAG_PARTIAL: u32 = 2;

/// Identity of a snapshot in streams: a hash of what it is of, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendId(pub [u8; 16]);

impl SendId {
    /// Returns the identity of the snapshot `name` of a directory, created at `created_ns`.
    #[must_use]
    pub fn of(name: &[u8], root: u64, created_ns: i64) -> Self {
        debug_assert!(root != 0, "0 is no inode number");
        let mut hash = Xxh3::new();
        hash.update(&root.to_le_bytes());
        hash.update(&created_ns.to_le_bytes());
        hash.update(name);
        Self(hash.digest128().to_le_bytes())
    }
}

impl std::fmt::Display for SendId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fields! {
    /// Layout of the head.
    HEAD_TABLE = "head of a send stream", SEND_HEAD_BYTES,
        "First bytes of what `stitchfs send` writes. Records follow.";
    MAGIC_AT: [u8; 8] = 0, "`stitchsd`; the same in all versions";
    VERSION_AT: u32 = 8, "format version of the stream, 1; at this place in all versions";
    FLAGS: u32 = 12, "1: changes what the snapshot `base` held; \
        2: files that the sender could not read are left out";
    CHECKSUM: u32 = 16, "CRC-32C of 64 zero bits and the head, with these four bytes as zeros";
    RESERVED: u32 = 20, "zeros";
    SNAPSHOT: [u8; 16] = 24, "identity of the snapshot: XXH3-128 of its directory's inode number, \
        its time and its name";
    BASE: [u8; 16] = 40, "identity of the snapshot that is changed; zeros in a complete stream";
    CREATED: i64 = 56, "when the snapshot was created, ns since 1970";
    STEPS: u64 = 64, "number of steps";
    START_STEP: u64 = 72, "step at which the stream begins; not 0 if it resumes another";
    START_OFFSET: u64 = 80, "offset in the file of that step at which the contents begin";
}

fields! {
    /// Layout of the header of a record.
    HEADER_TABLE = "record of a send stream", SEND_HEADER_BYTES,
        "Before the body of each record. Paths are byte strings from the directory on; numbers in \
         bodies are varints. Bodies: 1 Begin: name, base name. 2 Detach: path, object (moves it \
         aside). 3 Remove: path. 4 RemoveDir: path. 5 Detached: nothing (all steps before are \
         durable). 6 Place: path, object (moves it back). 7 MakeDir: path. 8 MakeFile: path. \
         9 MakeSymlink: path, target. 10 MakeNode: path, mode, device. 11 Link: path, existing \
         path. 12 Write: path, offset, contents. 13 Hole: path, offset, length. 14 Size: path, \
         size. 15 Owner: path, user, group. 16 SetXattr: path, name, value. 17 DropXattr: path, \
         name. 18 Attrs: path, mode, then access and modification time (i64, ns). 19 End: number \
         of records before it, XXH3-128 of all bytes before it (16 bytes).";
    KIND: u8 = 0, "kind of the body, 1 to 19";
    PADDING: [u8; 3] = 1, "zeros";
    LENGTH: u32 = 4, "length of the body in bytes";
    STEP: u64 = 8, "step that the record belongs to; never lower than that of the one before";
    SUM: u32 = 16, "CRC-32C of the XXH3-64 of the head, of the number of records before this one, \
        of the header without this field, and of the body";
}

/// First bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHead {
    /// The snapshot.
    pub snapshot: SendId,
    /// The snapshot that the stream changes; `None` if the stream is complete.
    pub base: Option<SendId>,
    /// When the snapshot was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Number of steps.
    pub steps: u64,
    /// Where the stream begins.
    pub start: SendPosition,
    /// Reports that files that the sender could not read are left out.
    pub is_partial: bool,
}

impl SendHead {
    /// Returns the head as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEND_HEAD_BYTES] {
        debug_assert!(
            self.start.step <= self.steps,
            "a stream begins at one of its steps"
        );
        let mut out = [0; SEND_HEAD_BYTES];
        let partial = if self.is_partial { FLAG_PARTIAL } else { 0 };
        let incremental = self.base.map_or(0, |_| FLAG_INCREMENTAL);
        MAGIC_AT.put(&mut out, MAGIC);
        VERSION_AT.put(&mut out, SEND_VERSION);
        FLAGS.put(&mut out, partial | incremental);
        SNAPSHOT.put(&mut out, self.snapshot.0);
        BASE.put(&mut out, self.base.map_or([0; 16], |base| base.0));
        CREATED.put(&mut out, self.created_ns);
        STEPS.put(&mut out, self.steps);
        START_STEP.put(&mut out, self.start.step);
        START_OFFSET.put(&mut out, self.start.offset);
        let sum = crate::table::checksum_with_hole(0, &out, CHECKSUM.range());
        CHECKSUM.put(&mut out, sum);
        out
    }

    /// Returns the head in `bytes`.
    ///
    /// # Errors
    /// [`FormatError`]: no stream, a damaged one, or one of another version.
    pub fn decode(bytes: &[u8; SEND_HEAD_BYTES]) -> Result<Self, FormatError> {
        let magic = MAGIC_AT.get(bytes);
        if magic != MAGIC {
            return Err(HEAD_TABLE.wrong("magic", "stitchsd", magic.escape_ascii()));
        }
        let found = VERSION_AT.get(bytes);
        if found > SEND_VERSION {
            let record = HEAD_TABLE.name;
            let supported = SEND_VERSION;
            return Err(FormatError::Newer {
                record,
                found,
                supported,
            });
        }
        check_sum(
            &HEAD_TABLE,
            crate::table::checksum_with_hole(0, bytes, CHECKSUM.range()),
            CHECKSUM.get(bytes),
        )?;
        if found != SEND_VERSION {
            return Err(HEAD_TABLE.wrong("version", "1", found));
        }
        let flags = FLAGS.get(bytes);
        if flags & !(FLAG_INCREMENTAL | FLAG_PARTIAL) != 0 || RESERVED.get(bytes) != 0 {
            return Err(HEAD_TABLE.wrong("flags", "known ones", format!("{flags:#x}")));
        }
        let base = SendId(BASE.get(bytes));
        let is_incremental = flags & FLAG_INCREMENTAL != 0;
        if !is_incremental && base.0 != [0; 16] {
            return Err(HEAD_TABLE.wrong("base", "zeros in a complete stream", base));
        }
        let (step, offset) = (START_STEP.get(bytes), START_OFFSET.get(bytes));
        let steps = STEPS.get(bytes);
        if step > steps {
            return Err(HEAD_TABLE.wrong("start_step", "at most `steps`", step));
        }
        Ok(Self {
            snapshot: SendId(SNAPSHOT.get(bytes)),
            base: is_incremental.then_some(base),
            created_ns: CREATED.get(bytes),
            steps,
            start: SendPosition { step, offset },
            is_partial: flags & FLAG_PARTIAL != 0,
        })
    }
}

fn check_sum(table: &Table, expected: u32, found: u32) -> Result<(), FormatError> {
    if expected == found {
        return Ok(());
    }
    let record = table.name;
    Err(FormatError::Checksum {
        record,
        expected,
        found,
    })
}

/// Running state of both ends of a stream: what the checksums depend on.
#[derive(Clone)]
struct Chain {
    salt: u64,
    records: u64,
    hash: Xxh3,
}

impl Chain {
    fn new(head: &[u8; SEND_HEAD_BYTES]) -> Self {
        let mut hash = Xxh3::new();
        hash.update(head);
        let (salt, records) = (xxh3_64(head), 0);
        Self {
            salt,
            records,
            hash,
        }
    }

    /// The checksum of a record.
    fn sum(&self, header: &[u8], body: &[u8]) -> u32 {
        assert_eq!(header.len(), SEND_HEADER_BYTES, "a whole header");
        let mut sum = checksum(&self.salt.to_le_bytes());
        sum = checksum_append(sum, &self.records.to_le_bytes());
        sum = checksum_append(sum, &header[..SUM.range().start]);
        checksum_append(sum, body)
    }

    fn push(&mut self, header: &[u8], body: &[u8]) {
        self.records += 1;
        self.hash.update(header);
        self.hash.update(body);
    }

    /// The record that ends the stream here.
    fn end(&self) -> SendRecord<'static> {
        SendRecord::End {
            records: self.records,
            hash: self.hash.digest128().to_le_bytes(),
        }
    }
}

/// Encodes the records of a stream: `record* end`.
#[derive(Clone)]
pub struct SendEncoder {
    chain: Chain,
    step: u64,
}

impl std::fmt::Debug for SendEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendEncoder({} records)", self.chain.records)
    }
}

impl SendEncoder {
    /// Begins a stream with this head.
    #[must_use]
    pub fn new(head: &[u8; SEND_HEAD_BYTES]) -> Self {
        let (chain, step) = (Chain::new(head), 0);
        Self { chain, step }
    }

    /// Appends a record of a step to `out`.
    pub fn record(&mut self, step: u64, record: &SendRecord<'_>, out: &mut Vec<u8>) {
        assert!(step >= self.step, "steps are in order");
        self.step = step;
        let start = out.len();
        out.resize(start + SEND_HEADER_BYTES, 0);
        body(record, out);
        let len_bytes = out.len() - start - SEND_HEADER_BYTES;
        assert!(len_bytes <= SEND_BODY_BYTES_MAX, "bodies are short");
        let (header, body) = out[start..].split_at_mut(SEND_HEADER_BYTES);
        KIND.put(header, record.kind());
        LENGTH.put(header, u32::try_from(len_bytes).expect("bodies are short"));
        STEP.put(header, step);
        let sum = self.chain.sum(header, body);
        SUM.put(header, sum);
        self.chain.push(header, body);
    }

    /// Appends the record that ends the stream.
    pub fn end(mut self, step: u64, out: &mut Vec<u8>) {
        let end = self.chain.end();
        self.record(step, &end, out);
    }
}

/// Decodes the records of a stream: `(body_len record)*`. Ends with the record `End`.
#[derive(Clone)]
pub struct SendDecoder {
    chain: Chain,
    step: u64,
}

impl std::fmt::Debug for SendDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendDecoder({} records)", self.chain.records)
    }
}

impl SendDecoder {
    /// Begins a stream with this head.
    #[must_use]
    pub fn new(head: &[u8; SEND_HEAD_BYTES]) -> Self {
        let (chain, step) = (Chain::new(head), 0);
        Self { chain, step }
    }

    /// Returns the number of bytes that follow a header.
    ///
    /// # Errors
    /// [`FormatError`]: more than any record has.
    pub fn body_len(&self, header: &[u8; SEND_HEADER_BYTES]) -> Result<usize, FormatError> {
        let found = LENGTH.get(header);
        usize::try_from(found)
            .ok()
            .filter(|len| *len <= SEND_BODY_BYTES_MAX)
            .ok_or_else(|| HEADER_TABLE.wrong("length", "at most 4 MiB", found))
    }

    /// Returns the step and the record of a header and its body. `End` is compared with what came.
    ///
    /// # Errors
    /// [`FormatError`]: the record is damaged, or is not the next one.
    pub fn record<'a>(
        &mut self,
        header: &[u8; SEND_HEADER_BYTES],
        body: &'a [u8],
    ) -> Result<(u64, SendRecord<'a>), FormatError> {
        check_sum(&HEADER_TABLE, self.chain.sum(header, body), SUM.get(header))?;
        if PADDING.get(header) != [0; 3] {
            return Err(HEADER_TABLE.wrong("padding", "zeros", "other bytes"));
        }
        let step = STEP.get(header);
        if step < self.step {
            return Err(HEADER_TABLE.wrong("step", "in order", step));
        }
        let record = parse(KIND.get(header), body)?;
        if matches!(record, SendRecord::End { .. }) && record != self.chain.end() {
            return Err(HEADER_TABLE.wrong("end", "count and hash of what came", "others"));
        }
        self.step = step;
        self.chain.push(header, body);
        Ok((step, record))
    }
}
