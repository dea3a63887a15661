//! Programs that a workload runs in a mount.

use super::side::{Kind, Side};
use std::process::Command;

/// Why a side cannot be used by programs.
pub(super) fn why_not(side: &Side) -> Option<String> {
    (side.kind == Kind::Library).then(|| "programs need a mount".to_owned())
}

/// Why this program cannot be run; `None` if it can.
pub(super) fn why_missing(program: &str) -> Option<String> {
    let run = Command::new(program).arg("--version").output();
    run.err().map(|error| format!("{program}: {error}"))
}
