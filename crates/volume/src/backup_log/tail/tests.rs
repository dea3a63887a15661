use super::*;
use crate::backup_log::{HEADER, SLACK_BYTES};
use crate::testing::{fresh, open, open_with, replay};
use crate::{Durability, Opened};
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{
    Device, DeviceCounters, DeviceError, Fault, FaultDevice, FaultOp, Geometry, MemDevice,
    SECTOR_BYTES,
};

/// A device that records offsets and lengths of its writes.
#[derive(Debug)]
struct Noting {
    below: MemDevice,
    writes: Mutex<Vec<(u64, u64)>>,
    reads: Mutex<Vec<u64>>,
}

impl Device for Noting {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.lock().push(offset);
        self.below.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        self.writes.lock().push((offset, bytes_of(pieces)));
        self.below.write_at(offset, pieces)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.below.sync()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        self.below.discard(offset, len_bytes)
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
}

#[test]
fn the_end_of_pieces_is_copied_across_them() {
    let pieces: [&[u8]; 4] = [b"ab", b"", b"cde", b"f"];
    let mut out = *b"......";
    copy_end(&pieces, &mut out[1..4]);
    assert_eq!(&out, b".def..");
    copy_end(&pieces, &mut out);
    assert_eq!(&out, b"abcdef");
}

#[test]
fn the_log_is_written_in_whole_pages_and_never_read_for_it() {
    for durability in [Durability::Os, Durability::Application] {
        let noting = Noting {
            below: fresh(),
            writes: Mutex::default(),
            reads: Mutex::default(),
        };
        let device = Arc::new(noting);
        let opened = open_with(&device, durability).unwrap();
        let areas = opened.volume.superblock().areas;
        let log = opened.volume.log();
        log.append(&[b"the page of the first record is read"])
            .unwrap();
        device.reads.lock().clear();
        let rng = &mut Rng::new(7);
        let mut marks = 0;
        let mut wraps = 0;
        while wraps < 3 {
            let len = match rng.one_in(20) {
                true => rng.below(30_000),
                false => rng.below(300),
            };
            let before = log.end().unwrap();
            let end = log.append(&[&vec![1; usize_from(len)], b"more"]).unwrap();
            wraps += u32::from(end.0 / areas.backup_log_bytes > before.0 / areas.backup_log_bytes);
            if rng.one_in(10) {
                log.sync(end).unwrap();
                marks += 1;
            }
            if rng.one_in(30) {
                log.mark_apart().unwrap();
            }
            if log.used_bytes().unwrap() > areas.backup_log_bytes / 2 {
                log.advance(log.end().unwrap());
            }
        }
        assert!(marks > 100, "both kinds of writes happened");
        assert_eq!(*device.reads.lock(), [], "{durability:?}");
        let ring = areas.backup_log_at..areas.backup_log_at + areas.backup_log_bytes;
        let writes = device.writes.lock();
        let in_log = writes.iter().filter(|(at, _)| ring.contains(at));
        for (at, len) in in_log {
            assert!(at.is_multiple_of(PAGE_BYTES), "{at}");
            assert!(
                len.is_multiple_of(PAGE_BYTES) && at + len <= ring.end,
                "{at} {len}"
            );
        }
    }
}

/// Fills the log to the last byte, with a start in the middle of a page.
fn filled(device: &Arc<MemDevice>, first: usize) -> (Opened, usize) {
    let opened = open(device).unwrap();
    let log = opened.volume.log();
    let start = log.append(&[&vec![1; first]]).unwrap();
    opened.volume.commit_delta(b"delta", start).unwrap();
    let mut count = 0;
    for len in [100_000, 1000, 0] {
        while log.append(&[&vec![2; len]]).is_ok() {
            count += 1;
        }
    }
    assert!(log.room_bytes().unwrap() <= HEADER, "nothing more fits");
    (opened, count)
}

