//! A block device for a store: a loop device over a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::context::Context;
use super::process::{command, run};

/// A loop device. Gone when dropped, and also when this process dies: it is detached with its last
/// user, which is this.
pub(crate) struct Disk {
    image: PathBuf,
    device: PathBuf,
    _held: File,
}

impl Disk {
    /// One of `size`, as `truncate` takes it.
    pub(crate) fn attach(context: &Context, name: &str, size: &str) -> Result<Self> {
        let image = context.work.join(format!("{name}.image"));
        run(command("truncate", &["-s", size]).arg(&image))?;
        let device = run(command("losetup", &["--find", "--show"]).arg(&image))?;
        let device = PathBuf::from(device.trim());
        let held = File::open(&device)?;
        run(command("losetup", &["-d"]).arg(&device))?;
        Ok(Self {
            image,
            device,
            _held: held,
        })
    }

    pub(crate) fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.image);
    }
}
