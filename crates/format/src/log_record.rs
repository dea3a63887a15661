//! Records of the backup log: a header of 24 bytes and a payload that belongs to the engine.
//!
//! Records start at multiples of eight bytes and never straddle the end of the ring: a skip record
//! (the paper's wrapping object at the right) fills what is left there, and also what is left of a
//! sector when the log is synced, so that later appends never rewrite a synced sector. Where fewer
//! bytes than a header are left before the ring's end, the next record stands at its start.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section
//! 3.3.1. Differs: records carry the generation that wrote them; it never goes down along the log,
//! so that a lost tail is never replayed after what was written in its place.

use crate::FormatError;
use crate::table::{checksum_with_hole, fields};
use stitch_base::{Generation, Lsn};

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 24;
/// Records start at multiples of this, in bytes.
pub const ALIGN: u64 = 8;
/// First bytes of a record, as a number.
pub const MAGIC: u16 = 0x4c53;

fields! {
    /// Layout of a record's header.
    TABLE = "backup log record", HEADER_BYTES,
        "In the backup log, at multiples of 8; the payload follows, then zeros to the next.";
    CHECKSUM: u32 = 0, "CRC-32C of the volume's salt, header and payload, this field as zeros; \
        a skip record's payload is not covered";
    PAYLOAD_LEN: u32 = 4, "length of the payload in bytes";
    LSN: u64 = 8, "bytes of log since ever; modulo the ring's length, the offset in it";
    GENERATION: u32 = 16, "generation of the volume that wrote this; never goes down along the log";
    MAGIC_AT: u16 = 20, "0x4c53";
    KIND: u8 = 22, "1 data, 2 skip (its payload is of no meaning and need not be written)";
    RESERVED: u8 = 23, "zero";
}

/// What a record is. Do not renumber; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The engine's bytes.
    Data = 1,
    /// Nothing: go on after it.
    Skip = 2,
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is.
    pub kind: RecordKind,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Where it stands.
    pub lsn: Lsn,
    /// Generation that wrote it.
    pub generation: Generation,
}

fn field(field: &'static str, expected: &str, found: impl ToString) -> FormatError {
    FormatError::Field {
        record: TABLE.name,
        field,
        expected: expected.to_owned(),
        found: found.to_string(),
    }
}

impl RecordHeader {
    /// Bytes that a record with this many bytes of payload takes in the log.
    #[must_use]
    pub const fn record_bytes(payload_len: u64) -> u64 {
        (HEADER_BYTES as u64 + payload_len).next_multiple_of(ALIGN)
    }

    /// Position after this record.
    #[must_use]
    pub const fn end(&self) -> Lsn {
        let len_bytes = Self::record_bytes(self.payload_len as u64);
        Lsn(self.lsn.0.saturating_add(len_bytes))
    }

    /// The header of a record whose payload is all of `pieces`, one after the other. A skip record
    /// is given no pieces.
    ///
    /// # Panics
    /// If the pieces' length is not the header's.
    #[must_use]
    pub fn encode(&self, salt: u64, pieces: &[&[u8]]) -> [u8; HEADER_BYTES] {
        let len: usize = pieces.iter().map(|p| p.len()).sum();
        let is_data = self.kind == RecordKind::Data;
        assert!(
            len == if is_data {
                self.payload_len as usize
            } else {
                0
            },
            "one length"
        );
        let mut out = [0; HEADER_BYTES];
        let generation = u32::try_from(self.generation.0).expect("the superblock bounds it");
        PAYLOAD_LEN.put(&mut out, self.payload_len);
        LSN.put(&mut out, self.lsn.0);
        GENERATION.put(&mut out, generation);
        MAGIC_AT.put(&mut out, MAGIC);
        KIND.put(&mut out, self.kind as u8);
        RESERVED.put(&mut out, 0);
        let mut sum = checksum_with_hole(salt, &out, CHECKSUM.range());
        for piece in pieces {
            sum = crate::codec::checksum_append(sum, piece);
        }
        CHECKSUM.put(&mut out, sum);
        out
    }

    /// Reads a header alone; its checksum is checked by [`Self::check`].
    ///
    /// # Errors
    /// [`FormatError`] says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < HEADER_BYTES {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: bytes.len(),
                needed: HEADER_BYTES,
                left: bytes.len(),
            });
        }
        if MAGIC_AT.get(bytes) != MAGIC || RESERVED.get(bytes) != 0 {
            return Err(field(
                "magic",
                "0x4c53, and zero reserved",
                MAGIC_AT.get(bytes),
            ));
        }
        let kind = match KIND.get(bytes) {
            1 => RecordKind::Data,
            2 => RecordKind::Skip,
            other => return Err(field("kind", "1 or 2", other)),
        };
        Ok(Self {
            kind,
            payload_len: PAYLOAD_LEN.get(bytes),
            lsn: Lsn(LSN.get(bytes)),
            generation: Generation(u64::from(GENERATION.get(bytes))),
        })
    }

    /// Checks a record's checksum. A skip record's payload is not looked at.
    ///
    /// # Errors
    /// [`FormatError::Checksum`].
    pub fn check(&self, salt: u64, header: &[u8], payload: &[u8]) -> Result<(), FormatError> {
        let mut expected = checksum_with_hole(salt, &header[..HEADER_BYTES], CHECKSUM.range());
        if self.kind == RecordKind::Data {
            expected = crate::codec::checksum_append(expected, payload);
        }
        let found = CHECKSUM.get(header);
        if expected == found {
            return Ok(());
        }
        let record = TABLE.name;
        Err(FormatError::Checksum {
            record,
            expected,
            found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::{dump, refuses_damage};

    const SALT: u64 = 7;

    const SAMPLE: RecordHeader = RecordHeader {
        kind: RecordKind::Data,
        payload_len: 3,
        lsn: Lsn(0x0807_0605_0403_0201),
        generation: Generation(0x1413_1211),
    };

    fn is_valid(record: &[u8]) -> bool {
        RecordHeader::decode(record).is_ok_and(|header| {
            let payload = record.get(HEADER_BYTES..HEADER_BYTES + header.payload_len as usize);
            payload.is_some_and(|payload| header.check(SALT, record, payload).is_ok())
        })
    }

    #[test]
    fn bytes_are_pinned() {
        let bytes = SAMPLE.encode(SALT, &[b"a", b"", b"bc"]);
        let golden = "\
checksum 4d839f22
payload_len 03000000
lsn 0102030405060708
generation 11121314
magic_at 534c
kind 01
reserved 00
";
        assert_eq!(dump(&TABLE, &bytes), golden);
        assert_eq!(SAMPLE.encode(SALT, &[b"abc"]), bytes, "however it is cut");
    }

    #[test]
    fn it_comes_back_and_damage_is_refused() {
        let mut record = SAMPLE.encode(SALT, &[b"abc"]).to_vec();
        assert_eq!(RecordHeader::decode(&record), Ok(SAMPLE));
        record.extend_from_slice(b"abc");
        refuses_damage(&record, is_valid);
        assert!(
            SAMPLE.check(SALT + 1, &record, b"abc").is_err(),
            "another volume's"
        );
    }

    #[test]
    fn the_payload_of_a_skip_record_does_not_matter() {
        let skip = RecordHeader {
            kind: RecordKind::Skip,
            payload_len: 1000,
            ..SAMPLE
        };
        let bytes = skip.encode(SALT, &[]);
        assert_eq!(RecordHeader::decode(&bytes), Ok(skip));
        assert!(skip.check(SALT, &bytes, b"anything").is_ok());
        assert_eq!(skip.end(), Lsn(SAMPLE.lsn.0 + 1024));
    }
}
