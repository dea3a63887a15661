//! `stitchfs txn run` and `enter`: commands that see a file system as a transaction has it.

use super::super::view::{self, View};
use super::super::{live, output, startup::Inherited, sync};
use super::begin::{self, TxnHow};
use super::end::Left;
use super::expiry::{self, Expiry};
use super::target::TxnMount;
use super::{CONFLICT, end, list, names};
use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use rustix::io::Errno;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::transactions::{self, CommitOutcome, Lifetime};

/// The variable that tells a command which transaction it runs in.
const NAME_VARIABLE: &str = "STITCHFS_TXN";

const AFTER: &str = "\
The command, and all that it starts, sees the transaction wherever the file
system is mounted, bind mounts included. The working directory is the same path.
Other file systems that are mounted in it are shown as they are, and what is
written to them is not part of the transaction; nor are redirections of the
calling shell. STITCHFS_TXN is the name of the transaction.

A run in a run begins in the outer one, sees what that has changed, and is
committed to it: others see it when the outer one is committed. If it fails, the
outer one goes on without its changes.

Processes that are left when the command ends get SIGTERM and, 5 s later,
SIGKILL; then the transaction is committed. If this program or the daemon is
killed, nothing is left of it. A user who is not root needs the right to create
user namespaces: files of others then show the owner nobody, and programs like
sudo do not work.

Exit codes: that of the command if it fails, or 128 + N if signal N ended it;
0 if all was committed; 75 if others have changed the same, or have the locks;
125 if the command was not started or the commit failed; 126 if it cannot be
executed, 127 if it is not found. Unless it is 0, nothing was changed.

Examples:
  stitchfs txn run -- make install
  stitchfs txn run --on-success ask /srv -- ./upgrade.sh";

