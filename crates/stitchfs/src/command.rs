//! The command line: one file for each subcommand.
//!
//! `mkfs.stitchfs`, `mount.stitchfs`, `umount.stitchfs` and `fsck.stitchfs` are names of the same
//! program, with the arguments that mkfs(8), mount(8), umount(8) and fsck(8) pass to their helpers;
//! `mount.fuse.stitchfs` and `umount.fuse.stitchfs` are for the type that shows in the mount table.
//!
//! Exit codes are 0 for success, 1 for failure and 2 for a wrong command line. `kv`, `send`,
//! `receive` and `export` have 3 besides, and `fsck` has its own ([`fsck`]). `mount.stitchfs` and
//! `umount.stitchfs` have 32 for failure and 1 for a wrong command line, as mount(8) wants.
//! Subcommands that run a command end with its code, and 125 to 127 as env(1) does ([`view`]).

mod access;
mod advice;
mod busy;
mod clone;
mod compress;
mod daemon;
mod defrag;
mod diff;
mod export;
mod fsck;
mod grow;
mod history;
mod hold;
mod info;
mod instance;
mod kv;
mod live;
mod log;
mod mkfs;
mod mount;
mod numbers;
mod options;
mod output;
mod period;
mod quoted;
mod receive;
mod rmtree;
mod role;
mod rollback;
mod send;
mod serve;
mod shrink;
mod size;
mod snapshot;
mod startup;
mod stats;
mod sync;
mod tag;
mod task;
mod trim;
mod txn;
mod umount;
mod upgrade;
mod usage;
mod users;
mod utab;
mod view;
mod watch;

use clap::{Parser, Subcommand};
use role::Stage;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Longest line of a help text, in columns.
const HELP_COLUMNS: usize = 80;

const AFTER: &str = "\
Exit codes: 0 success, 1 failure, 2 wrong command line; fsck has those of
fsck(8); `snapshot run` and `txn run` those of env(1); 75 is a conflict.
The environment variable STITCHFS_LOG chooses what is logged: warn, debug,
stitch_vt=trace, ...";

/// A durable POSIX file system on write-optimised trees.
#[derive(Debug, Parser)]
#[command(name = "stitchfs", version, after_help = AFTER, max_term_width = HELP_COLUMNS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mkfs(mkfs::MkfsArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    #[command(skip)]
    UmountHelper(umount::helper::UmountHelperArgs),
    Upgrade(upgrade::UpgradeArgs),
    Fsck(fsck::FsckArgs),
    Info(info::InfoArgs),
    Instance(instance::InstanceArgs),
    Stats(stats::StatsArgs),
    Defrag(defrag::DefragArgs),
    Trim(trim::TrimArgs),
    Sync(sync::SyncArgs),
    Rmtree(rmtree::RmtreeArgs),
    Snapshot(snapshot::SnapshotArgs),
    Clone(clone::CloneArgs),
    Destroy(clone::DestroyArgs),
    Usage(usage::UsageArgs),
    Diff(diff::DiffArgs),
    Rollback(rollback::RollbackArgs),
    History(history::HistoryArgs),
    Restore(history::restore::RestoreArgs),
    Undo(history::undo::UndoArgs),
    Txn(txn::TxnArgs),
    Send(send::SendArgs),
    Receive(receive::ReceiveArgs),
    Export(export::ExportArgs),
    Serve(serve::ServeArgs),
    Kv(kv::KvArgs),
    Grow(grow::GrowArgs),
    Shrink(shrink::ShrinkArgs),
}

