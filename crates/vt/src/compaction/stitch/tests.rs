use super::*;
use crate::entry::RangeDelete;
use crate::key_moments::tests::of_range;
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

/// `<first> <last> <addr> <len>` with `s<min>..<max>`, `d` (has deletes), `v` (has versions), `c`
/// (cut).
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
    let (mut snapshots, mut ranged) = (Vec::new(), Vec::new());
    let mut bottom = false;
    let mut threshold = 0;
    let mut by_key: Vec<(&[u8], u64)> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["input"] => inputs.push(Vec::new()),
            ["bottom"] => bottom = true,
            ["snapshot", at] => snapshots.push(Seqno(at.parse().expect("a number"))),
            ["snapshot", at, start, end] => ranged.push(of_range(at, (start, end))),
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
    let moments = KeyMoments::new(snapshots, ranged);
    let rules = StitchRules {
        threshold: &|first| {
            let given = by_key.iter().rfind(|(from, _)| *from <= first);
            given.map_or(threshold, |(_, bytes)| *bytes)
        },
        moments: &moments,
        range_deletes: &Fragments::new(&deletes, &moments),
        is_bottom: &|_, _| bottom,
    };
    let steps = plan_steps(&infos, &rules);
    for batch in [1, 2, 5] {
        let parted = plan_in_batches(&infos, &rules, batch);
        assert_eq!(fates(&parted), fates(&steps), "in batches of {batch}");
    }
    steps.iter().map(|step| format!("{step}\n")).collect()
}

/// What becomes of each block, however it is divided into steps: what is written, in the order that
/// it is written in; then what is dropped, whenever that is.
fn fates(steps: &[Step]) -> Vec<(&'static str, usize, usize)> {
    let blocks = |name: &'static str, step: &Step| {
        let pieces = step.pieces().iter();
        let blocks = pieces.flat_map(|p| p.blocks.clone().map(move |b| (name, p.input, b)));
        blocks.collect::<Vec<_>>()
    };
    let (mut out, mut merged, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Drop(_) => dropped.extend(blocks("drop", step)),
            Step::Merge(_) => merged.extend(blocks("merge", step)),
            Step::Stitch(_) => {
                // Blocks of a merge are in the order of their keys, whatever their input.
                merged.sort_unstable();
                out.append(&mut merged);
                out.extend(blocks("stitch", step));
            }
        }
    }
    merged.sort_unstable();
    dropped.sort_unstable();
    [out, merged, dropped].concat()
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

/// Two inputs of many blocks that take turns, then a long run: no step waits for the end.
#[test]
fn steps_go_out_when_they_are_large() {
    let rules = StitchRules {
        threshold: &|_| 50,
        moments: &KeyMoments::default(),
        range_deletes: &Fragments::new(&[], &KeyMoments::default()),
        is_bottom: &|_, _| false,
    };
    let mut planner = Planner::new(&rules, 16);
    let mut waiting = 0;
    let mut most = 0;
    for number in 0..3000_usize {
        let key = format!("{number:06}");
        // The first 1000 take turns, far apart; the others follow each other.
        let (input, block) = match number {
            0..1000 => (number % 2, number / 2),
            _ => (0, number - 500),
        };
        planner.push(
            input,
            block,
            &BlockInfo {
                first: key.as_bytes(),
                last: key.as_bytes(),
                addr: u64::try_from(number * 10).expect("small"),
                len_bytes: 10,
                min_seqno: Seqno(1),
                max_seqno: Seqno(1),
                has_deletes: false,
                has_versions: false,
                is_cut: false,
            },
        );
        waiting += 1;
        while let Some(step) = planner.pop() {
            waiting -= step.pieces().iter().map(|p| p.blocks.len()).sum::<usize>();
        }
        most = most.max(waiting);
    }
    assert!((10..40).contains(&most), "{most} blocks waited");
}
