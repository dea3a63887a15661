//! Has a side bring what lies scattered into order, by its own means.

use super::stage::{Ends, Stage};
use crate::disk::output;
use crate::measure::Op;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitchfs::JOB_XATTR;

const POLL: Duration = Duration::from_millis(20);

/// Runs the defragmentation of the side as a phase `defrag`, until sync. A side without any does
/// nothing in it.
pub(super) fn phase(stage: &mut Stage<'_>, path: &str) -> Result<()> {
    let root = stage.root()?;
    let program = program_of(stage.side(), &root.join(path));
    stage.phase("defrag", 1, Ends::Synced, |record| {
        record.time(Op::Command, (1, 0), || match program {
            Some(mut run) => output(&mut run).map(drop),
            None => defrag_store(&root),
        })
    })
}

/// The program of a kernel file system. Those that overwrite in place have nothing to do here.
fn program_of(side: &str, path: &Path) -> Option<Command> {
    let mut run = Command::new("btrfs");
    run.args(["filesystem", "defragment", "-f"]).arg(path);
    (side == "btrfs").then_some(run)
}

/// Asks the daemon of a store, and waits until it is done. Other mounts do not know the attribute.
fn defrag_store(root: &Path) -> Result<()> {
    let request = json!({ "do": "defrag", "token": "bench" }).to_string();
    let flags = XattrFlags::empty();
    if rustix::fs::setxattr(root, JOB_XATTR, request.as_bytes(), flags).is_err() {
        return Ok(());
    }
    let clock = SystemClock::default();
    // By ioctl: a mount without extended attributes answers it too.
    let root = File::open(root)?;
    loop {
        let answer = stitch_fuse::report::read(&root, JOB_XATTR)?;
        let report: Value = serde_json::from_slice(&answer).context("the daemon's answer")?;
        ensure!(report["error"].is_null(), "defrag: {}", report["error"]);
        if !report["result"].is_null() {
            return Ok(());
        }
        clock.sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_side_that_scatters_has_a_program() {
        let path = Path::new("/mnt/a");
        assert!(program_of("btrfs", path).is_some());
        assert!(program_of("ext4", path).is_none() && program_of("xfs", path).is_none());
    }
}
