//! A small file system of the host for the files beside a store: one that gets full, and one whose
//! disk fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::mount::UnmountFlags;

use super::context::Context;
use super::guardian;
use super::process::{command, output, run};

/// How long a file system may stay busy after its users are gone.
const LET_GO_MAX: Duration = Duration::from_secs(10);

/// An ext4 on a loop device. Gone when dropped.
pub(crate) struct Host {
    image: PathBuf,
    dir: PathBuf,
    is_mounted: bool,
}

impl Host {
    /// One of `size` bytes at `dir`.
    pub(crate) fn create(context: &Context, dir: &Path, size: u64) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let name = dir.file_name().unwrap_or_default().display();
        let image = context.work.join(format!("{name}.image"));
        File::create(&image)?.set_len(size)?;
        let mut make = command("mkfs.ext4", &["-q", "-F", "-m", "0", "-b", "4096"]);
        // All metadata is at the beginning then, and the file system continues where writes fail.
        make.args(["-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard"]);
        run(make.arg(&image))?;
        let mut host = Self {
            image,
            dir: dir.to_owned(),
            is_mounted: false,
        };
        host.mount()?;
        Ok(host)
    }

    fn mount(&mut self) -> Result<()> {
        guardian::watch_mount(&self.dir)?;
        let mut mount = command("mount", &["-o", "loop"]);
        run(mount.arg(&self.image).arg(&self.dir))?;
        self.is_mounted = true;
        // A folder of ours has nothing that is not ours.
        let found = self.dir.join("lost+found");
        if found.exists() {
            fs::remove_dir(found)?;
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        run(Command::new("umount").arg(&self.dir))?;
        guardian::forget_mount(&self.dir);
        self.is_mounted = false;
        Ok(())
    }

    /// Makes its disk fail behind the first `len` bytes.
    pub(crate) fn fail_behind(&self, len: u64) -> Result<()> {
        File::options()
            .write(true)
            .open(&self.image)?
            .set_len(len)?;
        let device = run(command("findmnt", &["-n", "-o", "SOURCE"]).arg(&self.dir))?;
        run(&mut command("losetup", &["-c", device.trim()])).map(drop)
    }

    /// Repairs its disk to `len` bytes, and drops cached bytes that the disk refused.
    pub(crate) fn mend(&mut self, context: &Context, len: u64) -> Result<()> {
        // Descriptors of a killed daemon are closed a moment after its end.
        let mut unmounted = Ok(());
        context.wait_until(LET_GO_MAX, || {
            unmounted = self.unmount();
            Ok(unmounted.is_ok())
        })?;
        unmounted?;
        File::options()
            .write(true)
            .open(&self.image)?
            .set_len(len)?;
        let check = output(command("e2fsck", &["-fy"]).arg(&self.image))?;
        let code = check.status.code();
        ensure!(
            code.is_some_and(|code| code < 4),
            "e2fsck: {}",
            check.status
        );
        self.mount()
    }

    /// Returns its free space in bytes.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.is_mounted && self.unmount().is_err() {
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
        let _ = fs::remove_file(&self.image);
        let _ = fs::remove_dir(&self.dir);
    }
}
