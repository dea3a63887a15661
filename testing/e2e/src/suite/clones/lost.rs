//! Clones that were destroyed, and that a rollback or an undo brings back.

use super::super::rollback::{create, kill_and_roll_back, roll_back};
use super::back::wait_for_moment;
use super::{change_all, destroy, grow_with_clones};
use crate::harness::context::Context;
use crate::harness::copies::{copy, expect_equal};
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::text;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// What the file system may still need when all is gone.
const REST_BYTES: u64 = 4 << 20;

pub(super) fn destroyed_clones_are_brought_back(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("clone-lost", "512M").option("history=10m");
    let mut mount = Mount::create(context, &spec)?;
    let dir = mount.dir().join("dir");
    let (twin, inner) = (dir.join("twin"), dir.join("twin/d2/inner"));
    let past = mount.dir().join(".stitchfs/snap/mon");
    grow_with_clones(context, &dir)?;
    let before = copy(context, &dir, "clone-copy15")?;
    create(context, &dir, "mon")?;
    let open = File::open(inner.join("own"))?;
    destroy(context, &twin)?;
    fs::write(dir.join("top/new"), b"by mistake")?;
    // The kernel knows that the name is missing.
    ensure!(!twin.exists(), "it is destroyed");
    let kept = roll_back(context, "mon", &dir)?;
    drop(open);
    ensure!(!kept.join("twin").exists(), "the state before");
    for round in ["before a remount", "after it"] {
        expect_equal(&before, &dir).context(round)?;
        expect_no_difference(context, &past)?;
        command_of(context, &["snapshot", "list", &text(mount.dir())])?;
        command_of(context, &["usage", &text(mount.dir())])?;
        mount.remount()?;
    }
    // It is a clone, apart from the snapshot.
    change_all(&inner)?;
    let changed = command_of(context, &["diff", &text(&past)])?;
    ensure!(changed.contains("+\ttwin/d2/inner/new\n"), "{changed}");
    expect_equal(&before, &past).context("the snapshot")?;
    undo_brings_back(context, &mount, &dir)?;
    mount.unmount()?;
    mount.fsck()
}

fn expect_no_difference(context: &Context, past: &Path) -> Result<()> {
    let told = command_of(context, &["diff", &text(past)])?;
    ensure!(told.trim().is_empty(), "differs: {told}");
    Ok(())
}

/// Undoes the destruction of the clone in a directory.
fn undo_brings_back(context: &Context, mount: &Mount<'_>, dir: &Path) -> Result<()> {
    let twin = dir.join("twin");
    fs::write(twin.join("d2/inner/own"), b"before the undo")?;
    wait_for_moment(context, mount, &twin.join("d2/inner/own"))?;
    let before = copy(context, dir, "clone-copy16")?;
    destroy(context, &twin)?;
    command_of(context, &["undo", "--yes", &text(dir)])?;
    expect_equal(&before, dir).context("undone")
}

pub(super) fn a_kill_leaves_destroyed_clones_gone_or_back(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-lost-kill", "512M"))?;
    mount.sync()?;
    let free = mount.free_bytes()?;
    let dir = mount.dir().join("dir");
    grow_with_clones(context, &dir)?;
    fs::write(dir.join("large"), vec![1; 12 << 20])?;
    let before = copy(context, &dir, "clone-copy17")?;
    create(context, &dir, "mon")?;
    destroy(context, &dir.join("twin"))?;
    fs::write(dir.join("large"), vec![2; 12 << 20])?;
    let changed = copy(context, &dir, "clone-copy18")?;
    kill_and_roll_back(context, &mut mount, &dir, (&before, &changed))?;
    // Their space comes back.
    destroy(context, &dir.join("twin"))?;
    fs::remove_dir_all(&dir)?;
    for entry in fs::read_dir(mount.dir().join(".stitchfs/snap"))? {
        let name = text(Path::new(&entry?.file_name()));
        command_of(context, &["snapshot", "delete", &text(mount.dir()), &name])?;
    }
    let is_free = context.wait_until(Duration::from_secs(60), || {
        mount.sync()?;
        Ok(mount.free_bytes()? + REST_BYTES >= free)
    })?;
    ensure!(is_free, "{} of {free} bytes are free", mount.free_bytes()?);
    mount.unmount()?;
    mount.fsck()
}
