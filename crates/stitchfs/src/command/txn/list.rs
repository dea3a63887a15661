//! `stitchfs txn list`, `status` and `diff`.

use super::super::quoted::quoted;
use super::super::{diff, output};
use super::details::Details;
use super::target::{TxnMount, TxnOf};
use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;
use stitch_base::calendar::UtcTime;
use stitch_fuse::transactions::{self, ListedTransaction};
use stitchfs::set_path;

/// List the transactions that are open, and those that were committed last
#[derive(Debug, Parser)]
pub(super) struct TxnList {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    path: PathBuf,
}

/// Tell whether a transaction is open or was committed
#[derive(Debug, Parser)]
pub(super) struct TxnStatus {
    /// Print it as JSON
    #[arg(long)]
    json: bool,

    /// Name: of several that had it, the last one is told of
    #[arg(value_name = "NAME")]
    name: String,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    path: PathBuf,
}

/// Show what an open transaction has changed since it began
#[derive(Debug, Parser)]
#[command(after_help = "Lines are those of `stitchfs diff`; paths are from the mount point on.")]
pub(super) struct TxnDiff {
    /// Print the changes as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    of: TxnOf,
}

pub(super) fn list(args: &TxnList) -> Result<u8> {
    let target = TxnMount::find(&args.path)?;
    let (all, details) = (all(&target)?, Details::ask(&target)?);
    if args.json {
        let all: Vec<Value> = all
            .iter()
            .map(|found| details.with_json(found, to_json(&target, found)))
            .collect();
        let waiting = details.waiting_json();
        output::print_json(&json!({ "transactions": all, "waiting": waiting }))?;
    } else {
        for found in &all {
            output::print(&line(found))?;
            let lines = details.lines_of(found);
            lines.iter().try_for_each(|line| output::print(line))?;
        }
        let lines = details.waiting_lines();
        lines.iter().try_for_each(|line| output::print(line))?;
    }
    Ok(0)
}

pub(super) fn status(args: &TxnStatus) -> Result<u8> {
    let target = TxnMount::find(&args.path)?;
    let all = all(&target)?;
    let Some(found) = all.iter().rev().find(|found| found.name == args.name) else {
        bail!(
            "{}: is not open, and not one of the last that were committed",
            args.name
        );
    };
    let details = Details::ask(&target)?;
    if args.json {
        output::print_json(&details.with_json(found, to_json(&target, found)))?;
    } else {
        output::print(&line(found))?;
        let lines = details.lines_of(found);
        lines.iter().try_for_each(|line| output::print(line))?;
    }
    Ok(0)
}

pub(super) fn diff(args: &TxnDiff) -> Result<u8> {
    show_changes(&TxnMount::find(&args.of.path)?, &args.of.name, args.json)?;
    Ok(0)
}

/// Prints what a transaction has changed.
pub(super) fn show_changes(target: &TxnMount, name: &str, is_json: bool) -> Result<()> {
    target.write_back()?;
    let changes = transactions::changes(target.dir(), name);
    let changes = changes.map_err(|error| target.refused(name, &error))?;
    let changes: Option<Vec<diff::Change>> = changes.iter().map(diff::Change::of).collect();
    let changes = changes.context("the answer makes no sense")?;
    diff::print(&changes, is_json)
}

fn all(target: &TxnMount) -> Result<Vec<ListedTransaction>> {
    transactions::list(target.dir()).map_err(|error| target.refused("", &error))
}

fn state_of(found: &ListedTransaction) -> &'static str {
    match (found.committed, found.is_named) {
        (Some(_), _) => "committed",
        (None, true) => "open",
        (None, false) => "running",
    }
}

fn line(found: &ListedTransaction) -> String {
    let at = found.committed.unwrap_or(found.created);
    let time = |at: i64| UtcTime::of(at.div_euclid(1_000_000_000));
    let (at, state) = (time(at), state_of(found));
    let line = format!("{at}  {state:9}  {}", quoted(&found.name));
    match found.expires.filter(|_| found.committed.is_none()) {
        Some(at) => format!("{line}  (expires {})", time(at)),
        None => line,
    }
}

fn to_json(target: &TxnMount, found: &ListedTransaction) -> Value {
    let mut out = json!({
        "name": found.name,
        "number": found.number,
        "owner": found.owner,
        "created_ns": found.created,
        "state": state_of(found),
    });
    match found.committed {
        Some(at) => out["committed_ns"] = json!(at),
        None => {
            out["expires_ns"] = json!(found.expires);
            set_path(&mut out, "view", &target.place(&found.name));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_state_and_time() {
        let open = ListedTransaction {
            number: 7,
            name: "work".to_owned(),
            owner: 0,
            created: 5,
            is_named: true,
            committed: None,
            expires: None,
        };
        assert_eq!(line(&open), "1970-01-01 00:00:00  open       work");
        let dated = ListedTransaction {
            expires: Some(61_000_000_000),
            ..open.clone()
        };
        let expected = "1970-01-01 00:00:00  open       work  (expires 1970-01-01 00:01:01)";
        assert_eq!(line(&dated), expected);
        let run = ListedTransaction {
            is_named: false,
            ..open.clone()
        };
        assert_eq!(state_of(&run), "running");
        let done = ListedTransaction {
            committed: Some(2_000_000_000),
            ..open
        };
        assert_eq!(line(&done), "1970-01-01 00:00:02  committed  work");
    }
}
