//! Objects of the version log: a header of 72 bytes and a payload that belongs to the engine.
//!
//! Every object starts at a multiple of 4 KiB and is padded with zeros to the next. It carries its
//! own position, the checksum of its predecessor and the number of its base, so that recovery needs
//! no pointer that is updated in place.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section
//! 3.3.1. Differs: objects also carry their position and the checksum of the object before them,
//! so that what a crash left behind is never taken for a successor.

use crate::FormatError;
use crate::table::{checksum_with_hole, fields};
use stitch_base::{Generation, Lsn};

/// First bytes of an object.
pub const MAGIC: [u8; 8] = *b"StitchVL";
/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 72;
/// Objects start at multiples of this, in bytes.
pub const ALIGN: u64 = 4096;
/// Version of this record.
const VERSION: u8 = 1;

fields! {
    /// Layout of an object's header.
    TABLE = "version log object", HEADER_BYTES,
        "In the version log, at multiples of 4096; the payload follows, then zeros to the next.";
    MAGIC_AT: [u8; 8] = 0, "ASCII `StitchVL`";
    CHECKSUM: u32 = 8, "CRC-32C of the volume's salt, header and payload, this field as zeros";
    KIND: u8 = 12, "1 base, 2 delta, 3 wrap left (WOL), 4 wrap right (WOR)";
    VERSION_AT: u8 = 13, "version of this record: 1";
    RESERVED: u16 = 14, "zeros";
    PAYLOAD_LEN: u32 = 16, "length of the payload in bytes; 0 for wrapping objects";
    PREVIOUS: u32 = 20, "checksum of the object before, wrap right not counted; 0 for the first";
    POSITION: u64 = 24, "bytes of log since ever; modulo the area's length, the offset in it";
    SERIAL: u64 = 32, "sequence number of the base; its deltas and their wrapping objects share it";
    LOG_START: u64 = 40, "position in the backup log at which live records start";
    TARGET: u64 = 48, "wrap left: position of the live base; others: 0";
    GENERATION: u32 = 56, "generation of the volume that wrote this";
    LOG_GENERATION: u32 = 60, "lowest generation of backup log records at or after the log start";
    LOG_DURABLE: u64 = 64, "position up to which the backup log was durable when this was written";
}

/// Kind of an object. Do not renumber; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A complete version.
    Base = 1,
    /// A change to the version before.
    Delta = 2,
    /// First object of the area after a wrap: names the position of the live base.
    WrapLeft = 3,
    /// Last object before a wrap.
    WrapRight = 4,
}

/// Header of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Its kind.
    pub kind: ObjectKind,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Checksum of the object before.
    pub previous: u32,
    /// Its position: bytes of all rounds of the log.
    pub position: u64,
    /// Sequence number of the base.
    pub serial: u64,
    /// Start of the live records of the backup log.
    pub log_start: Lsn,
    /// Wrap left: position of the live base.
    pub target: u64,
    /// Generation that wrote this.
    pub generation: Generation,
    /// Lowest generation of backup log records at or after `log_start`.
    pub log_generation: Generation,
    /// Position up to which the backup log was durable: a replay that ends before it has met
    /// damage, not the log's end.
    pub log_durable: Lsn,
}

fn narrow(generation: Generation) -> u32 {
    u32::try_from(generation.0).expect("the superblock bounds generations")
}

impl ObjectHeader {
    /// Bytes that an object with this many bytes of payload takes in the log.
    #[must_use]
    pub const fn object_bytes(payload_len: u64) -> u64 {
        (HEADER_BYTES as u64 + payload_len).next_multiple_of(ALIGN)
    }

