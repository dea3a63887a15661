//! `sim`: the crash simulation.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::check::cargo;
use crate::steps::succeeds;

/// Returns the simulator with these arguments.
pub(crate) fn command(root: &Path, args: &[&str]) -> Command {
    let mut command = cargo(root);
    command
        .args(["run", "--quiet", "--release", "-p", "stitch-sim", "--"])
        .args(args);
    command
}

/// Runs the simulator. Returns whether every seed passed.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<bool> {
    succeeds(&mut command(root, args))
}
