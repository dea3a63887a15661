//! Formats a volume.
//!
//! 1. The superblocks are wiped and synced, so that a half-made volume is not recognised.
//! 2. The log areas are written with zeros: no record of an earlier store is left in them, and on
//!    a preallocated file later syncs of the logs change no metadata of the file system below.
//! 3. The version log gets its first object, a base of nothing. Sync.
//! 4. The superblocks are written. Sync.

use crate::VolumeError;
use crate::error::invalid;
use crate::resize::version_log_bytes_for;
use crate::window::usize_from;
use stitch_base::{Generation, Lsn, random};
use stitch_device::{Device, SECTOR_BYTES};
use stitch_format::superblock::{
    Areas, COPIES, COPY_BYTES, Closed, LABEL_BYTES_MAX, Superblock, VERSION,
};
use stitch_format::version_object::{ObjectHeader, ObjectKind};

/// Smallest volume, in bytes.
pub const VOLUME_BYTES_MIN: u64 = 16 << 20;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const VERSION_LOG_BYTES: std::ops::RangeInclusive<u64> = (512 << 10)..=(64 << 20);
/// Longest log that can be asked for.
const LOG_BYTES_MAX: u64 = 1 << 40;
const BACKUP_LOG_BYTES: std::ops::RangeInclusive<u64> = (2 << 20)..=(256 << 20);
const ZONE_BYTES: std::ops::RangeInclusive<u64> = (256 << 10)..=(8 << 20);
/// Fewest zones of a volume.
pub(crate) const ZONES_MIN: u64 = 16;
const WRITE_BYTES: u64 = 1 << 20;
/// Some formats keep a second signature at the end of the device; it is wiped too.
pub(crate) const TAIL_BYTES: u64 = 512 << 10;

/// Options for formatting a volume.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Name given by the user: at most 64 bytes, no zero byte.
    pub label: String,
    /// Length of a zone: a power of two from 64 KiB; by default 1/64 of the volume within
    /// [256 KiB, 8 MiB].
    pub zone_bytes: Option<u64>,
    /// Length of the version log; by default 1/128 of the volume within [512 KiB, 64 MiB].
    pub version_log_bytes: Option<u64>,
    /// Length of the backup log; by default 1/32 of the volume within [2 MiB, 256 MiB].
    pub backup_log_bytes: Option<u64>,
    /// Largest length to which the volume can grow later; it decides the length of the version log.
    /// By default 16 times its own length, at least 1 GiB; unlimited from 8 GiB on.
    pub grown_bytes: Option<u64>,
}

/// Checks a length that was asked for.
pub(crate) fn checked_log_bytes(name: &str, wanted: u64, least: u64) -> Result<u64, VolumeError> {
    assert!(least <= LOG_BYTES_MAX, "some length is possible");
    if wanted < least || wanted > LOG_BYTES_MAX || !wanted.is_multiple_of(PAGE) {
        return invalid(format!(
            "the {name} needs a multiple of 4096 bytes, at least {least}; {wanted} were asked for"
        ));
    }
    Ok(wanted)
}

fn within(value: u64, range: &std::ops::RangeInclusive<u64>) -> u64 {
    debug_assert!(!range.is_empty(), "some value is possible");
    value.clamp(*range.start(), *range.end())
}

impl FormatOptions {
    /// Returns the areas of a volume of this length.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] if the device is too small or an option is out of its range.
    pub fn areas(&self, device_bytes: u64) -> Result<Areas, VolumeError> {
        if device_bytes < VOLUME_BYTES_MIN {
            return invalid(format!(
                "a volume needs at least {} MiB; the device has {device_bytes} bytes",
                VOLUME_BYTES_MIN >> 20
            ));
        }
        let device_bytes = device_bytes / PAGE * PAGE;
        let zone_bytes = self.zone_bytes.unwrap_or_else(|| {
            within(device_bytes / 64, &ZONE_BYTES)
                .next_power_of_two()
                .min(*ZONE_BYTES.end())
        });
        let for_growth = self.grown_bytes.map_or(0, version_log_bytes_for);
        let version_log_bytes = self.log_bytes(
            "version log",
            self.version_log_bytes,
            for_growth.max(device_bytes / 128),
            &VERSION_LOG_BYTES,
        )?;
        let backup_log_bytes = self.log_bytes(
            "backup log",
            self.backup_log_bytes,
            device_bytes / 32,
            &BACKUP_LOG_BYTES,
        )?;
        let version_log_at = COPIES[1] + COPY_BYTES as u64;
        let backup_log_at = version_log_at + version_log_bytes;
        let zones_at = backup_log_at + backup_log_bytes;
        let needed = zones_at.saturating_add(zone_bytes.saturating_mul(ZONES_MIN));
        if needed > device_bytes {
            return invalid(format!(
                "the logs and {ZONES_MIN} zones need {needed} bytes; the device has {device_bytes}"
            ));
        }
        let areas = Areas {
            device_bytes,
            zone_bytes,
            version_log_at,
            version_log_bytes,
            backup_log_at,
            backup_log_bytes,
            zones_at,
            zones_bytes: device_bytes - zones_at,
        };
        if let Err(error) = areas.check() {
            return invalid(error.to_string());
        }
        assert_eq!(
            areas.zones_at + areas.zones_bytes,
            device_bytes,
            "the zones end where the device does"
        );
        debug_assert!(
            areas.zones_bytes / zone_bytes >= ZONES_MIN,
            "logs and zones have room"
        );
        Ok(areas)
    }

