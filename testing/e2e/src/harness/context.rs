//! The context of a run: the command under test, the tools, the working folder, and limits.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use stitch_base::clock::{Clock as _, SystemClock};

use super::guardian;
use super::report::Skip;
use super::transport::Transport;

/// What is mounted and tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A store of ours.
    Stitch,
    /// ext4 on a loop device: shows that the tests themselves are right.
    Ext4,
}

impl Target {
    pub(crate) fn parse(name: Option<&str>) -> Result<Self> {
        match name {
            Some("stitch") => Ok(Self::Stitch),
            Some("ext4") => Ok(Self::Ext4),
            _ => bail!("--target is stitch or ext4"),
        }
    }
}

/// One run of a suite.
#[derive(Clone)]
pub(crate) struct Context {
    /// The `stitchfs` command.
    pub(crate) stitchfs: PathBuf,
    /// Folder of `pjdfstest` and `fsx`.
    pub(crate) tools: PathBuf,
    /// Folder of this run, which other users can enter; removed at the end.
    pub(crate) work: PathBuf,
    pub(crate) target: Target,
    pub(crate) transport: Transport,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) seed: Option<u64>,
    pub(crate) seeds: Option<u64>,
    pub(crate) ops: Option<u64>,
    /// Operations between two comparisons of whole trees.
    pub(crate) every: Option<u64>,
    /// Runs a case that failed once more.
    pub(crate) runs_again: bool,
    clock: SystemClock,
}

impl Context {
    /// Reads the environment and makes the folder to work in.
    pub(crate) fn from_env() -> Result<Self> {
        let path = |name: &str, default: &str| -> PathBuf {
            std::env::var_os(name)
                .unwrap_or_else(|| default.into())
                .into()
        };
        ensure!(
            rustix::process::geteuid().is_root(),
            "mounted tests must be run by root"
        );
        let parent = path("STITCH_WORK", "/var/tmp");
        let work = parent.join(format!("stitch-e2e.{}", std::process::id()));
        fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
        guardian::watch_dir(&work)?;
        fs::set_permissions(&work, fs::Permissions::from_mode(0o755))?;
        // Modes of what the tests create must not depend on who runs them.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        Ok(Self {
            stitchfs: absolute(&path("STITCHFS", "target/release/stitchfs"))?,
            tools: absolute(&path("STITCH_TOOLS", "target/tools/bin"))?,
            work,
            target: Target::Stitch,
            transport: Transport::Dev,
            time_limit: None,
            seed: None,
            seeds: None,
            ops: None,
            every: None,
            runs_again: false,
            clock: SystemClock::default(),
        })
    }

    /// This run with a new, empty folder to work in, for a second run of a case.
    pub(crate) fn again(&self) -> Result<Self> {
        let work = self.dir("again")?;
        Ok(Self {
            work,
            ..self.clone()
        })
    }

    /// Time since the run began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Waits.
    pub(crate) fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    /// Polls for at most `limit` until the answer is yes.
    pub(crate) fn wait_until(
        &self,
        limit: Duration,
        mut question: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let start = self.elapsed();
        loop {
            if question()? {
                return Ok(true);
            }
            if self.elapsed() - start > limit {
                return Ok(false);
            }
            self.sleep(Duration::from_millis(10));
        }
    }

    /// Time that is left of the limit; a suite with rounds stops early enough.
    pub(crate) fn time_left(&self) -> Duration {
        let limit = self.time_limit.unwrap_or(Duration::MAX);
        limit.saturating_sub(self.elapsed())
    }

    /// The seeds to run.
    pub(crate) fn seed_range(&self, default_count: u64) -> std::ops::Range<u64> {
        let first = self.seed.unwrap_or(1);
        let default_count = if self.seed.is_some() {
            1
        } else {
            default_count
        };
        first..first + self.seeds.unwrap_or(default_count)
    }

    /// Ends the case as skipped unless our own file system is under test.
    pub(crate) fn needs_stitch(&self) -> Result<()> {
        match self.target {
            Target::Stitch => Ok(()),
            Target::Ext4 => Err(Skip("needs a store of ours".to_owned()).into()),
        }
    }

    /// A fresh folder in the folder to work in.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        Ok(dir)
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}
