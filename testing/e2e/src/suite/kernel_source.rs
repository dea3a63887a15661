//! The source of Linux as Debian packages it: tens of thousands of real files.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::harness::context::Context;
use crate::harness::process::shell;
use crate::harness::report::Skip;

const ARCHIVE: &str = "/usr/src/linux-source-6.1.tar.xz";
/// The folder in the archive.
pub(super) const FOLDER: &str = "linux-source-6.1";

/// The archive without compression, in the folder of the run.
pub(super) fn tar(context: &Context) -> Result<PathBuf> {
    if !Path::new(ARCHIVE).exists() {
        return Err(Skip(format!("no {ARCHIVE}: install linux-source-6.1")).into());
    }
    let tar = context.work.join("linux.tar");
    if !tar.exists() {
        shell(
            &context.work,
            &format!("xz -dc -T2 {ARCHIVE} > linux.tmp && mv linux.tmp linux.tar"),
        )?;
    }
    Ok(tar)
}
