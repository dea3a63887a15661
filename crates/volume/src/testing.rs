//! Helpers of this crate's tests.

use crate::{Durability, FormatOptions, OpenOptions, Opened, Volume, VolumeError};
use stitch_base::sync::Arc;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};

/// A freshly made volume of the smallest size.
pub(crate) fn fresh() -> MemDevice {
    let device = MemDevice::new(crate::VOLUME_BYTES_MIN);
    let options = FormatOptions {
        uuid: *b"0123456789abcdef",
        label: "test".to_owned(),
        ..FormatOptions::default()
    };
    Volume::format(&device, &options, &mut |_, _| ()).unwrap();
    device
}

/// A device that may crash, with the bytes of another.
pub(crate) fn crashable(image: &MemDevice, plan: CrashPlan) -> Arc<CrashDevice> {
    Arc::new(CrashDevice::from_image(image, plan))
}

/// Opens for writing.
pub(crate) fn open(device: &Arc<impl Device + 'static>) -> Result<Opened, VolumeError> {
    open_with(device, Durability::Os)
}

/// Opens for writing with a durability mode.
pub(crate) fn open_with(
    device: &Arc<impl Device + 'static>,
    durability: Durability,
) -> Result<Opened, VolumeError> {
    let device: Arc<dyn Device> = device.clone();
    let options = OpenOptions {
        read_only: false,
        durability,
        ..OpenOptions::default()
    };
    Volume::open(device, &options)
}

/// Opens for reading only.
pub(crate) fn open_read_only(device: &Arc<impl Device + 'static>) -> Result<Opened, VolumeError> {
    let device: Arc<dyn Device> = device.clone();
    let options = OpenOptions {
        read_only: true,
        durability: Durability::Os,
        ..OpenOptions::default()
    };
    Volume::open(device, &options)
}

/// Payloads of all records from the log start, and where they end.
pub(crate) fn replay(opened: &Opened) -> Result<Vec<Vec<u8>>, VolumeError> {
    let mut records = Vec::new();
    opened
        .volume
        .log()
        .replay(opened.log_start, &mut |_, bytes| {
            records.push(bytes.to_vec());
            Ok::<(), VolumeError>(())
        })?;
    Ok(records)
}
