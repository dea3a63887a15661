//! The table of placements: batches and states, and where the messages go. No device is used.

use super::super::batch_text::batch_of;
use super::super::segments::SegmentPuts;
use super::*;
use stitch_kv::StreamName;

/// Bytes of a put beside a value of 128 bytes to 16 KiB: kind, tree, key and lengths.
const PUT_BYTES: u64 = 6;

/// A run has at least the bytes of three puts of 4096 bytes.
const FREE: PlacementState = PlacementState {
    run_bytes_min: 3 * (4096 + PUT_BYTES),
    is_synced_soon: false,
    has_zone_room: true,
};
const SYNCED: PlacementState = PlacementState {
    is_synced_soon: true,
    ..FREE
};
const FULL: PlacementState = PlacementState {
    has_zone_room: false,
    ..FREE
};
const NOTHING_AT_ONCE: PlacementState = PlacementState {
    run_bytes_min: u64::MAX,
    ..FREE
};

/// Streams 1 and 2 are long, 3 is short, and puts without a name continue stream 9, which is long.
/// All others are not known.
fn continued(puts: &SegmentPuts<'_>) -> Option<Continued> {
    let bytes_min = FREE.run_bytes_min;
    let (number, bytes) = match puts.puts.name {
        None => (9, bytes_min),
        Some(StreamName(number @ 1..=2)) => (number, bytes_min),
        Some(StreamName(3)) => (3, bytes_min - 1),
        Some(_) => return None,
    };
    let stream = WriteStreamId::numbered(u32::try_from(number).expect("small"));
    Some(Continued { stream, bytes })
}

/// Decides, and writes the parts as text: `log 2` for two messages in the log, `run 3` for a run of
/// three puts, `s1 4` for four puts in stream 1.
fn places(batch: &Batch<'_>, state: &PlacementState) -> String {
    let options = TreeOptions {
        value_block_bytes: 2048,
        ..TreeOptions::default()
    };
    let segments = Segments::of(batch, |_| Some(&options), |_| Ok(()));
    let mut segments = segments.expect("nothing is refused");
    segments.continue_streams(continued);
    let placement = Placement::decide(batch, &segments, state);
    check(batch, &placement);
    let text = |part: &Part| match part.destination {
        Destination::Log => format!("log {}", part.count),
        Destination::Run { .. } => format!("run {}", part.count),
        Destination::Stream { stream, .. } => format!("s{} {}", stream.number(), part.count),
    };
    placement
        .parts
        .iter()
        .map(text)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Checks that the parts cover the batch, and that the sums are those of the parts.
fn check(batch: &Batch<'_>, placement: &Placement) {
    let mut at = Position::default();
    for part in placement.parts.iter() {
        assert_eq!(part.range.start, at, "parts follow each other");
        at = part.range.end;
    }
    assert_eq!(at, batch.end(), "parts cover the batch");
    let pairs = placement.parts.windows(2);
    let both_logged = |pair: &[Part]| pair[0].is_logged() && pair[1].is_logged();
    assert_eq!(
        pairs.filter(|pair| both_logged(pair)).count(),
        0,
        "logged parts are joined"
    );
    let bytes_of = |is_wanted: fn(&Part) -> bool| -> u64 {
        let parts = placement.parts.iter().filter(|part| is_wanted(part));
        parts.map(Part::len_bytes).sum()
    };
    assert_eq!(placement.logged_bytes, bytes_of(Part::is_logged));
    assert_eq!(placement.direct_bytes, bytes_of(|part| !part.is_logged()));
    assert_eq!(
        placement.run_bytes,
        bytes_of(|part| matches!(part.destination, Destination::Run { .. }))
    );
    let logged = placement.parts.iter().filter(|part| part.is_logged());
    assert_eq!(
        placement.logged_count,
        logged.map(|part| part.count).sum::<u64>()
    );
}

#[test]
fn the_first_rule_that_fits_decides() {
    let table = [
        // 1: no room.
        ("a4096 b4096 c4096 d4096#1", FULL, "log 4"),
        // 2: records.
        ("x y a9 b100", FREE, "log 4"),
        ("a100#1", FREE, "log 1"),
        // 3: the partial value, after a run, after a stream, and alone.
        ("a4096 b4096 c4096 d512~", FREE, "run 3, log 1"),
        ("a4096#1 b512~#1 x", FREE, "s1 1, log 2"),
        ("a512~#1", FREE, "log 1"),
        // 4: a run, whatever its stream, whether a sync is near, and without value blocks.
        ("a4096 b4096 c4096", FREE, "run 3"),
        ("a4096#3 b4096#3 c4096#3", FREE, "run 3"),
        ("a4096 b4096 c4096", SYNCED, "run 3"),
        ("a2000 b2000 c2000 d2000 e2000 f2000 g2000", FREE, "run 7"),
        ("x a4096 b4096 c4096 y", FREE, "log 1, run 3, log 1"),
        // A run is of one tree, of rising keys and of one stream; a partial value does not count.
        ("a4096#3 b4096#3 2.c4096#3", FREE, "log 3"),
        ("a4096#3 b4096#3 b4096#3", FREE, "log 3"),
        ("a4096#3 b4096#3 c4096#4", FREE, "log 3"),
        ("a4096#3 b4096#3 c4096~#3", FREE, "log 3"),
        ("a4096#3 b4096#3 c4095#3", FREE, "log 3"),
        // 5: streams, each with an append extent.
        ("a4096#1", FREE, "s1 1"),
        ("a4096", FREE, "s9 1"),
        (
            "x a4096#1 b4096#1 c4096#2 y",
            FREE,
            "log 1, s1 2, s2 1, log 1",
        ),
        ("a4096 b4096 c4096 2.d4096#1", FREE, "run 3, s1 1"),
        // 6: the stream is short or not known, a sync is near, or the tree has no block for a
        // value.
        ("a4096#3", FREE, "log 1"),
        ("a4096#4 x", FREE, "log 2"),
        ("a4096#1", SYNCED, "log 1"),
        ("a2047#1", FREE, "log 1"),
        ("a4096#1 b2047#1", FREE, "log 2"),
        ("a4096#1 b4096#1 c4096#1 d4096", NOTHING_AT_ONCE, "log 4"),
    ];
    for (batch, state, expected) in table {
        assert_eq!(
            places(&batch_of(batch), &state),
            expected,
            "{batch}, {state:?}"
        );
        let lent = batch
            .split_whitespace()
            .map(|message| match message.contains('~') {
                true => message.to_owned(),
                false => format!("lent:{message}"),
            });
        let lent = batch_of(&lent.collect::<Vec<_>>().join(" "));
        assert_eq!(places(&lent, &state), expected, "lent: {batch}, {state:?}");
    }
}

#[test]
fn streams_are_looked_for_only_where_they_decide() {
    let options = TreeOptions {
        value_block_bytes: 2048,
        ..TreeOptions::default()
    };
    let follows = |batch: &str, state: PlacementState| {
        let batch = batch_of(batch);
        let segments = Segments::of(&batch, |_| Some(&options), |_| Ok(()));
        state.follows_streams(&segments.expect("nothing is refused"))
    };
    assert!(follows("x a2048#1", FREE));
    assert!(!follows("x a2047#1", FREE), "no value blocks");
    assert!(!follows("x a2048#1", SYNCED));
    assert!(!follows("x a2048#1", NOTHING_AT_ONCE));
}
