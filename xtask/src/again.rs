//! Runs tests that failed once more, alone: a test that depends on the timing of a busy machine is
//! named as unstable, and does not hide what else a run has found.

use std::process::Command;

use anyhow::Result;

use crate::steps::{Counts, Outcome, counts_of, libtest_counts};

/// Runs `cargo test` with the arguments of `first`, then the tests that failed once more.
/// `command` makes a `cargo test` without arguments.
pub(crate) fn run(command: impl Fn() -> Command, first: &[&str]) -> Result<Outcome> {
    let mut failed = FailedTests::default();
    let mut counts = counts_of(command().args(first), |line| {
        failed.read(line);
        libtest_counts(line)
    })?;
    let names = failed.names;
    // A failure without a name is a test program that did not build or that died.
    if names.is_empty() || names.len() as u64 != counts.failed {
        return Ok(Outcome::Ran(counts));
    }
    println!("AGAIN {}", names.join(", "));
    let mut again = command();
    again.args(first).args(["--", "--exact"]).args(&names);
    let second = counts_of(&mut again, libtest_counts)?;
    if second.failed == 0 && second.passed >= counts.failed {
        for name in &names {
            println!("UNSTABLE {name}: failed once, passed when run again");
        }
        counts = Counts {
            passed: counts.passed + counts.failed,
            failed: 0,
            ..counts
        };
    }
    Ok(Outcome::Ran(counts))
}

/// The names under `failures:` at the end of the output of each test program.
#[derive(Debug, Default)]
struct FailedTests {
    names: Vec<String>,
    is_in_list: bool,
}

impl FailedTests {
    fn read(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) if self.is_in_list => self.names.push(name.to_owned()),
            _ => self.is_in_list = line == "failures:",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_lists_at_the_end() {
        let output = "\
running 3 tests
failures:

---- a::b stdout ----
    indented
thread panicked
failures:
    a::b
    c

test result: FAILED. 1 passed; 2 failed; 0 ignored
    not a name
failures:
    d
";
        let mut failed = FailedTests::default();
        output.lines().for_each(|line| failed.read(line));
        assert_eq!(failed.names, ["a::b", "c", "d"]);
    }

    fn shell(script: &'static str) -> impl Fn() -> Command {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]);
            command
        }
    }

    /// A test program that fails in its first run.
    const ONE_FAILURE: &str = "\
if [ $# = 1 ]; then
    printf 'failures:\\n    a\\n\\ntest result: FAILED. 4 passed; 1 failed; 0 ignored;\\n'; exit 1
fi
printf 'test result: ok. 1 passed; 0 failed; 0 ignored;\\n'";

    #[test]
    fn a_test_that_passes_alone_counts_as_passed() {
        let outcome = run(shell(ONE_FAILURE), &["first"]).unwrap();
        let Outcome::Ran(counts) = outcome else {
            panic!("it ran")
        };
        assert_eq!((counts.passed, counts.failed), (5, 0));
    }

    /// A test program that fails in each run.
    const TWO_FAILURES: &str = "\
printf 'failures:\\n    a\\n\\ntest result: FAILED. 0 passed; 1 failed; 0 ignored;\\n'
exit 1";

    #[test]
    fn a_test_that_fails_twice_counts_as_failed() {
        let outcome = run(shell(TWO_FAILURES), &["first"]).unwrap();
        assert!(matches!(outcome, Outcome::Ran(Counts { failed: 1, .. })));
    }

    /// A test program that dies in its first run.
    const ONE_DEATH: &str = "\
if [ $# = 1 ]; then exit 101; fi
printf 'test result: ok. 1 passed; 0 failed; 0 ignored;\\n'";

    #[test]
    fn a_program_that_dies_is_not_run_again() {
        let outcome = run(shell(ONE_DEATH), &["first"]).unwrap();
        assert!(matches!(outcome, Outcome::Ran(Counts { failed: 1, .. })));
    }
}
