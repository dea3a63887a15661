//! A few seeds of every case; `cargo xtask sim` runs thousands.

use stitch_sim::args::Args;
use stitch_sim::{campaign, systems};

#[test]
fn a_few_seeds_of_every_case_pass_and_every_canary_is_found() {
    let args = Args {
        seed: 1_000_000,
        seeds: 8,
        limit: None,
        case: String::new(),
        jobs: 2,
    };
    let outcome = campaign::run(systems::cases(), &args, |_| {}).unwrap();
    assert!(outcome.failures.is_empty(), "{:#?}", outcome.failures);
    let cases = systems::cases().len();
    assert_eq!(outcome.totals.len(), cases, "every case ran");
}
