//! The two copies of the superblock. The newest valid one is used. Every open for writing writes
//! both, the older one first, so that one is valid at any moment.

use crate::VolumeError;
use crate::core::Core;
use crate::signature;
use crate::window::usize_from;
use stitch_base::Generation;
use stitch_device::Device;
use stitch_format::FormatError;
use stitch_format::superblock::{COPIES, COPY_BYTES, FEATURES_READ_ONLY, Superblock, VERSION};

/// The newest valid superblock and the copy that it stands in.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) superblock: Superblock,
    pub(crate) copy: usize,
    /// The damage of the other copy.
    pub(crate) damage: Option<VolumeError>,
}

/// Reads both copies.
pub(crate) fn read(device: &dyn Device) -> Result<Chosen, VolumeError> {
    let geometry = device.geometry();
    let name = geometry.name;
    if geometry.len_bytes < COPIES[1] + COPY_BYTES as u64 {
        return Err(VolumeError::NotAVolume { name, holds: None });
    }
    let copies = [0, 1].map(|copy| read_copy(device, &name, copy));
    let chosen = choose(device, &name, copies)?;
    let needed = chosen.superblock.areas.device_bytes;
    if geometry.len_bytes < needed {
        return Err(VolumeError::Corrupt {
            what: format!("{name}: the end of the device"),
            at: geometry.len_bytes,
            expected: format!("{needed} bytes"),
            found: format!("{} bytes, the rest is cut off", geometry.len_bytes),
        });
    }
    Ok(chosen)
}

/// Reads one copy. An unreadable copy counts as damaged.
fn read_copy(
    device: &dyn Device,
    name: &str,
    copy: usize,
) -> Result<Option<Superblock>, VolumeError> {
    let address = COPIES[copy];
    debug_assert!(
        address + COPY_BYTES as u64 <= device.geometry().len_bytes,
        "the caller checked"
    );
    let mut bytes = vec![0; COPY_BYTES];
    device.read_at(address, &mut bytes)?;
    Superblock::decode(&bytes, address).map_err(|error| refusal(name, address, error))
}

fn choose(
    device: &dyn Device,
    name: &str,
    copies: [Result<Option<Superblock>, VolumeError>; 2],
) -> Result<Chosen, VolumeError> {
    let (copy, superblock, other) = match copies {
        [Ok(Some(a)), Ok(Some(b))] => {
            // Opening writes one after the other: both may be valid.
            let copy = usize::from(b.generation > a.generation);
            let [superblock, other] = if copy == 0 { [a, b] } else { [b, a] };
            debug_assert!(
                superblock.generation >= other.generation,
                "the newest is used"
            );
            return Ok(Chosen {
                superblock,
                copy,
                damage: None,
            });
        }
        [Ok(Some(superblock)), other] => (0, superblock, other),
        [other, Ok(Some(superblock))] => (1, superblock, other),
        [Ok(None), Ok(None)] => {
            // A failed probe counts as an unknown format.
            let holds = signature::probe(device).ok().flatten().map(|s| s.name);
            let name = name.to_owned();
            return Err(VolumeError::NotAVolume { name, holds });
        }
        [Err(error), Ok(None)] | [Ok(None), Err(error)] => return Err(both(name, error)),
        [Err(error), Err(_)] => return Err(both(name, error)),
    };
    let damage = other.err().unwrap_or_else(|| VolumeError::Corrupt {
        what: format!("{name}: superblock"),
        at: COPIES[1 - copy],
        expected: "a copy of the other one".to_owned(),
        found: "no superblock".to_owned(),
    });
    tracing::warn!(%damage, "one copy of the superblock is damaged: using the other");
    Ok(Chosen {
        superblock,
        copy,
        damage: Some(damage),
    })
}

/// Returns the error for a volume without a usable copy: that of the first.
fn both(name: &str, error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Corrupt {
            at,
            expected,
            found,
            ..
        } => VolumeError::Corrupt {
            what: format!(
                "{name}: superblock, in both copies (restore it from a copy of the store),"
            ),
            at,
            expected,
            found,
        },
        other => other,
    }
}

fn refusal(name: &str, address: u64, error: FormatError) -> VolumeError {
    match error {
        FormatError::Newer { .. }
        | FormatError::Field {
            field: "incompatible" | "major",
            ..
        } => VolumeError::Unsupported {
            name: name.to_owned(),
            reason: error.to_string(),
        },
        other => VolumeError::from_format(&format!("{name}: superblock"), address, other),
    }
}

/// Refuses a volume that this program must not write to: it would lose fields that it does not
/// know.
pub(crate) fn check_writable(name: &str, superblock: &Superblock) -> Result<(), VolumeError> {
    let unknown = superblock.read_only & !FEATURES_READ_ONLY;
    let (major, minor) = superblock.version;
    let reason = if unknown != 0 {
        format!("features {unknown:#x} are unknown: open it for reading only")
    } else if superblock.version > VERSION {
        format!("has format {major}.{minor}: use a newer stitchfs or open it for reading only")
    } else {
        return Ok(());
    };
    let name = name.to_owned();
    Err(VolumeError::Unsupported { name, reason })
}

/// Makes a new generation durable in both copies, first in the one that was not chosen.
pub(crate) fn write(
    device: &dyn Device,
    chosen: &mut Chosen,
    generation: Generation,
) -> Result<(), VolumeError> {
    assert!(
        generation > chosen.superblock.generation,
        "generations go up"
    );
    debug_assert!(chosen.copy < COPIES.len(), "one of both copies");
    chosen.superblock.generation = generation;
    for copy in [1 - chosen.copy, chosen.copy] {
        let bytes = chosen.superblock.encode(COPIES[copy]);
        debug_assert_eq!(bytes.len(), usize_from(COPY_BYTES as u64));
        device.write_at(COPIES[copy], &[&bytes])?;
        device.sync()?;
    }
    Ok(())
}

/// Makes a changed superblock of the same generation durable in both copies, one after the other.
/// After a crash between them either is used: of two with the same generation, the first copy.
pub(crate) fn write_both(core: &Core, superblock: &Superblock) -> Result<(), VolumeError> {
    debug_assert_eq!(superblock.generation, core.generation, "of this life");
    debug_assert!(
        superblock.areas.check().is_ok(),
        "a copy that would be refused is not written"
    );
    for address in COPIES {
        core.write(address, &[&superblock.encode(address)])?;
        core.sync()?;
    }
    Ok(())
}

/// Makes the ends of the logs durable in both copies.
pub(crate) fn write_closed(
    device: &dyn Device,
    superblock: &Superblock,
) -> Result<(), VolumeError> {
    debug_assert!(
        superblock.areas.check().is_ok(),
        "a copy that would be refused is not written"
    );
    for address in COPIES {
        device.write_at(address, &[&superblock.encode(address)])?;
        device.sync()?;
    }
    Ok(())
}