impl Command {
    /// Puts the device that has the tag where a store was given as `LABEL=NAME` or `UUID=NUMBER`.
    fn resolve_tags(&mut self) -> anyhow::Result<()> {
        let store = match self {
            Self::Mount(args) => &mut args.store,
            Self::Fsck(args) => &mut args.store,
            Self::Info(args) => &mut args.path,
            Self::Defrag(args) => &mut args.path,
            Self::Trim(args) => &mut args.path,
            Self::Grow(args) => &mut args.path,
            Self::Shrink(args) => &mut args.path,
            Self::Serve(args) => &mut args.store,
            Self::Kv(args) => args.path_mut(),
            Self::Mkfs(_)
            | Self::Umount(_)
            | Self::UmountHelper(_)
            | Self::Upgrade(_)
            | Self::Instance(_)
            | Self::Stats(_)
            | Self::Sync(_)
            | Self::Rmtree(_)
            | Self::Snapshot(_)
            | Self::Clone(_)
            | Self::Destroy(_)
            | Self::Usage(_)
            | Self::Diff(_)
            | Self::Rollback(_)
            | Self::History(_)
            | Self::Restore(_)
            | Self::Undo(_)
            | Self::Txn(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Export(_) => return Ok(()),
        };
        *store = tag::resolve(store)?;
        Ok(())
    }

    /// Runs the command; `line` is the whole command line. Returns the exit code.
    fn run(self, line: &[OsString], inherited: &startup::Inherited) -> anyhow::Result<u8> {
        match self {
            Self::Mkfs(args) => mkfs::run(&args),
            Self::Mount(given) => mount::run(&given, line),
            Self::Umount(args) => umount::run(&args),
            Self::UmountHelper(args) => umount::helper::run(args),
            Self::Upgrade(args) => upgrade::run(&args),
            Self::Fsck(args) => fsck::run(&args),
            Self::Info(args) => info::run(&args),
            Self::Instance(args) => instance::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Defrag(args) => defrag::run(&args),
            Self::Trim(args) => trim::run(&args),
            Self::Sync(args) => sync::run(&args),
            Self::Rmtree(args) => rmtree::run(&args),
            Self::Serve(args) => serve::run(&args),
            Self::Kv(args) => kv::run(&args),
            Self::Snapshot(args) => snapshot::run(&args, inherited),
            Self::Clone(args) => clone::run(&args),
            Self::Destroy(args) => clone::destroy(&args),
            Self::Usage(args) => usage::run(&args),
            Self::Diff(args) => diff::run(&args),
            Self::Rollback(args) => rollback::run(&args),
            Self::History(args) => history::run(&args),
            Self::Restore(args) => history::restore::run(&args),
            Self::Undo(args) => history::undo::run(&args),
            Self::Txn(args) => txn::run(&args, inherited),
            Self::Send(args) => send::run(&args),
            Self::Receive(args) => receive::run(&args),
            Self::Export(args) => export::run(&args),
            Self::Grow(args) => grow::run(&args),
            Self::Shrink(args) => shrink::run(&args),
        }
    }
}

/// Codes for what a personality's caller expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Codes {
    failure: u8,
    usage: u8,
}

const OURS: Codes = Codes {
    failure: 1,
    usage: 2,
};
const MOUNT: Codes = Codes {
    failure: 32,
    usage: 1,
};
const FSCK: Codes = Codes {
    failure: fsck::OPERATIONAL,
    usage: fsck::USAGE,
};

/// Commands that end with the code of the command that they run.
const RUN: Codes = Codes {
    failure: view::FAILED,
    usage: view::FAILED,
};

/// Returns the codes of a subcommand, which begins `words`.
fn codes_of(words: &[OsString]) -> Codes {
    let word = |index: usize| words.get(index).and_then(|word| word.to_str());
    match (word(0), word(1)) {
        (Some("fsck"), _) => FSCK,
        (Some("snapshot"), Some("run")) | (Some("txn"), Some("run" | "enter")) => RUN,
        _ => OURS,
    }
}

/// Returns the codes of a call of the program by this name.
fn codes_of_call(name: Option<&str>, args: &[OsString]) -> Codes {
    match name {
        Some("mkfs.stitchfs") => OURS,
        Some(
            "mount.stitchfs" | "mount.fuse.stitchfs" | "umount.stitchfs" | "umount.fuse.stitchfs",
        ) => MOUNT,
        Some("fsck.stitchfs") => FSCK,
        _ => codes_of(args.get(1..).unwrap_or_default()),
    }
}

