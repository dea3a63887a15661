//! A further instance of a volume: its name, the areas of its logs, and its last clean close.
//!
//! The records of all further instances follow the superblock's sector in each of its two copies,
//! one after the other; the sector has their number and their checksum, so that both are of one
//! write. The first instance is in the superblock itself, and has no name there.
//!
//! The logs of a further instance lie in zones that are wholly theirs.

use crate::FormatError;
use crate::superblock::{Areas, COPY_BYTES, Closed, LogAreas, SUPERBLOCK_BYTES};
use crate::table::fields;
use stitch_base::{Generation, Lsn};

/// Length of the record, in bytes.
pub const INSTANCE_BYTES: usize = 128;
/// Most further instances of a volume: as many as fit behind the superblock.
pub const INSTANCES_MAX: usize = (COPY_BYTES - SUPERBLOCK_BYTES) / INSTANCE_BYTES;
/// Longest name of an instance, in bytes.
pub const NAME_BYTES_MAX: usize = 32;
/// The reserved name of the first instance.
pub const FIRST: &str = "main";

const ALIGN: u64 = 4096;
const LOG_BYTES_MIN: u64 = 32 << 10;

fields! {
    /// Layout of an instance.
    TABLE = "instance", INSTANCE_BYTES,
        "Behind each copy of the superblock, from its byte 512 on, as many as it says; in order of \
         their names.";
    NAME: [u8; 32] = 0, "name: ASCII letters, digits, and `-`, `_`, `.` within; padded with zeros";
    VERSION_LOG_AT: u64 = 32, "offset of its version log's area, in the zones; a multiple of 4096";
    VERSION_LOG_BYTES: u64 = 40, "length of its version log's area; a multiple of 4096";
    BACKUP_LOG_AT: u64 = 48, "offset of its backup log's area, in the zones; a multiple of 4096";
    BACKUP_LOG_BYTES: u64 = 56, "length of its backup log's area; a multiple of 4096";
    CLOSED_VERSION_END: u64 = 64, "when it was last closed in good order: position after the \
        version log's last object";
    CLOSED_LOG_END: u64 = 72, "when it was last closed in good order: position after the backup \
        log's last record";
    CLOSED_GENERATION: u32 = 80, "generation that last closed it in good order";
    RESERVED: [u8; 44] = 84, "zeros";
}

/// A further instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its name; see [`is_name`].
    pub name: String,
    /// The areas of its logs.
    pub logs: LogAreas,
    /// Its last clean close.
    pub closed: Closed,
}

/// Reports whether a name is valid: 1 to 32 ASCII letters, digits, and, except in the first
/// position, `-`, `_` or `.`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_within = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let first = name.bytes().next();
    name.len() <= NAME_BYTES_MAX
        && first.is_some_and(|b| b.is_ascii_alphanumeric())
        && name.bytes().all(is_within)
}

/// The records of all further instances, in order.
///
/// # Panics
/// If they are not in order.
#[must_use]
pub(crate) fn encode_all(instances: &[Instance]) -> Vec<u8> {
    assert!(instances.len() <= INSTANCES_MAX, "their number was checked");
    instances.iter().flat_map(Instance::encode).collect()
}

/// Reads the records of all further instances of a volume with these areas and that generation.
pub(crate) fn decode_all(
    bytes: &[u8],
    areas: &Areas,
    generation: u32,
) -> Result<Vec<Instance>, FormatError> {
    let records = bytes.chunks(INSTANCE_BYTES);
    let instances = records
        .map(|record| Instance::decode(record, generation))
        .collect::<Result<Vec<_>, _>>()?;
    check_all(&instances, areas)?;
    Ok(instances)
}

