use super::super::{ALIGN, base_room};
use super::*;
use crate::testing::{fresh, open};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Generation};

const AREA: u64 = 512 << 10;
/// Length of a version without items, and of an edit.
const HEAD: u64 = 30;

/// A log without its bytes: its state, and the lengths of the items of its version.
struct Model {
    area: u64,
    state: LogState,
    items: Vec<u64>,
}

impl Model {
    fn new(area: u64) -> Self {
        let state = LogState {
            live: 0,
            tail: ALIGN,
            serial: 1,
            previous: 0,
            base_bytes: ALIGN,
            deltas_bytes: 0,
            log_start: Lsn(0),
            log_generation: Generation(1),
            log_durable: Lsn(0),
        };
        let items = Vec::new();
        Self { area, state, items }
    }

    fn bytes(&self) -> u64 {
        self.items.iter().sum::<u64>() + HEAD
    }

    fn put(&mut self, (kind, place): (ObjectKind, Place), lengths: ObjectLengths) {
        let len = match kind {
            ObjectKind::Base => lengths.after,
            _ => lengths.delta,
        };
        let (live, area) = (self.state.live % self.area, self.area);
        let (from, to) = (place.position % area, place.position % area + len);
        assert!(to <= area, "objects do not straddle");
        let live_end = live + self.state.base_bytes;
        assert!(
            to <= live || from >= live_end,
            "the live base is not overwritten"
        );
        self.state.tail = place.position + len;
        if kind == ObjectKind::Base {
            self.state.live = place.position;
            self.state.base_bytes = len;
            self.state.deltas_bytes = 0;
        } else {
            self.state.deltas_bytes += len;
        }
    }

    fn lengths(&self, edit: u64, after: u64) -> ObjectLengths {
        let object = ObjectHeader::object_bytes;
        ObjectLengths {
            delta: object(edit + HEAD),
            before: object(self.bytes()),
            after: object(after),
        }
    }

    fn change(&mut self, edit: u64, after: u64, may_use_reserve: bool) -> bool {
        let lengths = self.lengths(edit, after);
        let found = self.state.place(self.area, lengths, may_use_reserve);
        if let Some(found) = found {
            self.put(found, lengths);
        }
        found.is_some()
    }

    fn add(&mut self, item: u64) -> bool {
        let is_added = self.change(item, self.bytes() + item, false);
        if is_added {
            self.items.push(item);
        }
        is_added
    }

    /// Removes at once as many of the last items as make the version shorter by `bytes`.
    fn remove_many(&mut self, bytes: u64) -> bool {
        let (mut left, mut removed) = (self.items.clone(), 0);
        while removed < bytes {
            removed += left.pop().unwrap_or(bytes);
        }
        let after = left.iter().sum::<u64>() + HEAD;
        let is_removed = self.change(4 * (self.items.len() - left.len()) as u64, after, true);
        if is_removed {
            self.items = left;
        }
        is_removed
    }

    fn remove(&mut self, index: usize) -> bool {
        let item = self.items[index];
        let is_removed = self.change(4, self.bytes() - item, true);
        if is_removed {
            self.items.swap_remove(index);
        }
        is_removed
    }

    /// Adds an item as older programs did, which never checked whether the version fits. Returns
    /// false if the log took neither the delta nor the base.
    fn add_blindly(&mut self, item: u64) -> bool {
        let lengths = self.lengths(item, self.bytes() + item);
        let keep = keep_bytes(self.area, self.state.base_bytes);
        let mut found = None;
        if !self.state.wants_base(self.area) {
            let place = self.state.place_delta(self.area, lengths.delta, keep);
            found = place.map(|place| (ObjectKind::Delta, place));
        }
        if found.is_none() {
            let next = keep_bytes(self.area, lengths.after);
            let place = self.state.place_base(self.area, lengths.after, keep, next);
            found = place.map(|place| (ObjectKind::Base, place));
        }
        let Some(found) = found else {
            return false;
        };
        self.put(found, lengths);
        self.items.push(item);
        true
    }