    fn log_bytes(
        &self,
        name: &str,
        wanted: Option<u64>,
        default: u64,
        range: &std::ops::RangeInclusive<u64>,
    ) -> Result<u64, VolumeError> {
        match wanted {
            None => Ok(within(default, range) / PAGE * PAGE),
            Some(bytes) => checked_log_bytes(name, bytes, *range.start()),
        }
    }
}

/// Formats a volume on a device, whatever it held. `progress` is called with bytes done and bytes
/// to do.
pub(crate) fn format(
    device: &dyn Device,
    options: &FormatOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), VolumeError> {
    let areas = options.areas(device.geometry().len_bytes)?;
    if options.label.len() > LABEL_BYTES_MAX || options.label.contains('\0') {
        return invalid(format!(
            "a label has at most {LABEL_BYTES_MAX} bytes, none of them zero"
        ));
    }
    let salt = random::bytes16().map_err(|error| VolumeError::Invalid {
        reason: format!("the operating system gives no random numbers: {error}"),
    })?;
    let salt = u64::from_le_bytes(salt[..8].try_into().expect("eight of sixteen bytes"));
    let copies_end = COPIES[1] + COPY_BYTES as u64;
    assert!(
        copies_end <= areas.version_log_at,
        "the superblocks are apart from all that is written before them"
    );
    zero(device, 0, copies_end, &mut |_| ())?;
    device.sync()?;
    zero_areas(device, &areas, progress)?;
    device.write_at(areas.version_log_at, &[&origin(salt)])?;
    device.sync()?;
    let superblock = Superblock {
        version: VERSION,
        readable: VERSION,
        generation: Generation(0),
        uuid: options.uuid,
        label: options.label.clone(),
        areas,
        compatible: 0,
        read_only: 0,
        incompatible: 0,
        salt,
        closed: Closed::default(),
        instances: Vec::new(),
    };
    debug_assert!(
        superblock.areas.check().is_ok(),
        "a copy that would be refused is not written"
    );
    for address in COPIES {
        device.write_at(address, &[&superblock.encode(address)])?;
    }
    device.sync()?;
    Ok(())
}

/// The version log's first object: a base of nothing.
pub(crate) fn origin(salt: u64) -> Vec<u8> {
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
    let (bytes, _) = header.encode(salt, &[]);
    debug_assert_eq!(
        bytes.len() as u64,
        header.end(),
        "it stands at the left end"
    );
    bytes
}

fn zero_areas(
    device: &dyn Device,
    areas: &Areas,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), VolumeError> {
    let tail_bytes = TAIL_BYTES.min(areas.zones_bytes);
    debug_assert!(
        areas.version_log_at < areas.zones_at,
        "logs are before the zones"
    );
    let logs_bytes = areas.zones_at - areas.version_log_at;
    let total = logs_bytes + tail_bytes;
    let mut done = 0;
    let mut step = |bytes| {
        done += bytes;
        debug_assert!(done <= total, "no more is done than there is to do");
        progress(done, total);
    };
    zero(device, areas.version_log_at, logs_bytes, &mut step)?;
    zero(
        device,
        areas.device_bytes - tail_bytes,
        tail_bytes,
        &mut step,
    )
}

pub(crate) fn zero(
    device: &dyn Device,
    at: u64,
    len_bytes: u64,
    step: &mut dyn FnMut(u64),
) -> Result<(), VolumeError> {
    debug_assert!(at.is_multiple_of(SECTOR_BYTES), "writes start at sectors");
    let zeros = vec![0; usize_from(WRITE_BYTES.min(len_bytes))];
    let mut done = 0;
    while done < len_bytes {
        let bytes = WRITE_BYTES.min(len_bytes - done);
        device.write_at(at + done, &[&zeros[..usize_from(bytes)]])?;
        done += bytes;
        step(bytes);
    }
    debug_assert_eq!(done, len_bytes, "all of it is zero");
    Ok(())
}
