//! Which puts go on with a streak, and the lane of a streak.

use super::*;
use crate::entry::{EntryRef, Op};
use stitch_base::Seqno;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_volume::{FormatOptions, OpenOptions};

const TREE: TreeId = TreeId(7);
const VALUE: [u8; 4088] = [0; 4088];

/// Streaks with the memtable into which their puts go.
struct Writer {
    streaks: Streaks,
    memtable: Memtable,
    seqno: Seqno,
}

impl Writer {
    fn new() -> Self {
        Self {
            streaks: Streaks::default(),
            memtable: Memtable::new(1 << 20),
            seqno: Seqno(0),
        }
    }

    /// Puts a key, 4 KiB with its value. Answers how many bytes were in its streak.
    fn put(&mut self, tree: TreeId, key: u64) -> u64 {
        self.follow(tree, key).map_or(0, |(_, bytes)| bytes)
    }

    /// As [`Self::put`], with the streak.
    fn follow(&mut self, tree: TreeId, key: u64) -> Option<(StreakId, u64)> {
        let key = key.to_be_bytes();
        let puts = Puts {
            tree,
            first: &key,
            last: &key,
            bytes: 4096,
            value_bytes_min: 4096,
        };
        self.streaks.begin();
        let before = self.streaks.follow(&puts, &self.memtable);
        self.seqno = self.seqno.next();
        let entry = EntryRef {
            key: &key,
            seqno: self.seqno,
            op: Op::Put(&VALUE),
        };
        self.memtable.insert(tree, &entry);
        self.streaks.note_followed(&self.memtable);
        before
    }

    fn seal(&mut self) {
        self.streaks.seal(&self.memtable);
        self.memtable = Memtable::new(1 << 20);
    }
}

#[test]
fn keys_in_order_are_a_row_also_from_one_memtable_to_the_next() {
    let mut writer = Writer::new();
    for key in 0..100 {
        if key == 50 {
            writer.seal();
        }
        assert_eq!(writer.put(TREE, key * 10), key * 4096);
    }
    writer.put(TREE, 500);
    assert_eq!(
        writer.put(TREE, 505),
        4096,
        "the last key of a memtable has one end"
    );
    assert_eq!(writer.put(TREE, 504), 0, "a streak has one end");
    assert_eq!(writer.put(TREE, 1000), 100 * 4096);
    assert_eq!(writer.put(TreeId(8), 1010), 0, "another tree");
}

#[test]
fn appends_to_many_ranges_are_as_many_rows() {
    let mut writer = Writer::new();
    let mut rng = Rng::new(5);
    let mut ends = vec![0; 500];
    for range in 0..500 {
        writer.put(TREE, range << 32);
    }
    for _ in 0..20_000 {
        let range = rng.below(500);
        let end = &mut ends[usize::try_from(range).expect("small")];
        *end += 1;
        let before = writer.put(TREE, (range << 32) + *end);
        assert!(
            before >= (*end - 1) * 4096,
            "the range's own streak goes on"
        );
    }
}

#[test]
fn random_keys_make_few_long_streaks() {
    let mut writer = Writer::new();
    let mut rng = Rng::new(6);
    let mut long = 0;
    for turn in 0..50_000 {
        if turn % 8000 == 0 {
            writer.seal();
        }
        long += u64::from(writer.put(TREE, rng.next_u64()) >= 64 << 10);
        assert!(writer.streaks.streaks.len() <= STREAKS_MAX);
    }
    assert!(long < 250, "{long} of 50,000");
}

#[test]
fn keys_put_again_in_order_are_a_streak_again() {
    let mut writer = Writer::new();
    for _ in 0..3 {
        let bytes: Vec<u64> = (0..20).map(|key| writer.put(TREE, key)).collect();
        assert_eq!(bytes[0], 0, "nothing is before the first");
        assert!(
            bytes.windows(2).all(|pair| pair[0] + 4096 == pair[1]),
            "{bytes:?}"
        );
    }
}

#[test]
fn a_streak_that_makes_way_is_not_taken_for_another() {
    let mut writer = Writer::new();
    for key in 0..20_000u64 {
        // Each second put goes on with the one before it, and is never seen again.
        let (range, step) = (10_000 - key / 2, key % 2);
        assert_eq!(writer.put(TREE, (range << 32) + step * 9), step * 4096);
    }
    assert_eq!(writer.streaks.streaks.len(), STREAKS_MAX);
    let before = writer.put(TREE, (1 << 32) + 10);
    assert_eq!(before, 2 * 4096, "one of the last");
    let before = writer.put(TREE, (10_000 << 32) + 10);
    assert!(before <= 4096, "the first are forgotten");
}

