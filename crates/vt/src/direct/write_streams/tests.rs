//! Puts that continue a write stream, and its append extent.

use super::*;
use crate::entry::{EntryRef, Op};
use stitch_base::Seqno;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_volume::{FormatOptions, OpenOptions};

pub(super) const TREE: TreeId = TreeId(7);
const VALUE: [u8; 4088] = [0; 4088];

/// Write streams, and the memtable that their puts go to.
pub(super) struct Writer {
    pub(super) streams: WriteStreams,
    memtable: Memtable,
    seqno: Seqno,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            streams: WriteStreams::default(),
            memtable: Memtable::new(1 << 20),
            seqno: Seqno(0),
        }
    }

    /// Puts a key, 4 KiB with its value. Returns the length of its stream in bytes.
    pub(super) fn put(&mut self, tree: TreeId, key: u64) -> u64 {
        self.follow(tree, key).map_or(0, |(_, bytes)| bytes)
    }

    /// As [`Self::put`], with the stream.
    pub(super) fn follow(&mut self, tree: TreeId, key: u64) -> Option<(WriteStreamId, u64)> {
        self.follow_named(tree, key, None)
    }

    /// As [`Self::follow`], of a put that may name its stream.
    pub(super) fn follow_named(
        &mut self,
        tree: TreeId,
        key: u64,
        name: Option<StreamName>,
    ) -> Option<(WriteStreamId, u64)> {
        let key = key.to_be_bytes();
        let puts = Puts {
            tree,
            first: &key,
            last: &key,
            bytes: 4096,
            name,
        };
        self.streams.begin();
        let before = self.streams.follow(&puts, &self.memtable);
        self.seqno = self.seqno.next();
        let entry = EntryRef {
            key: &key,
            seqno: self.seqno,
            op: Op::Put(&VALUE),
        };
        self.memtable.insert(tree, &entry);
        self.streams.note_followed(&self.memtable);
        before
    }

    pub(super) fn seal(&mut self) {
        self.streams.seal(&self.memtable);
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
    assert_eq!(writer.put(TREE, 504), 0, "a stream has one end");
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
            "the range's own stream goes on"
        );
    }
}

#[test]
fn random_keys_make_few_long_streams() {
    let mut writer = Writer::new();
    let mut rng = Rng::new(6);
    let mut long = 0;
    for turn in 0..50_000 {
        if turn % 8000 == 0 {
            writer.seal();
        }
        long += u64::from(writer.put(TREE, rng.next_u64()) >= 64 << 10);
        assert!(writer.streams.streams.len() <= STREAMS_MAX);
    }
    assert!(long < 250, "{long} of 50,000");
}

#[test]
fn keys_put_again_in_order_make_a_stream_again() {
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
fn a_reused_number_is_not_taken_for_the_stream_before() {
    let mut writer = Writer::new();
    for key in 0..20_000u64 {
        // Each second put goes on with the one before it, and is never seen again.
        let (range, step) = (10_000 - key / 2, key % 2);
        assert_eq!(writer.put(TREE, (range << 32) + step * 9), step * 4096);
    }
    assert_eq!(writer.streams.streams.len(), STREAMS_MAX);
    let before = writer.put(TREE, (1 << 32) + 10);
    assert_eq!(before, 2 * 4096, "one of the last");
    let before = writer.put(TREE, (10_000 << 32) + 10);
    assert!(before <= 4096, "the first are forgotten");
}

pub(super) fn volume() -> Arc<Volume> {
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
        let Some((stream, _)) = writer.follow(TREE, key) else {
            assert_eq!(key, 0, "the first begins it");
            continue;
        };
        let place = writer
            .streams
            .place(&volume, stream, 4096, (&|_| true, &|| TableId(9)));
        let (addr, origin) = place.expect("there is space");
        assert_eq!(origin, TableId(9));
        assert!(end.is_none_or(|end| end == addr), "one after the other");
        end = Some(addr + 4096);
    }
    let taken = volume.zones().usage().live - before;
    assert_eq!(taken, *EXTENT_BYTES.start(), "just used up");
    let stream = writer.follow(TREE, 17).expect("it goes on").0;
    let more = writer
        .streams
        .place(&volume, stream, 512, (&|_| true, &|| TableId(10)));
    assert_eq!(more.expect("there is space").1, TableId(10), "new extent");
    let unused: u64 = writer
        .streams
        .append_extents()
        .map(|extent| extent.len)
        .sum();
    assert_eq!(unused, *EXTENT_BYTES.start() - 512);
    writer.streams.give_back();
    let left = volume.zones().usage().live - before;
    assert_eq!(left, *EXTENT_BYTES.start() + 512, "what was placed stays");
}

#[test]
fn rooms_take_a_small_part_of_the_space() {
    let volume = volume();
    let mut writer = Writer::new();
    for key in 0..500u64 {
        let key = key << 32;
        writer.put(TREE, key);
        let (stream, _) = writer.follow(TREE, key + 1).expect("it goes on");
        let place = writer
            .streams
            .place(&volume, stream, 4096, (&|_| true, &|| TableId(1)));
        place.expect("there is space");
    }
    let append_extents: u64 = writer
        .streams
        .append_extents()
        .map(|extent| extent.len)
        .sum();
    let total = volume.zones().usage().total;
    assert!(
        append_extents <= total / EXTENTS_PART,
        "{append_extents} of {total}"
    );
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
        let Some((stream, _)) = followed else {
            continue;
        };
        let place = writer
            .streams
            .place(&volume, stream, 4096, (&|_| true, &|| TableId(1)));
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
fn the_append_extent_of_a_steady_stream_is_prepared() {
    let puts = 512;
    let ready = ready_after(1, puts, u64::MAX);
    let share = ready as f64 / (puts * 4096) as f64;
    assert!((0.8..1.01).contains(&share), "{share} of what was put");
    let by_turns = ready_after(100, 30, u64::MAX);
    assert!(by_turns > 0, "a hundred streams by turns");
    let many = ready_after(600, 20, u64::MAX);
    assert_eq!(many, 0, "not if the kernel might write it first");
    assert_eq!(ready_after(1, puts, 8), 0, "not if a sync is near");
    let synced = ready_after(1, puts, 64);
    assert!(synced > 0 && synced <= ready, "{synced} of {ready}");
}
