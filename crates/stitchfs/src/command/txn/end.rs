//! `stitchfs txn commit` and `abort`.

use super::super::output;
use super::super::quoted::quoted;
use super::target::{TxnMount, TxnOf};
use super::{CONFLICT, FAILED};
use anyhow::{Result, anyhow};
use clap::Parser;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::transactions::{self, CommitOutcome, RecordConflict};
use stitchfs::set_path;

/// Time between questions for the outcome of a commit.
const POLL_FIRST: Duration = Duration::from_micros(250);
const POLL_MAX: Duration = Duration::from_millis(4);
/// What the engine says of a batch that is too large.
const TOO_LARGE: &str = "is over the limit of";

/// What others have changed that a serializable transaction has read.
const READ_HAS_CHANGED: &str = "what it has read was changed: it decided by that, so no side can \
    be chosen";

/// What becomes of a transaction that was not committed or rebased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// A commit was refused, and it stays open.
    Open,
    /// It was that of a run, and is dropped.
    Dropped,
    /// A rebase was refused, and it stays as it was.
    NotRebased,
}

impl Left {
    const fn text(self) -> &'static str {
        match self {
            Self::Open => "nothing was committed, the transaction stays open",
            Self::Dropped => "nothing was committed, the transaction is dropped",
            Self::NotRebased => "nothing was rebased, the transaction stays as it was",
        }
    }

    /// Message of what to do where reads have changed.
    pub(super) fn advice(self) -> String {
        match self {
            Self::Open | Self::NotRebased => {
                format!("{READ_HAS_CHANGED}; copy from it what you need, abort it, and begin again")
            }
            Self::Dropped => format!("{READ_HAS_CHANGED}; run it again"),
        }
    }
}

/// Commit a transaction: exit code 75 and a list if others changed the same
#[derive(Debug, Parser)]
pub(super) struct TxnCommit {
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    of: TxnOf,
}

/// Abort a transaction: nothing of it is left
#[derive(Debug, Parser)]
pub(super) struct TxnAbort {
    /// Print what was aborted as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    of: TxnOf,
}

pub(super) fn commit(args: &TxnCommit) -> Result<u8> {
    let target = TxnMount::find(&args.of.path)?;
    let outcome = outcome_of(&target, &args.of.name, Left::Open)?;
    if args.json {
        output::print_json(&to_json(&args.of.name, &outcome))?;
    }
    report(&args.of.name, &outcome, Left::Open, args.json)
}

pub(super) fn abort(args: &TxnAbort) -> Result<u8> {
    let target = TxnMount::find(&args.of.path)?;
    discard(&target, &args.of.name)?;
    if args.json {
        output::print_json(&json!({ "name": args.of.name, "outcome": "aborted" }))?;
    }
    Ok(0)
}

/// Aborts a transaction.
pub(super) fn discard(target: &TxnMount, name: &str) -> Result<()> {
    let aborted = transactions::abort(target.dir(), name);
    aborted.map_err(|error| target.refused(name, &error))
}

/// Commits a transaction, and waits for the outcome. `left` is what becomes of it if others have
/// changed the same.
pub(super) fn outcome_of(target: &TxnMount, name: &str, left: Left) -> Result<CommitOutcome> {
    target.write_back()?;
    let begun = transactions::commit(target.dir(), name);
    let number = begun.map_err(|error| match has_ended(&error, left) {
        true => ended_early(target.mount(), name),
        false => target.refused(name, &error),
    })?;
    wait_for(target, name, number)
}

/// Reports whether the transaction of a run has ended before its commit was begun.
fn has_ended(error: &io::Error, left: Left) -> bool {
    let errno = Errno::from_io_error(error);
    left == Left::Dropped && matches!(errno, Some(Errno::NOENT | Errno::STALE))
}

fn ended_early(mount: &Path, name: &str) -> anyhow::Error {
    anyhow!(
        "{name}: the transaction ended before its commit: it was aborted, or another daemon took \
         over {}, which ends all runs; nothing was committed, run it again",
        mount.display()
    )
}

