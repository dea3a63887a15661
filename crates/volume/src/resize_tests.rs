//! Growing and shrinking a volume, with a crash at every sync and write.

use crate::testing::{crashable, fresh, open, open_read_only};
use crate::{BlockKind, Extent, OpenOptions, Stream, TrimRange, VOLUME_BYTES_MIN, Volume};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Lsn};
use stitch_device::{CrashPlan, Device, Fault, FaultDevice, FaultOp, MemDevice};

const MIB: u64 = 1 << 20;

/// A volume that names one block, at `addr`.
fn with_block(device: &MemDevice, addr: u64) {
    let opened = open(&Arc::new(device.clone())).unwrap();
    let volume = opened.volume;
    let mut bytes = vec![0; stitch_format::block::HEADER_BYTES];
    bytes.extend_from_slice(b"payload");
    volume.seal_block(&mut bytes, BlockKind::TableData, 0, addr);
    let len = bytes.len() as u64;
    volume.zones().adopt(&[Extent { addr, len }]).unwrap();
    volume.write(addr, &[&bytes]).unwrap();
    volume.commit_delta(&addr.to_le_bytes(), Lsn(0)).unwrap();
    volume.close().unwrap();
    for (at, page) in volume_pages(&volume) {
        device.write_at(at, &[&page]).unwrap();
    }
}

fn volume_pages(volume: &Volume) -> Vec<(u64, Vec<u8>)> {
    let len = volume.device().geometry().len_bytes;
    let page = |at| {
        let mut bytes = vec![0; 4096];
        volume.device().read_at(at, &mut bytes).unwrap();
        (at, bytes)
    };
    let pages = (0..len / 4096).map(|number| page(number * 4096));
    pages
        .filter(|(_, bytes)| bytes.iter().any(|&b| b != 0))
        .collect()
}

/// Checks that the volume of an image opens and holds its blocks. Returns its length.
fn check(image: &MemDevice) -> u64 {
    for read_only in [true, false] {
        let device: Arc<dyn Device> = Arc::new(image.clone());
        let options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        let opened = Volume::open(device, &options).unwrap();
        for version in &opened.versions {
            let addr = u64::from_le_bytes(version[..8].try_into().unwrap());
            let extent = Extent { addr, len: 512 };
            opened.volume.zones().adopt(&[extent]).unwrap();
            let block = opened
                .volume
                .read_block(addr, 512, BlockKind::TableData)
                .unwrap();
            assert_eq!(block.payload(), b"payload");
        }
        opened.volume.zones().check();
    }
    open(&Arc::new(image.clone()))
        .unwrap()
        .volume
        .device_bytes()
}

/// Runs `work` once for each sync and write at which it may stop, and checks the image. Returns the
/// lengths found.
fn with_crashes(image: &MemDevice, work: &dyn Fn(&Volume)) -> Vec<u64> {
    let mut found = Vec::new();
    let mut rng = Rng::new(5);
    for plan in [
        CrashPlan::at_sync as fn(u64) -> CrashPlan,
        CrashPlan::at_write,
    ] {
        for nth in 1.. {
            let device = crashable(image, CrashPlan::NEVER);
            let opened = open(&device).unwrap();
            device.set_plan(plan(nth));
            work(&opened.volume);
            for _ in 0..8 {
                found.push(check(&device.crash_image(&mut rng)));
            }
            found.push(check(&device.kill_image()));
            if !device.is_stopped() {
                break;
            }
        }
    }
    found
}

#[test]
fn a_volume_grows_at_once_and_a_crash_leaves_the_old_length_or_the_new() {
    let image = fresh();
    with_block(&image, 5 * MIB);
    let opened = open(&Arc::new(image.clone())).unwrap();
    let volume = opened.volume;
    let before = volume.zones().usage().total;
    volume.grow(40 * MIB + 5000).unwrap();
    assert_eq!(volume.device_bytes(), 40 * MIB + 4096);
    assert_eq!(volume.device().geometry().len_bytes, 40 * MIB + 4096);
    assert_eq!(volume.zones().usage().total, before + 24 * MIB + 4096);
    volume.zones().check();
    let mut count = 0;
    while let Ok(got) = volume.zones().allocate(MIB, MIB / 4, Stream(0)) {
        volume.write(got.addr, &[&[1; 512]]).unwrap();
        count += 1;
    }
    assert!(count > 24);
    let found = with_crashes(&image, &|volume| drop(volume.grow(40 * MIB)));
    assert!(found.contains(&VOLUME_BYTES_MIN) && found.contains(&(40 * MIB)));
    assert!(
        found
            .iter()
            .all(|&b| b == VOLUME_BYTES_MIN || b == 40 * MIB)
    );
}

fn shrink(volume: &Volume, device_bytes: u64) {
    if let Ok(shrinking) = volume.begin_shrink(device_bytes, 0) {
        drop(shrinking.commit());
    }
}