/// Run a command: keep all of its changes if it succeeds, none if it fails
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct TxnRun {
    /// What to do if the command succeeds: commit; show the changes and ask on
    /// the terminal; or keep the transaction open
    #[arg(long, value_enum, default_value = "commit", value_name = "WHAT")]
    on_success: OnSuccess,

    /// Wait for processes that are left when the command ends
    #[arg(long)]
    wait: bool,

    /// Name of the transaction; by default one that is made up
    #[arg(long, value_parser = names::parse_new)]
    name: Option<String>,

    /// With --on-success keep: time after the success of the command at which
    /// the transaction is aborted if it is still open, such as 90s, 30m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = expiry::parse)]
    expires: Option<Expiry>,

    /// Print conflicts, or who has the locks, as JSON on standard error
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    how: TxnHow,

    /// Mount point, or any directory in the mount; by default the working
    /// directory
    #[arg(value_name = "MNT", default_value = ".")]
    path: PathBuf,

    /// Command and its arguments; by default the shell that SHELL names
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnSuccess {
    Commit,
    Ask,
    Keep,
}

/// Run a command in an open transaction, without a commit
#[derive(Debug, Parser)]
pub(super) struct TxnEnter {
    /// Wait for processes that are left when the command ends
    #[arg(long)]
    wait: bool,

    /// Name
    #[arg(value_name = "NAME")]
    name: String,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    path: PathBuf,

    /// Command and its arguments; by default the shell that SHELL names
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

pub(super) fn run(args: &TxnRun, inherited: &Inherited) -> Result<u8> {
    let target = TxnMount::find_outside_clones(&args.path)?;
    if args.on_success == OnSuccess::Ask && !output::can_ask() {
        bail!("--on-success ask needs a terminal; use --on-success keep and look at it later");
    }
    if args.expires.is_some() && args.on_success != OnSuccess::Keep {
        return Err(output::bad_argument(
            "--expires is for --on-success keep: a run ends with its command",
        ));
    }
    let name = args.name.clone().unwrap_or_else(made_up_name);
    sync::write_back(target.mount())?;
    let life = match args.on_success {
        OnSuccess::Keep => Lifetime::Watched,
        OnSuccess::Commit | OnSuccess::Ask => Lifetime::Run,
    };
    if let Err(holders) = begin::begin(&target, &name, life, &args.how)? {
        match args.json {
            true => print_to_error(&begin::locked_json(&name, &holders))?,
            false => output::note(&begin::locked_text(&name, &holders)),
        }
        return Ok(CONFLICT);
    }
    let ran = run_in(&target, &name, &args.command, args.wait, inherited);
    if !matches!(ran, Ok(0)) {
        drop_or_note(&target, &name);
        return ran;
    }
    let ended = succeeded(args, &target, &name);
    if !matches!(ended, Ok(0)) {
        drop_or_note(&target, &name);
    }
    ended
}

pub(super) fn enter(args: &TxnEnter, inherited: &Inherited) -> Result<u8> {
    let target = TxnMount::find_outside_clones(&args.path)?;
    let place = target.place(&args.name);
    if let Err(error) = place.metadata() {
        return Err(target.refused(&args.name, &error));
    }
    run_in(&target, &args.name, &args.command, args.wait, inherited)
}

fn run_in(
    target: &TxnMount,
    name: &str,
    words: &[OsString],
    waits: bool,
    inherited: &Inherited,
) -> Result<u8> {
    let view = View::new(target.place(name), PathBuf::new())?;
    let view = view.replacing(target.within().root.clone());
    let mut command = view::command(words);
    command.env(NAME_VARIABLE, target.full_name(name));
    view::run(&view, &mut command, waits, inherited)
}

/// Ends the transaction of a command that has succeeded.
fn succeeded(args: &TxnRun, target: &TxnMount, name: &str) -> Result<u8> {
    match args.on_success {
        OnSuccess::Keep => return keep(target, name, args.expires),
        OnSuccess::Ask if !confirm(target, name)? => {
            end::discard(target, name)?;
            output::note(&format!("{name}: nothing was changed"));
            return Ok(0);
        }
        OnSuccess::Ask | OnSuccess::Commit => {}
    }
    let outcome = end::outcome_of(target, name, Left::Dropped)?;
    let is_conflict = matches!(outcome, CommitOutcome::Conflict { .. });
    let is_told = args.json && is_conflict;
    if is_told {
        print_to_error(&end::to_json(name, &outcome))?;
    }
    end::report(name, &outcome, Left::Dropped, is_told)
}

fn print_to_error(value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    // If standard error is closed, the text is dropped.
    let _ = writeln!(io::stderr().lock(), "{text}");
    Ok(())
}

fn keep(target: &TxnMount, name: &str, expires: Option<Expiry>) -> Result<u8> {
    if let Some(expires) = expires {
        expiry::set(target, name, expires)?;
    }
    let kept = transactions::keep(target.dir(), name);
    kept.map_err(|error| target.refused(name, &error))?;
    let mount = target.mount().display();
    output::note(&format!(
        "{name}: is kept; `stitchfs txn diff {name} {mount}` shows what has changed, `commit` and \
         `abort` end it"
    ));
    Ok(0)
}

/// Aborts what is left of a transaction. It ends with this process in any case.
fn drop_or_note(target: &TxnMount, name: &str) {
    if let Err(error) = transactions::abort(target.dir(), name)
        && !is_gone(&error)
    {
        output::note(&format!("{:#}", target.refused(name, &error)));
    }
}

/// Reports whether a transaction is not there any more, or its daemon is not: the run tells it.
fn is_gone(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| errno == Errno::NOENT || live::is_gone(errno))
}

fn made_up_name() -> String {
    let seconds = SystemClock::default().now().0.div_euclid(1_000_000_000);
    format!("run-{seconds}-{}", std::process::id())
}

/// Shows what has changed, and asks the terminal.
fn confirm(target: &TxnMount, name: &str) -> Result<bool> {
    list::show_changes(target, name, false)?;
    let shown: &Path = target.mount();
    output::ask(&format!("keep these changes of {}?", shown.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_a_run_tells_is_not_told_again() {
        for errno in [Errno::NOENT, Errno::NOTCONN, Errno::CONNABORTED] {
            assert!(is_gone(&errno.into()), "{errno}");
        }
        assert!(!is_gone(&Errno::BUSY.into()));
    }
}