/// Waits for the outcome of a commit or a rebase that was begun.
pub(super) fn wait_for(target: &TxnMount, name: &str, number: u64) -> Result<CommitOutcome> {
    let clock = SystemClock::default();
    let mut pause = POLL_FIRST;
    loop {
        let outcome = transactions::outcome(target.dir(), number);
        match outcome.map_err(|error| target.refused(name, &error))? {
            CommitOutcome::Running => {
                clock.sleep(pause);
                pause = (pause * 2).min(POLL_MAX);
            }
            outcome => return Ok(outcome),
        }
    }
}

/// Tells what came of a commit, and returns the exit code. `left` is what becomes of a transaction
/// that was not committed.
///
/// # Errors
/// It failed for another reason than a conflict.
pub(super) fn report(name: &str, outcome: &CommitOutcome, left: Left, is_told: bool) -> Result<u8> {
    match outcome {
        CommitOutcome::Committed | CommitOutcome::Rebased => Ok(0),
        CommitOutcome::Conflict {
            count,
            told,
            records,
        } => {
            if !is_told {
                output::note(&conflict_text(name, *count, (told, records), left));
            }
            let mut kinds = told.iter().map(|(kind, _)| kind);
            let has_read = kinds.any(|kind| is_read(kind))
                || records.iter().any(|record| is_read(&record.kind));
            if has_read && !is_told {
                output::note(&format!("{name}: {}", left.advice()));
            }
            Ok(CONFLICT)
        }
        CommitOutcome::Refused { .. } if is_told => Ok(FAILED),
        CommitOutcome::Refused { why, .. } => Err(failure(name, why, left)),
        CommitOutcome::Running => Err(anyhow!("{name}: the commit has no outcome")),
    }
}

fn failure(name: &str, why: &str, left: Left) -> anyhow::Error {
    let left = left.text();
    match why.contains(TOO_LARGE) {
        true => anyhow!("{name}: has changed too much for one commit: {why}; {left}"),
        false => anyhow!("{name}: {why}; {left}"),
    }
}

fn conflict_text(
    name: &str,
    count: usize,
    (told, records): (&[(String, Vec<u8>)], &[RecordConflict]),
    left: Left,
) -> String {
    let told_count = told.len() + records.len();
    debug_assert!(count >= told_count, "all that are told are counted");
    let left = left.text();
    let mut text = format!("{name}: others have changed the same since it began; {left}");
    for (kind, path) in told {
        text.push_str(&format!("\n  {}: {kind}", quoted(path_of(path))));
    }
    for record in records {
        text.push_str(&format!("\n  {}", record_line(record)));
    }
    if count > told_count {
        text.push_str(&format!("\n  and {} more", count - told_count));
    }
    text
}

/// Reports whether a kind of conflict is of what a serializable transaction has read.
pub(super) fn is_read(kind: &str) -> bool {
    kind.starts_with("read ") || kind.starts_with("perhaps read")
}

/// Returns a record in conflict as a line.
pub(super) fn record_line(record: &RecordConflict) -> String {
    let RecordConflict { kind, tree, key } = record;
    let key = key.escape_ascii();
    format!("{key}: {kind} of {}", tree.escape_debug())
}

/// Returns the outcome for programs.
pub(super) fn to_json(name: &str, outcome: &CommitOutcome) -> Value {
    let mut out = json!({ "name": name });
    match outcome {
        CommitOutcome::Running => out["outcome"] = json!("unknown"),
        CommitOutcome::Committed => out["outcome"] = json!("committed"),
        CommitOutcome::Rebased => out["outcome"] = json!("rebased"),
        CommitOutcome::Conflict {
            count,
            told,
            records,
        } => {
            out["outcome"] = json!("conflict");
            out["count"] = json!(count);
            let conflicts = told.iter().map(|(kind, path)| {
                let mut conflict = json!({ "kind": kind });
                set_path(&mut conflict, "path", &path_of(path));
                conflict
            });
            out["conflicts"] = conflicts.chain(records.iter().map(record_json)).collect();
        }
        CommitOutcome::Refused { errno, why } => {
            out["outcome"] = json!("failed");
            out["errno"] = json!(errno);
            out["error"] = json!(why);
        }
    }
    out
}

