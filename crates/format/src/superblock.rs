//! The superblock: identity of a volume, its areas, and its generation.
//!
//! There are two copies, A and B, each in its own 4 KiB at the start of the device. A copy is one
//! sector, so that its write cannot tear. The rest of its 4 KiB is zeros, or holds further
//! instances, whose checksum is in the sector. The newest valid copy is used.

use crate::FormatError;
use crate::codec::{checksum, checksum_append};
use crate::instance::{self, INSTANCE_BYTES, INSTANCES_MAX, Instance};
use crate::table::{checksum_with_hole, fields};
use stitch_base::{Generation, Lsn};

/// First bytes of a volume: what tools that identify devices look for, at offset 0.
pub const MAGIC: [u8; 8] = *b"StitchFS";
/// Offsets of the two copies.
pub const COPIES: [u64; 2] = [0, 4096];
/// Length of the area of each copy, in bytes.
pub const COPY_BYTES: usize = 4096;
/// Length of the record, in bytes: one sector.
pub const SUPERBLOCK_BYTES: usize = 512;
/// Longest label, in bytes of UTF-8.
pub const LABEL_BYTES_MAX: usize = 64;
/// Version of the format that this program writes: major, minor.
///
/// - 2.1: trees whose options change, value blocks, and blocks compressed by Zstandard. A store of
///   format 2.0 stays one until it has any.
/// - 2.2: precise filters of data blocks. A store of an older format never has any.
/// - 2.3: short records in the backup log. A store of an older format never has any.
pub const VERSION: (u16, u16) = (2, 3);
/// Features that this program knows; a volume with others is opened all the same.
pub const FEATURES_COMPATIBLE: u64 = 0;
/// Features that this program knows; a volume with others is opened for reading only.
pub const FEATURES_READ_ONLY: u64 = 0;
/// Features that this program knows; a volume with others is refused.
pub const FEATURES_INCOMPATIBLE: u64 = FEATURE_INSTANCES
    | FEATURE_PINS
    | FEATURE_BRANCHES
    | FEATURE_SHIFTS
    | FEATURE_PIN_SCOPES
    | FEATURE_PIN_RANGES
    | FEATURE_BRANCH_RANGES;
/// The volume has further instances: engines with logs of their own in the same zones.
pub const FEATURE_INSTANCES: u64 = 1;
/// A version log of the volume has, or had, a pin. Set before the first pin is made.
pub const FEATURE_PINS: u64 = 2;
/// A version log of the volume has, or had, a branch tree. Set before the first one is made.
pub const FEATURE_BRANCHES: u64 = 4;
/// A version log of the volume has, or had, a shifted table. Set before the first one is listed.
pub const FEATURE_SHIFTS: u64 = 8;
/// A version log of the volume has, or had, a pin of some trees. Set before the first one is made.
pub const FEATURE_PIN_SCOPES: u64 = 16;
/// A version log of the volume has, or had, a pin of key ranges. Set before the first one is
/// narrowed.
pub const FEATURE_PIN_RANGES: u64 = 32;
/// A version log of the volume has, or had, a branch tree of key ranges. Set before the first one
/// is made.
pub const FEATURE_BRANCH_RANGES: u64 = 64;

const ALIGN: u64 = 4096;
const LOG_BYTES_MIN: u64 = 32 << 10;

