//! Directories in clones go back: to snapshots, by policies, and in the history.

use super::super::rollback::{create, kill_and_roll_back, roll_back};
use super::{change_all, clone, expect_refused, grow};
use crate::harness::context::Context;
use crate::harness::copies::{copy, expect_equal};
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::text;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most moments that come between the calls of two changes.
const UNDOS_MAX: usize = 4;

pub(super) fn a_directory_in_a_clone_is_rolled_back(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("clone-back", "512M").option("history=10m");
    let mut mount = Mount::create(context, &spec)?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    let source = copy(context, &top, "clone-copy10")?;
    clone(context, &top, &twin)?;
    clone(context, &top, &twin.join("d2/inner"))?;
    fs::write(twin.join("open"), b"before")?;
    let before = copy(context, &twin, "clone-copy11")?;
    create(context, &twin, "mon")?;
    let mut both = OpenOptions::new();
    let open = both.read(true).write(true).open(twin.join("open"))?;
    let number = open.metadata()?.ino();
    change_all(&twin)?;
    open.write_all_at(b"AFTER, and longer", 0)?;
    fs::remove_file(twin.join("open"))?;
    ensure!(!twin.join("open").exists(), "it was removed");
    clone(context, &top, &twin.join("later"))?;
    let changed = copy(context, &twin, "clone-copy12")?;
    let kept = roll_back_over_a_clone(context, &twin)?;
    let mut bytes = [0; 20];
    let count = open.read_at(&mut bytes, 0)?;
    ensure!(&bytes[..count] == b"before", "the open file");
    drop(open);
    ensure!(!twin.join("later").exists(), "a clone made later is there");
    fs::write(twin.join("later"), b"anew")?;
    fs::remove_file(twin.join("later"))?;
    roll_back(context, "mon", &twin)?;
    for round in ["before a remount", "after it"] {
        expect_equal(&before, &twin).context(round)?;
        expect_equal(&source, &top).context(round)?;
        expect_equal(&changed, &kept).context(round)?;
        ensure!(fs::metadata(twin.join("open"))?.ino() == number, "{round}");
        mount.remount()?;
    }
    // The clone that was destroyed comes back.
    roll_back(context, &text(&kept), &twin)?;
    expect_equal(&changed, &twin).context("with the clone")?;
    let without = ["rollback", "--yes", "--destroy-clones", "mon", &text(&twin)];
    command_of(context, &without)?;
    expect_equal(&before, &twin).context("without it")?;
    keep_by_policy(context, &mount, &twin)?;
    undo(context, &twin)?;
    mount.unmount()?;
    mount.fsck()
}

/// Rolls back where a clone `later` was made: only if it may be destroyed.
fn roll_back_over_a_clone(context: &Context, twin: &Path) -> Result<PathBuf> {
    let mount = twin.parent().context("a mount")?;
    let count = || Ok::<_, anyhow::Error>(fs::read_dir(mount.join(".stitchfs/snap"))?.count());
    let kept = count()?;
    let dir = text(twin);
    let refused = ["rollback", "--yes", "mon", &dir];
    expect_refused(context, &refused, "destroyed: later;")?;
    ensure!(twin.join("later").is_dir(), "the clone was destroyed");
    ensure!(count()? == kept, "a refused one leaves a snapshot");
    let allowed = ["rollback", "--yes", "--destroy-clones", "mon", &dir];
    let said = command_of(context, &allowed)?;
    Ok(PathBuf::from(said.trim_end()))
}

fn keep_by_policy(context: &Context, mount: &Mount<'_>, twin: &Path) -> Result<()> {
    let (root, dir) = (text(mount.dir()), text(&twin.join("d1")));
    let list = |more: &[&str]| {
        let args = [&["snapshot", "policy", "list", &root][..], more].concat();
        command_of(context, &args)
    };
    let set = ["--every", "1s", "--keep", "last=2", &dir, "quick"];
    command_of(context, &[&["snapshot", "create"][..], &set].concat())?;
    let told = list(&["--json"])?;
    ensure!(told.contains("\"clone\""), "{told}");
    ensure!(
        list(&[])?.starts_with("/twin/d1  quick  every 1s"),
        "{told}"
    );
    let snapshots = mount.dir().join(".stitchfs/snap");
    fs::write(twin.join("d1/kept"), b"by policy")?;
    let found = || -> Result<Option<PathBuf>> {
        for entry in fs::read_dir(&snapshots)? {
            let place = entry?.path();
            let is_automatic = text(&place).contains("/quick-");
            if is_automatic && place.join("kept").exists() {
                return Ok(Some(place));
            }
        }
        Ok(None)
    };
    let is_kept = context.wait_until(Duration::from_secs(30), || Ok(found()?.is_some()))?;
    ensure!(is_kept, "the policy creates no snapshot");
    command_of(context, &["snapshot", "policy", "delete", &dir])?;
    ensure!(list(&[])?.is_empty(), "the policy is still there");
    Ok(())
}

