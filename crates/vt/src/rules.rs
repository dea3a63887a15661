//! The rules of a version that need no block to be read: its shape, who owns which byte, and what
//! the online-map says of it.

use crate::version::{Version, VersionBuilder, extents};
use std::collections::BTreeMap;
use stitch_base::ZoneId;
use stitch_format::vt_manifest::Run;
use stitch_volume::{Extent, Zones};

/// Adds what is found broken: a rule, and where.
pub(crate) type Report<'a> = dyn FnMut(&'static str, String) + 'a;

/// Panics if a version breaks a rule. The caller holds the installer's lock.
///
/// # Cost
/// All tables and extents of the version are walked, and none is read.
pub(crate) fn assert_sound(zones: &Zones, version: &Version) {
    let mut found = Vec::new();
    let mut report = |rule, detail: String| found.push((rule, detail));
    check_shape(version, &mut report);
    check_owners(version, &mut report);
    check_zones(zones, version, &mut report);
    assert!(
        found.is_empty(),
        "an installed version is broken: {found:?}"
    );
}

/// Levels in order and apart, numbers below the counters.
pub(crate) fn check_shape(version: &Version, report: &mut Report<'_>) {
    let mut builder = VersionBuilder::new(Version::empty());
    let rebuilt = builder
        .apply(&version.whole_edit())
        .and_then(|()| builder.finish().map(drop));
    if let Err(error) = rebuilt {
        report("version-shape", error.to_string());
    }
    for (_, table) in version.tables() {
        let meta = table.meta();
        if meta.max_seqno > version.last_seqno && !version.is_temporary(meta.tree) {
            let detail = format!(
                "table {} holds write {}, the version goes to {}",
                meta.id, meta.max_seqno, version.last_seqno
            );
            report("table-seqno", detail);
        }
    }
}

/// Every byte has one owner.
pub(crate) fn check_owners(version: &Version, report: &mut Report<'_>) {
    let mut all: Vec<(Run, u64)> = Vec::new();
    for (_, table) in version.tables() {
        let id = table.meta().id.0;
        all.extend(table.meta().runs.iter().map(|run| (*run, id)));
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        let ((run, owner), (next, other)) = (pair[0], pair[1]);
        if run.end() > next.addr {
            let detail = format!("tables {owner} and {other} both own byte {}", next.addr);
            report("extent-owner", detail);
        }
    }
}

/// Compares the online-map with what the tables own: every owned byte is live. Live bytes that
/// no table owns may belong to old readers and to tables being written.
pub(crate) fn check_zones(zones: &Zones, version: &Version, report: &mut Report<'_>) {
    let mut owned: BTreeMap<ZoneId, u64> = BTreeMap::new();
    for (_, table) in version.tables() {
        for extent in extents(&table.meta().runs) {
            if !zones.is_live(extent) {
                let detail = format!("table {} owns {extent:?}", table.meta().id);
                report("zone-live-bytes", detail);
            }
            add_owned(zones, extent, &mut owned);
        }
    }
    for (zone, bytes) in owned {
        let live = zones.live_bytes(zone);
        if live < bytes {
            let detail = format!("zone {zone}: {live} bytes are live, tables own {bytes}");
            report("zone-live-bytes", detail);
        }
    }
}

/// Adds an extent to the sums of the zones that it lies in.
fn add_owned(zones: &Zones, extent: Extent, owned: &mut BTreeMap<ZoneId, u64>) {
    let mut at = extent.addr;
    while at < extent.end()
        && let Some(zone) = zones.zone_of(at)
    {
        let end = extent.end().min(zones.extent_of(zone).end());
        debug_assert!(end > at, "a zone has the byte");
        *owned.entry(zone).or_default() += end - at;
        at = end;
        debug_assert!(
            at <= extent.end(),
            "bytes beyond the extent are not counted"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MIB, Small, text_version};
    use stitch_kv::Engine as _;

    fn broken(text: &str) -> Vec<&'static str> {
        let mut found = Vec::new();
        let version = text_version(text);
        let mut report = |rule, _| found.push(rule);
        check_shape(&version, &mut report);
        check_owners(&version, &mut report);
        found
    }

    #[test]
    fn a_version_breaks_a_rule_where_tables_share_bytes_or_are_too_new() {
        assert_eq!(broken("tree 1\nL1 1 a..b 100\nL1 2 c..d 100"), [""; 0]);
        // Table 2 begins a million bytes behind table 1.
        assert_eq!(
            broken("tree 1\nL1 1 a..b 1000001\nL1 2 c..d 100"),
            ["extent-owner"]
        );
        assert_eq!(broken("tree 1\nL1 1 a..b 100 s1001"), ["table-seqno"]);
    }

    #[test]
    #[should_panic(expected = "zone-live-bytes")]
    fn a_version_that_owns_free_bytes_is_not_sound() {
        let small = Small::new(16 * MIB);
        let version = text_version("tree 1\nL1 1 a..b 100");
        assert_sound(small.engine.volume().zones(), &version);
    }

    #[test]
    fn every_version_of_a_store_that_is_written_to_is_sound() {
        let mut small = Small::new(32 * MIB);
        small.reopen_as(|options| options.is_paranoid = true);
        for round in 0..4 {
            small.put(round * 500, 1500, 1000);
            small.delete(round * 500..round * 500 + 250);
            small.engine.quiesce().expect("there is room");
        }
        small.check();
    }
}
