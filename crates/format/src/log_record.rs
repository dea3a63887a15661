//! Records of the backup log: a header of 32 bytes and a payload that belongs to the engine.
//! What follows such a record in its page may have a header of 8 bytes: see [`short`].
//!
//! Records start at multiples of eight bytes and never straddle the end of the ring: a skip record
//! (the paper's wrapping object at the right) fills what is left there, and also what is left of a
//! sector when the log is synced, so that later appends never rewrite a synced sector. Where fewer
//! bytes than a header are left before the ring's end, the next record stands at its start.
//!
//! Every long record notes how far both logs were durable when it was written, so that damage
//! before that point is distinguished from an end that a crash tore off. A mark notes nothing else:
//! it stands where the next record will, which overwrites it.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section
//! 3.3.1. Differs: records carry the generation that wrote them; it never goes down along the log,
//! so that a lost tail is never replayed after what was written in its place; and marks.

pub mod short;

use crate::FormatError;
use crate::table::{checksum_with_hole, fields};
use crate::version_object;
use stitch_base::{Generation, Lsn};

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 32;
/// Records start at multiples of this, in bytes.
pub const ALIGN: u64 = 8;
/// First bytes of a record, as a number.
pub const MAGIC: u16 = 0x4c53;

fields! {
    /// Layout of a record's header.
    TABLE = "backup log record", HEADER_BYTES,
        "In the backup log, at multiples of 8; the payload follows, then zeros to the next. The \
        log ends at the first place without a valid record. If a valid record of that generation \
        or a later one says that the log was durable further than that, the log is damaged; if \
        none does, what is missing was never durable, or what said so is missing too.";
    CHECKSUM: u32 = 0, "CRC-32C of the volume's salt, header and payload, this field as zeros; \
        a skip record's payload is not covered";
    PAYLOAD_LEN: u32 = 4, "length of the payload in bytes";
    LSN: u64 = 8, "bytes of log since ever; modulo the ring's length, the offset in it";
    GENERATION: u32 = 16, "generation of the volume that wrote this; never goes down along the log";
    MAGIC_AT: u16 = 20, "0x4c53";
    KIND: u8 = 22, "1 data, 2 skip (its payload is of no meaning and need not be written), \
        3 mark (no payload; the log ends before it)";
    RESERVED: u8 = 23, "zero";
    DURABLE_BACK: u32 = 24, "when this was written, the log was durable up to this many times 8 \
        bytes before it; 2^32 - 1 if that is not known";
    VERSION_PAGE: u32 = 28, "when this was written, the version log was durable up to this many \
        times 4096 bytes, modulo 2^32";
}

/// Kind of a record. Do not renumber; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The engine's bytes.
    Data = 1,
    /// Padding: the log continues after it.
    Skip = 2,
    /// A note at the log's end. The next record overwrites it.
    Mark = 3,
}

/// Position after the last durable object of the version log, cut down to what a record holds: in
/// pages of 4 KiB, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionPage(pub u32);

impl VersionPage {
    /// The page of a position, which is a multiple of 4 KiB.
    #[must_use]
    pub const fn of(position: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is meant")]
        Self((position / version_object::ALIGN) as u32)
    }

    /// Reports whether this is beyond `other`. They must be less than 2^31 pages apart.
    #[must_use]
    pub const fn is_beyond(self, other: Self) -> bool {
        let ahead = self.0.wrapping_sub(other.0);
        ahead > 0 && ahead < 1 << 31
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its kind.
    pub kind: RecordKind,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Its position.
    pub lsn: Lsn,
    /// Generation that wrote it.
    pub generation: Generation,
    /// Position up to which the log was durable when this was written: at most its own.
    pub durable: Lsn,
    /// Position up to which the version log was durable.
    pub versions: VersionPage,
}

impl RecordHeader {
    /// Longest payload: its length's highest byte tells these records from short ones.
    pub const PAYLOAD_BYTES_MAX: u32 = (1 << 24) - 1;

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
    /// If the pieces' length is not the header's, or above [`Self::PAYLOAD_BYTES_MAX`].
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
        assert!(
            self.payload_len <= Self::PAYLOAD_BYTES_MAX,
            "no short record is like it"
        );
        let mut out = [0; HEADER_BYTES];
        let generation = u32::try_from(self.generation.0).expect("the superblock bounds it");
        PAYLOAD_LEN.put(&mut out, self.payload_len);
        LSN.put(&mut out, self.lsn.0);
        GENERATION.put(&mut out, generation);
        MAGIC_AT.put(&mut out, MAGIC);
        KIND.put(&mut out, self.kind as u8);
        RESERVED.put(&mut out, 0);
        DURABLE_BACK.put(&mut out, self.durable_back());
        VERSION_PAGE.put(&mut out, self.versions.0);
        let mut sum = checksum_with_hole(salt, &out, CHECKSUM.range());
        for piece in pieces {
            sum = crate::codec::checksum_append(sum, piece);
        }
        CHECKSUM.put(&mut out, sum);
        out
    }

