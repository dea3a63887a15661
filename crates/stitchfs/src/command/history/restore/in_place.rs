//! A directory that is still the one of the moment: it is rolled back, and keeps its snapshots.

use super::super::{Moment, Moments};
use crate::command::rollback::{self, RollbackRequest};
use crate::command::{numbers, output, snapshot};
use anyhow::{Context as _, Result};
use serde_json::json;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fs::LaterClones;
use stitch_fuse::adapter::{CONTROL_DIR, SNAPSHOTS_DIR};
use stitch_fuse::snapshots;

/// Reports whether a directory of a moment is the one that is at `dest` now, and neither has a
/// clone in it: a rollback leaves the contents of these as they are.
pub(super) fn is_possible(source: &Path, dest: &Path) -> bool {
    let is_same = match (Identity::of(source), Identity::of(dest)) {
        (Some(then), Some(now)) => then == now,
        _ => false,
    };
    is_same && [source, dest].iter().all(|dir| is_without_clones(dir))
}

/// What stands for a directory at all moments: its number, and the clone that it is in.
#[derive(Debug, PartialEq, Eq)]
struct Identity(u64, Option<u64>);

impl Identity {
    fn of(dir: &Path) -> Option<Self> {
        let found = dir.symlink_metadata().ok().filter(Metadata::is_dir)?;
        let numbers = numbers::of(dir);
        Some(Self(numbers.of(found.ino(), found.ino()), numbers.home))
    }
}

/// Reports whether all directories below one are in its view. False where one cannot be read.
fn is_without_clones(top: &Path) -> bool {
    let walk = || -> io::Result<bool> {
        let root = top.symlink_metadata()?;
        let numbers = numbers::of(top);
        let view = |ino: u64| numbers.of(root.ino(), ino) & !numbers::INO_MASK;
        let mut waiting = vec![top.to_owned()];
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(&dir)? {
                let entry = entry?;
                if !entry.file_type()?.is_dir() {
                    continue;
                }
                let found = entry.path().symlink_metadata()?;
                if found.dev() != root.dev() {
                    continue;
                }
                if view(found.ino()) != view(root.ino()) {
                    return Ok(false);
                }
                waiting.push(entry.path());
            }
        }
        Ok(true)
    };
    walk().unwrap_or(false)
}

/// Rolls a directory back to a moment, at which it is at `source`. It is refused if a clone was
/// made in it a moment ago. Returns where the state before is kept.
pub(super) fn roll_back(
    moments: &Moments,
    moment: &Moment,
    (source, dir): (&Path, &Path),
) -> Result<PathBuf> {
    let opened = snapshot::open_dir(dir).with_context(|| snapshot::shown(dir))?;
    let created = json!({ "created_ns": moment.ns() });
    let request = RollbackRequest {
        opened: &opened,
        dir,
        name: &moment.name,
        past: (source, &created),
        before: &rollback::before_name,
        later_clones: LaterClones::Keep,
        ask: &|terms| snapshots::undo(&opened, &moment.name, terms),
    };
    let before = request.run()?;
    Ok(snapshot::place(&moments.mount, &before))
}

/// Tells that a directory which is about to be replaced has snapshots.
pub(super) fn note_snapshots(dest: &Path) {
    let list = dest.join(CONTROL_DIR).join(SNAPSHOTS_DIR);
    let count = fs::read_dir(list).map_or(0, Iterator::count);
    if count > 0 {
        output::note(&format!(
            "{}: will be a new directory: its {count} snapshots stay, and are not of the new one",
            dest.display()
        ));
    }
}
