//! Programs that a workload runs in a mount.

use super::side::FsSide;
use super::stage::{Ends, Stage};
use crate::disk::output;
use crate::measure::Op;
use anyhow::Result;
use std::process::Command;

/// One command as a phase; an operation is a run of it. What it printed.
pub(super) fn phase(
    stage: &mut Stage<'_>,
    name: &str,
    ends: Ends,
    run: &mut Command,
) -> Result<String> {
    stage.phase(name, 1, ends, |record| {
        record.time(Op::Command, (1, 0), || output(run))
    })
}

/// Why a side cannot be used by programs.
pub(super) fn why_not(side: &FsSide) -> Option<String> {
    side.is_library()
        .then(|| "programs need a mount".to_owned())
}

/// Why this program cannot be run; `None` if it can.
pub(crate) fn why_missing(program: &str) -> Option<String> {
    let run = Command::new(program).arg("--version").output();
    run.err().map(|error| format!("{program}: {error}"))
}
