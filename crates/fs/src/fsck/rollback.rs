//! Rollbacks that were interrupted. An open of the file system finishes them.

use super::Issue;
use super::issue::Owner;
use super::lost::Paths;
use super::scan::Found;
use crate::snapshot::SnapshotInfo;
use crate::system::FileSystem;
use crate::{FsOptions, FsResult};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use stitch_base::PinId;
use stitch_base::sync::Arc;
use stitch_format::fs_moment::moment_number;
use stitch_format::fs_sys::RollbackRow;
use stitch_kv::Engine;

/// Returns the rollback of a file system that was interrupted, or what keeps an open from finishing
/// it.
pub(super) fn interrupted(engine: &dyn Engine, found: &Found) -> FsResult<Option<Issue>> {
    if !found.has(|header| header.rolls_back) {
        return Ok(None);
    }
    let broken = |detail: String| Ok(Some(Issue::BrokenRollback { detail }));
    let row = match &found.rollback {
        None => return broken("no row says of which directory".to_owned()),
        Some(Err(error)) => return broken(error.clone()),
        Some(Ok(row)) => row,
    };
    debug_assert!(row.snapshot.0 > 0, "a reader takes no other row");
    debug_assert!(row.dir.0 > 0, "a reader takes no other row");
    match past(engine, row.snapshot)? {
        None => broken(format!(
            "its snapshot, pin {}, cannot be read",
            row.snapshot
        )),
        Some(past) => Ok(Some(Issue::InterruptedRollback {
            dir: directory(found, row),
            past,
        })),
    }
}

/// Returns the directory with its path: as it is, or as it was when the rollback began.
fn directory(found: &Found, row: &RollbackRow) -> Owner {
    let began = [b"/", &row.path[..]].concat();
    let path = Paths::new(found).of(row.dir);
    Owner {
        ino: row.dir,
        path: Some(path.unwrap_or_else(|| PathBuf::from(OsString::from_vec(began)))),
    }
}

/// Returns what a rollback goes back to, for a person; `None` if there is no such pin.
fn past(engine: &dyn Engine, pin: PinId) -> FsResult<Option<String>> {
    debug_assert!(pin.0 > 0, "a pin has a number");
    if !engine.capabilities().pins {
        return Ok(None);
    }
    let pins = engine.pins()?;
    let Some(info) = pins.iter().find(|info| info.id == pin) else {
        return Ok(None);
    };
    if let Some(snapshot) = SnapshotInfo::of(info) {
        return Ok(Some(format!("the snapshot {:?}", snapshot.name)));
    }
    let is_moment = moment_number(&info.name).is_some();
    Ok(is_moment.then(|| format!("the moment {} of the history", info.name)))
}

/// Finishes the rollbacks that `check` found interrupted, by an open of the file system and of the
/// clones. One that meets rows that cannot be read is left. Reports whether there were any: then
/// check again before a repair.
///
/// # Errors
/// [`crate::FsError::NoSpace`]; what the engine cannot write.
///
/// # Durability
/// On the medium when this returns.
pub fn finish_rollbacks(engine: &Arc<dyn Engine>, issues: &[Issue]) -> FsResult<bool> {
    let is_interrupted = |issue: &Issue| matches!(issue, Issue::InterruptedRollback { .. });
    let of_clone = |issue: &Issue| match issue {
        Issue::InClone { number, issue } if is_interrupted(issue) => Some(*number),
        _ => None,
    };
    let clones: Vec<u64> = issues.iter().filter_map(of_clone).collect();
    if clones.is_empty() && !issues.iter().any(is_interrupted) {
        return Ok(false);
    }
    debug_assert!(
        clones.iter().all(|number| *number > 0),
        "mainline is told apart"
    );
    let Some(fs) = unless_unreadable(FileSystem::open(Arc::clone(engine), FsOptions::default()))?
    else {
        return Ok(true);
    };
    for number in clones {
        unless_unreadable(fs.open_clone(number))?;
    }
    fs.close()?;
    Ok(true)
}

/// Returns what was opened; `None` if some rows of it cannot be read.
fn unless_unreadable<T>(opened: FsResult<T>) -> FsResult<Option<T>> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.is_unreadable() => Ok(None),
        Err(error) => Err(error),
    }
}
