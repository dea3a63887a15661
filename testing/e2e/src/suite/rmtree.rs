//! `stitchfs rmtree`: trees that go at once, also when the daemon is killed right after.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::process::{command, run, text};
use crate::harness::report::Case;
use crate::harness::user::{NOBODY, acting_as};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "all-goes",
        run: a_tree_goes_and_its_space_comes_back,
    },
    Case {
        name: "killed",
        run: a_kill_right_after_it,
    },
    Case {
        name: "mistakes",
        run: what_is_refused,
    },
];

const DIRS: usize = 40;
const FILES: usize = 50;
/// All that is in a tree: directories, their files, and one file more.
const ENTRIES: u64 = (DIRS * (FILES + 1) + 1) as u64;
const LARGE_BYTES: usize = 1 << 20;

/// A tree of directories in directories, with files, and a second name of `linked`.
fn grow(top: &Path, linked: &Path) -> Result<()> {
    fs::create_dir(top)?;
    let mut dir = top.to_owned();
    for depth in 0..DIRS {
        if depth % 8 == 0 {
            dir = top.to_owned();
        }
        dir = dir.join(format!("d{depth}"));
        fs::create_dir(&dir)?;
        for index in 1..FILES {
            fs::write(dir.join(format!("f{index}")), [7; 300])?;
        }
        fs::write(dir.join("large"), vec![7; LARGE_BYTES])?;
    }
    fs::hard_link(linked, top.join("link"))?;
    Ok(())
}

/// Where a tree will be, and beside it the file that has a second name in it.
fn names(mount: &Mount<'_>) -> Result<(PathBuf, PathBuf)> {
    let linked = mount.dir().join("linked");
    fs::write(&linked, b"linked")?;
    Ok((mount.dir().join("top"), linked))
}

fn inodes_used(mount: &Mount<'_>) -> Result<u64> {
    let stat = rustix::fs::statvfs(mount.dir())?;
    Ok(stat.f_files - stat.f_ffree)
}

/// Waits until no more inodes are in use than there were.
fn wait_for_inodes(context: &Context, mount: &Mount<'_>, used: u64) -> Result<()> {
    let limit = Duration::from_secs(20);
    let are_free = context.wait_until(limit, || Ok(inodes_used(mount)? == used))?;
    ensure!(
        are_free,
        "inodes are left: {} of {used}",
        inodes_used(mount)?
    );
    Ok(())
}

/// Waits until no directory is to be emptied. Of the last ones the inodes are free a moment before
/// that.
fn wait_for_detached(context: &Context, mount: &Mount<'_>) -> Result<()> {
    let limit = Duration::from_secs(20);
    let left = || mount.stats()?.get("fs.detached_dirs");
    let are_gone = context.wait_until(limit, || Ok(left()? == 0))?;
    ensure!(are_gone, "{} directories are left", left()?);
    Ok(())
}

fn a_tree_goes_and_its_space_comes_back(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("rmtree", "512M"))?;
    let (top, linked) = names(&mount)?;
    let used = inodes_used(&mount)?;
    grow(&top, &linked)?;
    let open = File::open(top.join("d0/d1/large"))?;
    ensure!(open.metadata()?.nlink() == 1, "it has one name");
    // Known to the kernel, all of it.
    run(&mut command("find", &[&text(&top), "-size", "+1k"]))?;
    let before = mount.stats()?;
    let (code, said) = stitchfs(context, &["rmtree", "--wait", "--json", &text(&top)])?;
    ensure!(code == 0, "rmtree: {said}");
    let value: serde_json::Value = serde_json::from_str(&said)?;
    ensure!(
        value["entries"] == ENTRIES,
        "{value}, not {ENTRIES} entries"
    );
    ensure!(!top.exists(), "the tree is there");
    let removals = mount.stats()?.since(&before, "fuse.requests.rmdir")?;
    ensure!(removals == 1, "{removals} requests for one tree");
    ensure!(fs::metadata(&linked)?.nlink() == 1, "a name too much");
    ensure!(fs::read(&linked)? == b"linked", "it was ours to keep");
    let mut bytes = vec![0; LARGE_BYTES];
    open.read_exact_at(&mut bytes, 0)?;
    ensure!(
        bytes.iter().all(|&byte| byte == 7),
        "an open file lost bytes"
    );
    // The kernel is told a moment after the last entry is gone.
    let limit = Duration::from_secs(20);
    let is_nameless = context.wait_until(limit, || Ok(open.metadata()?.nlink() == 0))?;
    ensure!(is_nameless, "an open file has a name that is gone");
    drop(open);
    wait_for_inodes(context, &mount, used)?;
    fs::create_dir(&top).context("the name is free")?;
    mount.unmount()?;
    mount.fsck()
}

fn a_kill_right_after_it(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("rmtree-kill", "512M"))?;
    let (top, linked) = names(&mount)?;
    let used = inodes_used(&mount)?;
    for round in 0..4 {
        grow(&top, &linked)?;
        mount.sync()?;
        let (code, said) = stitchfs(context, &["rmtree", &text(&top)])?;
        ensure!(code == 0, "rmtree: {said}");
        context.sleep(Duration::from_millis(10 * round));
        mount.kill()?;
        mount.mount_again()?;
        ensure!(!top.exists(), "round {round}: it came back");
        ensure!(
            fs::read(&linked)? == b"linked",
            "round {round}: it was ours"
        );
        wait_for_inodes(context, &mount, used)?;
        wait_for_detached(context, &mount).with_context(|| format!("round {round}"))?;
        mount.unmount()?;
        mount.fsck().with_context(|| format!("round {round}"))?;
        mount.mount_again()?;
    }
    mount.unmount()
}

fn what_is_refused(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("rmtree-no", "64M"))?;
    let dir = mount.dir().to_owned();
    let (top, file, inner) = (dir.join("top"), dir.join("file"), dir.join("top/inner"));
    fs::create_dir_all(&inner)?;
    fs::write(&file, b"")?;
    let elsewhere = context.dir("elsewhere")?;
    let refused = |path: &Path, reason: &str| -> Result<()> {
        let (code, said) = stitchfs(context, &["rmtree", &text(path)])?;
        ensure!(code == 1, "{}: code {code}, {said}", path.display());
        ensure!(said.contains(reason), "{}: {said}", path.display());
        Ok(())
    };
    refused(&file, "no directory")?;
    refused(&dir, "mount point")?;
    refused(&dir.join("none"), "No such file")?;
    refused(&elsewhere, "not in a mount of StitchFS")?;
    guardian::watch_mount(&inner)?;
    run(&mut command(
        "mount",
        &["-t", "tmpfs", "none", &text(&inner)],
    ))?;
    let below = refused(&top, "mount point");
    run(&mut command("umount", &[&text(&inner)]))?;
    guardian::forget_mount(&inner);
    below?;
    // A right to write there is not enough.
    run(&mut command("chmod", &["-R", "777", &text(&dir)]))?;
    let announced = acting_as(Some(NOBODY), || {
        rustix::fs::setxattr(
            &top,
            "stitchfs.rmtree",
            b"1",
            rustix::fs::XattrFlags::empty(),
        )
    })?;
    ensure!(
        announced.is_err(),
        "a user without privilege removed a tree"
    );
    ensure!(
        fs::remove_dir(&top).is_err_and(|e| e.kind() == std::io::ErrorKind::DirectoryNotEmpty),
        "rmdir is as it was"
    );
    ensure!(
        inner.exists() && elsewhere.exists(),
        "what was refused is gone"
    );
    mount.unmount()?;
    mount.fsck()
}
