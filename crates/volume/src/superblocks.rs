//! The two copies of the superblock: the newest valid one wins, and both are written anew at every
//! open for writing, the older first, so that one is valid at any moment.

use crate::VolumeError;
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
}

/// Reads both copies.
pub(crate) fn read(device: &dyn Device) -> Result<Chosen, VolumeError> {
    let geometry = device.geometry();
    let name = geometry.name;
    if geometry.len_bytes < COPIES[1] + COPY_BYTES as u64 {
        return Err(VolumeError::NotAVolume { name, holds: None });
    }
    let mut best: Option<Chosen> = None;
    let mut wrong = None;
    for (copy, address) in COPIES.into_iter().enumerate() {
        let mut bytes = vec![0; COPY_BYTES];
        // One copy that cannot be read is as one that is damaged.
        let decoded = match device.read_at(address, &mut bytes) {
            Ok(()) => {
                Superblock::decode(&bytes, address).map_err(|error| refusal(&name, address, error))
            }
            Err(error) => Err(error.into()),
        };
        match decoded {
            Ok(Some(superblock)) => {
                let is_newer = best
                    .as_ref()
                    .is_none_or(|b| superblock.generation > b.superblock.generation);
                if is_newer {
                    best = Some(Chosen { superblock, copy });
                }
            }
            Ok(None) => {}
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    let chosen = match (best, wrong) {
        (Some(chosen), wrong) => {
            if let Some(error) = wrong {
                tracing::warn!(%error, "one copy of the superblock is unusable: the other counts");
            }
            chosen
        }
        (None, Some(error)) => return Err(error),
        (None, None) => {
            // What cannot be told apart is as unknown as what has no signature.
            let holds = signature::probe(device).ok().flatten().map(|s| s.name);
            return Err(VolumeError::NotAVolume { name, holds });
        }
    };
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

fn refusal(name: &str, address: u64, error: FormatError) -> VolumeError {
    match error {
        FormatError::Newer { .. }
        | FormatError::Field {
            field: "incompatible",
            ..
        } => VolumeError::Unsupported {
            name: name.to_owned(),
            reason: error.to_string(),
        },
        other => VolumeError::from_format(&format!("{name}: superblock"), address, other),
    }
}

/// Refuses to write what this program would write back incomplete.
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

/// Makes a new generation durable in both copies, the one that was not chosen first.
pub(crate) fn write(
    device: &dyn Device,
    chosen: &mut Chosen,
    generation: Generation,
) -> Result<(), VolumeError> {
    assert!(
        generation > chosen.superblock.generation,
        "generations go up"
    );
    chosen.superblock.generation = generation;
    chosen.superblock.clean_version_end = 0;
    for copy in [1 - chosen.copy, chosen.copy] {
        let bytes = chosen.superblock.encode(COPIES[copy]);
        debug_assert_eq!(bytes.len(), usize_from(COPY_BYTES as u64));
        device.write_at(COPIES[copy], &[&bytes])?;
        device.sync()?;
    }
    Ok(())
}

/// Makes durable in both copies where the version log ends.
pub(crate) fn write_clean(
    device: &dyn Device,
    superblock: &Superblock,
    version_end: u64,
) -> Result<(), VolumeError> {
    let mut superblock = superblock.clone();
    superblock.clean_version_end = version_end;
    for address in COPIES {
        device.write_at(address, &[&superblock.encode(address)])?;
        device.sync()?;
    }
    Ok(())
}
