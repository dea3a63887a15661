//! `semver`: what the libraries' public items have lost or changed since a revision, by
//! cargo-semver-checks.
//!
//! Before version 1.0 a change that breaks callers needs a new minor version, and a line in the
//! changelog. The list of this command is what that line has to name.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::steps::succeeds;
use crate::tools;

/// The libraries that programs of others use: the facade, and the contract of engines.
const LIBRARIES: [&str; 2] = ["stitchfs", "stitch-kv"];

/// Compares the libraries with those of the git revision `baseline`. Returns whether nothing that
/// callers use is gone.
///
/// # Errors
/// If cargo-semver-checks is missing and cannot be installed.
pub(crate) fn run(root: &Path, baseline: &str) -> Result<bool> {
    let program = tools::cargo_semver_checks(root).context(
        "the check of public items needs cargo-semver-checks, which crates.io did not provide",
    )?;
    let mut command = Command::new(program);
    command.current_dir(root).args(arguments(baseline));
    succeeds(&mut command)
}

/// Returns the arguments that compare all libraries with a revision.
fn arguments(baseline: &str) -> Vec<&str> {
    let mut arguments = vec!["semver-checks", "--baseline-rev", baseline];
    for library in LIBRARIES {
        arguments.extend(["--package", library]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_compared_with_the_revision() {
        let expected = "semver-checks --baseline-rev v0.1.0 --package stitchfs --package stitch-kv";
        assert_eq!(arguments("v0.1.0").join(" "), expected);
    }
}
