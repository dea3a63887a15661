//! `sim`: the crash simulation.

use std::path::Path;

use anyhow::Result;

use crate::check::cargo;
use crate::steps::succeeds;

/// Builds and runs the simulator with these arguments. Returns whether every seed passed.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<bool> {
    let mut command = cargo(root);
    command
        .args(["run", "--quiet", "--release", "-p", "stitch-sim", "--"])
        .args(args);
    succeeds(&mut command)
}
