//! Runs cases, prints how each went, and gives up when the time is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::time::Duration;

use anyhow::{Result, anyhow};
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::thread;

use super::context::Context;
use super::guardian;

/// One test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Context) -> Result<()>,
}

/// An error that means: cannot run here, for this reason.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Runs cases one after the other; whether none failed.
pub(crate) fn run<'a>(
    context: &Context,
    suite: &str,
    cases: impl Iterator<Item = &'a Case>,
) -> Result<bool> {
    if let Some(limit) = context.time_limit {
        start_watchdog(limit)?;
    }
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in cases {
        let name = format!("{suite} {}", case.name);
        let mut verdict = run_case(context, &name, case);
        if verdict == Verdict::Failed && context.runs_again {
            println!("AGAIN {name}");
            verdict = run_case(&context.again()?, &name, case);
            if verdict == Verdict::Passed {
                println!("UNSTABLE {name}: failed once, passed when run again");
            }
        }
        match verdict {
            Verdict::Passed => passed += 1,
            Verdict::Failed => failed += 1,
            Verdict::Skipped => skipped += 1,
        }
    }
    guardian::finish();
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// How a run of a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// Runs a case once and prints how it went.
fn run_case(context: &Context, name: &str, case: &Case) -> Verdict {
    let start = context.elapsed();
    let result = catch_unwind(AssertUnwindSafe(|| (case.run)(context)))
        .unwrap_or_else(|_| Err(anyhow!("panicked")));
    let seconds = (context.elapsed() - start).as_secs_f64();
    let Err(error) = result else {
        println!("ok    {name} ({seconds:.1} s)");
        return Verdict::Passed;
    };
    if let Some(reason) = error.downcast_ref::<Skip>() {
        println!("SKIP  {name}: {reason}");
        return Verdict::Skipped;
    }
    println!("FAIL  {name} ({seconds:.1} s): {error:#}");
    Verdict::Failed
}

/// Ends the process when the time is over. The guardian cleans up.
fn start_watchdog(limit: Duration) -> Result<()> {
    thread::spawn("watchdog", move || {
        SystemClock::default().sleep(limit);
        println!("FAIL  not done after {} s", limit.as_secs());
        println!("0 passed, 1 failed, 0 skipped");
        guardian::finish();
        process::exit(1);
    })?;
    Ok(())
}