/// Returns a record in conflict for programs.
pub(super) fn record_json(record: &RecordConflict) -> Value {
    let mut out = key_json(&record.tree, &record.key);
    out["kind"] = json!(record.kind);
    out
}

/// Returns a key of a record for programs. One that is no text has `key` null.
pub(super) fn key_json(tree: &str, key: &[u8]) -> Value {
    let digits = key.iter().map(|byte| format!("{byte:02x}"));
    json!({
        "tree": tree,
        "key": std::str::from_utf8(key).ok(),
        "key_hex": digits.collect::<String>(),
    })
}

/// Returns a path from the root of the file system; `.` for the root itself.
pub(in crate::command) fn path_of(path: &[u8]) -> PathBuf {
    match path {
        b"" => Path::new(".").to_owned(),
        _ => OsString::from_vec(path.to_vec()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_ended_is_no_unknown_name() {
        for errno in [Errno::NOENT, Errno::STALE] {
            assert!(has_ended(&errno.into(), Left::Dropped), "{errno}");
            assert!(!has_ended(&errno.into(), Left::Open), "{errno}");
        }
        assert!(!has_ended(&Errno::NOSPC.into(), Left::Dropped));
        let said = ended_early(Path::new("/srv"), "run-1").to_string();
        assert!(
            said.starts_with("run-1: the transaction ended before its commit"),
            "{said}"
        );
        assert!(
            said.contains("nothing was committed, run it again"),
            "{said}"
        );
    }

    #[test]
    fn outcomes_have_their_codes_and_words() {
        let conflict = CommitOutcome::Conflict {
            count: 5,
            records: vec![
                RecordConflict {
                    kind: "read record".to_owned(),
                    tree: "redis/rows".to_owned(),
                    key: b"user:1".to_vec(),
                },
                RecordConflict {
                    kind: "record".to_owned(),
                    tree: "stock".to_owned(),
                    key: b"\xff\0".to_vec(),
                },
            ],
            told: vec![
                ("name".to_owned(), b"a/b".to_vec()),
                ("attributes or contents".to_owned(), Vec::new()),
            ],
        };
        let code = |outcome: &CommitOutcome| report("work", outcome, Left::Open, true);
        assert_eq!(code(&CommitOutcome::Committed).unwrap(), 0);
        assert_eq!(code(&conflict).unwrap(), 75);
        let CommitOutcome::Conflict {
            count,
            told,
            records,
        } = &conflict
        else {
            panic!("it is one");
        };
        let text = conflict_text("work", *count, (told, records), Left::Open);
        let expected = "\n  a/b: name\n  .: attributes or contents\n  user:1: read record of \
                        redis/rows\n  \\xff\\x00: record of stock\n  and 1 more";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.contains("nothing was committed"), "{text}");
        assert!(Left::Dropped.advice().ends_with("run it again"));
        let written = conflict_text("work", 1, (&told[..1], &[]), Left::NotRebased);
        assert!(written.ends_with("\n  a/b: name"), "{written}");
        assert!(written.contains("nothing was rebased"), "{written}");
        let out = to_json("work", &conflict);
        assert_eq!(
            (&out["count"], &out["outcome"]),
            (&json!(5), &json!("conflict"))
        );
        assert_eq!(
            out["conflicts"][0],
            json!({ "kind": "name", "path": "a/b" })
        );
        let record = json!({
            "kind": "record", "tree": "stock", "key": Value::Null, "key_hex": "ff00",
        });
        assert_eq!(out["conflicts"][3], record);
    }

    #[test]
    fn a_commit_that_is_too_large_names_the_limit() {
        let refused = CommitOutcome::Refused {
            errno: 5,
            why: "batch of 9 bytes is over the limit of 8".to_owned(),
        };
        let why = report("work", &refused, Left::Dropped, false).unwrap_err();
        let why = why.to_string();
        assert!(why.contains("too much for one commit"), "{why}");
        assert!(
            why.contains("limit of 8") && why.ends_with("is dropped"),
            "{why}"
        );
        assert_eq!(report("work", &refused, Left::Open, true).unwrap(), FAILED);
        assert_eq!(to_json("work", &refused)["errno"], json!(5));
    }
}