fields! {
    /// Layout of a superblock.
    TABLE = "superblock", SUPERBLOCK_BYTES,
        "Two copies, at offsets 0 and 4096; the valid one of the higher generation counts.";
    MAGIC_AT: [u8; 8] = 0, "ASCII `StitchFS`";
    CHECKSUM: u32 = 8, "CRC-32C of eight zero bytes and the record, this field as zeros";
    MAJOR: u16 = 12, "major version of the format; a higher one than known is refused";
    MINOR: u16 = 14, "minor version of the format; a higher one than known is opened for reading \
        only";
    READABLE_MAJOR: u16 = 16, "oldest major version of a program that can read this volume";
    READABLE_MINOR: u16 = 18, "oldest minor version of a program that can read this volume";
    GENERATION: u32 = 20, "times that the volume was opened for writing; below 2^32 - 1";
    ADDRESS: u64 = 24, "offset at which this copy stands: 0 or 4096";
    UUID: [u8; 16] = 32, "identity of the volume";
    LABEL: [u8; 64] = 48, "name given by the user: UTF-8, padded with zeros";
    DEVICE_BYTES: u64 = 112, "length of the volume in bytes; a device may be longer, not shorter";
    ZONE_BYTES: u64 = 120, "length of a zone in bytes: a power of two from 64 KiB to 1 GiB";
    VERSION_LOG_AT: u64 = 128, "offset of the version log's area; a multiple of 4096";
    VERSION_LOG_BYTES: u64 = 136, "length of the version log's area; a multiple of 4096";
    BACKUP_LOG_AT: u64 = 144, "offset of the backup log's area; a multiple of 4096";
    BACKUP_LOG_BYTES: u64 = 152, "length of the backup log's area; a multiple of 4096";
    ZONES_AT: u64 = 160, "offset of the first zone; a multiple of 4096";
    ZONES_BYTES: u64 = 168, "length of all zones; the last zone may be short";
    COMPATIBLE: u64 = 176, "feature bits that a program may ignore";
    READ_ONLY: u64 = 184, "feature bits that a program must know in order to write";
    INCOMPATIBLE: u64 = 192, "feature bits that a program must know in order to open";
    SALT: u64 = 200, "random number that starts every other checksum of the volume";
    CLOSED_VERSION_END: u64 = 208, "when it was last closed in good order: position after the \
        version log's last object";
    CLOSED_LOG_END: u64 = 216, "when it was last closed in good order: position after the backup \
        log's last record";
    CLOSED_GENERATION: u32 = 224, "generation that was last closed in good order; nothing was \
        written since if it is `generation`";
    INSTANCES: u32 = 228, "number of further instances, whose records follow from byte 512 of this \
        copy on; 0 without feature bit 0 of `incompatible`";
    INSTANCES_CHECKSUM: u32 = 232, "CRC-32C of eight zero bytes and these records; 0 if there are \
        none";
    RESERVED: [u8; 276] = 236, "zeros";
}

/// The areas of a volume. All offsets and lengths in bytes, multiples of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// Length of the volume.
    pub device_bytes: u64,
    /// Length of a zone; a power of two.
    pub zone_bytes: u64,
    /// Offset of the version log.
    pub version_log_at: u64,
    /// Length of the version log.
    pub version_log_bytes: u64,
    /// Offset of the backup log.
    pub backup_log_at: u64,
    /// Length of the backup log.
    pub backup_log_bytes: u64,
    /// Offset of the first zone.
    pub zones_at: u64,
    /// Length of all zones.
    pub zones_bytes: u64,
}

/// The areas of an instance's two logs. Bytes, multiples of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogAreas {
    /// Offset of the version log.
    pub version_log_at: u64,
    /// Length of the version log.
    pub version_log_bytes: u64,
    /// Offset of the backup log.
    pub backup_log_at: u64,
    /// Length of the backup log.
    pub backup_log_bytes: u64,
}

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format: major, minor.
    pub version: (u16, u16),
    /// Oldest version of a program that can read it.
    pub readable: (u16, u16),
    /// Times that the volume was opened for writing.
    pub generation: Generation,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Name given by the user; at most [`LABEL_BYTES_MAX`] bytes.
    pub label: String,
    /// The areas.
    pub areas: Areas,
    /// Features that may be ignored.
    pub compatible: u64,
    /// Features that must be known in order to write.
    pub read_only: u64,
    /// Features that must be known in order to open.
    pub incompatible: u64,
    /// Start of every other checksum of the volume.
    pub salt: u64,
    /// The last clean close of the volume: of its first instance.
    pub closed: Closed,
    /// Further instances, in order of their names. There are some if, and only if, the features
    /// have [`FEATURE_INSTANCES`].
    pub instances: Vec<Instance>,
}

/// The ends of the logs at a clean close. Logs that end earlier are damaged: no crash cut them. All
/// zeros before the first close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Position after the version log's last object.
    pub version_end: u64,
    /// Position after the backup log's last record.
    pub log_end: Lsn,
    /// Generation that closed it.
    pub generation: Generation,
}

impl Areas {
    /// The logs of the volume's first instance.
    #[must_use]
    pub const fn logs(&self) -> LogAreas {
        LogAreas {
            version_log_at: self.version_log_at,
            version_log_bytes: self.version_log_bytes,
            backup_log_at: self.backup_log_at,
            backup_log_bytes: self.backup_log_bytes,
        }
    }

