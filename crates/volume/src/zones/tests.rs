use super::*;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;

const AT: u64 = 1 << 20;
const ZONE: u64 = 256 << 10;
const A: Stream = Stream(1);
const B: Stream = Stream(2);

fn zones_of(zones_bytes: u64) -> Zones {
    Zones::new(&Areas {
        device_bytes: AT + zones_bytes,
        zone_bytes: ZONE,
        version_log_at: 8192,
        version_log_bytes: 65536,
        backup_log_at: 80 << 10,
        backup_log_bytes: 65536,
        zones_at: AT,
        zones_bytes,
    })
}

fn extent(offset: u64, len: u64) -> Extent {
    Extent {
        addr: AT + offset,
        len,
    }
}

#[test]
fn a_stream_appends_to_its_zone_and_streams_keep_apart() {
    let zones = zones_of(4 * ZONE);
    let first = zones.allocate(10_000, 512, A).unwrap();
    assert_eq!(first, extent(0, 10_240));
    assert_eq!(zones.allocate(512, 512, B).unwrap(), extent(ZONE, 512));
    assert_eq!(zones.allocate(4096, 512, A).unwrap(), extent(12_288, 4096));
    let long = zones.allocate(10 * ZONE, ZONE, A).unwrap();
    assert_eq!(long, extent(2 * ZONE, ZONE), "within one zone");
    zones.check();
}

#[test]
fn the_tail_that_is_given_back_is_used_next() {
    let zones = zones_of(4 * ZONE);
    let got = zones.allocate(100_000, 512, A).unwrap();
    let used = 4608;
    zones.give_back(Extent {
        addr: got.addr + used,
        len: got.len - used,
    });
    zones.give_back(extent(0, 0));
    assert_eq!(zones.usage().live, used);
    let next = zones.allocate(512, 512, A).unwrap();
    assert_eq!(next, extent(8192, 512), "the page is not shared");
    zones.check();
}

#[test]
fn holes_are_used_when_no_zone_is_free() {
    let zones = zones_of(2 * ZONE);
    zones.adopt(&[extent(0, 2 * ZONE)]).unwrap();
    assert_eq!(zones.usage().usable, 0);
    // Rounded inward: 4 KiB of the first hole, 8 KiB of the second, none of the third.
    zones.free(&[
        extent(512, 8192),
        extent(40_960, 8192),
        extent(ZONE + 512, 3584),
    ]);
    assert_eq!(zones.usage().free, 8192 + 8192 + 3584);
    assert_eq!(zones.usage().usable, 4096 + 8192);
    assert_eq!(zones.usage().largest_free, 8192);
    assert_eq!(
        zones.allocate(4096, 4096, A).unwrap(),
        extent(4096, 4096),
        "the best fit"
    );
    assert_eq!(
        zones.allocate(9000, 512, A).unwrap(),
        extent(40_960, 8192),
        "as much as there is"
    );
    let error = zones.allocate(4096, 512, A).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    zones.check();
}

#[test]
fn the_last_zone_may_be_short() {
    let zones = zones_of(ZONE + 8192);
    assert_eq!(zones.count(), 2);
    assert_eq!(zones.extent_of(ZoneId(1)), extent(ZONE, 8192));
    assert_eq!(zones.zone_of(AT + ZONE), Some(ZoneId(1)));
    assert_eq!(zones.zone_of(AT + ZONE + 8192), None);
    assert_eq!(zones.zone_of(AT - 1), None);
    zones.allocate(ZONE, ZONE, A).unwrap();
    assert_eq!(zones.allocate(ZONE, 512, A).unwrap(), extent(ZONE, 8192));
    assert_eq!(zones.usage().zones_free, 0);
    zones.check();
}

