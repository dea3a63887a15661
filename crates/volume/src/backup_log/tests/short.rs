use super::*;
use crate::backup_log::PAGE_BYTES;
use crate::window::usize_from;
use stitch_base::random::Rng;
use stitch_format::log_record::short::{SHORT_HEADER_BYTES, ShortRecord};
use stitch_format::superblock::{COPIES, COPY_BYTES, Superblock};

/// Appends records of these lengths, each with another fill byte. Returns the position of each, and
/// the end.
fn append_all(opened: &Opened, lens: &[usize]) -> Vec<u64> {
    let log = opened.volume.log();
    let mut places = vec![log.end().unwrap().0];
    for (index, &len) in lens.iter().enumerate() {
        let byte = u8::try_from(index % 251).unwrap();
        places.push(log.append(&[&vec![byte; len]]).unwrap().0);
    }
    places
}

fn lens_of(opened: &Opened) -> Vec<usize> {
    replay(opened).unwrap().iter().map(Vec::len).collect()
}

fn ring_at(opened: &Opened) -> u64 {
    opened.volume.superblock().areas.backup_log_at
}

fn gaps(places: &[u64]) -> Vec<u64> {
    places.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Bytes of a record with a long header, and with a short one.
fn bytes_of(len: u64) -> (u64, u64) {
    (
        RecordHeader::record_bytes(len),
        ShortRecord::record_bytes(len),
    )
}

/// Sets the format version in both superblocks.
fn set_format(device: &Arc<MemDevice>, version: (u16, u16)) {
    for address in COPIES {
        let mut bytes = vec![0; COPY_BYTES];
        device.read_at(address, &mut bytes).unwrap();
        let mut copy = Superblock::decode(&bytes, address).unwrap().unwrap();
        (copy.version, copy.readable) = (version, version);
        device.write_at(address, &[&copy.encode(address)]).unwrap();
    }
}

#[test]
fn what_tells_nothing_new_is_short() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    let (long, short) = bytes_of(77);
    assert_eq!((long, short), (112, 88));
    let places = append_all(&opened, &[77; 200]);
    let mut page = None;
    for pair in places.windows(2) {
        let begins = page_of(Lsn(pair[0]));
        let expected = if page == Some(begins) { short } else { long };
        assert_eq!(pair[1] - pair[0], expected, "{pair:?}");
        page = Some(begins);
    }
    let total = places[200] - places[0];
    assert!(total * 100 < 200 * short * 101, "{total} bytes");
    // A sync and a version are news.
    log.sync(Lsn(places[200])).unwrap();
    assert_eq!(gaps(&append_all(&opened, &[77; 3])), [long, short, short]);
    opened
        .volume
        .commit_delta(b"delta", log.end().unwrap())
        .unwrap();
    assert_eq!(gaps(&append_all(&opened, &[77; 3])), [long, short, short]);
    drop(opened);
    // So is a new generation.
    let opened = open(&device).unwrap();
    assert_eq!(lens_of(&opened), [77; 3]);
    assert_eq!(gaps(&append_all(&opened, &[77; 3])), [long, short, short]);
}

#[test]
fn a_payload_too_long_for_it_has_a_long_header() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let most = ShortRecord::PAYLOAD_BYTES_MAX;
    let lens = [1, most, 0, 1, most + 1, 0].map(usize_from);
    let found = gaps(&append_all(&opened, &lens));
    assert_eq!(found[1], bytes_of(most).1);
    assert_eq!(found[2], bytes_of(0).0, "the first that begins in its page");
    assert_eq!(found[3], bytes_of(1).1);
    assert_eq!(found[4], bytes_of(most + 1).0);
    drop(opened);
    assert_eq!(lens_of(&open(&device).unwrap()), lens);
}

#[test]
fn small_records_come_back_through_wraps_lives_and_kinds_of_durability() {
    for (seed, durability) in [Durability::Device, Durability::Os, Durability::Application]
        .into_iter()
        .enumerate()
    {
        let device = Arc::new(fresh());
        let mut rng = Rng::new(seed as u64);
        let mut kept: Vec<Vec<u8>> = Vec::new();
        for life in 0..6 {
            let opened = open_with(&device, durability).unwrap();
            assert_eq!(replay(&opened).unwrap(), kept, "life {life}");
            let log = opened.volume.log();
            for number in 0..6000 {
                if log.room_bytes().unwrap() < 10_000 {
                    commit_all(&opened);
                    kept.clear();
                }
                let most = if rng.one_in(50) { 9000 } else { 150 };
                let bytes = record(number, usize_from(rng.below(most)));
                log.append(&[&bytes[..3], &bytes[3..]]).unwrap();
                kept.push(bytes);
                if rng.one_in(40) {
                    log.sync(log.end().unwrap()).unwrap();
                }
            }
            log.sync(log.end().unwrap()).unwrap();
        }
        let opened = open(&device).unwrap();
        assert_eq!(replay(&opened).unwrap(), kept);
        assert!(opened.volume.log().end().unwrap().0 > RING, "it wrapped");
    }
}