fn volume() -> Arc<Volume> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
    Volume::format(&*device, &FormatOptions::default(), &mut |_, _| {}).expect("it formats");
    let opened = Volume::open(device, &OpenOptions::default());
    opened.expect("it opens").volume
}

#[test]
fn values_of_a_row_follow_each_other_and_the_rest_is_given_back() {
    let volume = volume();
    let mut writer = Writer::new();
    let before = volume.zones().usage().live;
    let mut end: Option<u64> = None;
    for key in 0..17u64 {
        let Some((streak, _)) = writer.follow(TREE, key) else {
            assert_eq!(key, 0, "the first begins it");
            continue;
        };
        let place = writer
            .streaks
            .place(&volume, streak, 4096, (&|_| true, &|| TableId(9)));
        let (addr, origin) = place.expect("there is space");
        assert_eq!(origin, TableId(9));
        assert!(end.is_none_or(|end| end == addr), "one after the other");
        end = Some(addr + 4096);
    }
    let taken = volume.zones().usage().live - before;
    assert_eq!(taken, *LANE_BYTES.start(), "just used up");
    let streak = writer.follow(TREE, 17).expect("it goes on").0;
    let more = writer
        .streaks
        .place(&volume, streak, 512, (&|_| true, &|| TableId(10)));
    assert_eq!(more.expect("there is space").1, TableId(10), "new lane");
    let unused: u64 = writer.streaks.lanes().map(|lane| lane.len).sum();
    assert_eq!(unused, *LANE_BYTES.start() - 512);
    writer.streaks.give_back();
    let left = volume.zones().usage().live - before;
    assert_eq!(left, *LANE_BYTES.start() + 512, "what was placed stays");
}

#[test]
fn rooms_take_a_small_part_of_the_space() {
    let volume = volume();
    let mut writer = Writer::new();
    for key in 0..500u64 {
        let key = key << 32;
        writer.put(TREE, key);
        let (streak, _) = writer.follow(TREE, key + 1).expect("it goes on");
        let place = writer
            .streaks
            .place(&volume, streak, 4096, (&|_| true, &|| TableId(1)));
        place.expect("there is space");
    }
    let lanes: u64 = writer.streaks.lanes().map(|lane| lane.len).sum();
    let total = volume.zones().usage().total;
    assert!(lanes <= total / LANES_PART, "{lanes} of {total}");
}

/// Puts so many keys of each range by turns, with a sync after each of so many. Answers how much
/// was made ready.
fn ready_after(ranges: u64, rounds: u64, sync_every: u64) -> u64 {
    let device: Arc<dyn Device> = Arc::new(CrashDevice::new(64 << 20, CrashPlan::NEVER));
    Volume::format(&*device, &FormatOptions::default(), &mut |_, _| {}).expect("it formats");
    let opened = Volume::open(Arc::clone(&device), &OpenOptions::default());
    let volume = opened.expect("it opens").volume;
    let mut writer = Writer::new();
    let mut written = Vec::new();
    for step in 0..ranges * rounds {
        let (range, round) = (ranges - step % ranges, step / ranges);
        let followed = writer.follow(TREE, (range << 32) + round);
        let Some((streak, _)) = followed else {
            continue;
        };
        let place = writer
            .streaks
            .place(&volume, streak, 4096, (&|_| true, &|| TableId(1)));
        let (addr, _) = place.expect("there is space");
        let value = [u8::try_from(step % 251).expect("small"); 4096];
        volume.write(addr, &[&value]).expect("it is written");
        written.push((addr, value));
        if step % sync_every == sync_every - 1 {
            volume.sync().expect("it is synced");
        }
    }
    for (addr, value) in written {
        let mut found = [0; 4096];
        device.read_at(addr, &mut found).expect("it is read");
        assert_eq!(found, value, "what was written stays");
    }
    device.counters().prepared_bytes
}

#[test]
fn the_lane_of_a_steady_streak_is_made_ready() {
    let puts = 512;
    let ready = ready_after(1, puts, u64::MAX);
    let share = ready as f64 / (puts * 4096) as f64;
    assert!((0.8..1.01).contains(&share), "{share} of what was put");
    let by_turns = ready_after(100, 30, u64::MAX);
    assert!(by_turns > 0, "a hundred streaks by turns");
    let many = ready_after(600, 20, u64::MAX);
    assert_eq!(many, 0, "not if the kernel might write it first");
    assert_eq!(ready_after(1, puts, 8), 0, "not if a sync is near");
    let synced = ready_after(1, puts, 64);
    assert!(synced > 0 && synced <= ready, "{synced} of {ready}");
}
