//! A control group (version 1) that limits the memory of a side, page cache and all.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

const MOUNTED: &str = "/sys/fs/cgroup/memory";

/// A group that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a group with this limit.
    pub(crate) fn new(limit_bytes: u64) -> Result<Self> {
        let name = format!("stitch-bench-{}", std::process::id());
        let path = Path::new(MOUNTED).join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let group = Self { path };
        let limit = group.path.join("memory.limit_in_bytes");
        fs::write(&limit, limit_bytes.to_string())
            .with_context(|| format!("cannot write {}", limit.display()))?;
        Ok(group)
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts this process into a group.
    pub(crate) fn enter(path: &Path) -> Result<()> {
        let procs = path.join("cgroup.procs");
        fs::write(&procs, std::process::id().to_string())
            .with_context(|| format!("cannot write {}", procs.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The child has ended, so the group is empty. If the removal fails, an empty group stays.
        let _ = fs::write(self.path.join("memory.force_empty"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// Returns the reason that no group can be made; `None` if one can.
pub(crate) fn why_not() -> Option<String> {
    if !Path::new(MOUNTED).join("memory.limit_in_bytes").exists() {
        return Some(format!("no memory controller at {MOUNTED}"));
    }
    Cgroup::new(64 << 20)
        .err()
        .map(|error| format!("{error:#}"))
}
