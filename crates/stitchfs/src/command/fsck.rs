//! `stitchfs fsck`: checks a store, and repairs it.

use super::{advice, output};
use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use stitch_base::ErrorKind;
use stitchfs::{Checked, Finding, Store, StoreError, StoreOptions};

/// Errors were corrected.
const CORRECTED: u8 = 1;
/// Errors are left.
const LEFT: u8 = 4;
const CORRECTED_TEXT: &str = "errors were corrected";
/// The check could not be done.
pub(super) const OPERATIONAL: u8 = 8;
/// The command line is wrong.
pub(super) const USAGE: u8 = 16;
/// The user ended it.
const CANCELLED: i32 = 32;

const AFTER: &str = "\
Without -n, -y, -a or -p the terminal is asked before anything is repaired;
without a terminal nothing is.
Exit codes: 0 no errors, 1 errors corrected, 4 errors left, 8 could not check,
16 wrong command line, 32 ended by a signal.";

/// Check a store that is not mounted: every block, row, link and count
#[derive(Debug, Parser)]
#[command(name = "fsck.stitchfs", version, after_help = AFTER)]
#[command(max_term_width = super::HELP_COLUMNS)]
pub(super) struct FsckArgs {
    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["yes", "auto", "preen"])]
    no: bool,

    /// Repair without asking
    #[arg(short = 'y', conflicts_with_all = ["auto", "preen"])]
    yes: bool,

    /// At boot: check only what opening the store does not check by itself, and repair
    #[arg(short = 'a')]
    auto: bool,

    /// The same as -a
    #[arg(short = 'p')]
    preen: bool,

    /// With -y: where the end of the log is damaged, give it up, with all that was done since
    #[arg(long, requires = "yes")]
    drop_log_tail: bool,

    /// Check everything even with -a or -p
    #[arg(short = 'f')]
    full: bool,

    /// Print what was found as JSON
    #[arg(long)]
    json: bool,

    /// File, directory, block device, LABEL=NAME or UUID=NUMBER
    #[arg(value_name = "STORE")]
    pub(super) store: PathBuf,
}

pub(super) fn run(args: &FsckArgs) -> Result<u8> {
    end_by_signals()?;
    let is_boot = args.auto || args.preen;
    let options = StoreOptions {
        memory_bytes: stitchfs::memory::default_budget(),
        // Nothing is written before the user has said yes.
        read_only: args.no || !(args.yes || is_boot),
        drop_log_tail: args.drop_log_tail,
        ..StoreOptions::default()
    };
    let store = match open(args, &options)? {
        Ok(store) => store,
        Err(error) => return unreadable(args, &error),
    };
    let name = stitchfs::path_text(store.path());
    let damage = store.damage().to_vec();
    if is_boot && !args.full && opens_well(&store)? {
        store.close()?;
        if damage.is_empty() {
            return report(args, &name, &[], &with_contents(&store, "opens well")?);
        }
        report(args, &name, &damage, CORRECTED_TEXT)?;
        return Ok(CORRECTED);
    }
    let checked = check(&store)?;
    let found = &[&damage[..], &checked.findings].concat();
    if found.is_empty() {
        store.close()?;
        return report(args, &name, found, &with_contents(&store, "no errors")?);
    }
    if args.no || (options.read_only && !ask(args, found)?) {
        store.close()?;
        report(args, &name, found, "errors are left")?;
        return Ok(LEFT);
    }
    let left = repair(args, store, &options, &checked)?;
    if left.is_empty() {
        report(args, &name, found, CORRECTED_TEXT)?;
        return Ok(CORRECTED);
    }
    report(args, &name, &left, "errors are left")?;
    Ok(LEFT)
}

/// Repairs, opening the store for writing first if it is not, and says what is left.
fn repair(
    args: &FsckArgs,
    store: Store,
    options: &StoreOptions,
    checked: &Checked,
) -> Result<Vec<Finding>> {
    let mut store = store;
    if options.read_only {
        store.close()?;
        drop(store);
        let options = StoreOptions {
            read_only: false,
            ..options.clone()
        };
        store = open(args, &options)??;
    }
    store.repair(checked)?;
    let left = check(&store)?.findings;
    store.close()?;
    Ok(left)
}

