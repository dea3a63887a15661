//! What commits cost, by the counters of the engine.

use super::*;
use crate::engine::dynamic;
use stitch_kv::counters;

/// Point reads and scans of an operation.
fn reads(setup: &Setup, run: impl FnOnce()) -> [u64; 2] {
    let names = [counters::GETS, counters::SCANS];
    let engine = dynamic(&setup.engine);
    let read = || names.map(|name| engine.counters().get(name));
    let before = read();
    run();
    let after = read();
    [after[0] - before[0], after[1] - before[1]]
}

/// What the commit of so many new files in one directory reads. `meanwhile` changes mainline.
fn reads_of_new_files(count: usize, meanwhile: impl FnOnce(&Setup, Ino)) -> [u64; 2] {
    let setup = setup();
    let shared = setup.dir(ROOT, "shared").ino;
    let view = begin(&setup, "new files");
    let made = dir(view.fs(), ino(view.fs(), "shared"), "made");
    for index in 0..count {
        file(view.fs(), made, &format!("file {index}"), b"contents");
    }
    meanwhile(&setup, shared);
    let cost = reads(&setup, || {
        let committed = setup.fs.transactions().commit(&view);
        committed.expect("nothing conflicts");
    });
    setup.check();
    let found = find(&setup.fs, &format!("shared/made/file {}", count - 1));
    found.expect("it was committed");
    cost
}

#[test]
fn a_commit_of_new_files_looks_no_row_of_theirs_up() {
    let alone = |_: &Setup, _| {};
    let [few_gets, few_scans] = reads_of_new_files(40, alone);
    let [gets, scans] = reads_of_new_files(2000, alone);
    assert_eq!(
        gets, few_gets,
        "lookups do not depend on the number of files"
    );
    assert!(gets < 20, "{gets} lookups");
    // Two for 256 rows: where the transaction began, and in it.
    assert_eq!(scans - few_scans, 2 * (2000_u64.div_ceil(256) - 1));
}

#[test]
fn a_commit_looks_rows_up_that_mainline_has_changed_too() {
    let count = |files: usize| {
        reads_of_new_files(1000, |setup, shared| {
            for index in 0..files {
                let name = format!("theirs {index}");
                file(&setup.fs, shared, &name, b"contents");
            }
        })
    };
    let (none, few, many) = (count(0), count(1), count(300));
    assert_eq!(few[0], many[0], "new names of mainline are no rows of both");
    // The directory above both, and the counters: before the commit waits, and then.
    assert!(few[0] - none[0] <= 8, "{none:?} {few:?}");
}

#[test]
fn a_commit_reads_nothing_again_that_was_read_ahead() {
    let scans = |count: usize, is_ahead: bool| {
        let setup = setup();
        let view = begin(&setup, "new files");
        let made = dir(view.fs(), ROOT, "made");
        for index in 0..count {
            file(view.fs(), made, &format!("file {index}"), b"contents");
        }
        let transactions = setup.fs.transactions();
        let ahead = is_ahead.then(|| transactions.read_ahead(&view).expect("it is open"));
        let [_, scans] = reads(&setup, || {
            let committed = match ahead {
                Some(ahead) => transactions.commit_ahead(&view, ahead),
                None => transactions.commit(&view),
            };
            committed.expect("nothing conflicts");
        });
        setup.check();
        find(&setup.fs, &format!("made/file {}", count - 1)).expect("it was committed");
        scans
    };
    assert_eq!(
        scans(2000, true),
        scans(40, true),
        "whatever it has written"
    );
    assert!(scans(40, true) < scans(40, false), "they were read before");
}