    fn durable_back(&self) -> u32 {
        assert!(self.durable <= self.lsn, "what comes later is not durable");
        let back = self.lsn.0 - self.durable.0;
        assert!(
            back.is_multiple_of(ALIGN),
            "positions are multiples of eight"
        );
        u32::try_from(back / ALIGN).unwrap_or(u32::MAX)
    }

    /// Reports whether a header may start with these bytes: a cheap filter for searches.
    #[must_use]
    pub fn may_be_at(bytes: &[u8; HEADER_BYTES]) -> bool {
        MAGIC_AT.get(bytes) == MAGIC
    }

    /// Reads a header alone; its checksum is checked by [`Self::check`].
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
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
            return Err(TABLE.wrong("magic", "0x4c53, and zero reserved", MAGIC_AT.get(bytes)));
        }
        let kind = match KIND.get(bytes) {
            1 => RecordKind::Data,
            2 => RecordKind::Skip,
            3 => RecordKind::Mark,
            other => return Err(TABLE.wrong("kind", "1 to 3", other)),
        };
        if kind == RecordKind::Mark && PAYLOAD_LEN.get(bytes) != 0 {
            return Err(TABLE.wrong("payload_len", "0 in a mark", PAYLOAD_LEN.get(bytes)));
        }
        let lsn = Lsn(LSN.get(bytes));
        let durable = match DURABLE_BACK.get(bytes) {
            u32::MAX => Lsn(0),
            back => Lsn(lsn.0.saturating_sub(u64::from(back) * ALIGN)),
        };
        Ok(Self {
            kind,
            payload_len: PAYLOAD_LEN.get(bytes),
            lsn,
            generation: Generation(u64::from(GENERATION.get(bytes))),
            durable,
            versions: VersionPage(VERSION_PAGE.get(bytes)),
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
        durable: Lsn(0x0807_0605_0403_0201 - 8 * 0x2423_2221),
        versions: VersionPage(0x3433_3231),
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
checksum 34a7648b
payload_len 03000000
lsn 0102030405060708
generation 11121314
magic_at 534c
kind 01
reserved 00
durable_back 21222324
version_page 31323334
";
        assert_eq!(dump(&TABLE, &bytes), golden);
        assert_eq!(SAMPLE.encode(SALT, &[b"abc"]), bytes, "however it is cut");
    }

    #[test]
    fn it_comes_back_and_damage_is_refused() {
        let mut record = SAMPLE.encode(SALT, &[b"abc"]).to_vec();
        assert_eq!(RecordHeader::decode(&record), Ok(SAMPLE));
        let header = record.first_chunk().expect("a header");
        assert!(RecordHeader::may_be_at(header) && !RecordHeader::may_be_at(&[0; HEADER_BYTES]));
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
        assert_eq!(skip.end(), Lsn(SAMPLE.lsn.0 + 1032));
    }

    #[test]
    fn a_mark_has_no_payload() {
        let mark = RecordHeader {
            kind: RecordKind::Mark,
            payload_len: 0,
            ..SAMPLE
        };
        let mut bytes = mark.encode(SALT, &[]);
        assert_eq!(RecordHeader::decode(&bytes), Ok(mark));
        PAYLOAD_LEN.put(&mut bytes, 8);
        assert!(RecordHeader::decode(&bytes).is_err());
    }

    #[test]
    fn what_is_too_far_back_to_say_is_not_claimed() {
        let far = |back: u64| {
            let header = RecordHeader {
                lsn: Lsn(1 << 40),
                durable: Lsn((1 << 40) - back),
                ..SAMPLE
            };
            let bytes = header.encode(SALT, &[b"abc"]);
            RecordHeader::decode(&bytes).map(|header| header.durable)
        };
        let back_max = 8 * (u64::from(u32::MAX) - 1);
        assert_eq!(far(back_max), Ok(Lsn((1 << 40) - back_max)));
        assert_eq!(far(back_max + 8), Ok(Lsn(0)));
        assert_eq!(far(1 << 40), Ok(Lsn(0)));
    }

    #[test]
    fn pages_of_the_version_log_are_compared_also_where_they_begin_anew() {
        let page = |pages: u64| VersionPage::of(pages * version_object::ALIGN);
        assert!(page(8).is_beyond(page(7)) && !page(7).is_beyond(page(8)));
        assert!(!page(7).is_beyond(page(7)));
        assert!(page(1 << 32).is_beyond(page((1 << 32) - 1)));
        assert!(!page((1 << 32) - 1).is_beyond(page(1 << 32)));
    }
}
