//! Several instances on one volume, with a crash at every sync and write.

use crate::testing::{crashable, fresh, open, open_read_only, replay};
use crate::{Extent, InstanceOptions, Opened, Stream, Volume};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Lsn};
use stitch_device::{CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice};
use stitch_format::instance::INSTANCES_MAX;
use stitch_format::superblock::{FEATURE_INSTANCES, Superblock};

const MIB: u64 = 1 << 20;
const OPTIONS: InstanceOptions = InstanceOptions {
    version_log_bytes: None,
    backup_log_bytes: None,
};

/// All instances of a volume, the first one first.
fn all(opened: &Opened) -> impl Iterator<Item = &Opened> {
    std::iter::once(opened).chain(&opened.further)
}

fn names(opened: &Opened) -> Vec<&str> {
    all(opened).map(|opened| opened.volume.name()).collect()
}

/// Name, versions and records of an instance.
type Contents = (String, Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Those of each instance.
fn contents(opened: &Opened) -> Vec<Contents> {
    let read = |opened: &Opened| {
        let records = replay(opened).unwrap();
        (
            opened.volume.name().to_owned(),
            opened.versions.clone(),
            records,
        )
    };
    all(opened).map(read).collect()
}

/// Commits a version and appends a record that name their instance.
fn fill(opened: &Opened) {
    // A log must be read once before it is written to.
    replay(opened).unwrap();
    let volume = &opened.volume;
    let name = volume.name().as_bytes();
    volume.commit_delta(name, opened.log_start).unwrap();
    volume.log().append(&[b"record of ", name]).unwrap();
    volume.sync().unwrap();
}

fn is_filled(opened: &Opened) -> bool {
    let is_right = |(name, versions, records): &Contents| {
        *versions == [name.as_bytes()] && *records == [format!("record of {name}").into_bytes()]
    };
    contents(opened).iter().all(is_right)
}

/// A volume with these further instances, each filled, and closed in good order.
fn with(further: &[&str]) -> MemDevice {
    let device = fresh();
    let shared = Arc::new(device.clone());
    let opened = open(&shared).unwrap();
    fill(&opened);
    for name in further {
        let made = opened.volume.create_instance(name, &OPTIONS).unwrap();
        fill(&made);
        made.volume.close().unwrap();
    }
    opened.volume.close().unwrap();
    image_of(&opened.volume)
}

fn image_of(volume: &Volume) -> MemDevice {
    let len = volume.device().geometry().len_bytes;
    let image = MemDevice::new(len);
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    volume.device().read_at(0, &mut bytes).unwrap();
    image.write_at(0, &[&bytes]).unwrap();
    image
}

#[test]
fn instances_have_logs_of_their_own_and_share_the_zones() {
    let image = with(&["b", "a"]);
    for _ in 0..2 {
        let opened = open(&Arc::new(image.clone())).unwrap();
        assert_eq!(names(&opened), ["main", "a", "b"]);
        assert!(is_filled(&opened), "{:?}", contents(&opened));
        let [a, b] = &opened.further[..] else {
            panic!("two further instances");
        };
        let got = a.volume.zones().allocate(MIB, 4096, Stream(0)).unwrap();
        assert!(b.volume.zones().is_live(got));
        let promise = b.volume.space().reserve(MIB, crate::Class::User).unwrap();
        assert_eq!(a.volume.space().promised_bytes(), MIB);
        drop(promise);
        opened.volume.zones().check();
    }
    let read_only = open_read_only(&Arc::new(image)).unwrap();
    assert!(is_filled(&read_only));
}

#[test]
fn the_logs_of_an_instance_are_never_handed_out() {
    let opened = open(&Arc::new(with(&["a"]))).unwrap();
    let logs = opened.volume.superblock().instances[0].logs;
    let zones = opened.volume.zones();
    for extent in crate::instances::extents(&logs) {
        assert!(zones.is_live(extent));
    }
    while let Ok(got) = zones.allocate(MIB, 4096, Stream(0)) {
        for extent in crate::instances::extents(&logs) {
            assert!(got.end() <= extent.addr || got.addr >= extent.end());
        }
    }
    assert!(zones.adopt(&crate::instances::extents(&logs)).is_err());
}

#[test]
fn a_volume_whose_last_further_instance_went_is_as_it_was() {
    let image = with(&["a", "b"]);
    let opened = open(&Arc::new(image.clone())).unwrap();
    let free = opened.volume.zones().usage().free;
    let [a, b] = [&opened.further[0].volume, &opened.further[1].volume];
    let logs = crate::instances::extents(&a.log_areas());
    opened.volume.remove_instance(a).unwrap();
    // Their zones may be allocated at once: nothing is written there any more.
    let zones = opened.volume.zones();
    assert!(logs.iter().all(|extent| !zones.is_live(*extent)));
    let before = image_of(&opened.volume);
    assert!(a.log().append(&[b"late"]).is_err());
    assert!(a.commit_base(b"late", Lsn(0)).is_err());
    assert!(a.log().mark_apart().is_err());
    assert_eq!(a.close().unwrap_err().kind(), ErrorKind::Poisoned);
    assert!(image_of(&opened.volume).written_pages() == before.written_pages());
    assert_eq!(opened.volume.superblock().incompatible, FEATURE_INSTANCES);
    let error = opened.volume.remove_instance(a).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    opened.volume.remove_instance(b).unwrap();
    opened.volume.close().unwrap();
    let image = image_of(&opened.volume);
    let opened = open(&Arc::new(image.clone())).unwrap();
    assert_eq!(names(&opened), ["main"]);
    let zones = opened.volume.zones().usage();
    assert_eq!((zones.live, zones.free > free), (0, true));
    for address in [0, 4096] {
        let mut bytes = vec![0; 4096];
        image.read_at(address, &mut bytes).unwrap();
        let copy = Superblock::decode(&bytes, address).unwrap().unwrap();
        assert_eq!((copy.incompatible, copy.instances.len()), (0, 0));
        assert!(
            bytes[228..].iter().all(|&b| b == 0),
            "as before there were any"
        );
    }
}

#[test]
fn what_cannot_be_created_is_refused_and_leaves_nothing() {
    let opened = open(&Arc::new(with(&["a"]))).unwrap();
    let volume = &opened.volume;
    let live = volume.zones().usage().live;
    let refused = |name: &str, options: &InstanceOptions, kind| {
        let error = volume.create_instance(name, options).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        error.to_string()
    };
    refused("a", &OPTIONS, ErrorKind::Exists);
    refused("main", &OPTIONS, ErrorKind::Exists);
    for name in ["", "x/y", "-x", &"x".repeat(33)] {
        let said = refused(name, &OPTIONS, ErrorKind::Invalid);
        assert!(said.contains("letters"), "{said}");
    }
    let odd = InstanceOptions {
        version_log_bytes: Some(MIB + 1),
        ..OPTIONS
    };
    refused("x", &odd, ErrorKind::Invalid);
    let large = InstanceOptions {
        backup_log_bytes: Some(64 * MIB),
        ..OPTIONS
    };
    refused("x", &large, ErrorKind::NoSpace);
    assert_eq!(
        volume.remove_instance(volume).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(volume.zones().usage().live, live);
    // One page in every zone: free, but no zones.
    let zones = volume.zones();
    let mut whole = Vec::new();
    while let Some(got) = zones.allocate_zones(1) {
        whole.push(got);
    }
    for zone in &whole {
        zones.free(&[Extent {
            addr: zone.addr + 4096,
            len: zone.len - 4096,
        }]);
    }
    let said = refused("x", &OPTIONS, ErrorKind::NoSpace);
    assert!(said.contains("side by side"), "{said}");
    zones.check();
}

#[test]
fn there_are_as_many_as_records_fit() {
    let device = MemDevice::new(256 * MIB);
    let format = crate::FormatOptions {
        zone_bytes: Some(MIB),
        backup_log_bytes: Some(2 * MIB),
        version_log_bytes: Some(512 << 10),
        ..crate::FormatOptions::default()
    };
    Volume::format(&device, &format, &mut |_, _| ()).unwrap();
    let shared = Arc::new(device);
    let opened = open(&shared).unwrap();
    for number in 0..INSTANCES_MAX {
        let name = format!("i{number}");
        opened.volume.create_instance(&name, &OPTIONS).unwrap();
    }
    let error = opened.volume.create_instance("more", &OPTIONS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(open(&shared).unwrap().further.len(), INSTANCES_MAX);
}

/// Runs `work` once for each sync and write at which it may stop. `check` gets the reopened volume.
fn with_crashes(image: &MemDevice, work: &dyn Fn(&Opened), check: &mut dyn FnMut(&Opened)) {
    let mut rng = Rng::new(7);
    for plan in [
        CrashPlan::at_sync as fn(u64) -> CrashPlan,
        CrashPlan::at_write,
    ] {
        for nth in 1.. {
            let device = crashable(image, CrashPlan::NEVER);
            let opened = open(&device).unwrap();
            device.set_plan(plan(nth));
            work(&opened);
            let images = (0..6).map(|_| device.crash_image(&mut rng));
            for image in images.chain([device.kill_image()]) {
                let image = Arc::new(image);
                check(&open_read_only(&image).unwrap());
                let opened = open(&image).unwrap();
                opened.volume.zones().check();
                check(&opened);
                // And again, after the first opening has written.
                check(&open(&image).unwrap());
            }
            if !device.is_stopped() {
                break;
            }
        }
    }
}

#[test]
fn a_crash_leaves_a_new_instance_whole_or_not_at_all() {
    let image = with(&["b"]);
    let mut seen = [0; 2];
    let create = |opened: &Opened| {
        drop(opened.volume.create_instance("a", &OPTIONS));
    };
    with_crashes(&image, &create, &mut |opened| {
        let is_there = match names(opened)[..] {
            ["main", "b"] => false,
            ["main", "a", "b"] => true,
            _ => panic!("{:?}", names(opened)),
        };
        seen[usize::from(is_there)] += 1;
        for (name, versions, records) in contents(opened) {
            let count = usize::from(name != "a");
            assert_eq!((versions.len(), records.len()), (count, count), "{name}");
        }
    });
    assert!(seen[0] > 0 && seen[1] > 0);
}

#[test]
fn what_is_written_to_a_new_instance_survives_a_crash() {
    let image = with(&[]);
    with_crashes(
        &image,
        &|opened| {
            if let Ok(made) = opened.volume.create_instance("a", &OPTIONS)
                && replay(&made).is_ok()
                && made.volume.log().append(&[b"record"]).is_ok()
                && made.volume.sync().is_ok()
            {
                drop(made.volume.commit_delta(b"version", Lsn(0)));
            }
        },
        &mut |opened| {
            for found in &opened.further {
                let has_version = !found.versions.is_empty();
                let has_record = !replay(found).unwrap().is_empty();
                assert!(has_record || !has_version, "the record was synced before");
            }
        },
    );
}

#[test]
fn a_crash_leaves_a_removed_instance_whole_or_not_at_all() {
    let image = with(&["a", "b"]);
    let mut seen = [0; 2];
    let remove = |opened: &Opened| drop(opened.volume.remove_instance(&opened.further[0].volume));
    with_crashes(&image, &remove, &mut |opened| {
        let is_there = match names(opened)[..] {
            ["main", "b"] => false,
            ["main", "a", "b"] => true,
            _ => panic!("{:?}", names(opened)),
        };
        seen[usize::from(is_there)] += 1;
        assert!(is_filled(opened));
    });
    assert!(seen[0] > 0 && seen[1] > 0);
}

/// Removes `a`, so that the logs of `b` stand behind the point where a shrink cuts.
fn with_late_logs() -> (MemDevice, u64) {
    let opened = open(&Arc::new(with(&["a", "b"]))).unwrap();
    let a = &opened.further[0].volume;
    opened.volume.remove_instance(a).unwrap();
    let image = image_of(&opened.volume);
    let opened = open(&Arc::new(image.clone())).unwrap();
    let cut = opened.volume.superblock().instances[0].logs.version_log_at + 2 * MIB;
    (image, cut)
}

#[test]
fn logs_move_out_of_what_is_cut_off_and_a_crash_loses_none_of_them() {
    let (image, cut) = with_late_logs();
    let opened = open(&Arc::new(image.clone())).unwrap();
    let before = opened.volume.superblock().instances[0].logs;
    let live = opened.volume.zones().usage().live;
    let b = &opened.further[0];
    assert!(is_filled(&opened));
    let mut shrinking = opened.volume.begin_shrink(cut, 0).unwrap();
    assert!(shrinking.live_bytes().unwrap() > 0);
    shrinking.move_logs(&opened.volume).unwrap();
    shrinking.move_logs(&b.volume).unwrap();
    // Appends continue at the log's new offset.
    b.volume.commit_delta(b"more", b.log_start).unwrap();
    b.volume.log().append(&[b"more"]).unwrap();
    shrinking.commit().unwrap();
    opened.volume.zones().check();
    let after = opened.volume.superblock().instances[0].logs;
    assert_ne!(before.version_log_at, after.version_log_at);
    assert_eq!(opened.volume.zones().usage().live, live);
    b.volume.close().unwrap();
    let again = open(&Arc::new(image_of(&opened.volume))).unwrap();
    let found = &contents(&again)[1];
    assert_eq!(found.1, [b"b".to_vec(), b"more".to_vec()]);
    assert_eq!(found.2, [b"record of b".to_vec(), b"more".to_vec()]);

    let mut lengths = std::collections::BTreeSet::new();
    let shrink = |opened: &Opened| {
        if opened.further.iter().any(|f| replay(f).is_err()) {
            return;
        }
        let Ok(mut shrinking) = opened.volume.begin_shrink(cut, 0) else {
            return;
        };
        if shrinking.move_logs(&opened.further[0].volume).is_ok() {
            drop(shrinking.commit());
        }
    };
    with_crashes(&image, &shrink, &mut |opened| {
        assert!(is_filled(opened), "{:?}", contents(opened));
        lengths.insert(opened.volume.device_bytes());
    });
    assert_eq!(lengths.len(), 2);
}

#[test]
fn a_failed_write_while_creating_or_moving_loses_nothing() {
    let (image, cut) = with_late_logs();
    for nth in 1..400 {
        let device = Arc::new(FaultDevice::new(image.clone()));
        let opened = open(&device).unwrap();
        device.add(Fault::once(FaultOp::Write, nth));
        drop(opened.volume.create_instance("c", &OPTIONS));
        if let Ok(mut shrinking) = opened.volume.begin_shrink(cut, 0) {
            drop(shrinking.move_logs(&opened.further[0].volume));
        }
        opened.volume.zones().check();
        let again = open(&Arc::new(image_of(&opened.volume))).unwrap();
        let b = contents(&again).into_iter().find(|found| found.0 == "b");
        assert_eq!(b.unwrap().2, [b"record of b".to_vec()]);
    }
}

#[test]
fn a_volume_grows_to_what_the_shortest_version_log_is_made_for() {
    let device = Arc::new(with(&[]));
    let opened = open(&device).unwrap();
    let short = InstanceOptions {
        version_log_bytes: Some(512 << 10),
        ..OPTIONS
    };
    opened.volume.create_instance("a", &short).unwrap();
    let most = (512 << 10) * 128 * 16;
    let error = opened.volume.grow(most + 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    opened.volume.grow(64 * MIB).unwrap();
    let again = open(&Arc::new(image_of(&opened.volume))).unwrap();
    assert_eq!(names(&again), ["main", "a"]);
}

#[test]
fn damage_names_the_instance() {
    let image = with(&["a"]);
    let opened = open_read_only(&Arc::new(image.clone())).unwrap();
    let logs = opened.volume.superblock().instances[0].logs;
    image.write_at(logs.version_log_at, &[&[0; 8192]]).unwrap();
    let error = open(&Arc::new(image)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("instance a"), "{error}");
}
