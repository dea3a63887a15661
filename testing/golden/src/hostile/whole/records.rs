//! The records of a whole store: where they are, and how their checksums are made right.
//!
//! A checksum is also stored in what refers to its record, so a change goes upward:
//!
//! ```text
//! data block -> index block -> root block        (address, length, checksum)
//! data block -> record of the backup log          (values that a commit wrote to a zone)
//! version object -> the next version object       (checksum of the object before)
//! ```

use super::super::{number, repair};
use std::collections::BTreeSet;
use std::ops::Range;
use stitch_base::{Generation, Lsn};
use stitch_device::Device;
use stitch_format::block::{self, BlockKind};
use stitch_format::log_record::short::{SHORT_HEADER_BYTES, ShortRecord};
use stitch_format::log_record::{self, RecordHeader, RecordKind};
use stitch_format::superblock::{self, Areas, COPIES, Superblock};
use stitch_format::table::Table;
use stitch_format::version_object;

/// Records that are mended for one change, at most.
const MENDED_MAX: usize = 1000;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Superblock,
    Version,
    Log,
    /// Position and generation are not stored.
    ShortLog(Lsn, Generation),
    Block(BlockKind),
}

impl Kind {
    fn table(self) -> &'static Table {
        match self {
            Self::Superblock => &superblock::TABLE,
            Self::Version => &version_object::TABLE,
            Self::Log => &log_record::TABLE,
            Self::ShortLog(..) => &log_record::short::TABLE,
            Self::Block(_) => &block::TABLE,
        }
    }

    fn align(self) -> usize {
        let align = match self {
            Self::Superblock => 512,
            Self::Version => version_object::ALIGN,
            Self::Log | Self::ShortLog(..) => log_record::ALIGN,
            Self::Block(_) => block::ALIGN,
        };
        usize::try_from(align).expect("small")
    }
}

/// A record with its padding.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) at: u64,
    pub(super) kind: Kind,
    bytes: Vec<u8>,
    payload: Range<usize>,
}

impl Record {
    fn new(at: u64, kind: Kind, image: &[u8], payload_len: usize) -> Option<Self> {
        let start = usize::try_from(at).ok()?;
        let header = kind.table().len_bytes;
        let len = (header + payload_len).next_multiple_of(kind.align());
        let bytes = image.get(start..start.checked_add(len)?)?.to_vec();
        let payload = header..header + payload_len;
        Some(Self {
            at,
            kind,
            bytes,
            payload,
        })
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[self.payload.clone()]
    }

    pub(super) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.payload.clone()]
    }

    /// Puts a number into a field of the header, but for those that say what and where it is.
    pub(super) fn put_field(&mut self, which: usize, value: u64) {
        let fixed = ["magic", "checksum", "payload_len", "address", "lsn"];
        let is_free = |name: &str| !fixed.iter().any(|f| name.to_lowercase().starts_with(f));
        let fields = self.kind.table().fields.iter();
        let free: Vec<_> = fields.filter(|field| is_free(field.name)).collect();
        if let Some(field) = free.get(which % free.len().max(1)) {
            let len = field.len_bytes.min(8);
            let place = field.offset..field.offset + len;
            self.bytes[place].copy_from_slice(&value.to_le_bytes()[..len]);
        }
    }

    /// Gives it another payload, if that takes as much room.
    pub(super) fn set_payload(&mut self, new: &[u8]) {
        let table = self.kind.table();
        let end = table.len_bytes + new.len();
        let field = table.fields.iter().find(|f| f.name == "PAYLOAD_LEN");
        let Some(field) =
            field.filter(|_| end.next_multiple_of(self.kind.align()) == self.bytes.len())
        else {
            return;
        };
        self.bytes[table.len_bytes..].fill(0);
        self.payload = table.len_bytes..end;
        self.payload_mut().copy_from_slice(new);
        let len = u64::try_from(new.len()).expect("small").to_le_bytes();
        let place = field.offset..field.offset + field.len_bytes;
        self.bytes[place].copy_from_slice(&len[..field.len_bytes]);
    }

    fn checksum(&self) -> u32 {
        number(&self.bytes, self.kind.table(), "checksum")
            .and_then(|sum| u32::try_from(sum).ok())
            .unwrap_or(0)
    }

    /// Makes its checksum right.
    fn seal(&mut self, salt: u64) {
        let table = self.kind.table();
        match self.kind {
            Kind::ShortLog(lsn, generation) => {
                let record = ShortRecord {
                    lsn,
                    generation,
                    payload_len: u16::try_from(self.payload.len()).expect("it was short"),
                };
                let header = record.encode(salt, &[self.payload()]);
                self.bytes[..SHORT_HEADER_BYTES].copy_from_slice(&header);
            }
            Kind::Superblock => repair(&mut self.bytes, table, superblock::SUPERBLOCK_BYTES, 0),
            Kind::Version | Kind::Log | Kind::Block(_) => {
                let covered = self.payload.end;
                repair(&mut self.bytes, table, covered, salt);
            }
        }
    }

    /// Puts the new checksum of another record where the old one is referred to. Reports whether
    /// there was such a place.
    fn refer(&mut self, to: &Record, old: u32) -> bool {
        let (old, new) = (old.to_le_bytes(), to.checksum().to_le_bytes());
        let len = u32::try_from(to.bytes.len()).expect("a record is small");
        let mut is_found = false;
        match (self.kind, to.kind) {
            (Kind::Version, Kind::Version) => {
                let fields = self.kind.table().fields.iter();
                let field = fields.clone().find(|f| f.name == "PREVIOUS");
                let place = field.expect("it has one").offset;
                let place = &mut self.bytes[place..place + 4];
                is_found = *place == old;
                if is_found {
                    place.copy_from_slice(&new);
                }
            }
            (Kind::Log | Kind::ShortLog(..) | Kind::Block(_), Kind::Block(_)) => {
                let pattern = [&to.at.to_le_bytes()[..], &len.to_le_bytes(), &old].concat();
                let payload = self.payload_mut();
                for at in 0..payload.len().saturating_sub(pattern.len() - 1) {
                    if payload[at..].starts_with(&pattern) {
                        payload[at + 12..at + 16].copy_from_slice(&new);
                        is_found = true;
                    }
                }
            }
            _ => {}
        }
        is_found
    }
}

