//! The command under the names by which mount(8) finds it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::context::Context;
use super::guardian;

/// A link in `/sbin`, gone when dropped. One that is there already stays.
pub(crate) struct Helper {
    made: Option<PathBuf>,
}

impl Helper {
    /// Makes the link `/sbin/<name>`.
    pub(crate) fn install(context: &Context, name: &str) -> Result<Self> {
        let path = PathBuf::from("/sbin").join(name);
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(Self { made: None });
        }
        guardian::watch_file(&path)?;
        symlink(&context.stitchfs, &path).with_context(|| path.display().to_string())?;
        Ok(Self { made: Some(path) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
    }
}
