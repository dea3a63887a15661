//! Views of a mount for suites that run in a directory, whatever that is.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::context::Context;
use super::copies::{copy, expect_equal};
use super::mount::{Mount, command_of};
use super::process::text;

/// Short: names of sockets in it must fit 108 bytes.
const TRANSACTION: &str = "t";

/// Makes a clone of a directory with a file in it.
pub(crate) fn clone(context: &Context, mount: &Mount<'_>) -> Result<PathBuf> {
    let (source, target) = (mount.dir().join("source"), mount.dir().join("clone"));
    fs::create_dir(&source)?;
    fs::write(source.join("of-the-source"), "before")?;
    command_of(context, &["clone", &text(&source), &text(&target)])?;
    Ok(target)
}

/// Begins a transaction. Returns where it is found.
pub(crate) fn begin(context: &Context, mount: &Mount<'_>) -> Result<PathBuf> {
    let dir = text(mount.dir());
    command_of(context, &["txn", "begin", TRANSACTION, &dir])?;
    Ok(mount
        .dir()
        .join(".stitchfs/txn")
        .join(TRANSACTION)
        .join("root"))
}

/// Commits the transaction of [`begin`].
pub(crate) fn commit(context: &Context, mount: &Mount<'_>) -> Result<()> {
    let dir = text(mount.dir());
    command_of(context, &["txn", "commit", TRANSACTION, &dir]).map(drop)
}

/// Commits the transaction of [`begin`]. Expects that mainline then shows what it has shown.
pub(crate) fn commit_and_compare(context: &Context, mount: &Mount<'_>) -> Result<()> {
    let view = mount
        .dir()
        .join(".stitchfs/txn")
        .join(TRANSACTION)
        .join("root");
    let before = copy(context, &view, &format!("{}-copy", mount.name()))?;
    commit(context, mount)?;
    expect_equal(&before, mount.dir()).context("mainline, after the commit")
}