    /// Checks that the areas are aligned, in order, apart, and within the device.
    ///
    /// # Errors
    /// [`FormatError::Field`] with the first that is not.
    pub fn check(&self) -> Result<(), FormatError> {
        let zone = self.zone_bytes;
        if !zone.is_power_of_two() || !(64 << 10..=1 << 30).contains(&zone) {
            return Err(TABLE.wrong("zone_bytes", "a power of two, 64 KiB to 1 GiB", zone));
        }
        if !self.device_bytes.is_multiple_of(ALIGN) {
            return Err(TABLE.wrong("device_bytes", "a multiple of 4096", self.device_bytes));
        }
        let areas = [
            (
                "version_log_at",
                self.version_log_at,
                self.version_log_bytes,
            ),
            ("backup_log_at", self.backup_log_at, self.backup_log_bytes),
            ("zones_at", self.zones_at, self.zones_bytes),
        ];
        let mut end = COPIES[1] + ALIGN;
        for (name, at, len_bytes) in areas {
            if !at.is_multiple_of(ALIGN) || !len_bytes.is_multiple_of(ALIGN) || len_bytes == 0 {
                let found = format!("{at} of {len_bytes} bytes");
                return Err(TABLE.wrong(name, "multiples of 4096, not empty", found));
            }
            if len_bytes < LOG_BYTES_MIN && name != "zones_at" {
                return Err(TABLE.wrong(name, "a log of at least 32 KiB", len_bytes));
            }
            if at < end {
                return Err(TABLE.wrong(name, "after the area before it", at));
            }
            end = at
                .checked_add(len_bytes)
                .ok_or_else(|| TABLE.wrong(name, "an area within 64 bits", at))?;
        }
        if end > self.device_bytes {
            return Err(TABLE.wrong("zones_bytes", "areas within the device", end));
        }
        Ok(())
    }
}

impl Superblock {
    /// The copy that stands at `address`, with zeros to the end of its 4 KiB.
    ///
    /// # Panics
    /// If the label is too long or the areas are not in order: the caller checked them.
    #[must_use]
    pub fn encode(&self, address: u64) -> Vec<u8> {
        assert!(COPIES.contains(&address), "a copy has its place");
        assert!(self.label.len() <= LABEL_BYTES_MAX, "the label was checked");
        assert_eq!(self.areas.check(), Ok(()), "the areas were checked");
        let mut out = vec![0; COPY_BYTES];
        let areas = &self.areas;
        let generation = u32::try_from(self.generation.0).expect("the generation was checked");
        assert!(generation < u32::MAX, "the generation was checked");
        MAGIC_AT.put(&mut out, MAGIC);
        MAJOR.put(&mut out, self.version.0);
        MINOR.put(&mut out, self.version.1);
        READABLE_MAJOR.put(&mut out, self.readable.0);
        READABLE_MINOR.put(&mut out, self.readable.1);
        GENERATION.put(&mut out, generation);
        ADDRESS.put(&mut out, address);
        UUID.put(&mut out, self.uuid);
        let mut label = [0; LABEL_BYTES_MAX];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        LABEL.put(&mut out, label);
        DEVICE_BYTES.put(&mut out, areas.device_bytes);
        ZONE_BYTES.put(&mut out, areas.zone_bytes);
        VERSION_LOG_AT.put(&mut out, areas.version_log_at);
        VERSION_LOG_BYTES.put(&mut out, areas.version_log_bytes);
        BACKUP_LOG_AT.put(&mut out, areas.backup_log_at);
        BACKUP_LOG_BYTES.put(&mut out, areas.backup_log_bytes);
        ZONES_AT.put(&mut out, areas.zones_at);
        ZONES_BYTES.put(&mut out, areas.zones_bytes);
        COMPATIBLE.put(&mut out, self.compatible);
        READ_ONLY.put(&mut out, self.read_only);
        INCOMPATIBLE.put(&mut out, self.incompatible);
        SALT.put(&mut out, self.salt);
        let closed = u32::try_from(self.closed.generation.0).expect("a generation of before");
        assert!(closed <= generation, "a generation of before");
        CLOSED_VERSION_END.put(&mut out, self.closed.version_end);
        CLOSED_LOG_END.put(&mut out, self.closed.log_end.0);
        CLOSED_GENERATION.put(&mut out, closed);
        RESERVED.put(&mut out, [0; 276]);
        self.put_instances(&mut out);
        let sum = checksum_with_hole(0, &out[..SUPERBLOCK_BYTES], CHECKSUM.range());
        CHECKSUM.put(&mut out, sum);
        out
    }

