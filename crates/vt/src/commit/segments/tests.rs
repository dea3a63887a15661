//! Segments and figures of batches.

use super::super::batch_text::batch_of;
use super::*;

impl<'a> Segments<'a> {
    /// Returns the segments of a batch.
    pub(in crate::commit) fn of<'o>(
        batch: &'a Batch<'_>,
        options_of: impl Fn(TreeId) -> Option<&'o TreeOptions>,
        check: impl Fn(Message<'_>) -> Result<(), KvError>,
    ) -> Result<Self, KvError> {
        let mut segments = Self::new();
        segments.fill(batch, options_of, check)?;
        Ok(segments)
    }
}

fn options_of(tree: TreeId) -> Option<&'static TreeOptions> {
    static OPTIONS: std::sync::OnceLock<TreeOptions> = std::sync::OnceLock::new();
    let options = OPTIONS.get_or_init(|| TreeOptions {
        value_block_bytes: 2048,
        ..TreeOptions::default()
    });
    (tree.0 < 9).then_some(options)
}

fn segments<'a>(batch: &'a Batch<'_>) -> Segments<'a> {
    Segments::of(batch, options_of, |_| Ok(())).expect("nothing is refused")
}

/// Segments as text: `r2` for two records, `p3` for three puts, with `b` if all have value blocks,
/// `~` if the last is partial, and the name of their stream.
fn text(batch: &Batch<'_>) -> String {
    let segments = segments(batch);
    let mut at = Position::default();
    let mut text = Vec::new();
    for segment in segments.iter() {
        assert_eq!(segment.range.start, at, "segments follow each other");
        at = segment.range.end;
        let Some(puts) = &segment.puts else {
            text.push(format!("r{}", segment.count));
            continue;
        };
        let len = segment.range.end.since(&segment.range.start) as u64;
        assert_eq!(puts.puts.bytes, len, "a stream counts partial values");
        let blocks = if puts.are_blocks { "b" } else { "" };
        let partial = if segment.is_partial() { "~" } else { "" };
        let name = puts.puts.name.map(|name| format!("#{}", name.0));
        let name = name.unwrap_or_default();
        text.push(format!("p{}{blocks}{partial}{name}", segment.count));
    }
    let len = at.since(&Position::default());
    assert_eq!(len, batch.len_bytes(), "segments cover the batch");
    text.join(" ")
}

#[test]
fn a_segment_has_messages_of_one_kind() {
    let table = [
        ("", ""),
        ("x", "r1"),
        ("x y a9 b100", "r4"),
        ("a300 b300 c300", "p3"),
        ("x a300 b300 y z", "r1 p2 r2"),
        // Keys that do not rise, and another tree.
        ("a300 b300 b300 c300", "p2 p2"),
        ("b300 a300", "p1 p1"),
        ("a300 2.b300", "p1 p1"),
        // Values that are short beside their keys.
        ("a300 bbbbbbbbbbbb300 c300", "p1 r1 p1"),
        // Names of write streams.
        ("a300#1 b300#1 c300#2 d300", "p2#1 p1#2 p1"),
        ("a9#1", "r1"),
        // Value blocks: each value has one, or a partial value may have any length.
        ("a2048 b4096", "p2b"),
        ("a2048 b2047", "p2"),
        ("9.a2048", "p1"),
        ("a4096#1 b512~#1", "p2b~#1"),
        ("a512~", "p1b~"),
        // Nothing follows a partial value in its segment.
        ("a4096 b512~ c4096", "p2b~ p1b"),
    ];
    for (batch, expected) in table {
        assert_eq!(text(&batch_of(batch)), expected, "{batch}");
        let lent = batch
            .split_whitespace()
            .map(|message| match message.contains('~') {
                true => message.to_owned(),
                false => format!("lent:{message}"),
            });
        let lent: Vec<String> = lent.collect();
        assert_eq!(text(&batch_of(&lent.join(" "))), expected, "lent: {batch}");
    }
}

#[test]
fn figures_count_each_message() {
    let batch = batch_of("x a300 2.bb4096 2.c2560");
    let tally = segments(&batch).tally;
    assert_eq!(tally.trees.iter().count(), 2);
    assert_eq!(tally.data_bytes, 1 + 301 + 4098 + 2561);
    assert!(tally.has_deletes);
    // Of the two value blocks one is of whole pages.
    assert_eq!(tally.overhead_bytes, 2 + 1 + 2 * VALUE_BLOCK_OVERHEAD_BYTES);
    assert_eq!((tally.page_bytes, tally.pages_run), (4096, 4096));
    assert_eq!((tally.longest_key, tally.longest_operand), (2, 2560));
    let tally = segments(&batch_of("a300")).tally;
    assert!(!tally.has_deletes && tally.overhead_bytes == 0);
}

#[test]
fn a_refused_message_refuses_the_batch() {
    let batch = batch_of("a300 b300 c300");
    let check = |message: Message<'_>| match message.key() {
        b"b" => Err(KvError::Invalid("b".to_owned())),
        _ => Ok(()),
    };
    let refused = Segments::of(&batch, options_of, check);
    assert!(matches!(refused.map(drop), Err(KvError::Invalid(_))));
}

#[test]
fn streams_are_looked_for_where_all_values_have_blocks() {
    let batch = batch_of("a4096#1 b300#2 c4096 c9 d512~#3");
    let mut found = Vec::new();
    segments(&batch).continue_streams(|puts| {
        found.push((puts.puts.last, puts.puts.name.map(|name| name.0)));
        None
    });
    assert_eq!(found, [(&b"a"[..], Some(1)), (b"c", None), (b"d", Some(3))]);
}