    /// Position after this object.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.position
            .saturating_add(Self::object_bytes(self.payload_len as u64))
    }

    /// Header, payload and padding; and the object's checksum.
    ///
    /// # Panics
    /// If the payload's length is not the header's.
    #[must_use]
    pub fn encode(&self, salt: u64, payload: &[u8]) -> (Vec<u8>, u32) {
        assert_eq!(self.payload_len as usize, payload.len(), "one length");
        let covered = HEADER_BYTES + payload.len();
        let mut out = vec![0; HEADER_BYTES];
        out.reserve_exact(covered.next_multiple_of(4096) - HEADER_BYTES);
        out.extend_from_slice(payload);
        out.resize(covered.next_multiple_of(4096), 0);
        MAGIC_AT.put(&mut out, MAGIC);
        KIND.put(&mut out, self.kind as u8);
        VERSION_AT.put(&mut out, VERSION);
        RESERVED.put(&mut out, 0);
        PAYLOAD_LEN.put(&mut out, self.payload_len);
        PREVIOUS.put(&mut out, self.previous);
        POSITION.put(&mut out, self.position);
        SERIAL.put(&mut out, self.serial);
        LOG_START.put(&mut out, self.log_start.0);
        TARGET.put(&mut out, self.target);
        GENERATION.put(&mut out, narrow(self.generation));
        LOG_GENERATION.put(&mut out, narrow(self.log_generation));
        LOG_DURABLE.put(&mut out, self.log_durable.0);
        let sum = checksum_with_hole(salt, &out[..covered], CHECKSUM.range());
        CHECKSUM.put(&mut out, sum);
        (out, sum)
    }

    /// Returns the position in what may be a damaged header: the one field that tells of which
    /// round of the log it was.
    ///
    /// # Panics
    /// If there are fewer bytes than a header has.
    #[must_use]
    pub fn position_in_damaged(bytes: &[u8]) -> u64 {
        POSITION.get(&bytes[..HEADER_BYTES])
    }

    /// Reads a header alone, checked as far as that goes: the checksum covers the payload too, so
    /// call [`Self::decode`] with it before trusting any field but the length.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn decode_header(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < HEADER_BYTES {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: bytes.len(),
                needed: HEADER_BYTES,
                left: bytes.len(),
            });
        }
        if MAGIC_AT.get(bytes) != MAGIC {
            return Err(TABLE.wrong("magic", "StitchVL", "other bytes"));
        }
        if VERSION_AT.get(bytes) > VERSION {
            return Err(FormatError::Newer {
                record: TABLE.name,
                found: u32::from(VERSION_AT.get(bytes)),
                supported: u32::from(VERSION),
            });
        }
        if VERSION_AT.get(bytes) != VERSION || RESERVED.get(bytes) != 0 {
            return Err(TABLE.wrong("version", "1, and zeros reserved", "other bytes"));
        }
        let kind = match KIND.get(bytes) {
            1 => ObjectKind::Base,
            2 => ObjectKind::Delta,
            3 => ObjectKind::WrapLeft,
            4 => ObjectKind::WrapRight,
            other => return Err(TABLE.wrong("kind", "1 to 4", other)),
        };
        Ok(Self {
            kind,
            payload_len: PAYLOAD_LEN.get(bytes),
            previous: PREVIOUS.get(bytes),
            position: POSITION.get(bytes),
            serial: SERIAL.get(bytes),
            log_start: Lsn(LOG_START.get(bytes)),
            target: TARGET.get(bytes),
            generation: Generation(u64::from(GENERATION.get(bytes))),
            log_generation: Generation(u64::from(LOG_GENERATION.get(bytes))),
            log_durable: Lsn(LOG_DURABLE.get(bytes)),
        })
    }

    /// Reads an object: its header, payload and checksum.
    ///
    /// # Errors
    /// [`FormatError`] with what is wrong.
    pub fn decode(salt: u64, bytes: &[u8]) -> Result<(Self, &[u8], u32), FormatError> {
        let header = Self::decode_header(bytes)?;
        let covered = HEADER_BYTES + header.payload_len as usize;
        if bytes.len() < covered {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: HEADER_BYTES,
                needed: header.payload_len as usize,
                left: bytes.len() - HEADER_BYTES,
            });
        }
        let expected = checksum_with_hole(salt, &bytes[..covered], CHECKSUM.range());
        let found = CHECKSUM.get(bytes);
        if expected != found {
            let record = TABLE.name;
            return Err(FormatError::Checksum {
                record,
                expected,
                found,
            });
        }
        let is_wrap = matches!(header.kind, ObjectKind::WrapLeft | ObjectKind::WrapRight);
        if is_wrap && header.payload_len != 0 {
            return Err(TABLE.wrong("payload_len", "0 in a wrapping object", header.payload_len));
        }
        if header.kind != ObjectKind::WrapLeft && header.target != 0 {
            return Err(TABLE.wrong("target", "0", header.target));
        }
        Ok((header, &bytes[HEADER_BYTES..covered], found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::{dump, refuses_damage};

    const SALT: u64 = 7;

    fn sample(kind: ObjectKind, payload_len: u32) -> ObjectHeader {
        ObjectHeader {
            kind,
            payload_len,
            previous: 0x0403_0201,
            position: 0x0010_0908_0706_0000,
            serial: 0x1817_1615_1413_1211,
            log_start: Lsn(0x2827_2625_2423_2221),
            target: 0,
            generation: Generation(0x3433_3231),
            log_generation: Generation(0x4443_4241),
            log_durable: Lsn(0x5857_5655_5453_5251),
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let (bytes, checksum) = sample(ObjectKind::Delta, 3).encode(SALT, b"abc");
        let golden = "\
magic_at 537469746368564c
checksum 5b92cfbb
kind 02
version_at 01
reserved 0000
payload_len 03000000
previous 01020304
position 0000060708091000
serial 1112131415161718
log_start 2122232425262728
target 0000000000000000
generation 31323334
log_generation 41424344
log_durable 5152535455565758
";
        assert_eq!(dump(&TABLE, &bytes), golden);
        assert_eq!(CHECKSUM.get(&bytes), checksum);
        assert_eq!(&bytes[HEADER_BYTES..HEADER_BYTES + 3], b"abc");
        assert_eq!(bytes.len() as u64, ALIGN);
        assert!(bytes[HEADER_BYTES + 3..].iter().all(|&b| b == 0));
    }

    #[test]
    fn it_comes_back() {
        for kind in [ObjectKind::Base, ObjectKind::Delta] {
            let payload = vec![9; 5000];
            let header = sample(kind, 5000);
            let (bytes, checksum) = header.encode(SALT, &payload);
            assert_eq!(bytes.len() as u64, header.end() - header.position);
            let decoded = ObjectHeader::decode(SALT, &bytes);
            assert_eq!(decoded, Ok((header, &payload[..], checksum)));
        }
        let mut wrap = sample(ObjectKind::WrapLeft, 0);
        wrap.target = 4096;
        let (bytes, checksum) = wrap.encode(SALT, &[]);
        assert_eq!(
            ObjectHeader::decode(SALT, &bytes),
            Ok((wrap, &[][..], checksum))
        );
    }

    #[test]
    fn damage_is_refused() {
        let (bytes, _) = sample(ObjectKind::Base, 3).encode(SALT, b"abc");
        let covered = &bytes[..HEADER_BYTES + 3];
        refuses_damage(covered, |bytes| ObjectHeader::decode(SALT, bytes).is_ok());
        assert!(
            ObjectHeader::decode(SALT + 1, &bytes).is_err(),
            "another volume's"
        );
        let (bytes, _) = sample(ObjectKind::WrapRight, 1).encode(SALT, b"x");
        assert!(
            ObjectHeader::decode(SALT, &bytes).is_err(),
            "a wrap has no payload"
        );
        let mut header = sample(ObjectKind::Delta, 0);
        header.target = 1;
        let (bytes, _) = header.encode(SALT, &[]);
        assert!(
            ObjectHeader::decode(SALT, &bytes).is_err(),
            "a delta has no target"
        );
    }
}
