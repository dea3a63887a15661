//! Work of the background beside commands on snapshots and clones.

use super::{ROOT, setup_with};
use crate::adapter::chore::{Left, Round};
use crate::adapter::views::places::work;
use std::time::Duration;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_fs::FsOptions;

/// Time after a command before there is a round.
const QUIET: Duration = Duration::from_millis(500);

#[test]
fn snapshots_are_narrowed_once_no_command_has_come_for_a_while() {
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1_000_000));
    let setup = setup_with(FsOptions {
        clock: Arc::clone(&clock) as _,
        ..FsOptions::default()
    });
    let dir = setup.dir(b"d");
    let is_narrowed = || {
        let pins = setup.fs.engine().pins().unwrap();
        pins.iter().all(|pin| !pin.ranges.is_empty())
    };
    setup.create(0, dir, "mon").unwrap();
    assert_eq!(work(&setup.fs, Round::Due), Left::Later(QUIET));
    clock.advance(QUIET / 2);
    assert_eq!(work(&setup.fs, Round::Due), Left::Later(QUIET / 2));
    setup.clone_to(dir, ROOT, b"copy").unwrap();
    assert_eq!(work(&setup.fs, Round::Due), Left::Later(QUIET));
    assert!(!is_narrowed());
    clock.advance(QUIET);
    assert_eq!(work(&setup.fs, Round::Due), Left::More);
    assert!(is_narrowed());
}