#[test]
fn a_log_can_start_at_any_short_record() {
    let device = Arc::new(fresh());
    let mut all = Vec::new();
    // Two generations in one page.
    for life in 0..2 {
        let opened = open(&device).unwrap();
        assert_eq!(lens_of(&opened).len(), life * 10);
        let places = append_all(&opened, &[20; 10]);
        assert_eq!(gaps(&places)[0], bytes_of(20).0, "life {life}");
        assert_eq!(gaps(&places)[1..], [bytes_of(20).1; 9]);
        all.extend_from_slice(&places[..10]);
    }
    for (index, &start) in all.iter().enumerate() {
        let opened = open(&device).unwrap();
        opened.volume.commit_delta(b"delta", Lsn(start)).unwrap();
        drop(opened);
        let opened = open(&device).unwrap();
        assert_eq!(opened.log_start, Lsn(start));
        assert_eq!(lens_of(&opened).len(), 20 - index, "from {start}");
    }
}

#[test]
fn every_bit_of_an_unsynced_record_ends_the_log_before_it() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let lens = [30, 0, 1, 40, 7, 8, 9];
    let places = append_all(&opened, &lens);
    let at = ring_at(&opened);
    drop(opened);
    for index in 1..lens.len() {
        for byte in 0..SHORT_HEADER_BYTES + lens[index] {
            for bit in 0..8 {
                let damaged = FaultDevice::new((*device).clone());
                let offset = at + places[index] + byte as u64;
                damaged.corrupt(offset, 1 << bit).unwrap();
                let found = lens_of(&open(&Arc::new(damaged)).unwrap());
                assert_eq!(found, lens[..index], "byte {byte} of {index}, bit {bit}");
            }
        }
    }
}

#[test]
fn wherever_the_end_is_torn_off_the_records_before_it_are_there() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let lens = [70, 0, 77, 3, 90, 14];
    let places = append_all(&opened, &lens);
    let at = ring_at(&opened);
    drop(opened);
    let read = |device: &MemDevice, index: usize| {
        let header = if index == 0 {
            HEADER_BYTES
        } else {
            SHORT_HEADER_BYTES
        };
        let mut bytes = vec![0; header + lens[index]];
        device.read_at(at + places[index], &mut bytes).unwrap();
        bytes
    };
    for cut in 0..=places[lens.len()] {
        for junk in [0, 0x53, 0xff] {
            let torn = (*device).clone();
            torn.write_at(at + cut, &[&[junk; 600]]).unwrap();
            let is_whole = |&index: &usize| read(&torn, index) == read(&device, index);
            let count = (0..lens.len()).take_while(is_whole).count();
            let found = lens_of(&open(&Arc::new(torn)).unwrap());
            assert_eq!(found, lens[..count], "cut at {cut}");
        }
    }
}

#[test]
fn a_tail_that_was_lost_stays_lost_though_short_records_fit_behind() {
    // The second life writes what has the length of what was lost; what is behind is whole.
    let lens = [24; 12];
    for lost in 0..11 {
        let device = Arc::new(fresh());
        let opened = open(&device).unwrap();
        let places = append_all(&opened, &lens);
        let at = ring_at(&opened);
        drop(opened);
        device.write_at(at + places[lost], &[&[0; 8]]).unwrap();
        let opened = open(&device).unwrap();
        assert_eq!(replay(&opened).unwrap().len(), lost);
        let log = opened.volume.log();
        // A long record ends where short ones, of the same page, began.
        let gap = if lost == 0 { 56 } else { 64 };
        let end = log.append(&[&vec![1; gap - HEADER_BYTES]]).unwrap();
        assert!(places.contains(&end.0), "{lost}: {end} in {places:?}");
        assert_eq!(replay(&opened).unwrap().len(), lost + 1);
        drop(opened);
        let opened = open(&device).unwrap();
        assert_eq!(replay(&opened).unwrap().len(), lost + 1, "another life");
        opened.volume.commit_delta(b"delta", end).unwrap();
        drop(opened);
        let opened = open(&device).unwrap();
        assert_eq!(opened.log_start, end);
        assert_eq!(replay(&opened).unwrap().len(), 0, "also from there on");
    }
}

#[test]
fn records_of_the_round_before_are_no_records() {
    // Rounds of the same records, so that old ones stand just where new ones would.
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    for round in 0..3 {
        log.advance(log.end().unwrap());
        while log.end().unwrap().0 < RING * round + RING - 200 {
            log.append(&[&[5; 48]]).unwrap();
            if log.used_bytes().unwrap() > RING / 2 {
                log.advance(log.end().unwrap());
            }
        }
        log.advance(log.end().unwrap());
        while log.end().unwrap().0 <= RING * (round + 1) {
            log.append(&[&[5; 48]]).unwrap();
        }
    }
    // Now every place of the ring has such a record.
    for count in 1..150 {
        commit_all(&opened);
        append_all(&opened, &[48; 30]);
        let copy = Arc::new((*device).clone());
        let found = lens_of(&open(&copy).unwrap());
        assert_eq!(found, [48; 30], "{count}");
    }
}

