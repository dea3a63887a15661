//! Copies of directories beside a mount, and comparing with them.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::context::Context;
use super::process::{command, run, text};

/// Copies a directory to a folder beside the mount.
pub(crate) fn copy(context: &Context, top: &Path, name: &str) -> Result<PathBuf> {
    let copy = context.dir(name)?.join("copy");
    run(&mut command("cp", &["-a", &text(top), &text(&copy)]))?;
    Ok(copy)
}

/// Expects names and contents of two directories to be the same.
pub(crate) fn expect_equal(one: &Path, other: &Path) -> Result<()> {
    let args = ["-r", "--no-dereference", &text(one), &text(other)];
    run(&mut command("diff", &args)).map(drop)
}
