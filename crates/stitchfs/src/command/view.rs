//! Runs a command that sees a directory of a mount in another state: a snapshot of it.
//!
//! 1. This process leaves the mount namespace that it shares with others ([`namespace`]).
//! 2. It attaches the view over its directory in every mount of the file system, and other mounts
//!    in the directory again on top ([`plan`], [`attach`]).
//! 3. It enters the working directory anew, by its path.
//! 4. It starts the command, passes signals on, and ends what the command leaves behind
//!    ([`supervise`]).
//!
//! ```text
//!   mounts before                     in the namespace, with a view of /home
//!   /srv           / of the store     /srv/home     the view
//!   /srv/home/ada/usb  a tmpfs        /srv/home/ada/usb  the tmpfs, attached again
//!   /home          /home of it        /home         the view
//!   /www           /home/ada/www      /www          ada/www of the view
//! ```
//!
//! Nothing of this outlives the command: the namespace ends with its last process.

mod attach;
mod namespace;
mod plan;
mod signals;
mod supervise;

use super::output;
use super::startup::Inherited;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use stitch_fuse::mount::table;

/// Exit code if the command was not started, or what it left behind could not be ended.
pub(super) const FAILED: u8 = 125;

const SHELL_VARIABLE: &str = "SHELL";
const SHELL: &str = "/bin/sh";

/// A directory of a mount in another state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Where the other state is found.
    dir: PathBuf,
    /// The transaction that it takes the place of, from the root of the file system; empty for
    /// mainline.
    replaces: PathBuf,
    /// The directory that it is a state of: its path from the root of the file system; empty for
    /// the root itself. In a transaction, from the root of that.
    covers: PathBuf,
    /// Device number of the file system.
    device: (u32, u32),
}

impl View {
    /// Returns the view that is found at `dir`, of the directory `covers`.
    ///
    /// # Errors
    /// If `dir` cannot be reached.
    pub(super) fn new(dir: PathBuf, covers: PathBuf) -> Result<Self> {
        debug_assert!(dir.is_absolute(), "a view is found from anywhere");
        debug_assert!(covers.is_relative(), "a path from the file system's root");
        let found = dir.metadata().with_context(|| dir.display().to_string())?;
        let number = found.dev();
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        Ok(Self {
            dir,
            replaces: PathBuf::new(),
            covers,
            device,
        })
    }

    /// Has it take the place of a transaction, whose root is found at this path from that of the
    /// file system, instead of mainline's.
    pub(super) fn replacing(self, root: PathBuf) -> Self {
        debug_assert!(root.is_relative(), "a path from the file system's root");
        let replaces = root;
        Self { replaces, ..self }
    }
}

/// Returns a command of these words; the user's shell if there are none.
pub(super) fn command(words: &[OsString]) -> Command {
    let shell = || std::env::var_os(SHELL_VARIABLE).filter(|shell| !shell.is_empty());
    match words.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        None => Command::new(shell().unwrap_or_else(|| SHELL.into())),
    }
}

/// Runs a command in a view and returns the exit code to end with. This process stays in the view.
///
/// # Errors
/// If the command did not run in the view, or left processes behind that do not end.
pub(super) fn run(
    view: &View,
    command: &mut Command,
    waits: bool,
    inherited: &Inherited,
) -> Result<u8> {
    let directory = std::env::current_dir()
        .context("the working directory is not there any more; change to another one")?;
    namespace::enter()?;
    enter(view)?;
    std::env::set_current_dir(&directory).with_context(|| {
        let shown = directory.display();
        format!("{shown}: the working directory is not in the view; change to another one")
    })?;
    inherited.restore()?;
    supervise::run(command, waits)
}

/// Attaches the view in this process's mount namespace, which must be its own.
fn enter(view: &View) -> Result<()> {
    let mounts = table::list()?;
    let steps = plan::plan(&mounts, view)?;
    debug_assert!(!steps.is_empty(), "a plan covers something");
    for note in attach::attach(view, &steps)? {
        output::note(&note);
    }
    Ok(())
}
