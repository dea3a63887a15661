//! Write streams that their writers name.

use super::super::tests::{TREE, Writer, volume};
use super::super::{KEPT_TIMES_MIN, STREAMS_MAX};
use super::*;
use stitch_base::TableId;
use stitch_base::random::Rng;

const PAGE: u64 = 4096;
const F: StreamName = StreamName(1);
const G: StreamName = StreamName(2);

/// Returns the key of a chunk.
const fn chunk(file: StreamName, number: u64) -> u64 {
    (file.0 << 32) + number
}

impl Writer {
    /// Puts a chunk of a file. Returns the stream that it continues, and its length before.
    fn write(&mut self, file: StreamName, number: u64) -> Option<(WriteStreamId, u64)> {
        let followed = self.follow_named(TREE, chunk(file, number), Some(file));
        self.check();
        followed
    }

    /// Checks that names and records of streams agree.
    fn check(&self) {
        let WriteStreams { names, streams, .. } = &self.streams;
        let named = (0..).zip(streams).filter_map(|(number, stream)| {
            Some(((stream.tree, stream.name?), WriteStreamId(number)))
        });
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), names.len(), "a name has one stream");
        assert!(named.iter().all(|(name, id)| names.get(name) == Some(id)));
    }
}

#[test]
fn a_named_stream_goes_on_whatever_keys_lie_between() {
    let mut writer = Writer::new();
    // All odd keys are in the memtable, so that each even one has another key before it.
    for number in 0..200 {
        writer.put(TREE, chunk(F, 2 * number + 1));
    }
    for number in 0..100 {
        if number % 30 == 29 {
            writer.seal();
        }
        let before = writer.write(F, 4 * number);
        assert_eq!(
            before.map_or(0, |(_, bytes)| bytes),
            number * PAGE,
            "chunk {number}"
        );
    }
}

#[test]
fn files_written_by_turns_have_append_extents_of_their_own() {
    let volume = volume();
    let mut writer = Writer::new();
    let mut ends = [None; 2];
    for number in 0..48 {
        for (file, end) in [G, F].into_iter().zip(&mut ends) {
            let Some((stream, before)) = writer.write(file, number) else {
                assert_eq!(number, 0, "the first chunk begins the stream");
                continue;
            };
            assert_eq!(before, number * PAGE, "no put of the other file is counted");
            let place = writer
                .streams
                .place(&volume, stream, PAGE, (&|_| true, &|| TableId(1)));
            let (addr, _) = place.expect("there is space");
            // An append extent of this length has 16 pages.
            if number % 16 != 1 {
                assert_eq!(*end, Some(addr), "one behind the other: {file:?}, {number}");
            }
            *end = Some(addr + PAGE);
        }
    }
}

#[test]
fn a_smaller_key_leaves_the_stream_of_its_name_as_it_is() {
    let mut writer = Writer::new();
    for number in 0..50 {
        writer.write(F, 100 + number);
        // The head of the file is written again and again.
        assert_eq!(writer.write(F, 3), None, "it continues nothing");
    }
    let (_, before) = writer.write(F, 150).expect("it goes on");
    assert_eq!(before, 50 * PAGE);
    // The key that it ends with is not greater, either.
    assert_eq!(writer.write(F, 150), None);
    let (_, before) = writer.write(F, 151).expect("it goes on");
    assert_eq!(before, 51 * PAGE);
}

#[test]
fn two_writers_of_one_file_make_two_streams() {
    let mut writer = Writer::new();
    for number in 0..50 {
        writer.write(F, number);
        writer.write(F, 1000 + number);
    }
    let first = writer.write(F, 50).expect("found by its neighbour");
    let second = writer.write(F, 1050).expect("found by its name");
    assert!(first.0 != second.0, "{first:?} and {second:?}");
    assert!(
        first.1 >= 48 * PAGE && second.1 >= 48 * PAGE,
        "{first:?} and {second:?}"
    );
}

#[test]
fn small_files_that_follow_each_other_share_a_stream() {
    let mut writer = Writer::new();
    let mut bytes = 0;
    for file in 1..400 {
        if file % 150 == 0 {
            writer.seal();
        }
        for number in 0..3 {
            let followed = writer.write(StreamName(file), number);
            let before = followed.map_or(0, |(_, before)| before);
            assert_eq!(before, bytes, "file {file}, chunk {number}");
            bytes += PAGE;
        }
    }
    assert_eq!(writer.streams.names.len(), 1, "of the last file");
}

#[test]
fn a_name_that_is_not_used_is_forgotten() {
    let mut writer = Writer::new();
    for number in 0..20 {
        writer.write(F, number);
        writer.write(G, number);
    }
    writer.seal();
    assert_eq!(writer.streams.names.len(), 2);
    assert_eq!(
        writer.write(F, 0),
        None,
        "the stream of its name ends later"
    );
    writer.write(G, 20);
    writer.seal();
    assert_eq!(writer.streams.names.len(), 1, "no put continued the other");
    // The file is written anew from its beginning.
    assert_eq!(writer.write(F, 0), None);
    writer.put(TREE, chunk(F, 1));
    let (_, before) = writer.write(F, 2).expect("its name has a stream again");
    assert_eq!(before, PAGE);
}

#[test]
fn the_same_name_in_two_trees_names_two_streams() {
    let mut writer = Writer::new();
    for number in 0..10 {
        for tree in [TREE, TreeId(8)] {
            let followed = writer.follow_named(tree, number, Some(F));
            assert_eq!(followed.map_or(0, |(_, bytes)| bytes), number * PAGE);
        }
    }
    writer.check();
    assert_eq!(writer.streams.names.len(), 2);
}

#[test]
fn random_chunks_of_a_named_file_make_no_long_stream() {
    let mut writer = Writer::new();
    let mut rng = Rng::new(3);
    let mut long = 0;
    for turn in 0..30_000 {
        if turn % 8000 == 0 {
            writer.seal();
        }
        let followed = writer.write(F, rng.below(1 << 20));
        long += u64::from(followed.is_some_and(|(_, before)| before >= 64 << 10));
    }
    assert!(long < 150, "{long} of 30,000");
}

#[test]
fn streams_stay_bounded_with_any_number_of_names() {
    let mut writer = Writer::new();
    let write = |writer: &mut Writer, file, number| {
        let name = StreamName(file);
        writer.follow_named(TREE, chunk(name, number), Some(name))
    };
    // From the last file to the first, so that none follows another.
    for file in (1..=STREAMS_MAX as u64 + 5000).rev() {
        write(&mut writer, 2 * file, 5);
        if file % 4000 == 0 {
            let (stream, _) = write(&mut writer, 2 * file, 6).expect("it goes on");
            writer.seal();
            let kept = &writer.streams.streams[stream.0 as usize];
            assert_eq!(kept.name, Some(StreamName(2 * file)));
        }
    }
    writer.check();
    assert!(KEPT_TIMES_MIN == 2 && writer.streams.streams.len() == STREAMS_MAX);
    assert!(writer.streams.names.len() <= STREAMS_MAX);
}