fn undo(context: &Context, twin: &Path) -> Result<()> {
    let file = twin.join("d1/kept");
    let lines = || command_of(context, &["history", &text(&twin.join("d1"))]);
    // A moment has it.
    let is_kept = || Ok(!lines()?.starts_with("now"));
    ensure!(
        context.wait_until(Duration::from_secs(30), is_kept)?,
        "no moment is created"
    );
    fs::write(&file, b"by mistake")?;
    let (dir, later) = (text(&twin.join("d1")), twin.join("d1/late"));
    clone(context, &twin.with_file_name("top"), &later)?;
    expect_refused(context, &["undo", "--yes", &dir], "destroyed: late;")?;
    ensure!(fs::read(&file)? == b"by mistake", "it is undone");
    command_of(context, &["undo", "--yes", "--destroy-clones", &dir])?;
    ensure!(!later.exists(), "the clone is there");
    // A moment may have been created between the two changes, and between the truncation and the
    // write of the first one: each undo goes back to the moment before the last one.
    for _ in 0..UNDOS_MAX {
        if fs::read(&file)? != b"by policy" {
            command_of(context, &["undo", "--yes", &dir])?;
        }
    }
    ensure!(fs::read(&file)? == b"by policy", "it is not undone");
    Ok(())
}

pub(super) fn a_kill_leaves_a_clone_as_before_or_as_in_the_snapshot(
    context: &Context,
) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-back-kill", "512M"))?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    clone(context, &top, &twin)?;
    fs::write(twin.join("large"), vec![1; 12 << 20])?;
    let before = copy(context, &twin, "clone-copy13")?;
    create(context, &twin, "mon")?;
    change_all(&twin)?;
    fs::write(twin.join("large"), vec![2; 12 << 20])?;
    let changed = copy(context, &twin, "clone-copy14")?;
    kill_and_roll_back(context, &mut mount, &twin, (&before, &changed))?;
    mount.unmount()?;
    mount.fsck()
}

/// Waits until the last moment shows a file with these contents. Returns its name.
pub(super) fn wait_for_moment(context: &Context, mount: &Mount<'_>, file: &Path) -> Result<String> {
    let history = mount.dir().join(".stitchfs/history");
    let inside = file.strip_prefix(mount.dir())?;
    let bytes = fs::read(file)?;
    let mut last = String::new();
    let is_kept = context.wait_until(Duration::from_secs(30), || {
        let mut names = Vec::new();
        for entry in fs::read_dir(&history)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        last = names.into_iter().max().unwrap_or_default();
        let past = fs::read(history.join(&last).join(inside));
        Ok(past.is_ok_and(|past| past == bytes))
    })?;
    ensure!(is_kept, "no moment shows {}", file.display());
    Ok(last)
}

pub(super) fn files_and_directories_of_clones_are_restored(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("clone-restore", "512M").option("history=10m");
    let mut mount = Mount::create(context, &spec)?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    clone(context, &top, &twin)?;
    // A clone in a clone, of that clone.
    let inner = twin.join("d2/inner");
    clone(context, &twin, &inner)?;
    let restore = |at: &str, args: &[&str]| {
        command_of(context, &[&["restore", "--at", at][..], args].concat())
    };
    for place in [&twin, &inner] {
        fs::write(place.join("d1/f1"), format!("kept {}", text(place)))?;
        let first = wait_for_moment(context, &mount, &place.join("d1/f1"))?;
        let (file, dir) = (place.join("d1/f1"), place.join("d1"));
        let before = copy(
            context,
            &dir,
            &format!("clone-copy-{}", place.components().count()),
        )?;
        fs::write(&file, b"by mistake")?;
        // Beside it, and in another view.
        for target in [place.join("then"), mount.dir().join("then")] {
            restore(&first, &["--to", &text(&target), &text(&dir)])?;
            expect_equal(&before, &target)?;
            fs::remove_dir_all(&target)?;
        }
        restore(&first, &["--force", &text(&file)])?;
        expect_equal(&before, &dir)?;
        fs::write(dir.join("later"), b"later")?;
        fs::remove_file(dir.join("f7"))?;
        restore(&first, &["--force", &text(&dir)])?;
        expect_equal(&before, &dir)?;
        fs::remove_dir_all(&dir)?;
        restore(&first, &[&text(&dir)])?;
        expect_equal(&before, &dir)?;
        mount.remount()?;
        expect_equal(&before, &dir)?;
    }
    restore_whole_clones(context, &mount, &top, &inner)?;
    mount.unmount()?;
    mount.fsck()
}

/// The directory is that of a clone, or a clone lies in it.
fn restore_whole_clones(
    context: &Context,
    mount: &Mount<'_>,
    top: &Path,
    inner: &Path,
) -> Result<()> {
    fs::write(inner.join("new"), b"kept")?;
    let first = wait_for_moment(context, mount, &inner.join("new"))?;
    let above = inner.parent().context("it lies in a directory")?;
    let (before, around) = (
        copy(context, inner, "clone-copy-inner")?,
        copy(context, above, "clone-copy-around")?,
    );
    fs::write(inner.join("new"), b"by mistake")?;
    let args = ["restore", "--at", &first, "--force"];
    command_of(context, &[&args[..], &[&text(inner)]].concat())?;
    expect_equal(&before, inner).context("a clone")?;
    fs::remove_dir_all(inner.join("d0"))?;
    command_of(context, &[&args[..], &[&text(above)]].concat())?;
    expect_equal(&around, above).context("a directory with a clone in it")?;
    let source = fs::read(top.join("d1/f1"))?;
    ensure!(source == b"before 1", "the source");
    Ok(())
}
