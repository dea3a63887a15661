//! The command `stitchfs`, as workloads run it.

use std::path::PathBuf;
use std::process::Command;

/// Names the program, where it is not beside this one.
const VARIABLE: &str = "STITCHFS";

/// Returns the path of the program: that of the variable `STITCHFS`, or the one that was built
/// beside this one.
fn path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(PathBuf::from(named));
    }
    let beside = std::env::current_exe().ok()?.with_file_name("stitchfs");
    beside.exists().then_some(beside)
}

/// Returns the reason that it cannot be run; `None` if it can.
pub(crate) fn why_missing() -> Option<String> {
    let reason = "no stitchfs beside stitch-bench: build it with the same profile, or set STITCHFS";
    path().is_none().then(|| reason.to_owned())
}

/// Returns it with these first arguments.
pub(crate) fn stitchfs(arguments: &[&str]) -> Command {
    let mut run = Command::new(path().unwrap_or_else(|| PathBuf::from("stitchfs")));
    run.args(arguments);
    run
}
