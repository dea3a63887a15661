//! `stitchfs txn`: transactions of files. What a command changes happens as a whole or not at all.

mod begin;
mod details;
mod end;
mod expiry;
mod keys;
mod list;
mod merge;
pub(super) mod names;
mod resolve;
mod run;
mod target;

use super::startup::Inherited;
use super::{output, sync};
use anyhow::Result;
use begin::TxnHow;
use clap::{Parser, Subcommand};
pub(super) use end::path_of;
use expiry::Expiry;
use serde_json::json;
use std::path::PathBuf;
use stitch_fuse::transactions::Lifetime;
use stitchfs::{path_text, set_path};
use target::TxnMount;

/// Exit code if a commit finds that others have changed the same, or if others have the locks.
const CONFLICT: u8 = 75;
/// Exit code of `commit` and `abort` if they fail.
const FAILED: u8 = 1;

const AFTER: &str = "\
A transaction is a view of a mounted file system. What is changed in it shows
nowhere else until it is committed; then all of it is there at once. What others
change meanwhile stays. If they have changed the same name, file or attribute,
the commit is refused with a list of conflicts, and nothing is changed.
Different names in one directory are no conflict.

`run` is for one command: success commits, failure leaves nothing. `begin`,
`enter` and `commit` are for work that takes longer: such a transaction is kept
until it is committed or aborted, also when the file system is mounted again. It
is found at MNT/.stitchfs/txn/NAME/root, which is not listed and which only root
and the user who began it can enter. They, and the user who mounted, commit and
abort it.

A transaction may be of any size that the store has room for, but for names that
others change in the same directories: those must fit into one batch of 8 MiB,
in small stores less. `rmtree` removes entry by entry in a transaction.

In a transaction all of this is about those that began in it: `run`, `begin` and
so on work in a run and in `enter`, and `commit` gives the changes to the outer
one. From outside, INNER that began in OUTER is OUTER/INNER. One with others in
it is not committed before these have ended; `abort` ends all of them.

With `--isolation ser` the commit is refused, too, if others have changed what
was read: names, also missing ones, attributes, contents, and directories that
were listed. Then all of the transaction is as if run at the moment of its
commit. Times and link counts of directories are not checked. `--lock` makes
transactions that ask for it take turns; no other process waits.

Examples:
  stitchfs txn run /srv -- make -C /srv/project install
  stitchfs txn run --isolation ser --lock /srv/a --lock-wait=5m /srv -- ./job
  stitchfs txn begin upgrade /srv
  stitchfs txn enter upgrade /srv -- ./upgrade.sh
  stitchfs txn diff upgrade /srv
  stitchfs txn conflicts upgrade /srv
  stitchfs txn resolve upgrade etc/hosts /srv --ours
  stitchfs txn commit upgrade /srv";

/// Change files as a whole or not at all: run a command, then keep or drop all
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct TxnArgs {
    #[command(subcommand)]
    what: TxnCommand,
}

#[derive(Debug, Subcommand)]
enum TxnCommand {
    Run(run::TxnRun),
    Begin(TxnBegin),
    Enter(run::TxnEnter),
    Diff(list::TxnDiff),
    List(list::TxnList),
    Status(list::TxnStatus),
    Commit(end::TxnCommit),
    Abort(end::TxnAbort),
    Conflicts(resolve::TxnConflicts),
    Resolve(resolve::TxnResolve),
    Rebase(resolve::TxnRebase),
    Keep(expiry::TxnKeep),
}

/// Begin a transaction that is kept until it is committed or aborted
#[derive(Debug, Parser)]
struct TxnBegin {
    /// Name, not used by another open transaction; at most 250 bytes; OUTER/NAME
    /// for one in another
    #[arg(value_name = "NAME", value_parser = names::parse_new)]
    name: String,

    /// Time from now on at which it is aborted if it is still open, such as
    /// 90s, 30m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = expiry::parse)]
    expires: Option<Expiry>,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    path: PathBuf,

    /// Print what was begun, or who has the locks, as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    how: TxnHow,
}

pub(super) fn run(args: &TxnArgs, inherited: &Inherited) -> Result<u8> {
    match &args.what {
        TxnCommand::Run(args) => run::run(args, inherited),
        TxnCommand::Begin(args) => begin(args),
        TxnCommand::Enter(args) => run::enter(args, inherited),
        TxnCommand::Diff(args) => list::diff(args),
        TxnCommand::List(args) => list::list(args),
        TxnCommand::Status(args) => list::status(args),
        TxnCommand::Commit(args) => end::commit(args),
        TxnCommand::Abort(args) => end::abort(args),
        TxnCommand::Conflicts(args) => resolve::conflicts(args),
        TxnCommand::Resolve(args) => resolve::resolve(args),
        TxnCommand::Rebase(args) => resolve::rebase(args),
        TxnCommand::Keep(args) => expiry::keep(args),
    }
}

fn begin(args: &TxnBegin) -> Result<u8> {
    let target = TxnMount::find_outside_clones(&args.path)?;
    sync::write_back(target.mount())?;
    let begun = begin::begin(&target, &args.name, Lifetime::Named, &args.how)?;
    if let (Ok(_), Some(expires)) = (&begun, args.expires) {
        expiry::set(&target, &args.name, expires)?;
    }
    match begun {
        Ok(number) if args.json => {
            let mut out = json!({ "name": args.name, "number": number, "outcome": "begun" });
            set_path(&mut out, "view", &target.place(&args.name));
            output::print_json(&out)?;
        }
        Ok(_) => output::print(&path_text(&target.place(&args.name)))?,
        Err(holders) if args.json => {
            output::print_json(&begin::locked_json(&args.name, &holders))?;
            return Ok(CONFLICT);
        }
        Err(holders) => {
            output::note(&begin::locked_text(&args.name, &holders));
            return Ok(CONFLICT);
        }
    }
    Ok(0)
}