/// Runs the command line; `args` begins with the name that the program was called by.
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let name = args.first().map(Path::new).and_then(Path::file_name);
    let name = name.and_then(std::ffi::OsStr::to_str);
    let codes = codes_of_call(name, &args);
    if let Err(error) = startup::check_stack() {
        output::note(&error.to_string());
        return ExitCode::from(codes.failure);
    }
    let inherited = startup::reset();
    if Stage::current() == Some(Stage::Watcher) {
        return match watch::run() {
            Ok(()) => ExitCode::SUCCESS,
            // No process waits for a message.
            Err(_) => ExitCode::FAILURE,
        };
    }
    let parsed = match name {
        Some("mkfs.stitchfs") => mkfs::MkfsArgs::try_parse_from(&args).map(Command::Mkfs),
        Some("mount.stitchfs" | "mount.fuse.stitchfs") => {
            let helper = mount::MountHelperArgs::try_parse_from(&args);
            helper.map(|helper| Command::Mount(helper.into()))
        }
        Some("umount.stitchfs" | "umount.fuse.stitchfs") => {
            let helper = umount::helper::UmountHelperArgs::try_parse_from(&args);
            helper.map(Command::UmountHelper)
        }
        Some("fsck.stitchfs") => fsck::FsckArgs::try_parse_from(&args).map(Command::Fsck),
        _ => Cli::try_parse_from(&args).map(|cli| cli.command),
    };
    let mut command = match parsed {
        Ok(command) => command,
        Err(error) => {
            // Help and version go to standard output and are a success.
            let is_wrong = error.use_stderr();
            let _ = error.print();
            return ExitCode::from(if is_wrong { codes.usage } else { 0 });
        }
    };
    if let Err(error) = command.resolve_tags() {
        output::note(&output::explain(&error));
        return ExitCode::from(codes.failure);
    }
    match command.run(&args, &inherited) {
        // A child of ours that failed had our name, and so its code is right already.
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::note(&output::explain(&error));
            ExitCode::from(match output::is_bad_argument(&error) {
                true => codes.usage,
                false => codes.failure,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_lines_make_sense() {
        Cli::command().debug_assert();
        mkfs::MkfsArgs::command().debug_assert();
        mount::MountHelperArgs::command().debug_assert();
        umount::helper::UmountHelperArgs::command().debug_assert();
        fsck::FsckArgs::command().debug_assert();
    }

    /// Reports the lines of a command's help, and of its subcommands', that are too long.
    fn long_lines(command: &mut clap::Command) -> Vec<String> {
        let help = command.render_long_help().to_string();
        let lines = help.lines().map(str::to_owned);
        let mut long: Vec<String> = lines
            .filter(|line| line.chars().count() > HELP_COLUMNS)
            .collect();
        for inner in command.get_subcommands_mut() {
            long.extend(long_lines(inner));
        }
        long
    }

    /// Every command line of the program, built.
    fn commands() -> Vec<clap::Command> {
        let mut commands = vec![
            Cli::command(),
            mkfs::MkfsArgs::command(),
            mount::MountHelperArgs::command(),
            umount::helper::UmountHelperArgs::command(),
            fsck::FsckArgs::command(),
        ];
        commands.iter_mut().for_each(clap::Command::build);
        commands
    }

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        for mut command in commands() {
            assert_eq!(long_lines(&mut command), Vec::<String>::new());
        }
    }

    /// Shortest line that another one of its paragraph may follow, if the next word had fitted.
    const FULL_COLUMNS: usize = 70;

    /// Reports lines that end too early or too late within a paragraph of the texts behind the
    /// options: what is too long is wrapped, and leaves a few words on a line. A paragraph of one
    /// line is wrapped as a whole.
    fn ragged_lines(command: &clap::Command) -> Vec<String> {
        let text = command.get_after_help().map(ToString::to_string);
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let is_apart = |line: &str| line.is_empty() || line.starts_with([' ', 'E']);
        let mut ragged = Vec::new();
        for pair in lines.windows(2) {
            let (line, next) = (pair[0], pair[1]);
            let columns = line.chars().count();
            let word = next.split(' ').next().unwrap_or_default().chars().count();
            let is_short = columns + 1 + word <= FULL_COLUMNS && !line.ends_with(':');
            let is_inside = !line.is_empty() && !line.starts_with(' ') && !is_apart(next);
            if is_inside && (is_short || columns > HELP_COLUMNS) {
                ragged.push(line.to_owned());
            }
        }
        ragged.extend(command.get_subcommands().flat_map(ragged_lines));
        ragged
    }

    #[test]
    fn paragraphs_of_help_have_full_lines() {
        for command in commands() {
            assert_eq!(ragged_lines(&command), Vec::<String>::new());
        }
    }
}
