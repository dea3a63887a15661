//! A source tree brought into the mount by rsync, and brought up to date in place after changes
//! (BetrFS paper, section 7.3).

use super::command::{self, phase};
use super::source_tree::{changed_copy, check_same, every_tenth, files, unpacked};
use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use anyhow::Result;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHANGE: &[u8] = b"/* changed */";

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| command::why_missing("rsync")),
        ..FsWorkload::new(
            "rsync",
            "rsync -a of a source tree into the mount until sync; cold: again with --inplace, \
             every tenth file changed",
            &[Caches::Warm, Caches::Cold],
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let target = stage.root()?.join("tree");
    let mut run = Command::new("rsync");
    run.arg("-a");
    let (name, source) = match step {
        0 => ("rsync", unpacked(stage)?),
        _ => {
            // Without the second, local files are written whole.
            run.args(["--inplace", "--no-whole-file"]);
            ("rsync-inplace-cold", changed(stage)?)
        }
    };
    read_all(&source)?;
    // What is in it, not the folder itself.
    run.arg(source.join("")).arg(&target);
    phase(stage, name, Ends::Synced, &mut run)?;
    check_same(&source, &target)
}

/// Reads all of it once, so that it is in memory whichever side is first.
fn read_all(tree: &Path) -> Result<()> {
    for path in files(tree)? {
        io::copy(&mut File::open(tree.join(path))?, &mut io::sink())?;
    }
    Ok(())
}

/// The tree with every tenth file changed in the middle and at the end, made if need be.
fn changed(stage: &Stage<'_>) -> Result<PathBuf> {
    changed_copy(stage, "changed", |begun| {
        for file in every_tenth(begun)? {
            let file = File::options().write(true).open(begun.join(file))?;
            let len_bytes = file.metadata()?.len();
            file.write_all_at(CHANGE, len_bytes / 2)?;
            file.write_all_at(CHANGE, file.metadata()?.len())?;
        }
        Ok(())
    })
}