#[test]
fn every_distance_from_the_ring_s_end_is_survived_by_short_records() {
    for gap in (8..=256).step_by(8) {
        for len in [0, 8, 16, 24, 40, 100] {
            let device = Arc::new(fresh());
            let opened = open(&device).unwrap();
            let log = opened.volume.log();
            while log.end().unwrap().0 < RING - 9000 {
                log.append(&[&[7; 8000]]).unwrap();
                if log.used_bytes().unwrap() > RING / 2 {
                    log.advance(log.end().unwrap());
                }
            }
            let left = RING - PAGE_BYTES - log.end().unwrap().0;
            log.append(&[&vec![7; usize_from(left - HEADER)]]).unwrap();
            // The last page: a long record, and short ones from the distance on.
            let end = log.append(&[&vec![7; usize_from(PAGE_BYTES - gap - HEADER)]]);
            assert_eq!(end.unwrap().0, RING - gap);
            let start = log.end().unwrap();
            log.advance(start);
            let places = append_all(&opened, &[len; 40]);
            let mut seen = Vec::new();
            let visit: &mut Visit<'_, VolumeError> = &mut |_, bytes| {
                seen.push(bytes.len());
                Ok(())
            };
            log.replay(start, visit).unwrap();
            assert_eq!(seen, [len; 40], "{len} bytes, {gap} before the end");
            assert!(places[40] > RING, "they went round");
            opened.volume.commit_delta(b"delta", start).unwrap();
            drop(opened);
            assert_eq!(lens_of(&open(&device).unwrap()), [len; 40]);
        }
    }
}

#[test]
fn what_was_synced_is_missed_though_the_page_of_the_next_long_record_is_lost_too() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let log = opened.volume.log();
    append_all(&opened, &[64; 10]);
    log.sync(log.end().unwrap()).unwrap();
    // One long record says so in this page, and one in each page that follows.
    append_all(&opened, &[64; 200]);
    assert!(log.end().unwrap().0 > 3 * PAGE_BYTES);
    let at = ring_at(&opened);
    drop(opened);
    for pages in 1..3 {
        let damaged = (*device).clone();
        let zeros = vec![0; usize_from(pages * PAGE_BYTES)];
        damaged.write_at(at, &[&zeros]).unwrap();
        let error = replay(&open(&Arc::new(damaged)).unwrap()).unwrap_err();
        assert!(matches!(error, VolumeError::LogDamaged { .. }), "{error}");
    }
}

#[test]
fn a_record_that_was_not_written_has_told_nothing() {
    // Reads may fail and succeed again: that of the log's last page, which every write repeats.
    let mut failed = 0;
    for first in 1..12 {
        let device = Arc::new(FaultDevice::new(fresh()));
        append_all(&open(&device).unwrap(), &[30; 4]);
        let opened = open(&device).unwrap();
        let mut kept = replay(&opened).map_or(0, |records| records.len());
        assert_eq!(kept, 4);
        drop(opened);
        let opened = open(&device).unwrap();
        let reads = device.calls().reads;
        for number in first..first + 4 {
            device.add(Fault::once(FaultOp::Read, reads + number));
        }
        for _ in 0..12 {
            match opened.volume.log().append(&[&[6; 30]]) {
                Ok(_) => kept += 1,
                Err(_) => failed += 1,
            }
        }
        drop(opened);
        device.clear();
        let opened = open(&device).unwrap();
        assert_eq!(replay(&opened).unwrap().len(), kept, "from read {first} on");
    }
    assert!(failed > 4, "some reads did fail");
}

#[test]
fn a_store_of_an_older_format_has_no_short_records() {
    for version in [(2, 0), (2, 1), (2, 2)] {
        let device = Arc::new(fresh());
        set_format(&device, version);
        let opened = open(&device).unwrap();
        assert_eq!(gaps(&append_all(&opened, &[77; 9])), [bytes_of(77).0; 9]);
        opened.volume.close().unwrap();
        drop(opened);
        let opened = open(&device).unwrap();
        assert_eq!(opened.volume.superblock().readable, version, "not raised");
        assert_eq!(lens_of(&opened), [77; 9]);
    }
    // Nor are they read as records there: no such program has written them.
    let device = Arc::new(fresh());
    append_all(&open(&device).unwrap(), &[77; 9]);
    set_format(&device, (2, 2));
    assert_eq!(lens_of(&open(&device).unwrap()), [77]);
}
