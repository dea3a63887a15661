//! The space of an open store: what stands behind the methods of stores and databases.

use crate::StoreError;
use std::path::Path;
use stitch_volume::{TrimRange, VOLUME_BYTES_MIN, VolumeError};
use stitch_vt::{VtEngine, VtError, Watch};

/// Lengths of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// Tells the device of all that is free in a range. `watch` is told bytes.
pub(crate) fn trim(
    vt: &VtEngine,
    range: &TrimRange,
    watch: &mut Watch<'_>,
) -> Result<u64, StoreError> {
    let zone_bytes = vt.volume().zones().zone_bytes();
    let mut in_bytes = |done, total| watch(done * zone_bytes, total * zone_bytes);
    Ok(vt.trim(range, &mut in_bytes)?)
}

/// Makes the store at `path` longer.
pub(crate) fn grow(vt: &VtEngine, path: &Path, bytes: Option<u64>) -> Result<Resized, StoreError> {
    let volume = vt.volume();
    let before = volume.device_bytes();
    let medium = volume.device().medium_bytes()?;
    let is_block_device = volume.device().geometry().is_block_device;
    let wanted = match bytes {
        Some(bytes) if is_block_device && bytes > medium => {
            let reason = format!("the device has {medium} bytes only; make it larger first");
            return Err(wrong_size(path, reason));
        }
        Some(bytes) => bytes,
        None if medium > before => medium,
        None if is_block_device => {
            let reason = format!("fills its device already, {before} bytes; make it larger first");
            return Err(wrong_size(path, reason));
        }
        None => return Err(wrong_size(path, "give the new size, as 16G".to_owned())),
    };
    vt.grow(wanted).map_err(|error| explain(path, error))?;
    Ok(resized(vt, before))
}

/// Makes the store at `path` shorter.
pub(crate) fn shrink(
    vt: &VtEngine,
    path: &Path,
    bytes: u64,
    watch: &mut Watch<'_>,
) -> Result<Resized, StoreError> {
    if bytes < VOLUME_BYTES_MIN {
        let least = VOLUME_BYTES_MIN >> 20;
        let reason = format!("is too small for a store; give {least}M or more");
        return Err(wrong_size(path, reason));
    }
    let before = vt.volume().device_bytes();
    let device = vt.volume().device();
    if bytes == before && !vt.volume().is_read_only() && device.geometry().len_bytes > before {
        // A shrink that a crash ended before the device was cut.
        device.shrink(before)?;
        return Ok(resized(vt, before));
    }
    vt.shrink(bytes, watch)
        .map_err(|error| explain(path, error))?;
    Ok(resized(vt, before))
}

fn resized(vt: &VtEngine, before: u64) -> Resized {
    Resized {
        before,
        after: vt.volume().device_bytes(),
    }
}

fn wrong_size(path: &Path, reason: String) -> StoreError {
    StoreError::Size {
        path: path.to_owned(),
        reason,
    }
}

fn explain(path: &Path, error: VtError) -> StoreError {
    match error {
        VtError::Volume(error @ (VolumeError::Invalid { .. } | VolumeError::TooSmall { .. })) => {
            wrong_size(path, error.to_string())
        }
        other => other.into(),
    }
}
