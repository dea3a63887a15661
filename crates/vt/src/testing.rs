//! For tests: versions and scripts written as text.

use crate::version::{Version, VersionBuilder};
use std::fmt::Write;
use stitch_base::{Seqno, TableId, TreeId};
use stitch_format::vt_manifest::{Run, TableMeta, TreeRecord, VersionEdit};

/// A table of 100 bytes.
pub(crate) fn meta(tree: TreeId, id: u64, smallest: &str, largest: &str) -> TableMeta {
    TableMeta {
        id: TableId(id),
        tree,
        smallest: smallest.as_bytes().to_vec(),
        largest: largest.as_bytes().to_vec(),
        largest_excluded: false,
        entry_count: 100,
        delete_count: 0,
        range_delete_count: 0,
        data_bytes: 100,
        min_seqno: Seqno(1),
        max_seqno: Seqno(id),
        root_addr: id * 1_000_000,
        root_bytes: 1,
        runs: vec![Run {
            addr: id * 1_000_000,
            len_bytes: 100,
        }],
    }
}

/// A version from lines `tree N` and `L<level> <table> <smallest>..<largest> <bytes>` with, at
/// their end, `d<deletes of 100 entries>`, `r<range deletes>`, `s<largest seqno>`.
pub(crate) fn text_version(text: &str) -> Version {
    let mut edit = VersionEdit {
        last_seqno: Seqno(1000),
        next_table: TableId(1000),
        next_tree: TreeId(100),
        ..VersionEdit::default()
    };
    edit.added.clear();
    let mut tree = TreeId(0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "tree" {
            tree = TreeId(words.next().expect("a number").parse().expect("a number"));
            edit.new_trees.push(TreeRecord {
                id: tree,
                name: format!("t{tree}"),
                block_bytes: 4096,
                stitch_bytes: 0,
                compression: 0,
            });
            continue;
        }
        let level: u8 = first[1..].parse().expect("a level");
        let id: u64 = words.next().expect("a table").parse().expect("a table");
        let (smallest, largest) = words.next().expect("keys").split_once("..").expect("keys");
        let mut table = meta(tree, id, smallest, largest);
        let bytes: u64 = words.next().expect("bytes").parse().expect("bytes");
        table.data_bytes = bytes;
        table.runs[0].len_bytes = bytes;
        for word in words {
            let number: u64 = word[1..].parse().expect("a number");
            match &word[..1] {
                "d" => table.delete_count = number,
                "r" => table.range_delete_count = number,
                "s" => table.max_seqno = Seqno(number),
                other => panic!("no such word: {other}"),
            }
        }
        edit.added.push((level, table));
    }
    let mut builder = VersionBuilder::new(Version::empty());
    builder.apply(&edit).expect("the text is a version");
    builder.finish().expect("the text is a version")
}

/// Runs a script of cases, each `input`, a line `----`, and the expected output, with an empty line
/// between cases. With `UPDATE=1` in the environment, writes what came out in place of comparing.
pub(crate) fn run_script(path: &str, run: impl Fn(&str) -> String) {
    let file = format!("{}/testdata/{path}", env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(&file).expect("the script is there");
    let mut out = String::new();
    let mut cases = 0;
    for case in script.trim_end().split("\n\n") {
        let (input, expected) = case.split_once("\n----").expect("a case has a line ----");
        let mut result = run(input);
        if result.is_empty() {
            result.push_str("nothing");
        }
        let infallible = "a string takes what is written to it";
        write!(out, "{input}\n----\n{}\n\n", result.trim_end()).expect(infallible);
        if std::env::var_os("UPDATE").is_none() {
            assert_eq!(result.trim_end(), expected.trim(), "case:\n{input}");
        }
        cases += 1;
    }
    assert!(cases > 0, "a script has cases");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, out.trim_end().to_owned() + "\n").expect("the script is writable");
    }
}