#[test]
fn a_volume_shrinks_when_its_end_is_empty_and_a_crash_leaves_the_old_length_or_the_new() {
    let image = fresh();
    with_block(&image, 4 * MIB);
    let opened = open(&Arc::new(image.clone())).unwrap();
    let volume = opened.volume;
    let addr = 15 * MIB;
    volume.zones().adopt(&[Extent { addr, len: 512 }]).unwrap();
    let mut shrinking = volume.begin_shrink(10 * MIB, 0).unwrap();
    assert_eq!(shrinking.live_bytes().unwrap(), 512);
    assert!(shrinking.tail().unwrap().addr <= 10 * MIB);
    let again = volume.begin_shrink(9 * MIB, 0).map(drop).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Invalid);
    volume.zones().free(&[Extent { addr, len: 512 }]);
    assert_eq!(shrinking.note_moved().unwrap(), 0);
    shrinking.commit().unwrap();
    assert_eq!(volume.device_bytes(), 10 * MIB);
    assert_eq!(volume.device().geometry().len_bytes, 10 * MIB);
    assert_eq!(volume.space().promised_bytes(), 0);
    volume.zones().check();
    volume.close().unwrap();
    let found = with_crashes(&image, &|volume| shrink(volume, 10 * MIB));
    assert!(found.contains(&VOLUME_BYTES_MIN) && found.contains(&(10 * MIB)));
    assert!(
        found
            .iter()
            .all(|&b| b == VOLUME_BYTES_MIN || b == 10 * MIB)
    );
}

#[test]
fn a_shrink_that_is_given_up_changes_nothing() {
    let opened = open(&Arc::new(fresh())).unwrap();
    let volume = opened.volume;
    let usable = volume.zones().usage().usable;
    let shrinking = volume.begin_shrink(10 * MIB, 0).unwrap();
    assert!(volume.zones().usage().usable < usable);
    drop(shrinking);
    assert_eq!(volume.zones().usage().usable, usable);
    assert_eq!(volume.device_bytes(), VOLUME_BYTES_MIN);
}

#[test]
fn lengths_that_cannot_be_are_refused_with_a_reason() {
    let opened = open(&Arc::new(fresh())).unwrap();
    let volume = opened.volume;
    let grow = |bytes| volume.grow(bytes).unwrap_err().to_string();
    let shrink = |bytes| {
        volume
            .begin_shrink(bytes, 0)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    assert!(grow(VOLUME_BYTES_MIN + 4095).contains("larger"));
    assert!(grow(1 << 40).contains("1073741824 bytes at most"));
    assert!(shrink(VOLUME_BYTES_MIN).contains("smaller"));
    assert!(shrink(5 * MIB).contains("16 zones need"));
    volume.zones().allocate(256 << 10, 512, Stream(0)).unwrap();
    let error = volume.begin_shrink(8 * MIB, 8 * MIB).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("are the least"), "{error}");
    let reader = open_read_only(&Arc::new(fresh())).unwrap().volume;
    assert_eq!(
        reader.grow(20 * MIB).unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    let short = FaultDevice::new(fresh());
    short.add(Fault::once(FaultOp::Write, 3));
    let volume = open(&Arc::new(short)).unwrap().volume;
    let error = volume.grow(20 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "the device does not grow");
    assert_eq!(volume.device_bytes(), VOLUME_BYTES_MIN);
    volume.grow(20 * MIB).unwrap();
}

#[test]
fn a_device_that_was_cut_shorter_than_its_volume_is_named() {
    let image = fresh();
    image.shrink(VOLUME_BYTES_MIN - 4096).unwrap();
    let error = open(&Arc::new(image)).unwrap_err().to_string();
    assert!(error.contains("the rest is cut off"), "{error}");
}

#[test]
fn freed_zones_are_discarded_and_live_bytes_are_not() {
    let device = Arc::new(fresh());
    let options = OpenOptions {
        discard: true,
        ..OpenOptions::default()
    };
    let shared: Arc<dyn Device> = device.clone();
    let volume = Volume::open(shared, &options).unwrap().volume;
    let zone = volume.zones().zone_bytes();
    let got = volume.zones().allocate(zone, zone, Stream(0)).unwrap();
    let kept = volume.zones().allocate(4096, 512, Stream(0)).unwrap();
    volume.write(got.addr, &[&[7; 4096]]).unwrap();
    volume.write(kept.addr, &[&[8; 4096]]).unwrap();
    assert_eq!(volume.discard_freed(8), 0);
    volume.zones().free(&[got]);
    assert_eq!(volume.discard_freed(8), zone);
    assert_eq!(volume.discard_freed(8), 0);
    let usage = volume.zones().usage();
    let mut seen = 0;
    let trimmed = volume.trim(&TrimRange::ALL, &mut |done, total| {
        seen += 1;
        done < total
    });
    assert_eq!(trimmed.unwrap(), usage.usable);
    assert_eq!(seen, volume.zones().count());
    assert_eq!(device.counters().discard_bytes, zone + usage.usable);
    let mut out = [0; 1];
    volume.read(kept.addr, &mut out).unwrap();
    assert_eq!(out, [8]);
}

#[test]
fn a_device_that_fails_to_discard_loses_nothing() {
    let device = Arc::new(FaultDevice::new(fresh()));
    let options = OpenOptions {
        discard: true,
        ..OpenOptions::default()
    };
    let shared: Arc<dyn Device> = device.clone();
    let volume = Volume::open(shared, &options).unwrap().volume;
    let got = volume.zones().allocate(MIB, 512, Stream(0)).unwrap();
    volume.zones().free(&[got]);
    device.add(Fault::once(FaultOp::Any, device.calls().total() + 1));
    assert_eq!(volume.discard_freed(8), 0);
    assert_eq!(device.hits(), 1);
    assert!(!volume.is_poisoned());
    assert_eq!(volume.discard_freed(8), 0, "it is not asked again");
    volume.zones().check();
    volume.commit_delta(b"goes on", Lsn(0)).unwrap();
}