    /// Reads the copy at `address`; `Ok(None)` if there is no superblock at all.
    ///
    /// # Errors
    /// [`FormatError::Newer`] if a newer program is needed, otherwise what is wrong with it.
    pub fn decode(bytes: &[u8], address: u64) -> Result<Option<Self>, FormatError> {
        if bytes.len() < SUPERBLOCK_BYTES {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: bytes.len(),
                needed: SUPERBLOCK_BYTES,
                left: bytes.len(),
            });
        }
        let (copy, bytes) = (bytes, &bytes[..SUPERBLOCK_BYTES]);
        if MAGIC_AT.get(bytes) != MAGIC {
            return Ok(None);
        }
        let expected = checksum_with_hole(0, bytes, CHECKSUM.range());
        let found = CHECKSUM.get(bytes);
        if expected != found {
            let record = TABLE.name;
            return Err(FormatError::Checksum {
                record,
                expected,
                found,
            });
        }
        let [version, readable] = Self::versions(bytes)?;
        let found = ADDRESS.get(bytes);
        if found != address {
            return Err(TABLE.wrong("address", &address.to_string(), found));
        }
        let generation = GENERATION.get(bytes);
        if generation == u32::MAX {
            return Err(TABLE.wrong("generation", "below 2^32 - 1", generation));
        }
        let mut superblock = Self {
            version,
            readable,
            generation: Generation(u64::from(generation)),
            uuid: UUID.get(bytes),
            label: Self::label(bytes)?,
            areas: Self::areas(bytes),
            compatible: COMPATIBLE.get(bytes),
            read_only: READ_ONLY.get(bytes),
            incompatible: INCOMPATIBLE.get(bytes),
            salt: SALT.get(bytes),
            closed: Self::closed(bytes, generation)?,
            instances: Vec::new(),
        };
        superblock.areas.check()?;
        let unknown = superblock.incompatible & !FEATURES_INCOMPATIBLE;
        if unknown != 0 {
            return Err(TABLE.wrong(
                "incompatible",
                "features of this program",
                format!("{unknown:#x}"),
            ));
        }
        if version == VERSION && RESERVED.get(bytes) != [0; 276] {
            return Err(TABLE.wrong("reserved", "zeros", "other bytes"));
        }
        superblock.instances = Self::get_instances(copy, &superblock.areas)?;
        Ok(Some(superblock))
    }

    /// Writes the further instances behind the sector, and their number and checksum into it.
    fn put_instances(&self, out: &mut [u8]) {
        let has_any = self.incompatible & FEATURE_INSTANCES != 0;
        assert_eq!(has_any, !self.instances.is_empty(), "a feature says so");
        if !has_any {
            return;
        }
        let checked = instance::check_all(&self.instances, &self.areas);
        assert_eq!(checked, Ok(()), "the instances were checked");
        let records = instance::encode_all(&self.instances);
        let count = u32::try_from(self.instances.len()).expect("their number was checked");
        INSTANCES.put(out, count);
        INSTANCES_CHECKSUM.put(out, checksum_append(checksum(&[0; 8]), &records));
        out[SUPERBLOCK_BYTES..][..records.len()].copy_from_slice(&records);
    }

    /// The further instances behind the sector of a copy.
    fn get_instances(copy: &[u8], areas: &Areas) -> Result<Vec<Instance>, FormatError> {
        let count = INSTANCES.get(copy);
        let has_any = INCOMPATIBLE.get(copy) & FEATURE_INSTANCES != 0;
        let len_bytes = (count as usize).saturating_mul(INSTANCE_BYTES);
        let is_possible = count as usize <= INSTANCES_MAX && has_any == (count > 0);
        if !is_possible {
            return Err(TABLE.wrong("instances", "as many as the features say", count));
        }
        let Some(records) = copy.get(SUPERBLOCK_BYTES..SUPERBLOCK_BYTES + len_bytes) else {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: copy.len(),
                needed: SUPERBLOCK_BYTES + len_bytes,
                left: copy.len(),
            });
        };
        let expected = match has_any {
            true => checksum_append(checksum(&[0; 8]), records),
            false => 0,
        };
        let found = INSTANCES_CHECKSUM.get(copy);
        if expected != found {
            let record = instance::TABLE.name;
            return Err(FormatError::Checksum {
                record,
                expected,
                found,
            });
        }
        instance::decode_all(records, areas, GENERATION.get(copy))
    }

    fn versions(bytes: &[u8]) -> Result<[(u16, u16); 2], FormatError> {
        let version = (MAJOR.get(bytes), MINOR.get(bytes));
        let readable = (READABLE_MAJOR.get(bytes), READABLE_MINOR.get(bytes));
        if version.0 > VERSION.0 || readable > VERSION {
            return Err(FormatError::Newer {
                record: TABLE.name,
                found: u32::from(version.0),
                supported: u32::from(VERSION.0),
            });
        }
        let found = format!("{}.{}", version.0, version.1);
        if version.0 < VERSION.0 {
            return Err(TABLE.wrong("major", "format 2.0 or later", found));
        }
        if readable > version {
            return Err(TABLE.wrong("readable_major", "not above the version", found));
        }
        Ok([version, readable])
    }

    fn closed(bytes: &[u8], generation: u32) -> Result<Closed, FormatError> {
        let by = CLOSED_GENERATION.get(bytes);
        if by > generation {
            return Err(TABLE.wrong("closed_generation", "at most the generation", by));
        }
        Ok(Closed {
            version_end: CLOSED_VERSION_END.get(bytes),
            log_end: Lsn(CLOSED_LOG_END.get(bytes)),
            generation: Generation(u64::from(by)),
        })
    }

    fn label(bytes: &[u8]) -> Result<String, FormatError> {
        let raw = LABEL.get(bytes);
        let len = raw.iter().position(|&b| b == 0).unwrap_or(raw.len());
        if raw[len..].iter().any(|&b| b != 0) {
            return Err(TABLE.wrong("label", "zeros after its end", "other bytes"));
        }
        String::from_utf8(raw[..len].to_vec())
            .map_err(|_| TABLE.wrong("label", "UTF-8", "other bytes"))
    }

    fn areas(bytes: &[u8]) -> Areas {
        Areas {
            device_bytes: DEVICE_BYTES.get(bytes),
            zone_bytes: ZONE_BYTES.get(bytes),
            version_log_at: VERSION_LOG_AT.get(bytes),
            version_log_bytes: VERSION_LOG_BYTES.get(bytes),
            backup_log_at: BACKUP_LOG_AT.get(bytes),
            backup_log_bytes: BACKUP_LOG_BYTES.get(bytes),
            zones_at: ZONES_AT.get(bytes),
            zones_bytes: ZONES_BYTES.get(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::{dump, refuses_damage};

    fn sample() -> Superblock {
        Superblock {
            version: (2, 0),
            readable: (2, 0),
            generation: Generation(0x0403_0201),
            uuid: *b"0123456789abcdef",
            label: "home".to_owned(),
            areas: Areas {
                device_bytes: 0x0800_0000,
                zone_bytes: 0x0010_0000,
                version_log_at: 0x2000,
                version_log_bytes: 0x0008_0000,
                backup_log_at: 0x0008_2000,
                backup_log_bytes: 0x0020_0000,
                zones_at: 0x0028_2000,
                zones_bytes: 0x0700_0000,
            },
            compatible: 0x11,
            read_only: 0x22,
            incompatible: 0,
            salt: 0x0807_0605_0403_0201,
            closed: Closed {
                version_end: 0x1817_1615_1413_1211,
                log_end: Lsn(0x2827_2625_2423_2221),
                generation: Generation(0x0303_0201),
            },
            instances: Vec::new(),
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let bytes = sample().encode(4096);
        let golden = "\
magic_at 5374697463684653
checksum bc71a86a
major 0200
minor 0000
readable_major 0200
readable_minor 0000
generation 01020304
address 0010000000000000
uuid 30313233343536373839616263646566
label 686f6d65000000000000000000000000000000000000000000000000000000000000\
000000000000000000000000000000000000000000000000000000000000
device_bytes 0000000800000000
zone_bytes 0000100000000000
version_log_at 0020000000000000
version_log_bytes 0000080000000000
backup_log_at 0020080000000000
backup_log_bytes 0000200000000000
zones_at 0020280000000000
zones_bytes 0000000700000000
compatible 1100000000000000
read_only 2200000000000000
incompatible 0000000000000000
salt 0102030405060708
closed_version_end 1112131415161718
closed_log_end 2122232425262728
closed_generation 01020303
instances 00000000
instances_checksum 00000000
reserved zeros
";
        assert_eq!(dump(&TABLE, &bytes), golden);
        assert_eq!(bytes.len(), COPY_BYTES);
        assert!(bytes[SUPERBLOCK_BYTES..].iter().all(|&b| b == 0));
    }

    #[test]
    fn it_comes_back() {
        for address in COPIES {
            let decoded = Superblock::decode(&sample().encode(address), address);
            assert_eq!(decoded, Ok(Some(sample())));
        }
    }

    #[test]
    fn damage_is_refused() {
        let bytes = sample().encode(0);
        refuses_damage(&bytes[..SUPERBLOCK_BYTES], |bytes| {
            matches!(Superblock::decode(bytes, 0), Ok(Some(_)))
        });
        let misplaced = Superblock::decode(&bytes, 4096);
        assert!(misplaced.is_err_and(|e| e.to_string().contains("address")));
        assert_eq!(Superblock::decode(&[0; 512], 0), Ok(None));
    }

    fn shared() -> Superblock {
        let instance = |name: &str, at: u64| Instance {
            name: name.to_owned(),
            logs: LogAreas {
                version_log_at: at,
                version_log_bytes: 0x0008_0000,
                backup_log_at: at + 0x0008_0000,
                backup_log_bytes: 0x0028_0000,
            },
            closed: Closed::default(),
        };
        Superblock {
            incompatible: FEATURE_INSTANCES,
            instances: vec![instance("a", 0x0128_2000), instance("b", 0x0168_2000)],
            ..sample()
        }
    }

    #[test]
    fn further_instances_come_back_and_their_damage_is_refused() {
        for address in COPIES {
            let decoded = Superblock::decode(&shared().encode(address), address);
            assert_eq!(decoded, Ok(Some(shared())));
        }
        let bytes = shared().encode(0);
        refuses_damage(&bytes[..SUPERBLOCK_BYTES + 2 * INSTANCE_BYTES], |bytes| {
            matches!(Superblock::decode(bytes, 0), Ok(Some(_)))
        });
        assert_eq!(bytes[192], 1, "older programs refuse the feature");
    }

    #[test]
    fn a_torn_write_of_instances_is_seen() {
        let (before, after) = (sample().encode(0), shared().encode(0));
        let mut other = shared();
        other.instances.remove(0);
        let fewer = other.encode(0);
        for (one, two) in [(&before, &after), (&after, &fewer), (&fewer, &after)] {
            let torn = [&one[..SUPERBLOCK_BYTES], &two[SUPERBLOCK_BYTES..]].concat();
            let whole = Superblock::decode(one, 0).unwrap();
            // Without instances, what follows the sector does not matter.
            let found = Superblock::decode(&torn, 0);
            assert!(
                found.is_err() || found.unwrap() == whole,
                "neither one nor the other"
            );
        }
    }

    #[test]
    fn areas_that_cannot_be_are_named() {
        let wrong = |change: fn(&mut Areas), name: &str| {
            let mut areas = sample().areas;
            change(&mut areas);
            let error = areas.check().expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        };
        wrong(|a| a.zone_bytes = 0x0018_0000, "zone_bytes");
        wrong(|a| a.zone_bytes = 0, "zone_bytes");
        wrong(|a| a.device_bytes += 1, "device_bytes");
        wrong(|a| a.version_log_at = 4096, "version_log_at");
        wrong(|a| a.version_log_bytes = 4096, "version_log_at");
        wrong(|a| a.backup_log_at -= 4096, "backup_log_at");
        wrong(|a| a.backup_log_bytes = 0, "backup_log_at");
        wrong(|a| a.zones_at += 512, "zones_at");
        wrong(|a| a.zones_at = u64::MAX - 4095, "zones_at");
        wrong(|a| a.zones_bytes = 0x0800_0000, "zones_bytes");
    }
}
