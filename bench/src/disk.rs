//! A disk of a side's own: a loop device on a preallocated file, with a fresh ext4 on it.
//!
//! Its counters are exact: every sector that reached or left the device, whichever thread wrote it
//! back and at any time. The loop device reads and writes the file below without the page cache of
//! the host.

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, detached when dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    image: PathBuf,
    device: PathBuf,
}

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mount {
    at: PathBuf,
}

impl Disk {
    /// Makes the file in `folder` and attaches it.
    pub(crate) fn new(folder: &Path, len_bytes: u64) -> Result<Self> {
        let image = folder.join("disk.img");
        let file = File::create(&image).with_context(|| image.display().to_string())?;
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, len_bytes) {
            // What was had of it is needed for a run without a disk.
            let _ = fs::remove_file(&image);
            return Err(error)
                .with_context(|| format!("no room for a disk of {} MiB", len_bytes >> 20));
        }
        let attach = ["--find", "--show", "--direct-io=on"];
        let shown = output(Command::new("losetup").args(attach).arg(&image))?;
        let device = PathBuf::from(shown.trim());
        Ok(Self { image, device })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    /// Where the kernel counts what the device did.
    pub(crate) fn counters(&self) -> PathBuf {
        let name = self.device.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("stat")
    }

    /// Writes all of it once, so that no side is the first to touch a block of the file below.
    pub(crate) fn wear_in(&self) -> Result<()> {
        let zeros = vec![0; 1 << 20];
        let mut file = File::options().write(true).open(&self.device)?;
        let len_bytes = fs::metadata(&self.image)?.len();
        let mut left = len_bytes;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
            file.write_all(&zeros[..piece])?;
            left -= piece as u64;
        }
        Ok(file.sync_all()?)
    }

    /// Makes a file system by a command, whatever was there.
    pub(crate) fn make(&self, make: &[&str]) -> Result<()> {
        output(Command::new(make[0]).args(&make[1..]).arg(&self.device)).map(drop)
    }

    /// Makes a file system, whatever was there, and mounts it.
    pub(crate) fn mount(&self, at: &Path) -> Result<Mount> {
        // Nothing is left for the kernel to initialize in the background.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let make = ["-q", "-F", "-m", "0", "-T", "largefile4", "-E", options];
        output(Command::new("mkfs.ext4").args(make).arg(&self.device))?;
        fs::create_dir_all(at)?;
        Mount::new(&self.device, at)
    }
}

impl Mount {
    /// Mounts a device with a file system on it.
    pub(crate) fn new(device: &Path, at: &Path) -> Result<Self> {
        output(Command::new("mount").arg(device).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("losetup").arg("-d").arg(&self.device)) {
            eprintln!("{} stays attached: {error:#}", self.device.display());
        }
        // The folder that it is in is removed anyway.
        let _ = fs::remove_file(&self.image);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("umount").arg(&self.at)) {
            eprintln!("{} stays mounted: {error:#}", self.at.display());
        }
    }
}

/// Runs a command to its end; what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Unmounts, lazily if it is busy. Succeeds if its own daemon has unmounted it meanwhile.
pub(crate) fn unmount(at: &Path) -> Result<()> {
    if output(Command::new("umount").arg(at)).is_ok() || !is_mounted(at) {
        return Ok(());
    }
    match output(Command::new("umount").arg("-l").arg(at)) {
        Err(error) if is_mounted(at) => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn is_mounted(at: &Path) -> bool {
    stitch_fuse::mount::mounted_at(at).is_ok_and(|entry| entry.is_some())
}

/// Unmounts and detaches what a run that was killed left in its folder.
pub(crate) fn take_down(folder: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // What was mounted last goes first: it may stand on another.
    let mounted = mounts.lines().rev();
    let mounted = mounted.filter_map(|line| line.split(' ').nth(1));
    for at in mounted.filter(|at| Path::new(at).starts_with(folder)) {
        unmount(Path::new(at))?;
    }
    let image = folder.join("disk.img");
    if image.exists() {
        let devices = output(
            Command::new("losetup")
                .args(["--noheadings", "-O", "NAME", "-j"])
                .arg(&image),
        )?;
        for device in devices.lines() {
            output(Command::new("losetup").arg("-d").arg(device.trim()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_unmounted_meanwhile_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        unmount(folder.path()).unwrap();
    }

    #[test]
    fn a_disk_without_room_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let refused = Disk::new(folder.path(), 1 << 62).unwrap_err();
        assert!(format!("{refused:#}").contains("no room for a disk of"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
