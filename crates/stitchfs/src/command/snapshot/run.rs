//! `stitchfs snapshot run`: a command that sees a directory as a snapshot shows it.

use super::super::view::{self, View};
use super::super::{live, startup::Inherited};
use super::{information, path_or_name, present};
use anyhow::Result;
use clap::Parser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use stitchfs::path_in;

/// The variable that tells the command which snapshot it sees.
const NAME_VARIABLE: &str = "STITCHFS_SNAPSHOT";

const AFTER: &str = "\
The command, and all that it starts, finds the snapshot at the path of its
directory: wherever the file system is mounted, bind mounts included. The
working directory is the same path, in the snapshot. Other file systems that are
mounted in the directory are shown as they are now. All other processes see the
directory as it is. STITCHFS_SNAPSHOT is the name of the snapshot.

Processes that are left when the command ends get SIGTERM and, 5 s later,
SIGKILL. Redirections of the calling shell lie outside. A user who is not root
needs the right to create user namespaces: files of others then show the owner
nobody, and programs like sudo do not work.

Exit codes: that of the command, or 128 + N if signal N ended it; 125 if it
could not be started in the snapshot, 126 if it cannot be executed, 127 if it is
not found.

Examples:
  stitchfs snapshot run /srv/.stitchfs/snap/mon -- make -C /srv/project test
  stitchfs snapshot run /srv/.stitchfs/snap/mon      # a shell";

/// Run a command that sees a directory as a snapshot shows it
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct SnapshotRun {
    /// Wait for processes that are left when the command ends
    #[arg(long)]
    wait: bool,

    /// Snapshot: its directory MNT/.stitchfs/snap/NAME, or its name in the mount that the working
    /// directory is in
    #[arg(value_name = "SNAP")]
    snapshot: PathBuf,

    /// Command and its arguments; by default the shell that SHELL names
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

pub(super) fn run(args: &SnapshotRun, inherited: &Inherited) -> Result<u8> {
    let given = &args.snapshot;
    let dir = path_or_name(given, &[Path::new(".")])?;
    let (mount, _) = live::around(&dir)?;
    let info = information(given, &dir, &mount)?;
    present(
        &mount,
        &info,
        "move it back, or read the snapshot by its own path",
    )?;
    let view = View::new(dir, path_in(&info, "path").unwrap_or_default())?;
    let mut command = view::command(&args.command);
    command.env(NAME_VARIABLE, info["name"].as_str().unwrap_or_default());
    view::run(&view, &mut command, args.wait, inherited)
}
