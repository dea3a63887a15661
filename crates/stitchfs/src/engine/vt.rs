//! Stores of the VT-tree engine: a volume on a device.

use super::{Instance, Opened};
use crate::StoreError;
use crate::store::{Finding, StoreOptions};
use stitch_base::sync::Arc;
use stitch_device::Device;
use stitch_volume::Volume;
use stitch_vt::{VtEngine, VtOptions};

/// Opens the store on a device with all of its instances.
///
/// # Errors
/// See [`StoreError`].
pub(super) fn open(
    device: Arc<dyn Device>,
    options: &StoreOptions,
    memory_bytes: u64,
) -> Result<Opened, StoreError> {
    let volume_options = stitch_volume::OpenOptions {
        read_only: options.read_only,
        durability: options.durability,
        discard: options.discard,
    };
    let opened = Volume::open(device, &volume_options)?;
    let volumes = volumes(&opened);
    if options.drop_log_tail {
        volumes.iter().for_each(|volume| volume.log().accept_loss());
    }
    let vt_options = VtOptions {
        memory_bytes,
        sync_interval: options.sync_interval,
        upserts: super::upserts(options),
        stitch_by_key: options.stitch_by_key.clone(),
        ..VtOptions::default()
    };
    let first = Instance::of_vt(VtEngine::open(opened, vt_options)?);
    let damage = volumes.iter().flat_map(|volume| met_at_open(volume));
    Ok(Opened {
        first,
        damage: damage.collect(),
    })
}

/// Returns what each instance has of a volume that was opened.
fn volumes(opened: &stitch_volume::Opened) -> Vec<Arc<Volume>> {
    let all = std::iter::once(opened).chain(&opened.further);
    all.map(|opened| Arc::clone(&opened.volume)).collect()
}

/// Returns the damage that opening a volume has met and got around.
fn met_at_open(volume: &Volume) -> Vec<Finding> {
    let finding = |rule: &str, detail| Finding::new(rule, detail, true);
    let is_written = !volume.is_read_only();
    let damage = volume.superblock_damage().filter(|_| volume.is_first());
    let superblock = damage.map(|error| {
        let rest = if is_written {
            "it is written anew from the other copy"
        } else {
            "the other copy is whole"
        };
        finding("superblock", format!("{error}; {rest}"))
    });
    let loss = volume.log().loss().map(|loss| {
        let (at, lost_bytes) = (loss.at, loss.lost_bytes);
        let detail = format!(
            "the damaged end of the backup log is given up: {lost_bytes} bytes from byte {at} on"
        );
        finding("log", detail)
    });
    let versions = volume.version_log_damage().map(|error| {
        let rest = if is_written {
            "; it is written anew"
        } else {
            ""
        };
        let detail = format!("{error}; what it held is known{rest}");
        finding("version-log", detail)
    });
    let met = superblock.into_iter().chain(versions);
    met.chain(loss).collect()
}
