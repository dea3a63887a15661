//! `deny`: licences, banned crates and sources of all dependencies, by the rules of `deny.toml`.
//!
//! The rules need no network once cargo-deny is installed. Advisories are left out: they would
//! need a database from GitHub.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::steps::succeeds;
use crate::tools;

/// The checks of cargo-deny that run.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];

/// Runs the checks. Returns whether they passed.
///
/// # Errors
/// If cargo-deny is missing and cannot be installed.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let program = tools::cargo_deny(root)
        .context("the checks of dependencies need cargo-deny, which crates.io did not provide")?;
    let mut command = Command::new(program);
    command.current_dir(root).args(["--locked", "check"]);
    succeeds(command.args(["--hide-inclusion-graph"]).args(CHECKS))
}