/// Checks that names are valid and in order, and that the logs are aligned, disjoint, and within
/// the zones.
///
/// # Errors
/// [`FormatError::Field`] with the first that is not.
pub fn check_all(instances: &[Instance], areas: &Areas) -> Result<(), FormatError> {
    for instance in instances {
        if !is_name(&instance.name) || instance.name == FIRST {
            return Err(TABLE.wrong("name", "a name", format!("{:?}", instance.name)));
        }
    }
    if let Some(pair) = instances
        .windows(2)
        .find(|pair| pair[0].name >= pair[1].name)
    {
        return Err(TABLE.wrong("name", "names in order", &pair[1].name));
    }
    let zones_end = areas.zones_at + areas.zones_bytes;
    let mut all = Vec::new();
    for instance in instances {
        for (name, at, len_bytes) in instance.logs.named() {
            let is_aligned = at.is_multiple_of(ALIGN) && len_bytes.is_multiple_of(ALIGN);
            let end = at.checked_add(len_bytes);
            let is_inside = at >= areas.zones_at && end.is_some_and(|end| end <= zones_end);
            if !is_aligned || !is_inside || len_bytes < LOG_BYTES_MIN {
                let found = format!("{at} of {len_bytes} bytes");
                return Err(TABLE.wrong(name, "a log of whole pages in the zones", found));
            }
            all.push((at, at + len_bytes));
        }
    }
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        return Err(TABLE.wrong("version_log_at", "logs that are apart", pair[1].0));
    }
    Ok(())
}

impl LogAreas {
    fn named(&self) -> [(&'static str, u64, u64); 2] {
        [
            (
                "version_log_at",
                self.version_log_at,
                self.version_log_bytes,
            ),
            ("backup_log_at", self.backup_log_at, self.backup_log_bytes),
        ]
    }
}

impl Instance {
    fn encode(&self) -> [u8; INSTANCE_BYTES] {
        assert!(is_name(&self.name), "the name was checked");
        let mut out = [0; INSTANCE_BYTES];
        let mut name = [0; NAME_BYTES_MAX];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        NAME.put(&mut out, name);
        VERSION_LOG_AT.put(&mut out, self.logs.version_log_at);
        VERSION_LOG_BYTES.put(&mut out, self.logs.version_log_bytes);
        BACKUP_LOG_AT.put(&mut out, self.logs.backup_log_at);
        BACKUP_LOG_BYTES.put(&mut out, self.logs.backup_log_bytes);
        let closed = u32::try_from(self.closed.generation.0).expect("a generation of before");
        CLOSED_VERSION_END.put(&mut out, self.closed.version_end);
        CLOSED_LOG_END.put(&mut out, self.closed.log_end.0);
        CLOSED_GENERATION.put(&mut out, closed);
        RESERVED.put(&mut out, [0; 44]);
        out
    }

