//! Runs named steps, prints each one's seconds, and sums them up in a table.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use stitch_base::clock::{Clock as _, SystemClock};

use crate::lanes::{self, Task};

/// The counts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// Counts one test that passed or failed.
    pub(crate) fn one(passed: bool) -> Self {
        Self {
            passed: u64::from(passed),
            failed: u64::from(!passed),
            skipped: 0,
        }
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// The outcome of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It ran.
    Ran(Counts),
    /// It could not run here, for this reason.
    Skipped(String),
}

/// A step that has been run.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) seconds: u64,
    pub(crate) outcome: Outcome,
}

impl Row {
    /// Returns the line that ends the output of the step.
    pub(crate) fn end(&self) -> String {
        let outcome = describe(&self.outcome);
        format!("<== {}: {outcome} ({} s)", self.name, self.seconds)
    }
}

/// The steps run so far. The clock counts from the first one.
pub(crate) struct Steps {
    clock: SystemClock,
    rows: Vec<Row>,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self {
            clock: SystemClock::default(),
            rows: Vec::new(),
        }
    }

    /// Runs a step; an error counts as one failure.
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> Result<Outcome>) {
        println!("==> {name}");
        let start = self.clock.monotonic();
        let outcome = step().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            Outcome::Ran(Counts::one(false))
        });
        let row = Row {
            name: name.to_owned(),
            seconds: (self.clock.monotonic() - start).as_secs(),
            outcome,
        };
        println!("{}\n", row.end());
        self.rows.push(row);
    }

    /// Runs tasks in two lanes, side by side.
    pub(crate) fn side_by_side(&mut self, tasks: Vec<Task>) -> Result<()> {
        assert!(!tasks.is_empty(), "there is something to run");
        self.rows.extend(lanes::run(2, tasks)?);
        Ok(())
    }

    /// Runs a command as a step that passes or fails as a whole.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) {
        self.run(name, || Ok(Outcome::Ran(Counts::one(succeeds(command)?))));
    }

    /// Prints the table and, as the last line, the sum. Returns whether nothing failed.
    pub(crate) fn finish(self) -> bool {
        let mut total = Counts::default();
        let mut table = String::new();
        for row in &self.rows {
            let outcome = describe(&row.outcome);
            let _ = writeln!(table, "{:<28} {:>6} s  {outcome}", row.name, row.seconds);
            match &row.outcome {
                Outcome::Ran(counts) => total.add(*counts),
                Outcome::Skipped(_) => total.skipped += 1,
            }
        }
        let seconds = self.clock.monotonic().as_secs();
        println!("{table}{:<28} {seconds:>6} s\n\n{total}", "all");
        total.failed == 0
    }
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ran(counts) if counts.failed == 0 => format!("ok    {counts}"),
        Outcome::Ran(counts) => format!("FAIL  {counts}"),
        Outcome::Skipped(reason) => format!("SKIP  {reason}"),
    }
}

/// Runs a command that inherits the output. Returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    Ok(status.success())
}

/// Runs a command, shows its standard output line by line, and lets `count` read it.
/// A command that fails without any counted failure counts as one.
pub(crate) fn counting(
    command: &mut Command,
    count: impl FnMut(&str) -> Option<Counts>,
) -> Result<Outcome> {
    Ok(Outcome::Ran(counts_of(command, count)?))
}

/// Runs a command as [`counting`] does, and returns its counts.
pub(crate) fn counts_of(
    command: &mut Command,
    count: impl FnMut(&str) -> Option<Counts>,
) -> Result<Counts> {
    let show = |line: &str| {
        println!("{line}");
        let _ = std::io::stdout().flush();
    };
    counts_with(show, command, count)
}

/// Runs a command as [`counts_of`] does, and gives each line of its standard output to `show`.
pub(crate) fn counts_with(
    mut show: impl FnMut(&str),
    command: &mut Command,
    mut count: impl FnMut(&str) -> Option<Counts>,
) -> Result<Counts> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut total = Counts::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(counts) = count(&line) {
            total.add(counts);
        }
        show(&line);
    }
    let status = child.wait()?;
    if !status.success() && total.failed == 0 {
        show(&format!("{command:?}: {status}"));
        total.failed += 1;
    }
    Ok(total)
}

/// Reads libtest's `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
pub(crate) fn libtest_counts(line: &str) -> Option<Counts> {
    let rest = line.trim().strip_prefix("test result:")?;
    Some(Counts {
        passed: number_before(rest, "passed")?,
        failed: number_before(rest, "failed")?,
        skipped: number_before(rest, "ignored")?,
    })
}

/// Reads our own `5 passed, 0 failed, 1 skipped`.
pub(crate) fn plain_counts(line: &str) -> Option<Counts> {
    if !line.starts_with(|first: char| first.is_ascii_digit()) || !line.ends_with(" skipped") {
        return None;
    }
    Some(Counts {
        passed: number_before(line, "passed")?,
        failed: number_before(line, "failed")?,
        skipped: number_before(line, "skipped")?,
    })
}

fn number_before(text: &str, word: &str) -> Option<u64> {
    let words: Vec<&str> = text
        .split([' ', ';', ',', '.'])
        .filter(|w| !w.is_empty())
        .collect();
    let at = words.iter().position(|&w| w == word)?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_read() {
        let line =
            "test result: FAILED. 11 passed; 2 failed; 3 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            libtest_counts(line),
            Some(Counts {
                passed: 11,
                failed: 2,
                skipped: 3
            })
        );
        assert_eq!(libtest_counts("test a::b ... ok"), None);
    }

    #[test]
    fn own_results_are_read_back() {
        let counts = Counts {
            passed: 4,
            failed: 1,
            skipped: 7,
        };
        assert_eq!(plain_counts(&counts.to_string()), Some(counts));
        assert_eq!(plain_counts("users: 4 passed, 1 failed, 7 skipped"), None);
    }

    #[test]
    fn a_failing_command_counts_as_a_failure() {
        let outcome = counting(&mut Command::new("false"), plain_counts).unwrap();
        assert!(matches!(outcome, Outcome::Ran(Counts { failed: 1, .. })));
    }
}
