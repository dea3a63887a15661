//! overlayfs with both layers on a mount: its index and its own handles are made of ours.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{expect, expect_stale, file, ino};
use crate::harness::context::Context;
use crate::harness::file_handle::{FileHandle, drop_inodes, path_of};
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{command, run};
use crate::harness::report::Skip;

/// An overlay over the folders `lower` and `upper` of a mount.
struct Overlay {
    dir: PathBuf,
    is_mounted: bool,
}

impl Overlay {
    fn mount(&mut self, layers: &Path) -> Result<()> {
        let layer = |name: &str| layers.join(name).display().to_string();
        let (lower, upper, work) = (layer("lower"), layer("upper"), layer("work"));
        let options =
            format!("index=on,nfs_export=on,lowerdir={lower},upperdir={upper},workdir={work}");
        guardian::watch_mount(&self.dir)?;
        let mut mount = command("mount", &["-t", "overlay", "overlay", "-o", &options]);
        run(mount.arg(&self.dir))?;
        self.is_mounted = true;
        // Where a layer has no handles that can be opened, overlayfs only warns and does without.
        let mounts = fs::read_to_string("/proc/mounts")?;
        let dir = format!(" {} ", self.dir.display());
        let line = mounts.lines().find(|line| line.contains(&dir));
        let line = line.context("not mounted")?;
        ensure!(line.contains("nfs_export=on"), "no export: {line}");
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_mounted) {
            run(command("umount", &[]).arg(&self.dir))?;
            guardian::forget_mount(&self.dir);
        }
        Ok(())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

pub(super) fn an_overlay_is_exported_from_a_mount(context: &Context) -> Result<()> {
    let known = fs::read_to_string("/proc/filesystems")?;
    if !known.contains("\toverlay\n") {
        return Err(Skip("the kernel has no overlayfs".to_owned()).into());
    }
    let mut mount = Mount::create(context, &Spec::new("handles-layers", "128M"))?;
    let layers = mount.dir().to_owned();
    for name in ["lower/dir/sub", "upper", "work"] {
        fs::create_dir_all(layers.join(name))?;
    }
    for name in ["dir/sub/kept", "dir/changed", "dir/gone", "linked"] {
        file(layers.join("lower").join(name))?;
    }
    fs::hard_link(layers.join("lower/linked"), layers.join("lower/dir/second"))?;
    let mut overlay = Overlay {
        dir: context.dir("overlay")?,
        is_mounted: false,
    };
    overlay.mount(&layers)?;
    let dir = overlay.dir.clone();
    file(dir.join("dir/made"))?;
    let paths = [
        "dir/sub/kept",
        "dir/changed",
        "linked",
        "dir/second",
        "dir/made",
    ];
    let mut handles = Vec::new();
    for path in paths {
        handles.push((path, FileHandle::of(&dir.join(path))?));
    }
    let sub = FileHandle::of(&dir.join("dir/sub"))?;
    let gone = FileHandle::of(&dir.join("dir/gone"))?;
    // Copied up; one by one name of two.
    for path in ["dir/changed", "linked"] {
        let mut changed = fs::OpenOptions::new().append(true).open(dir.join(path))?;
        changed.write_all(b"+")?;
    }
    fs::remove_file(dir.join("dir/gone"))?;
    fs::rename(dir.join("dir/made"), dir.join("dir/sub/made"))?;
    for round in 0..2 {
        drop_inodes()?;
        for &(path, handle) in &handles {
            let text: &[u8] = match path {
                "dir/sub/kept" => b"kept",
                "dir/changed" => b"changed+",
                "dir/made" => b"made",
                _ => b"linked+",
            };
            let now = match path {
                "dir/made" => "dir/sub/made",
                path => path,
            };
            expect(&dir, handle, ino(&dir.join(now))?, Some(text))
                .with_context(|| format!("round {round}: {path}"))?;
        }
        let opened = expect(&dir, sub, ino(&dir.join("dir/sub"))?, None)?;
        ensure!(path_of(&opened)? == dir.join("dir/sub"), "not connected");
        drop(opened);
        expect_stale(&dir, gone)?;
        overlay.unmount()?;
        mount.remount()?;
        overlay.mount(&layers)?;
    }
    overlay.unmount()?;
    mount.unmount()?;
    mount.fsck()
}
