use super::*;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;

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

/// Random work against a map of granules.
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
            largest = zones.usage().largest_free;
            let count = live.iter().filter(|&&l| l).count() as u64;
            assert_eq!(zones.usage().live, count * GRANULE_BYTES, "seed {seed}");
        }
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
    assert_eq!(
        zones.roomy_bytes(4096),
        2 * ZONE + 32_768,
        "the longest of each zone"
    );
    assert_eq!(zones.roomy_bytes(32_769), 2 * ZONE);
    assert_eq!(zones.scattered(32_769), [], "the zone is open");
    zones.allocate(4096, 4096, B).unwrap();
    zones.allocate(ZONE, ZONE, A).unwrap();
    let live = ZONE - 8192 - 32_768;
    assert_eq!(zones.scattered(32_769), [(extent(0, ZONE), live)]);
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