#[test]
fn adopting_what_cannot_be_owned_is_an_error() {
    for (bad, adopted) in [
        (extent(0, 0), None),
        (extent(0, 100), None),
        (extent(100, 512), None),
        (extent(0, 3 * ZONE), None),
        (Extent { addr: 0, len: 512 }, None),
        (
            Extent {
                addr: AT,
                len: u64::MAX - 511,
            },
            None,
        ),
        (extent(512, 512), Some(extent(0, 4096))),
        (extent(ZONE - 512, 1024), Some(extent(ZONE, 4096))),
    ] {
        let zones = zones_of(2 * ZONE);
        zones.adopt(adopted.as_slice()).unwrap();
        let error = zones.adopt(&[bad]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{bad:?}");
    }
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_second_free_is_a_mistake() {
    let zones = zones_of(2 * ZONE);
    let got = zones.allocate(4096, 4096, A).unwrap();
    zones.free(&[got]);
    zones.free(&[got]);
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_free_that_is_partly_of_holes_is_a_mistake() {
    let zones = zones_of(2 * ZONE);
    zones.allocate(4096, 4096, A).unwrap();
    zones.free(&[extent(512, 4096)]);
}

/// Compares random work with a plain map of granules.
#[test]
fn the_map_agrees_with_a_plain_one() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let zones = zones_of(3 * ZONE + 20_480);
        let total = usize::try_from(zones.total_bytes() / GRANULE_BYTES).unwrap();
        let mut live = vec![false; total];
        let mut owned: Vec<Extent> = Vec::new();
        let mut largest = 0;
        for _ in 0..300 {
            if rng.one_in(3) && !owned.is_empty() {
                // Free a part of an extent: its middle, like a stitch does.
                let index = usize::try_from(rng.below(owned.len() as u64)).unwrap();
                let whole = owned.swap_remove(index);
                let count = whole.len / GRANULE_BYTES;
                let start = rng.below(count);
                let len = 1 + rng.below(count - start);
                let cut = start * GRANULE_BYTES;
                let freed = Extent {
                    addr: whole.addr + cut,
                    len: len * GRANULE_BYTES,
                };
                zones.free(&[freed]);
                set(&mut live, freed, false);
                owned.extend(
                    [
                        Extent {
                            addr: whole.addr,
                            len: cut,
                        },
                        Extent {
                            addr: freed.end(),
                            len: whole.end() - freed.end(),
                        },
                    ]
                    .into_iter()
                    .filter(|e| e.len > 0),
                );
            } else {
                let want = 1 + rng.below(100_000);
                let min = 1 + rng.below(want);
                let stream = Stream(u8::try_from(rng.below(3)).unwrap());
                match zones.allocate(want, min, stream) {
                    Ok(got) => {
                        assert_eq!(got.addr % PAGE_BYTES, 0);
                        assert!(got.len >= min && got.len < want + GRANULE_BYTES);
                        assert_eq!(zones.zone_of(got.addr), zones.zone_of(got.end() - 1));
                        set(&mut live, got, true);
                        owned.push(got);
                    }
                    Err(_) => assert!(largest < min.next_multiple_of(GRANULE_BYTES)),
                }
            }
            zones.check();
            match rng.below(8) {
                0 => zones.close(&[extent(rng.below(4) * ZONE, ZONE)]),
                1 => zones.close(&[]),
                2 if zones.fenced().is_none() => {
                    // Refused if too much is live.
                    let _ = zones.fence((1 + rng.below(3)) * ZONE, 0, 0);
                }
                3 => zones.lift_fence(),
                4 => drop(zones.hold_zone(0)),
                _ => {}
            }
            zones.check();
            let is_limited = zones.is_closed() || zones.fenced().is_some();
            largest = if is_limited {
                0
            } else {
                zones.usage().largest_free
            };
            let count = live.iter().filter(|&&l| l).count() as u64;
            assert_eq!(zones.usage().live, count * GRANULE_BYTES, "seed {seed}");
        }
        zones.lift_fence();
        zones.close(&[]);
        let again = zones_of(zones.total_bytes());
        again.adopt(&owned).unwrap();
        again.check();
        assert_eq!(again.usage().usable, zones.usage().usable);
        assert!(owned.iter().all(|&e| again.is_live(e)));
        zones.free(&owned);
        zones.check();
        assert_eq!(zones.usage().live, 0);
        assert_eq!(zones.usage().zones_free, 4);
    }
}

fn set(live: &mut [bool], extent: Extent, value: bool) {
    let from = usize::try_from((extent.addr - AT) / GRANULE_BYTES).unwrap();
    let count = usize::try_from(extent.len / GRANULE_BYTES).unwrap();
    for granule in &mut live[from..from + count] {
        assert_ne!(*granule, value, "handed out or freed twice");
        *granule = value;
    }
}

#[test]
fn room_for_long_runs_leaves_short_holes_out() {
    let zones = zones_of(3 * ZONE);
    assert_eq!(zones.roomy_bytes(ZONE), 3 * ZONE);
    let whole = zones.allocate(ZONE, ZONE, A).unwrap();
    assert_eq!(zones.roomy_bytes(4096), 2 * ZONE);
    let hole = |offset, len| Extent {
        addr: whole.addr + offset,
        len,
    };
    zones.free(&[hole(0, 8192), hole(65_536, 32_768)]);
    assert_eq!(zones.roomy_bytes(4096), 2 * ZONE + 8192 + 32_768);
    assert_eq!(zones.roomy_bytes(0), 2 * ZONE + 8192 + 32_768);
    assert_eq!(zones.roomy_bytes(8193), 2 * ZONE + 32_768);
    zones.free(&[hole(16_384, 16_384)]);
    // Each hole counts whole extents only, but the longest of a zone may be used whole.
    assert_eq!(zones.roomy_bytes(12_288), 2 * ZONE + 12_288 + 24_576);
    assert_eq!(zones.roomy_bytes(20_480), 2 * ZONE + 32_768);
    let taken = zones.allocate_hole(16_384, 16_384);
    assert_eq!(taken, None, "the zone is open");
    zones.check();
    zones.adopt(&[hole(16_384, 16_384)]).unwrap();
    assert_eq!(zones.roomy_bytes(32_769), 2 * ZONE);
    assert_eq!(zones.scattered(32_769), [], "the zone is open");
    zones.allocate(4096, 4096, B).unwrap();
    zones.allocate(ZONE, ZONE, A).unwrap();
    let live = ZONE - 8192 - 32_768;
    let candidate = Candidate {
        zone: extent(0, ZONE),
        live,
        spans: 2,
    };
    assert_eq!(zones.scattered(32_769), [candidate]);
    assert_eq!(zones.scattered(32_768), []);
}

#[test]
fn a_free_zone_is_taken_over_before_holes_are_filled() {
    let zones = zones_of(2 * ZONE);
    let first = zones.allocate(ZONE, ZONE, A).unwrap();
    let second = zones.allocate(4096, 4096, B).unwrap();
    zones.free(&[extent(0, 8192), second]);
    assert_eq!(first.addr, AT);
    let next = zones.allocate(4096, 4096, A).unwrap();
    assert_eq!(next, extent(ZONE, 4096), "not in the hole");
    zones.check();
}

#[test]
fn nothing_is_handed_out_of_a_closed_zone_until_nothing_else_is_left() {
    let zones = zones_of(3 * ZONE);
    zones.close(&[extent(0, ZONE), extent(ZONE, 1)]);
    zones.check();
    let usable = zones.usage().usable;
    assert_eq!(usable, 3 * ZONE, "what is closed is still promised");
    assert_eq!(
        zones.allocate(ZONE, ZONE, A).unwrap(),
        extent(2 * ZONE, ZONE)
    );
    assert!(zones.is_closed());
    assert_eq!(zones.allocate(4096, 512, B).unwrap(), extent(0, 4096));
    assert!(!zones.is_closed(), "the evacuation is told");
    zones.check();
    zones.close(&[extent(0, ZONE)]);
    zones.close(&[]);
    assert_eq!(zones.allocate(4096, 512, B).unwrap(), extent(ZONE, 4096));
    zones.check();
}

#[test]
fn what_is_behind_the_fence_is_cut_off_when_it_is_empty() {
    let zones = zones_of(4 * ZONE);
    let low = zones.allocate(ZONE, ZONE, A).unwrap();
    zones.allocate(ZONE, ZONE, A).unwrap();
    let high = zones.allocate(8192, 512, A).unwrap();
    zones.free(&[low]);
    let error = zones.fence(ZONE + 8192, 0, 0).unwrap_err();
    assert!(matches!(error, VolumeError::TooSmall { .. }), "{error}");
    assert!(
        zones.fence(3 * ZONE - 4096, ZONE, 0).is_err(),
        "promised to others"
    );
    zones.fence(3 * ZONE - 4096, 0, 0).unwrap();
    zones.check();
    assert_eq!(zones.usable_bytes(), ZONE);
    assert_eq!(zones.fenced(), Some(extent(2 * ZONE, 2 * ZONE)));
    assert_eq!(zones.fenced_live_bytes(), Some(8192));
    let moved = zones.allocate(8192, 512, A).unwrap();
    assert_eq!(moved, extent(0, 8192));
    zones.free(&[high]);
    assert_eq!(zones.fenced_live_bytes(), Some(0));
    zones.cut(3 * ZONE - 4096);
    zones.check();
    assert_eq!((zones.count(), zones.usage().total), (3, 3 * ZONE - 4096));
    assert_eq!(zones.extent_of(ZoneId(2)), extent(2 * ZONE, ZONE - 4096));
    assert!(zones.adopt(&[extent(3 * ZONE - 4096, 512)]).is_err());
    zones.grow(4 * ZONE + 4096);
    zones.check();
    assert_eq!(zones.count(), 5);
    assert_eq!(zones.usage().free, 4 * ZONE + 4096 - ZONE - 8192);
    assert_eq!(
        zones.allocate(ZONE, ZONE, B).unwrap(),
        extent(2 * ZONE, ZONE)
    );
}

#[test]
fn a_write_wins_over_the_fence() {
    let zones = zones_of(2 * ZONE);
    zones.fence(ZONE, 0, 0).unwrap();
    assert_eq!(zones.allocate(ZONE, ZONE, A).unwrap(), extent(0, ZONE));
    assert_eq!(zones.allocate(512, 512, A).unwrap(), extent(ZONE, 512));
    assert_eq!(zones.fenced_live_bytes(), None, "the shrink is told");
    zones.check();
}

#[test]
fn zones_that_were_freed_are_told_of_once() {
    let zones = zones_of(3 * ZONE);
    assert!(zones.hold_dirty().is_none(), "nothing was freed yet");
    let whole = zones.allocate(2 * ZONE, ZONE, A).unwrap();
    let next = zones.allocate(4096, 512, A).unwrap();
    zones.free(&[whole]);
    let mut held = zones.hold_dirty().unwrap();
    assert_eq!(held.free, [whole]);
    assert!(zones.hold_dirty().is_none(), "one at a time");
    assert_eq!(
        zones.allocate(ZONE, ZONE, B).unwrap(),
        extent(2 * ZONE, ZONE)
    );
    assert_eq!(zones.roomy_bytes(8192), ZONE + (ZONE - 4096));
    held.is_told = true;
    drop(held);
    zones.check();
    assert!(zones.hold_dirty().is_none(), "it was told");
    zones.free(&[next]);
    assert_eq!(zones.hold_dirty().unwrap().free, [extent(ZONE, ZONE)]);
    assert!(zones.hold_dirty().is_some(), "it was not told");
    zones.check();
    let partly = zones.hold_zone(2).unwrap();
    assert_eq!(partly.free, []);
    drop(partly);
    assert!(zones.hold_zone(3).is_none());
}

#[test]
fn an_allocation_waits_for_a_zone_that_is_held() {
    let zones = Arc::new(zones_of(ZONE));
    let held = zones.hold_zone(0).unwrap();
    let other = Arc::clone(&zones);
    let waiting = stitch_base::thread::spawn("waits", move || other.allocate(ZONE, ZONE, A));
    drop(held);
    let got = waiting.unwrap().join().unwrap();
    assert_eq!(got.unwrap(), extent(0, ZONE));
}

#[test]
fn spans_are_runs_of_live_bytes() {
    let zones = zones_of(2 * ZONE);
    zones.allocate(ZONE, ZONE, A).unwrap();
    let spans = |zones: &Zones| zones.state.lock().zones[0].span_count();
    assert_eq!(spans(&zones), 1);
    zones.free(&[extent(8192, 512), extent(65_536, 4096)]);
    assert_eq!(spans(&zones), 3);
    zones.free(&[extent(0, 8192), extent(ZONE - 512, 512)]);
    assert_eq!(spans(&zones), 2);
    zones.free(&[
        extent(8704, 65_536 - 8704),
        extent(69_632, ZONE - 512 - 69_632),
    ]);
    assert_eq!(spans(&zones), 0);
}

#[test]
fn the_shortest_hole_that_will_do_is_filled_first() {
    let zones = zones_of(3 * ZONE);
    assert_eq!(
        zones.allocate_hole(4096, 4096),
        None,
        "free zones are no holes"
    );
    let first = zones.allocate(ZONE, ZONE, A).unwrap();
    let second = zones.allocate(ZONE, ZONE, A).unwrap();
    zones.allocate(ZONE, ZONE, A).unwrap();
    let hole = |zone: Extent, offset, len| Extent {
        addr: zone.addr + offset,
        len,
    };
    zones.free(&[hole(first, 8192, 4096), hole(second, 0, 16_384)]);
    let one = zones.allocate_hole(65_536, 512).unwrap();
    assert_eq!(one, hole(first, 8192, 4096), "as much as there is");
    let two = zones.allocate_hole(4096, 4096).unwrap();
    assert_eq!(two, hole(second, 0, 4096));
    assert_eq!(zones.allocate_hole(65_536, 16_384), None);
    zones.check();
}
