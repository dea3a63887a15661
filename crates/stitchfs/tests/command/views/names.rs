//! Names that lines and terminals would not show as they are.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::json;

use super::mounted;
use crate::place::Ended;

/// Reports the lines of a result, none of which has a control character but a tab.
#[track_caller]
fn lines(ended: &Ended) -> Vec<String> {
    let out = ended.code(0).out();
    let lines = out.lines().map(str::to_owned);
    let lines: Vec<String> = lines.collect();
    for line in &lines {
        let is_raw = line.chars().any(|one| one.is_control() && one != '\t');
        assert!(!is_raw, "{line:?}");
    }
    lines
}

#[test]
fn differences_are_quoted_as_git_does() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    fs::write(mounted.path("d/x"), b"").unwrap();
    place.run(&["snapshot", "create", "mnt/d", "mon"]).code(0);
    fs::rename(mounted.path("d/x"), mounted.path("d/y -> z")).unwrap();
    fs::rename(mounted.path("d/f"), mounted.path("d/g\n")).unwrap();
    for name in ["a\nb", "\u{1b}[31m", "q\"", "p -> q", "\u{e9}"] {
        fs::write(mounted.path("d").join(name), b"").unwrap();
    }
    let raw = OsStr::from_bytes(b"\xff");
    fs::write(mounted.path("d").join(raw), b"").unwrap();
    let expected = [
        r#"+	"\033[31m""#,
        r#"+	"a\nb""#,
        r#"R	f -> "g\n""#,
        "+\tp -> q",
        r#"+	"q\"""#,
        r#"R	x -> "y -> z""#,
        "+\t\u{e9}",
        r#"+	"\377""#,
    ];
    let snapshot = "mnt/.stitchfs/snap/mon";
    assert_eq!(lines(&place.run(&["diff", snapshot])), expected);
    assert_eq!(lines(&place.run(&["diff", "--walk", snapshot])), expected);
    // For programs they are as they are.
    let told = place.run(&["diff", "--json", snapshot]).code(0).json();
    let added = &told["changes"][1];
    assert_eq!(*added, json!({ "kind": "added", "path": "a\nb" }));
    mounted.umount();
}

#[test]
fn lists_of_snapshots_policies_and_space_are_quoted() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    let dir = mounted.path("a\tb\n");
    fs::create_dir(&dir).unwrap();
    place
        .run(&["snapshot", "create", "mnt/a\tb\n", "m\u{1b}n"])
        .code(0);
    let every = ["snapshot", "create", "--every", "1d", "mnt/a\tb\n", "p\\q"];
    place.run(&every).code(0);
    let listed = lines(&place.run(&["snapshot", "list", "-q", "mnt"]));
    assert!(
        listed[0].ends_with(r#"  "m\033n"  "/a\tb\n""#),
        "{listed:?}"
    );
    let policies = lines(&place.run(&["snapshot", "policy", "list", "mnt"]));
    assert!(
        policies[0].starts_with(r#""/a\tb\n"  "p\\q"  every 1d"#),
        "{policies:?}"
    );
    let usage = lines(&place.run(&["usage", "mnt", "mnt/a\tb\n"]));
    let has = |text: &str| usage.iter().any(|line| line.ends_with(text));
    assert!(has(r#"snapshot "m\033n"  "/a\tb\n""#), "{usage:?}");
    assert!(has(r#""mnt/a\tb\n""#), "{usage:?}");
    // A message with such a name moves no cursor, either.
    let missing = place.run(&["snapshot", "delete", "mnt", "x\u{1b}[2J"]);
    missing.code(1).says("x\\u{1b}[2J");
    mounted.umount();
}

#[test]
fn a_conflict_is_resolved_by_the_path_that_is_printed() {
    let Some(mounted) = mounted(&[]) else {
        return;
    };
    let place = &mounted.place;
    fs::write(mounted.path("d/a\nb"), b"before").unwrap();
    place.run(&["txn", "begin", "work", "mnt"]).code(0);
    fs::write(mounted.path(".stitchfs/txn/work/root/d/a\nb"), b"ours").unwrap();
    fs::write(mounted.path("d/a\nb"), b"theirs").unwrap();
    assert_eq!(
        lines(&place.run(&["txn", "diff", "work", "mnt"])),
        [r#"M	"d/a\nb""#]
    );
    let found = place.run(&["txn", "conflicts", "work", "mnt"]);
    let out = found.code(75).out();
    let (path, _) = out.trim_end().rsplit_once(": ").unwrap();
    assert_eq!(path, r#""d/a\nb""#, "{out}");
    place
        .run(&["txn", "resolve", "--ours", "work", path, "mnt"])
        .code(0);
    place.run(&["txn", "commit", "work", "mnt"]).code(0);
    assert_eq!(fs::read(mounted.path("d/a\nb")).unwrap(), b"ours");
    mounted.umount();
}
