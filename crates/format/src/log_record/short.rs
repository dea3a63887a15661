//! Short records of the backup log: a header of 8 bytes, for what follows a long one in its page.
//!
//! A record that notes nothing new stores only its length and its checksum. A reader expects its
//! position and its generation, and the checksum covers them. So they are compared as if they were
//! stored, except for what 32 bits can miss.
//!
//! A CRC finds every difference that lies within 32 consecutive bits, always. So a record of
//! another round of the ring (positions that differ by multiples of 4 KiB, up to 2^44 bytes of log)
//! or of another generation alone is never taken for one that belongs here; where both differ, the
//! low bits of the generation are compared too.

use super::ALIGN;
use crate::FormatError;
use crate::table::fields;
use stitch_base::{Generation, Lsn};

/// Length of the header, in bytes.
pub const SHORT_HEADER_BYTES: usize = 8;
/// Last byte of the header. In a long one the highest byte of the length stands there, and is 0.
const MAGIC: u8 = 0x53;

fields! {
    /// Layout of a short record's header.
    TABLE = "short backup log record", SHORT_HEADER_BYTES,
        "Since format 2.3, in the backup log, at multiples of 8: data whose payload is short, \
        after a long record that begins in the same page of 4096 bytes of log, has the same \
        generation, and knew as much to be durable. The payload follows, then zeros to the next.";
    CHECKSUM: u32 = 0, "CRC-32C of the volume's salt, the record's position in bytes of log since \
        ever (u64), its generation (u32), header and payload, this field as zeros";
    PAYLOAD_LEN: u16 = 4, "length of the payload in bytes";
    GENERATION_LOW: u8 = 6, "the low eight bits of the generation";
    MAGIC_AT: u8 = 7, "0x53; in a long record this byte is 0";
}

/// A short record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortRecord {
    /// Its position. Not stored.
    pub lsn: Lsn,
    /// Generation that wrote it. Not stored but for its low bits.
    pub generation: Generation,
    /// Length of the payload in bytes.
    pub payload_len: u16,
}

impl ShortRecord {
    /// Longest payload.
    pub const PAYLOAD_BYTES_MAX: u64 = u16::MAX as u64;

    /// Bytes that a record with this many bytes of payload takes in the log.
    #[must_use]
    pub const fn record_bytes(payload_len: u64) -> u64 {
        (SHORT_HEADER_BYTES as u64 + payload_len).next_multiple_of(ALIGN)
    }

    /// Position after this record.
    #[must_use]
    pub const fn end(&self) -> Lsn {
        let len_bytes = Self::record_bytes(self.payload_len as u64);
        Lsn(self.lsn.0.saturating_add(len_bytes))
    }

    /// The header of a record whose payload is all of `pieces`, one after the other.
    ///
    /// # Panics
    /// If the pieces' length is not the record's.
    #[must_use]
    pub fn encode(&self, salt: u64, pieces: &[&[u8]]) -> [u8; SHORT_HEADER_BYTES] {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        assert_eq!(len, usize::from(self.payload_len), "one length");
        let mut out = [0; SHORT_HEADER_BYTES];
        PAYLOAD_LEN.put(&mut out, self.payload_len);
        GENERATION_LOW.put(&mut out, self.generation_low());
        MAGIC_AT.put(&mut out, MAGIC);
        let sum = self.checksum(salt, &out, pieces);
        CHECKSUM.put(&mut out, sum);
        out
    }

