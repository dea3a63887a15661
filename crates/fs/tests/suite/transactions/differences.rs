//! What a transaction has changed, by path.

use super::*;
use stitch_fs::{PathChange, XattrMode};

fn lines(changes: &[PathChange]) -> Vec<String> {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let line = |change: &PathChange| match change {
        PathChange::Modified(path) => format!("M {}", text(path)),
        PathChange::Added(path) => format!("+ {}", text(path)),
        PathChange::Removed(path) => format!("- {}", text(path)),
        PathChange::Renamed { from, to } => format!("R {} -> {}", text(from), text(to)),
    };
    changes.iter().map(line).collect()
}

/// `d/{e/{f, g}, h}`, `i` and `j`, which is also `d/k`.
fn grow(setup: &Setup) {
    let top = dir(&setup.fs, ROOT, "d");
    let inner = dir(&setup.fs, top, "e");
    for (parent, name) in [(inner, "f"), (inner, "g"), (top, "h"), (ROOT, "i")] {
        file(&setup.fs, parent, name, name.as_bytes());
    }
    let twice = file(&setup.fs, ROOT, "j", b"j");
    setup
        .fs
        .link(&SUPER, twice, at(top, "k"))
        .expect("a free name");
    setup.tick();
}

#[test]
fn each_change_is_one_line() {
    let setup = setup();
    grow(&setup);
    let view = begin(&setup, "work");
    let fs = view.fs();
    assert_eq!(lines(&view.changes().expect("it is open")), [""; 0]);
    let top = ino(fs, "d");
    write(fs, ino(fs, "d/e/f"), b"other");
    unlink(fs, ino(fs, "d/e"), "g");
    rename(fs, (top, "h"), (ROOT, "h"));
    chmod(fs, top, 0o700);
    file(fs, top, "new", b"new");
    fs.set_xattr(&SUPER, ino(fs, "i"), b"user.a", b"1", XattrMode::Set, false)
        .expect("it is known");
    let expected = ["M d", "M d/e/f", "- d/e/g", "+ d/new", "R d/h -> h", "M i"];
    assert_eq!(lines(&view.changes().expect("it is open")), expected);
    rename(fs, (ROOT, "d"), (ROOT, "z"));
    let expected = [
        "- d/e/g",
        "R d/h -> h",
        "M i",
        "R d -> z",
        "M z",
        "M z/e/f",
        "+ z/new",
    ];
    assert_eq!(lines(&view.changes().expect("it is open")), expected);
}

#[test]
fn names_that_are_not_known_any_more_are_found() {
    let setup = setup();
    grow(&setup);
    let view = begin(&setup, "work");
    write(view.fs(), ino(view.fs(), "d/e/f"), b"other");
    write(view.fs(), ino(view.fs(), "d/k"), b"other");
    drop(view);
    let view = setup.fs.transactions().open("work").expect("it is open");
    assert_eq!(view.fs().known_inodes(), 1);
    let found = lines(&view.changes().expect("it is open"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0], "M d/e/f");
    assert!(found[1] == "M d/k" || found[1] == "M j", "{found:?}");
}

#[test]
fn the_difference_to_mainline_is_what_a_commit_would_change() {
    let setup = setup();
    grow(&setup);
    let view = begin(&setup, "work");
    let fs = view.fs();
    file(fs, ino(fs, "d/e"), "new", b"new");
    unlink(fs, ROOT, "i");
    setup.file(ROOT, "only outside");
    rename(&setup.fs, (ROOT, "i"), (ROOT, "elsewhere"));
    let found = view.changes_to(&setup.fs).expect("it is open");
    assert_eq!(lines(&found), ["+ d/e/new"]);
    assert_eq!(
        lines(&view.changes().expect("it is open")),
        ["+ d/e/new", "- i"]
    );
    let none = setup.fs.changes_since_begin();
    assert!(
        matches!(none, Err(FsError::Invalid(_))),
        "mainline began nowhere"
    );
}