    /// Simulates a crash that leaves the wrapping object of a change without the change.
    fn crash_in(&mut self, edit: u64, after: u64) {
        let lengths = self.lengths(edit, after);
        if let Some((_, place)) = self.state.place(self.area, lengths, true)
            && place.wraps
        {
            self.state.tail = place.position;
        }
    }
}

/// ObjectLengths of items, of one kind or several.
fn item(rng: &mut Rng, seed: u64) -> u64 {
    match seed % 5 {
        0 => 60,
        1 => 2000,
        2 => 200 + rng.below(2000),
        3 => 20_000 + rng.below(40_000),
        _ => [60, 2000, 9000][usize::try_from(rng.below(3)).unwrap()],
    }
}

/// Returns a log that took items until it was full.
fn filled_blindly(rng: &mut Rng, seed: u64, area: u64) -> Model {
    let mut log = Model::new(area);
    while {
        let next = item(rng, seed);
        log.add_blindly(next)
    } {}
    assert!(log.items.len() > 5, "seed {seed}: the log was filled");
    log
}

#[test]
fn a_log_that_older_programs_filled_takes_every_removal() {
    let mut once = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let area = AREA << (seed % 3);
        let mut log = filled_blindly(&mut rng, seed, area);
        while !log.items.is_empty() {
            let index = usize::try_from(rng.below(log.items.len() as u64)).unwrap();
            if log.remove(index) {
                continue;
            }
            // Only if each edit took much of its page. Then some of them go at once.
            assert!(![0, 3].contains(&(seed % 5)), "seed {seed}");
            let bytes = log.bytes();
            assert!(log.remove_many(area / 5), "seed {seed}: {bytes} bytes");
            once += 1;
        }
    }
    assert!((1..100).contains(&once), "{once} times several at once");
}

#[test]
fn a_version_that_gets_no_longer_always_fits() {
    let (mut refused, mut longest) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut log = Model::new(AREA);
        for step in 0..3000 {
            let is_crash = rng.one_in(20);
            let next = item(&mut rng, seed);
            // Filled, and kept full.
            if rng.one_in(4) && !log.items.is_empty() {
                let index = usize::try_from(rng.below(log.items.len() as u64)).unwrap();
                if is_crash {
                    log.crash_in(4, log.bytes() - log.items[index]);
                }
                assert!(log.remove(index), "seed {seed}, step {step}");
            } else {
                if is_crash {
                    log.crash_in(next, log.bytes() + next);
                }
                refused += u64::from(!log.add(next));
            }
            let same = log.bytes();
            assert!(log.change(100, same, true), "seed {seed}, step {step}");
            longest = longest.max(same);
        }
    }
    assert!(refused > 1000, "{refused} refused");
    assert!(longest > 2 * base_room(AREA), "{longest} bytes");
}

#[test]
fn a_version_of_a_fifth_of_the_area_always_fits() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut log = Model::new(AREA);
        let longest = base_room(AREA) - ALIGN;
        for step in 0..2000 {
            let next = item(&mut rng, seed);
            if log.bytes() + next <= longest {
                assert!(log.add(next), "seed {seed}, step {step}");
            } else {
                let index = usize::try_from(rng.below(log.items.len() as u64)).unwrap();
                assert!(log.remove(index), "seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn a_refused_change_writes_nothing_and_stops_nothing() {
    let device = Arc::new(fresh());
    let opened = open(&device).unwrap();
    let volume = &opened.volume;
    let base = || vec![b'b'; 400_000];
    let mut change = VersionChange {
        edit: &[b'e'; 300_000],
        base: &base,
        bytes_before: 10,
        bytes_after: 400_000,
        may_use_reserve: false,
        names_blocks: false,
    };
    let before = volume.device().counters().writes;
    let refused = volume.commit_change(&change, Lsn(0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("400000 bytes"), "{refused}");
    assert_eq!(volume.device().counters().writes, before);
    change.edit = b"edit";
    change.bytes_after = 20;
    volume.commit_change(&change, Lsn(0)).unwrap();
    drop(opened);
    assert_eq!(open(&device).unwrap().versions, [b"edit".to_vec()]);
}
