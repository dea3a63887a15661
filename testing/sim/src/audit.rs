//! Compares the allocated bytes of a volume with those that have an owner. It does so zone by zone:
//! a sum would not show that one zone was given the bytes of another.

use std::collections::BTreeMap;
use stitch_base::ZoneId;
use stitch_format::superblock::LogAreas;
use stitch_volume::{Extent, Volume, Zones};
use stitch_vt::{Holdings, VtEngine};

/// Returns the faults of the online-map and the reservations of a volume. These engines must be all
/// that is open, with no readers and no writes in flight. After a failed write or sync nothing is
/// reported: extents that were about to be installed are neither owned nor free until the next
/// open.
pub(crate) fn audit<'a>(
    volume: &Volume,
    engines: impl Iterator<Item = &'a VtEngine>,
) -> Vec<String> {
    volume.zones().check();
    if volume.is_poisoned() {
        return Vec::new();
    }
    let held: Vec<Holdings> = engines.map(VtEngine::holdings).collect();
    let mut wrong = zones(volume, &held);
    let promised: u64 = held.iter().map(|held| held.promised_bytes).sum();
    let counted = volume.space().promised_bytes();
    if counted != promised {
        wrong.push(format!(
            "promised-bytes: {counted} are counted, {promised} have an owner"
        ));
    }
    wrong
}

/// Returns each zone whose live bytes differ from the owned ones.
fn zones(volume: &Volume, held: &[Holdings]) -> Vec<String> {
    let zones = volume.zones();
    let mut owned = BTreeMap::new();
    let logs = further_logs(volume);
    for extent in held.iter().flat_map(|held| &held.owned).chain(&logs) {
        add(zones, *extent, &mut owned);
    }
    let of_zone = |zone| {
        let live = zones.live_bytes(zone);
        let owned = owned.get(&zone).copied().unwrap_or(0);
        let wrong = format!("live-bytes: {live} are counted in zone {zone}, {owned} have an owner");
        (live != owned).then_some(wrong)
    };
    (0..zones.count()).map(ZoneId).filter_map(of_zone).collect()
}

/// The logs of instances but the first, which lie in zones.
fn further_logs(volume: &Volume) -> Vec<Extent> {
    let instances = volume.superblock().instances;
    let of_one = |logs: LogAreas| {
        [
            (logs.version_log_at, logs.version_log_bytes),
            (logs.backup_log_at, logs.backup_log_bytes),
        ]
    };
    let logs = instances.iter().flat_map(|instance| of_one(instance.logs));
    logs.map(|(addr, len)| Extent { addr, len }).collect()
}

/// Adds an extent to the sums of the zones that it lies in.
fn add(zones: &Zones, extent: Extent, owned: &mut BTreeMap<ZoneId, u64>) {
    let mut at = extent.addr;
    while at < extent.end() {
        let zone = zones.zone_of(at).expect("what is owned lies in zones");
        let end = extent.end().min(zones.extent_of(zone).end());
        *owned.entry(zone).or_default() += end - at;
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::Tiny;
    use stitch_base::sync::Arc;
    use stitch_kv::{Batch, CommitOptions, Engine, TreeOptions};
    use stitch_volume::{OpenOptions, Stream};
    use stitch_vt::VtOptions;

    const SHAPE: Tiny = Tiny {
        version_log_bytes: 128 << 10,
        backup_log_bytes: 256 << 10,
        zone_bytes: 64 << 10,
        zones: 64,
    };

    /// An engine with a table.
    fn engine() -> Arc<VtEngine> {
        let opened = Volume::open(Arc::new(SHAPE.format()), &OpenOptions::default()).unwrap();
        let options = VtOptions {
            background: false,
            ..VtOptions::default()
        };
        let engine = VtEngine::open(opened, options).unwrap();
        let tree = engine.create_tree("t", &TreeOptions::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(tree, b"key", &[1; 100]);
        engine.commit(&batch, CommitOptions::default()).unwrap();
        engine.quiesce().unwrap();
        engine
    }

    fn wrong(engine: &VtEngine) -> Vec<String> {
        audit(engine.volume(), std::iter::once(engine))
    }

    #[test]
    fn a_byte_without_an_owner_is_found() {
        let engine = engine();
        assert_eq!(wrong(&engine), Vec::<String>::new());
        let zones = engine.volume().zones();
        let lost = zones.allocate(512, 512, Stream(100)).unwrap();
        let zone = zones.zone_of(lost.addr).unwrap();
        let expected = format!("live-bytes: 512 are counted in zone {zone}, 0 have an owner");
        assert_eq!(wrong(&engine), [expected]);
        zones.free(&[lost]);
        assert_eq!(wrong(&engine), Vec::<String>::new());
    }

    #[test]
    fn zones_that_are_wrong_by_as_much_are_found() {
        let engine = engine();
        let zones = engine.volume().zones();
        let table = engine.holdings().owned[0];
        let before = zones.usage().live;
        // As if an edit had freed what it moved, but in another zone.
        zones.free(&[table]);
        let other = zones.allocate(table.len, table.len, Stream(100)).unwrap();
        assert_eq!(zones.usage().live, before, "the sums agree");
        let found = wrong(&engine);
        assert_eq!(found.len(), 2, "{found:?}");
        zones.free(&[other]);
        zones.adopt(&[table]).unwrap();
        assert_eq!(wrong(&engine), Vec::<String>::new());
    }
}