/// Opens the store. The inner error is for one that is so damaged that it does not open.
fn open(args: &FsckArgs, options: &StoreOptions) -> Result<Result<Store, StoreError>> {
    let error = match Store::open(&args.store, options) {
        Err(error) if error.kind() != ErrorKind::Corrupt => error,
        opened => return Ok(opened),
    };
    let is_protected = !options.read_only
        && (error.is_write_protected() || error.is_denied())
        && stitchfs::identify(&args.store).is_ok();
    if is_protected {
        let path = args.store.display();
        anyhow::bail!(
            "{path}: is write-protected, so that nothing can be repaired; \
             `stitchfs fsck -n {path}` only checks it"
        );
    }
    Err(error.into())
}

/// Opening recovers whatever a crash left behind. False if the file system is damaged.
fn opens_well(store: &Store) -> Result<bool> {
    match store.file_system() {
        Ok(fs) => fs.close()?,
        // Then there are no rows to be checked.
        Err(StoreError::NoFileSystem { .. }) => {}
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

/// A summary that says what is there instead of a file system, and how to add one without a loss.
fn with_contents(store: &Store, summary: &str) -> Result<String> {
    if !store.file_systems().is_empty() {
        return Ok(summary.to_owned());
    }
    let mut is_empty = true;
    for name in store.instances() {
        is_empty &= store.is_instance_empty(&name)?;
    }
    let contents = match is_empty {
        true => "an empty store",
        false => "a database without a file system",
    };
    let advice = advice::add_file_system(store.path(), is_empty, &[]);
    Ok(format!("{summary}; {contents}: {advice}"))
}

/// The store is so damaged that it does not open.
fn unreadable(args: &FsckArgs, error: &StoreError) -> Result<u8> {
    let name = stitchfs::path_text(&args.store);
    let is_repairable = error.is_log_damaged();
    let rule = if is_repairable { "log" } else { "open" };
    let finding = Finding::new(rule, error.to_string(), is_repairable);
    let summary = if is_repairable {
        format!(
            "cannot be opened; restore it from a copy, or give that up and keep what was before \
             it: stitchfs fsck -y --drop-log-tail {name}"
        )
    } else {
        "cannot be opened; restore it from a copy".to_owned()
    };
    report(args, &name, &[finding], &summary)?;
    Ok(LEFT)
}

fn check(store: &Store) -> Result<Checked> {
    let bar = output::progress("checking");
    let found = store.check(&mut |done, total| output::advance(&bar, done, total));
    bar.finish_and_clear();
    Ok(found?)
}

fn report(args: &FsckArgs, name: &str, findings: &[Finding], summary: &str) -> Result<u8> {
    if args.json {
        let list: Vec<_> = findings.iter().map(as_json).collect();
        output::print_json(&json!({
            "store": name,
            "summary": summary,
            "findings": list,
        }))?;
        return Ok(0);
    }
    for line in findings.iter().flat_map(lines) {
        output::print(&line)?;
    }
    output::print(&format!("{name}: {summary}"))?;
    Ok(0)
}

/// Returns a finding for programs, with paths in a list of their own.
fn as_json(finding: &Finding) -> Value {
    let paths = finding
        .inodes
        .iter()
        .filter_map(|owner| owner.path.as_deref());
    let paths: Vec<&Path> = paths.collect();
    let unnamed = finding.inodes.iter().filter(|owner| owner.path.is_none());
    let mut out = json!({
        "rule": finding.rule,
        "detail": finding.detail,
        "inodes_without_path": unnamed.map(|owner| owner.ino.0).collect::<Vec<_>>(),
        "repairable": finding.is_repairable,
    });
    stitchfs::set_paths(&mut out, "paths", &paths);
    out
}

/// Returns a finding for people: what is wrong, then one path a line.
fn lines(finding: &Finding) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", finding.rule, finding.detail)];
    lines.extend(finding.inodes.iter().map(|owner| match &owner.path {
        Some(path) => format!("    {path:?}"),
        None => format!("    inode {} (its path is lost too)", owner.ino),
    }));
    lines
}

/// Asks the terminal, if there is one.
fn ask(args: &FsckArgs, found: &[Finding]) -> Result<bool> {
    if args.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    for line in found.iter().flat_map(lines) {
        output::note(&line);
    }
    let mut terminal = io::stderr().lock();
    write!(terminal, "{} errors; repair? [y/N] ", found.len())
        .and_then(|()| terminal.flush())
        .context("cannot ask")?;
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Every repair is a commit of its own, so that ending at any moment is safe.
fn end_by_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot wait for signals")?;
    let body = move || {
        if signals.forever().next().is_some() {
            output::note("ended by a signal");
            std::process::exit(CANCELLED);
        }
    };
    stitch_base::thread::spawn("signals", body).context("cannot start a thread")?;
    Ok(())
}