/// Makes the checksums right of records that were changed, and of all that refer to them. Returns
/// those that are not as they were.
pub(super) fn mend(records: &mut [Record], changed: &[usize], salt: u64) -> BTreeSet<usize> {
    let mut due: Vec<usize> = changed.to_vec();
    let mut done: BTreeSet<usize> = changed.iter().copied().collect();
    for _ in 0..MENDED_MAX {
        let Some(index) = due.pop() else {
            break;
        };
        let old = records[index].checksum();
        records[index].seal(salt);
        let sealed = records[index].clone();
        if sealed.checksum() == old {
            continue;
        }
        for (other, record) in records.iter_mut().enumerate() {
            if other != index && record.refer(&sealed, old) {
                due.push(other);
                done.insert(other);
            }
        }
    }
    done
}

/// Writes records to their places.
pub(super) fn write(device: &dyn Device, records: &[Record], which: &BTreeSet<usize>) {
    for index in which {
        let record = &records[*index];
        let written = device.write_at(record.at, &[&record.bytes]);
        written.expect("a record lies on its device");
    }
}

/// Finds the records of a store of one instance whose logs have not gone around.
pub(super) fn find(image: &[u8], superblock: &Superblock, log_start: Lsn) -> Vec<Record> {
    let areas = &superblock.areas;
    let copies = COPIES.into_iter();
    let mut out: Vec<Record> = copies
        .filter_map(|at| Record::new(at, Kind::Superblock, image, 0))
        .collect();
    out.extend(versions(image, areas));
    out.extend(log(image, areas, log_start));
    let zones = areas.zones_at..areas.zones_at + areas.zones_bytes;
    let places = zones.step_by(usize::try_from(block::ALIGN).expect("small"));
    out.extend(places.filter_map(|at| block_at(image, at, superblock.salt)));
    out
}

fn from(image: &[u8], at: u64) -> &[u8] {
    usize::try_from(at)
        .ok()
        .and_then(|at| image.get(at..))
        .unwrap_or_default()
}

fn block_at(image: &[u8], at: u64, salt: u64) -> Option<Record> {
    let bytes = from(image, at);
    if !bytes.starts_with(&block::MAGIC) {
        return None;
    }
    let len = number(bytes, &block::TABLE, "payload_len")?;
    let stored = block::block_bytes(u64::try_from(len).ok()?);
    let bytes = bytes.get(..usize::try_from(stored).ok()?)?;
    let is_of = |kind: &BlockKind| block::open(bytes, salt, *kind, at).is_ok();
    let kind = BlockKind::ALL.into_iter().find(is_of)?;
    Record::new(at, Kind::Block(kind), image, len)
}

fn versions(image: &[u8], areas: &Areas) -> Vec<Record> {
    let end = areas.version_log_at + areas.version_log_bytes;
    let mut at = areas.version_log_at;
    let mut out = Vec::new();
    while at < end {
        let bytes = from(image, at);
        let len = number(bytes, &version_object::TABLE, "payload_len").unwrap_or(0);
        let record = Record::new(at, Kind::Version, image, len);
        let record = record.filter(|_| bytes.starts_with(&version_object::MAGIC));
        at += record
            .as_ref()
            .map_or(version_object::ALIGN, |r| r.bytes.len() as u64);
        out.extend(record);
    }
    out
}

fn log(image: &[u8], areas: &Areas, start: Lsn) -> Vec<Record> {
    let (mut lsn, mut generation) = (start, Generation(0));
    let mut out = Vec::new();
    while lsn.0 < areas.backup_log_bytes {
        let at = areas.backup_log_at + lsn.0;
        let bytes = from(image, at);
        if ShortRecord::is_at(bytes) {
            let Ok(record) = ShortRecord::decode(bytes, lsn, generation) else {
                break;
            };
            let kind = Kind::ShortLog(lsn, generation);
            out.extend(Record::new(
                at,
                kind,
                image,
                usize::from(record.payload_len),
            ));
            lsn = record.end();
            continue;
        }
        let Ok(header) = RecordHeader::decode(bytes) else {
            break;
        };
        if header.kind == RecordKind::Mark || header.lsn != lsn {
            break;
        }
        if header.kind == RecordKind::Data {
            let len = usize::try_from(header.payload_len).expect("small");
            out.extend(Record::new(at, Kind::Log, image, len));
        }
        (lsn, generation) = (header.end(), header.generation);
    }
    out
}