    /// Reports whether a record that begins with these bytes would be short.
    #[must_use]
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.len() >= SHORT_HEADER_BYTES && MAGIC_AT.get(bytes) == MAGIC
    }

    /// Reads the header of a record that should stand at `lsn` and be of `generation`; its checksum
    /// is checked by [`Self::check`].
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn decode(bytes: &[u8], lsn: Lsn, generation: Generation) -> Result<Self, FormatError> {
        if bytes.len() < SHORT_HEADER_BYTES {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: bytes.len(),
                needed: SHORT_HEADER_BYTES,
                left: bytes.len(),
            });
        }
        if !Self::is_at(bytes) {
            return Err(TABLE.wrong("magic", "0x53", MAGIC_AT.get(bytes)));
        }
        let found = Self {
            lsn,
            generation,
            payload_len: PAYLOAD_LEN.get(bytes),
        };
        if GENERATION_LOW.get(bytes) != found.generation_low() {
            let expected = found.generation_low().to_string();
            return Err(TABLE.wrong("generation_low", &expected, GENERATION_LOW.get(bytes)));
        }
        Ok(found)
    }

    /// Checks a record's checksum.
    ///
    /// # Errors
    /// [`FormatError::Checksum`].
    pub fn check(&self, salt: u64, header: &[u8], payload: &[u8]) -> Result<(), FormatError> {
        let expected = self.checksum(salt, &header[..SHORT_HEADER_BYTES], &[payload]);
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

    fn checksum(&self, salt: u64, header: &[u8], pieces: &[&[u8]]) -> u32 {
        let generation = u32::try_from(self.generation.0).expect("the superblock bounds it");
        let mut covered = [0; 20 + SHORT_HEADER_BYTES];
        covered[..8].copy_from_slice(&salt.to_le_bytes());
        covered[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        covered[16..20].copy_from_slice(&generation.to_le_bytes());
        covered[20..].copy_from_slice(header);
        covered[20..][CHECKSUM.range()].fill(0);
        let sum = crate::codec::checksum(&covered);
        let append = |sum, piece: &&[u8]| crate::codec::checksum_append(sum, piece);
        pieces.iter().fold(sum, append)
    }

    const fn generation_low(&self) -> u8 {
        self.generation.0.to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_record::{HEADER_BYTES, RecordHeader, RecordKind, VersionPage};
    use crate::table::testing::{dump, refuses_damage};

    const SALT: u64 = 7;

    const SAMPLE: ShortRecord = ShortRecord {
        lsn: Lsn(0x0807_0605_0403_0200),
        generation: Generation(0x1413_1211),
        payload_len: 3,
    };

    fn is_valid(record: &[u8], lsn: Lsn, generation: Generation) -> bool {
        ShortRecord::decode(record, lsn, generation).is_ok_and(|header| {
            let payload = record.get(SHORT_HEADER_BYTES..);
            let payload = payload.and_then(|rest| rest.get(..usize::from(header.payload_len)));
            payload.is_some_and(|payload| header.check(SALT, record, payload).is_ok())
        })
    }

    fn sample() -> Vec<u8> {
        [&SAMPLE.encode(SALT, &[b"abc"])[..], b"abc"].concat()
    }

    #[test]
    fn bytes_are_pinned() {
        let bytes = SAMPLE.encode(SALT, &[b"a", b"", b"bc"]);
        let golden = "\
checksum 426be66a
payload_len 0300
generation_low 11
magic_at 53
";
        assert_eq!(dump(&TABLE, &bytes), golden);
        assert_eq!(SAMPLE.encode(SALT, &[b"abc"]), bytes, "however it is cut");
    }

    #[test]
    fn it_comes_back_and_damage_is_refused() {
        let record = sample();
        let found = ShortRecord::decode(&record, SAMPLE.lsn, SAMPLE.generation);
        assert_eq!(found, Ok(SAMPLE));
        assert_eq!(SAMPLE.end(), Lsn(SAMPLE.lsn.0 + 16));
        refuses_damage(&record, |bytes| {
            is_valid(bytes, SAMPLE.lsn, SAMPLE.generation)
        });
        assert!(
            SAMPLE.check(SALT + 1, &record, b"abc").is_err(),
            "another volume's"
        );
    }

    #[test]
    fn a_record_of_another_place_round_or_generation_is_not_taken_for_one() {
        let (record, lsn, generation) = (sample(), SAMPLE.lsn, SAMPLE.generation);
        assert!(is_valid(&record, lsn, generation));
        for shift in 0..60 {
            let other = Lsn(lsn.0 ^ (1 << shift));
            assert!(!is_valid(&record, other, generation), "bit {shift}");
        }
        for place in (8..4096).step_by(8) {
            let other = Lsn(lsn.0 + place);
            assert!(!is_valid(&record, other, generation), "{place} bytes on");
        }
        // Rounds of rings of many lengths, and generations since.
        for round in 1..300 {
            for ring_bytes in [64 << 10, (64 << 20) + 4096, 1 << 30] {
                let other = Lsn(lsn.0 + round * ring_bytes);
                assert!(!is_valid(&record, other, generation), "{round}");
                let later = Generation(generation.0 + round);
                assert!(!is_valid(&record, other, later), "{round}");
            }
            let later = Generation(generation.0 + round);
            assert!(!is_valid(&record, lsn, later), "{round} openings on");
        }
    }

    #[test]
    fn long_and_short_records_are_told_apart() {
        assert!(ShortRecord::is_at(&sample()));
        assert!(!ShortRecord::is_at(&[0; SHORT_HEADER_BYTES]));
        assert!(!ShortRecord::is_at(&sample()[..SHORT_HEADER_BYTES - 1]));
        assert!(RecordHeader::decode(&[&sample()[..], &[0; HEADER_BYTES]].concat()).is_err());
        for payload_len in [0, 1, 0xffff, RecordHeader::PAYLOAD_BYTES_MAX] {
            let long = RecordHeader {
                kind: RecordKind::Skip,
                payload_len,
                lsn: Lsn(8),
                generation: Generation(1),
                durable: Lsn(0),
                versions: VersionPage(0),
            };
            assert!(
                !ShortRecord::is_at(&long.encode(SALT, &[])),
                "{payload_len}"
            );
        }
    }
}