#[test]
fn a_ring_that_is_full_keeps_its_first_records_in_the_page_of_its_last() {
    for first in [1, 500, 1000, 3000, 4000, 4040, 5000] {
        let device = Arc::new(fresh());
        let (opened, count) = filled(&device, first);
        let log = opened.volume.log();
        log.sync(log.end().unwrap()).unwrap();
        log.mark_apart().unwrap();
        assert!(log.used_bytes().unwrap() > log.capacity_bytes() - 2 * SLACK_BYTES);
        drop(opened);
        // Also if it is opened full, synced and marked again.
        for _ in 0..2 {
            let opened = open(&device).unwrap();
            let found = replay(&opened).unwrap();
            assert_eq!(found.len(), count, "start after {first}");
            assert!(found.iter().all(|record| record.iter().all(|b| *b == 2)));
            opened.volume.sync().unwrap();
            opened.volume.log().mark_apart().unwrap();
        }
    }
}

/// The first image with some units of the page at `page` from the second.
fn mixed(old: &MemDevice, new: &MemDevice, page: u64, unit: u64, mask: u64) -> MemDevice {
    let image = old.clone();
    for index in 0..PAGE_BYTES / unit {
        if mask >> index & 1 == 1 {
            let at = page + index * unit;
            let mut bytes = vec![0; usize_from(unit)];
            new.read_at(at, &mut bytes).unwrap();
            image.write_at(at, &[&bytes]).unwrap();
        }
    }
    image
}

#[test]
fn no_tear_of_a_page_that_is_written_again_harms_what_was_synced_in_it() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let page = opened.volume.superblock().areas.backup_log_at;
    let log = opened.volume.log();
    let mut synced = Vec::new();
    for round in 0..4u8 {
        let end = log
            .append(&[&vec![round; 150 * usize::from(round)]])
            .unwrap();
        log.sync(end).unwrap();
        synced.push(vec![round; 150 * usize::from(round)]);
        let old = (*device).clone();
        log.append(&[b"not synced"]).unwrap();
        log.append(&[b"nor this"]).unwrap();
        let new = (*device).clone();
        let tears = [512, 1024, 4096].map(|unit| (unit, 1 << (PAGE_BYTES / unit)));
        for (unit, masks) in tears {
            for mask in 0..masks {
                assert!(unit >= SECTOR_BYTES, "no unit is smaller");
                let image = Arc::new(mixed(&old, &new, page, unit, mask));
                let found = replay(&open(&image).unwrap()).unwrap();
                assert!(found.starts_with(&synced), "{unit} bytes, {mask:b}");
            }
        }
        synced.extend([b"not synced".to_vec(), b"nor this".to_vec()]);
    }
}

#[test]
fn a_sync_that_could_not_read_a_page_loses_nothing_that_comes_later() {
    // Where the ring is nearly full, a page is read that holds its first records.
    let mut failed = 0;
    for nth in 1..4 {
        let device = Arc::new(FaultDevice::new(fresh()));
        let opened = open_with(&device, Durability::Application).unwrap();
        let log = opened.volume.log();
        let start = log.append(&[&[1; 3000]]).unwrap();
        opened.volume.commit_delta(b"delta", start).unwrap();
        let mut kept = 0;
        for len in [100_000, 9000] {
            kept += std::iter::from_fn(|| log.append(&[&vec![2; len]]).ok()).count();
        }
        log.sync(log.end().unwrap()).unwrap();
        device.add(Fault::once(FaultOp::Read, device.calls().reads + nth));
        while let Ok(end) = log.append(&[&[3; 100]]) {
            kept += 1;
            if kept % 9 == 0 {
                failed += u32::from(log.sync(end).is_err());
            }
        }
        device.clear();
        log.sync(log.end().unwrap()).unwrap();
        drop(opened);
        let found = replay(&open(&device).unwrap()).unwrap();
        assert_eq!(found.len(), kept, "read {nth}");
    }
    assert!(failed > 0, "some reads did fail");
}
