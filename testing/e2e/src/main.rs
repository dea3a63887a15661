//! Tests of a mounted store.
//!
//! `stitch-e2e list` names the suites and their cases. `stitch-e2e run SUITE [CASE..]` runs them;
//! the last line is `N passed, N failed, N skipped`. Whatever a test mounts, starts or creates is
//! handed to a guardian process first, which cleans up even if this process is killed.

mod harness;
mod suite;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::harness::context::{Context, Target};
use crate::harness::guardian;
use crate::harness::report;
use crate::harness::transport::Transport;
use crate::suite::kill9::notice;

const HELP: &str = "\
usage: stitch-e2e list
       stitch-e2e run SUITE [CASE..] [options]

  --seconds N     give up (and clean up) after this time
  --seed N        first seed of random sequences
  --seeds N       how many seeds; of cases that kill, how many kills
  --ops N         operations for each seed
  --every N       operations between two comparisons of whole trees
  --target KIND   what is tested: stitch (default), or ext4, which tests the tests
  --transport T   how requests come: dev (default) or uring
  --again         run a case that failed once more; one that passes then is named UNSTABLE

environment: STITCHFS (the command), STITCH_TOOLS (folder of pjdfstest and fsx),
             STITCH_WORK (folder for images and mounts, which other users must be able to enter)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let passed = match args.as_slice() {
        ["guardian"] => guardian::serve().map(|()| true),
        [notice::PROGRAM, path] => notice::map_and_search(path.as_ref()).map(|()| true),
        ["list"] => {
            list();
            Ok(true)
        }
        ["run", suite, rest @ ..] => run(suite, rest),
        _ => {
            eprint!("{HELP}");
            Ok(false)
        }
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stitch-e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for (suite, cases) in suite::ALL {
        for case in *cases {
            println!("{suite} {}", case.name);
        }
    }
}

/// Runs a suite, or some of its cases; whether all passed.
fn run(suite: &str, args: &[&str]) -> Result<bool> {
    let Some((_, cases)) = suite::ALL.iter().find(|(name, _)| *name == suite) else {
        bail!("no suite `{suite}`; see `stitch-e2e list`");
    };
    let mut context = Context::from_env()?;
    let mut wanted = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64> {
            let value = args
                .next()
                .with_context(|| format!("{arg} needs a value"))?;
            value.parse().with_context(|| format!("{arg} {value}"))
        };
        match *arg {
            "--seconds" => context.time_limit = Some(Duration::from_secs(number()?)),
            "--again" => context.runs_again = true,
            "--seed" => context.seed = Some(number()?),
            "--seeds" => context.seeds = Some(number()?),
            "--ops" => context.ops = Some(number()?),
            "--every" => context.every = Some(number()?),
            "--target" => context.target = Target::parse(args.next().copied())?,
            "--transport" => context.transport = Transport::parse(args.next().copied())?,
            name if cases.iter().any(|case| case.name == name) => wanted.push(name),
            _ => bail!("no case or option `{arg}` in suite `{suite}`"),
        }
    }
    let chosen = cases
        .iter()
        .filter(|case| wanted.is_empty() || wanted.contains(&case.name));
    report::run(&context, suite, chosen)
}
