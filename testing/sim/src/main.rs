//! `stitch-sim`: runs the simulation from the command line.

use std::process::ExitCode;
use stitch_sim::args::{Args, USAGE};
use stitch_sim::campaign::{self, Failure, Outcome};
use stitch_sim::systems;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let cases = systems::cases();
    if words.iter().any(|word| word == "--list") {
        cases.iter().for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    let args = match Args::parse(words.into_iter()) {
        Ok(args) => args,
        Err(message) => {
            eprint!("stitch-sim: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match campaign::run(cases, &args, tell) {
        Ok(outcome) => report(&outcome),
        Err(error) => {
            eprintln!("stitch-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tell(failure: &Failure) {
    let Failure { case, seed, reason } = failure;
    println!("FAILED {case}, seed {seed}: {reason}");
    println!("  replay: cargo xtask sim --seed {seed} --case {case}");
}

fn report(outcome: &Outcome) -> ExitCode {
    for (case, (seeds, sums)) in &outcome.totals {
        let sums: Vec<String> = sums
            .iter()
            .map(|(name, sum)| format!("{sum} {name}"))
            .collect();
        println!("{case}: {seeds} seeds, {}", sums.join(", "));
    }
    let failed = outcome.failures.len();
    println!("{} passed, {failed} failed, 0 skipped", outcome.passed);
    if failed == 0 && outcome.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
