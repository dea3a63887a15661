//! A program that can be started as a daemon, whatever becomes of its file.

use crate::command::role::Stage;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::survive::link::Link;

/// What the kernel adds to the name of a file that was removed or replaced.
const DELETED: &[u8] = b" (deleted)";
/// How long a program may take to say its version.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// An executable file.
#[derive(Debug)]
pub(super) struct Program {
    file: File,
    path: PathBuf,
}

impl Program {
    /// The one that runs.
    pub(super) fn of_this_process() -> Result<Self> {
        let path = std::env::current_exe().context("cannot find this program's file")?;
        let file = File::open("/proc/self/exe").context("cannot open this program's file")?;
        let path = without_deleted(path);
        Ok(Self { file, path })
    }

    /// The one that is at the same path now.
    pub(super) fn on_disk(&self) -> Result<Self> {
        let path = self.path.clone();
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The device that its file is on.
    pub(super) fn device(&self) -> Result<(u32, u32)> {
        let stat = rustix::fs::fstat(&self.file)?;
        Ok((
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        ))
    }

    fn command(&self) -> Command {
        // The child has the descriptor until it executes what is behind it.
        Command::new(format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd()))
    }

    /// What it says its version is: it can be started here.
    pub(super) fn version(&self) -> Result<String> {
        let shown = self.path.display();
        let failed = || format!("{shown} cannot be started");
        let mut command = self.command();
        let quiet = command.arg0("stitchfs").arg("--version");
        let quiet = quiet.stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = quiet.stdout(Stdio::piped()).spawn().with_context(failed)?;
        let clock = SystemClock::default();
        while child.try_wait()?.is_none() {
            if clock.monotonic() > PATIENCE {
                child.kill()?;
                child.wait()?;
                bail!("{shown} does not say its version");
            }
            clock.sleep(POLL);
        }
        let output = child.wait_with_output().with_context(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim().strip_prefix("stitchfs ");
        match version {
            Some(version) if output.status.success() => Ok(version.to_owned()),
            _ => bail!("{shown} is not stitchfs"),
        }
    }

    /// Starts it as a daemon, under the command line of the mount; `is_quiet`: it shows nothing on
    /// standard output, which is a pipe to the command that waits for the mount.
    pub(super) fn start(&self, command_line: &[OsString], is_quiet: bool) -> Result<(Child, Link)> {
        let (name, rest) = command_line
            .split_first()
            .context("no name was given to run under")?;
        let (ours, theirs) = Link::pair().context("cannot talk to a daemon")?;
        let mut command = self.command();
        Stage::Worker.mark(&mut command).arg0(name).args(rest);
        command.stdin(Stdio::from(theirs));
        if is_quiet {
            command.stdout(Stdio::null());
        }
        let child = command.spawn().context("cannot start the daemon")?;
        Ok((child, ours))
    }
}

fn without_deleted(path: PathBuf) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(bytes) => PathBuf::from(OsString::from_vec(bytes.to_vec())),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_that_of_what_replaced_the_file() {
        let of = |path: &str| without_deleted(PathBuf::from(path));
        assert_eq!(
            of("/usr/bin/stitchfs (deleted)"),
            Path::new("/usr/bin/stitchfs")
        );
        assert_eq!(of("/usr/bin/stitchfs"), Path::new("/usr/bin/stitchfs"));
    }

    #[test]
    fn another_program_is_told_from_ours() {
        let path = PathBuf::from("/bin/true");
        let file = File::open(&path).unwrap();
        let error = Program { file, path }.version().unwrap_err().to_string();
        assert!(error.contains("/bin/true is not stitchfs"), "{error}");
    }
}
