//! Going to the background, and saying so only when the mount answers.
//!
//! 1. The command starts itself again for the stage [`Stage::Background`], its standard output a
//!    pipe, and no other descriptor that the user's shell had open.
//! 2. The child leaves the session of the terminal, does all the work, and prints its errors where
//!    the user sees them: standard error is still the user's.
//! 3. When it serves, it writes [`READY`] into the pipe and lets go of all three streams.
//! 4. The parent looks at the mount with `statfs` and ends well; or it ends as the child did.
//!
//! If the parent is gone when the child is ready, the child undoes the mount.

mod inherited;

pub(super) use inherited::keep_from_children;

use super::role::Stage;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

const READY: &[u8] = b"ready\n";

/// How the parent ends.
pub(super) enum Started {
    /// The child serves in the background.
    Serving,
    /// The child ended with this code and has said why.
    Ended(u8),
}

/// Starts the same command again, in the background, and waits until it serves or ends.
pub(super) fn start(args: &[OsString]) -> Result<Started> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let (name, rest) = args
        .split_first()
        .context("no name was given to run under")?;
    keep_from_children();
    let mut command = Command::new(program);
    let mut child = Stage::Background
        .mark(&mut command)
        .arg0(name)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the background process")?;
    let mut said = Vec::new();
    let mut pipe = child.stdout.take().context("the child has a pipe")?;
    pipe.read_to_end(&mut said)
        .context("cannot hear from the background process")?;
    if said == READY {
        return Ok(Started::Serving);
    }
    let status = child.wait().context("cannot wait for the child")?;
    if let Some(signal) = status.signal() {
        bail!("the background process was ended by signal {signal}");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    // A child that ended without a word did not serve.
    Ok(Started::Ended(code.filter(|code| *code != 0).unwrap_or(1)))
}

/// In the child, first of all: no signal of the terminal is for us.
pub(super) fn leave_terminal() {
    // Fails only where this process leads a group already: then the shell has put it apart.
    let _ = rustix::process::setsid();
}

/// Reports, in the child, that the mount is served.
///
/// # Errors
/// The command that started this process has ended: the caller undoes the mount.
pub(super) fn report_ready() -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(READY)
        .and_then(|()| out.flush())
        .context("the command that started this was ended")?;
    drop(out);
    let_go()
}

/// Lets go of what the terminal has lent.
pub(super) fn let_go() -> Result<()> {
    super::startup::leave_directory()?;
    let null = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("cannot let go of standard output")?;
    rustix::stdio::dup2_stderr(&null).context("cannot let go of standard error")?;
    Ok(())
}

/// In the parent: whether what is mounted at `path` answers.
///
/// # Errors
/// What `statfs` said.
pub(super) fn await_answer(path: &Path) -> Result<()> {
    rustix::fs::statfs(path)
        .map(drop)
        .with_context(|| format!("{}: the mount does not answer", path.display()))
}