    fn decode(bytes: &[u8], generation: u32) -> Result<Self, FormatError> {
        if bytes.len() < INSTANCE_BYTES {
            return Err(FormatError::Truncated {
                record: TABLE.name,
                at: bytes.len(),
                needed: INSTANCE_BYTES,
                left: bytes.len(),
            });
        }
        let raw = NAME.get(bytes);
        let len = raw.iter().position(|&b| b == 0).unwrap_or(raw.len());
        if raw[len..].iter().any(|&b| b != 0) {
            return Err(TABLE.wrong("name", "zeros after its end", "other bytes"));
        }
        let name = String::from_utf8(raw[..len].to_vec());
        let by = CLOSED_GENERATION.get(bytes);
        if by > generation {
            return Err(TABLE.wrong("closed_generation", "at most the generation", by));
        }
        if RESERVED.get(bytes) != [0; 44] {
            return Err(TABLE.wrong("reserved", "zeros", "other bytes"));
        }
        Ok(Self {
            name: name.map_err(|_| TABLE.wrong("name", "ASCII", "other bytes"))?,
            logs: LogAreas {
                version_log_at: VERSION_LOG_AT.get(bytes),
                version_log_bytes: VERSION_LOG_BYTES.get(bytes),
                backup_log_at: BACKUP_LOG_AT.get(bytes),
                backup_log_bytes: BACKUP_LOG_BYTES.get(bytes),
            },
            closed: Closed {
                version_end: CLOSED_VERSION_END.get(bytes),
                log_end: Lsn(CLOSED_LOG_END.get(bytes)),
                generation: Generation(u64::from(by)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::dump;

    fn areas() -> Areas {
        Areas {
            device_bytes: 0x0800_0000,
            zone_bytes: 0x0010_0000,
            version_log_at: 0x2000,
            version_log_bytes: 0x0008_0000,
            backup_log_at: 0x0008_2000,
            backup_log_bytes: 0x0020_0000,
            zones_at: 0x0028_2000,
            zones_bytes: 0x0700_0000,
        }
    }

    fn sample(name: &str, at: u64) -> Instance {
        Instance {
            name: name.to_owned(),
            logs: LogAreas {
                version_log_at: at,
                version_log_bytes: 0x0008_0000,
                backup_log_at: at + 0x0008_0000,
                backup_log_bytes: 0x0028_0000,
            },
            closed: Closed {
                version_end: 0x1817_1615_1413_1211,
                log_end: Lsn(0x2827_2625_2423_2221),
                generation: Generation(0x0303_0201),
            },
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let golden = "\
name 6d61696c2d320000000000000000000000000000000000000000000000000000
version_log_at 0020280100000000
version_log_bytes 0000080000000000
backup_log_at 0020300100000000
backup_log_bytes 0000280000000000
closed_version_end 1112131415161718
closed_log_end 2122232425262728
closed_generation 01020303
reserved zeros
";
        let bytes = sample("mail-2", 0x0128_2000).encode();
        assert_eq!(dump(&TABLE, &bytes), golden);
    }

    #[test]
    fn they_come_back() {
        let all = vec![sample("a", 0x0128_2000), sample("b.c", 0x0168_2000)];
        let bytes = encode_all(&all);
        assert_eq!(decode_all(&bytes, &areas(), u32::MAX), Ok(all));
    }

    #[test]
    fn names_are_plain_words() {
        for name in ["a", "Mail-2", "0.x_y", &"n".repeat(32)] {
            assert!(is_name(name), "{name:?}");
        }
        for name in [
            "",
            "-a",
            ".a",
            "a b",
            "a/b",
            "a,b",
            "a\n",
            "\u{e9}",
            &"n".repeat(33),
        ] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let wrong = |change: fn(&mut Vec<Instance>), name: &str| {
            let mut all = vec![sample("a", 0x0128_2000), sample("b", 0x0168_2000)];
            change(&mut all);
            let error = check_all(&all, &areas()).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        };
        wrong(|all| all[0].name = "main".into(), "name");
        wrong(|all| all[0].name = "x y".into(), "name");
        wrong(|all| all.swap(0, 1), "in order");
        wrong(|all| all[1].name = "a".into(), "in order");
        wrong(|all| all[0].logs.version_log_at += 512, "version_log_at");
        wrong(|all| all[0].logs.version_log_at = 0x2000, "version_log_at");
        wrong(
            |all| all[0].logs.backup_log_at = u64::MAX - 4095,
            "backup_log_at",
        );
        wrong(|all| all[1].logs.backup_log_bytes = 4096, "backup_log_at");
        wrong(|all| all[1].logs.version_log_at = 0x0128_3000, "apart");
    }

    #[test]
    fn cuts_and_flips_are_seen() {
        let all = vec![sample("a", 0x0128_2000)];
        let whole = encode_all(&all);
        for len in 1..whole.len() {
            assert!(
                decode_all(&whole[..len], &areas(), u32::MAX).is_err(),
                "cut at {len}"
            );
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = decode_all(&flipped, &areas(), u32::MAX);
            assert_ne!(found.ok().as_ref(), Some(&all), "bit {bit}");
        }
        let newer = decode_all(&whole, &areas(), 0x0303_0200);
        assert!(newer.is_err_and(|e| e.to_string().contains("closed_generation")));
    }
}
