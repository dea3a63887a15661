//! Takes the steps of a plan.
//!
//! All mounts are cloned before the first is attached: a view that covers the root hides the path
//! by which it was found.

use super::View;
use super::plan::PlanStep;
use anyhow::{Context, Result, anyhow};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Attaches the view and returns what the user should know.
///
/// # Errors
/// If a directory of the view cannot be attached where the directory itself would show.
pub(super) fn attach(view: &View, steps: &[PlanStep]) -> Result<Vec<String>> {
    let clones: Vec<Result<OwnedFd, Errno>> = steps.iter().map(|step| clone(view, step)).collect();
    debug_assert_eq!(clones.len(), steps.len(), "a mount for each step");
    let mut notes = Vec::new();
    for (step, clone) in steps.iter().zip(clones) {
        let attached = clone.and_then(|clone| attach_at(&clone, target(step)));
        notes.extend(outcome(step, attached)?);
    }
    Ok(notes)
}

fn target(step: &PlanStep) -> &Path {
    match step {
        PlanStep::Cover { target, .. } | PlanStep::Keep { target } => target,
    }
}

/// Clones the mount of a step.
fn clone(view: &View, step: &PlanStep) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match step {
        PlanStep::Keep { target } => open_tree(CWD, target, flags | OpenTreeFlags::AT_RECURSIVE),
        PlanStep::Cover { inner, .. } => {
            let dir = open_path(&view.dir.join(inner))?;
            open_tree(dir, "", flags | OpenTreeFlags::AT_EMPTY_PATH)
        }
    }
}

fn attach_at(mount: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", open_path(path)?, "", flags)
}

/// Opens a path without following links: a snapshot may have one where a directory is now.
fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    debug_assert!(path.is_absolute(), "paths of a plan are absolute");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Returns what to tell the user about a step. One that is left out in a covered directory shows
/// what the view has there.
fn outcome(step: &PlanStep, attached: Result<(), Errno>) -> Result<Option<String>> {
    let shown = target(step).display();
    let is_absent = matches!(attached, Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP));
    match step {
        PlanStep::Keep { .. } if attached.is_ok() => Ok(Some(format!(
            "{shown}: another mount in the directory; it is shown as it is now"
        ))),
        PlanStep::Keep { .. }
        | PlanStep::Cover {
            is_inside: true, ..
        } if is_absent => Ok(Some(format!(
            "{shown}: not shown: the view has no such place to mount at"
        ))),
        PlanStep::Cover { .. } if is_absent => Err(anyhow!(
            "{shown}: the view has nothing to show there; unmount it first, or leave it out of the \
             mount namespace with unshare(1)"
        )),
        _ => attached
            .map(|()| None)
            .with_context(|| format!("{shown}: cannot attach the view (needs Linux 5.6 or later)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_told_and_what_would_leak_is_an_error() {
        let target = Path::new("/m/sub").to_owned();
        let keep = PlanStep::Keep {
            target: target.clone(),
        };
        let cover = |is_inside| PlanStep::Cover {
            inner: "sub".into(),
            target: target.clone(),
            is_inside,
        };
        let absent = || Err(Errno::NOENT);
        let told = |step: &PlanStep, attached| outcome(step, attached).unwrap().unwrap_or_default();
        assert!(told(&keep, Ok(())).contains("as it is now"));
        assert!(told(&keep, absent()).contains("not shown"));
        assert!(told(&cover(true), absent()).contains("not shown"));
        assert_eq!(told(&cover(false), Ok(())), "");
        assert!(outcome(&cover(false), absent()).is_err());
        for step in [keep, cover(true), cover(false)] {
            assert!(outcome(&step, Err(Errno::PERM)).is_err(), "{step:?}");
        }
    }
}
