//! A control group (version 1) that limits the memory of a side, page cache and all.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

const MOUNTED: &str = "/sys/fs/cgroup/memory";

/// A group that goes when this does.
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

    /// Where it is.
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
        // The child was waited for, so nobody is in it. If it stays all the same, it is empty.
        let _ = fs::write(self.path.join("memory.force_empty"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// Why there can be no group here; `None` if there can.
pub(crate) fn why_not() -> Option<String> {
    if !Path::new(MOUNTED).join("memory.limit_in_bytes").exists() {
        return Some(format!("no memory controller at {MOUNTED}"));
    }
    Cgroup::new(64 << 20)
        .err()
        .map(|error| format!("{error:#}"))
}
