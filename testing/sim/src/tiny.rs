//! Volumes much smaller than `mkfs` makes them, so that rings wrap and zones fill within a few
//! dozen operations.

use stitch_base::{Generation, Lsn};
use stitch_device::{Device, MemDevice};
use stitch_format::superblock::{Areas, COPIES, COPY_BYTES, Closed, Superblock};
use stitch_format::version_object::{ObjectHeader, ObjectKind};

/// Lengths of the areas, in bytes; multiples of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Tiny {
    /// Version log.
    pub version_log_bytes: u64,
    /// Backup log.
    pub backup_log_bytes: u64,
    /// One zone: a power of two from 64 KiB.
    pub zone_bytes: u64,
    /// Number of zones.
    pub zones: u64,
}

/// The oldest format that is read.
const VERSION_MIN: (u16, u16) = (2, 0);
const SALT: u64 = 0x0123_4567_89ab_cdef;

impl Tiny {
    /// A formatted medium of this shape.
    #[must_use]
    pub fn format(&self) -> MemDevice {
        let areas = self.areas();
        let device = MemDevice::new(areas.device_bytes);
        let header = ObjectHeader {
            kind: ObjectKind::Base,
            payload_len: 0,
            previous: 0,
            position: 0,
            serial: 0,
            log_start: Lsn(0),
            target: 0,
            generation: Generation(0),
            log_generation: Generation(0),
            log_durable: Lsn(0),
        };
        let superblock = Superblock {
            // The oldest: what needs a newer format raises it, crashes and all.
            version: VERSION_MIN,
            readable: VERSION_MIN,
            generation: Generation(0),
            uuid: *b"a tiny volume...",
            label: "tiny".to_owned(),
            areas,
            compatible: 0,
            read_only: 0,
            incompatible: 0,
            salt: SALT,
            closed: Closed::default(),
            instances: Vec::new(),
        };
        let origin = header.encode(SALT, &[]).0;
        write(&device, areas.version_log_at, &origin);
        for address in COPIES {
            write(&device, address, &superblock.encode(address));
        }
        device
    }

    fn areas(&self) -> Areas {
        let version_log_at = COPIES[1] + COPY_BYTES as u64;
        let backup_log_at = version_log_at + self.version_log_bytes;
        let zones_at = backup_log_at + self.backup_log_bytes;
        let zones_bytes = self.zones * self.zone_bytes;
        let areas = Areas {
            device_bytes: zones_at + zones_bytes,
            zone_bytes: self.zone_bytes,
            version_log_at,
            version_log_bytes: self.version_log_bytes,
            backup_log_at,
            backup_log_bytes: self.backup_log_bytes,
            zones_at,
            zones_bytes,
        };
        assert_eq!(areas.check(), Ok(()), "the lengths make a volume");
        areas
    }
}

fn write(device: &MemDevice, at: u64, bytes: &[u8]) {
    device
        .write_at(at, &[bytes])
        .expect("within a device in memory");
}
