use super::*;
use crate::entry::RangeDelete;
use crate::testing::run_script;

struct TextBlock {
    first: String,
    last: String,
    addr: u64,
    len_bytes: u64,
    seqnos: (u64, u64),
    deletes: bool,
    versions: bool,
    cut: bool,
}

/// `<first> <last> <addr> <len>` with `s<min>..<max>`, `d` (has deletes), `v` (has versions), `c` (cut).
fn block(line: &str) -> TextBlock {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut out = TextBlock {
        first: words[0].to_owned(),
        last: words[1].to_owned(),
        addr: words[2].parse().expect("an address"),
        len_bytes: words[3].parse().expect("a length"),
        seqnos: (1, 1),
        deletes: false,
        versions: false,
        cut: false,
    };
    for word in &words[4..] {
        match *word {
            "d" => out.deletes = true,
            "v" => out.versions = true,
            "c" => out.cut = true,
            seqnos => {
                let (min, max) = seqnos[1..].split_once("..").expect("a range");
                let number = |text: &str| text.parse().expect("a number");
                out.seqnos = (number(min), number(max));
            }
        }
    }
    out
}

fn run(text: &str) -> String {
    let mut inputs: Vec<Vec<TextBlock>> = Vec::new();
    let mut deletes = Vec::new();
    let mut snapshots = Vec::new();
    let mut bottom = false;
    let mut threshold = 0;
    let mut by_key: Vec<(&[u8], u64)> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["input"] => inputs.push(Vec::new()),
            ["bottom"] => bottom = true,
            ["snapshot", at] => snapshots.push(Seqno(at.parse().expect("a number"))),
            ["delete", start, end, at] => deletes.push(RangeDelete {
                start: start.as_bytes().to_vec(),
                end: end.as_bytes().to_vec(),
                seqno: Seqno(at.parse().expect("a number")),
            }),
            ["from", key, "threshold", bytes] => {
                by_key.push((key.as_bytes(), bytes.parse().expect("a number")));
            }
            ["steps", "max"] => threshold = u64::MAX,
            ["steps", bytes] => threshold = bytes.parse().expect("a number"),
            _ => inputs.last_mut().expect("an input").push(block(line)),
        }
    }
    let infos: Vec<Vec<BlockInfo<'_>>> = inputs
        .iter()
        .map(|blocks| blocks.iter().map(info).collect())
        .collect();
    let rules = StitchRules {
        threshold: &|first| {
            let given = by_key.iter().rfind(|(from, _)| *from <= first);
            given.map_or(threshold, |(_, bytes)| *bytes)
        },
        snapshots: &snapshots,
        range_deletes: &RangeDeletes::new(deletes),
        is_bottom: &|_, _| bottom,
    };
    let steps = plan_steps(&infos, &rules);
    steps.iter().map(|step| format!("{step}\n")).collect()
}

fn info(block: &TextBlock) -> BlockInfo<'_> {
    BlockInfo {
        first: block.first.as_bytes(),
        last: block.last.as_bytes(),
        addr: block.addr,
        len_bytes: block.len_bytes,
        min_seqno: Seqno(block.seqnos.0),
        max_seqno: Seqno(block.seqnos.1),
        has_deletes: block.deletes,
        has_versions: block.versions,
        is_cut: block.cut,
    }
}

#[test]
fn steps_are_as_written() {
    run_script("stitch.txt", run);
}

#[test]
fn snapshots_between_are_found() {
    let held = [Seqno(3), Seqno(7)];
    assert!(holds_any(&held, Seqno(3), Seqno(4)));
    assert!(!holds_any(&held, Seqno(4), Seqno(7)));
    assert!(holds_any(&held, Seqno(4), Seqno(8)));
    assert!(!holds_any(&held, Seqno(8), Seqno(9)));
}
