//! A few seeds of every case; `cargo xtask sim` runs thousands.

use stitch_sim::args::Args;
use stitch_sim::{campaign, systems};

#[test]
fn a_few_seeds_of_every_case_pass_and_every_canary_is_found() {
    let args = Args {
        seed: 1_000_000,
        seeds: 4,
        limit: None,
        case: String::new(),
        jobs: 2,
    };
    let outcome = campaign::run(systems::cases(), &args, |_| {}).unwrap();
    assert!(outcome.failures.is_empty(), "{:#?}", outcome.failures);
    let cases = systems::cases().len();
    assert_eq!(outcome.totals.len(), cases, "every case ran");
}

#[test]
fn seeds_that_failed_once_pass() {
    // A file that is removed and cannot be read made the next open fail. A removed tree that cannot
    // be read was to be emptied (4466). What a failed install had written was asked for an owner
    // (120,023).
    for (case, seed) in [
        ("fs/damage", 88_001),
        ("fs/damage", 88_952),
        ("fs/damage", 88_961),
        ("fs/damage", 4466),
        ("vt-beside-full/fault", 120_023),
        // What was committed to an outer transaction was listed after that one was aborted in a
        // full store.
        ("fs-views/nospace", 3),
        // A replay found no space for its memtable, and the next commit less than it asked for.
        ("fs-atomic/nospace", 600_022),
        // A rollback had deleted the row of shared contents of a file whose head still said that
        // it shares them.
        ("fs-views/crash", 7_000_416),
        // A rollback had made an orphan of a directory with names in it: the next open emptied it.
        ("fs-views/crash", 7_001_604),
        // A rollback had detached a directory before what was put into it was taken out.
        ("fs-views/crash", 7_005_107),
        // A clone of a snapshot was refused or made, depending on what was reclaimed.
        ("fs-views/crash", 8_000_013),
    ] {
        let args = Args {
            seed,
            seeds: 1,
            limit: None,
            case: case.to_owned(),
            jobs: 1,
        };
        let outcome = campaign::run(systems::cases(), &args, |_| {}).unwrap();
        assert!(outcome.failures.is_empty(), "{:#?}", outcome.failures);
        assert!(!outcome.totals.is_empty(), "the case is there");
    }
}
