//! Assertions per function of each crate, held by the [ratchet](super::ratchet): they may only
//! rise. Tests do not count.

use std::collections::BTreeMap;

use super::ratchet::{Kind, Measure};
use super::sizes::functions;
use super::words::places;
use crate::source::Source;

/// What asserts, in debug builds or in all of them.
const ASSERTIONS: [&str; 6] = [
    "assert!",
    "assert_eq!",
    "assert_ne!",
    "debug_assert!",
    "debug_assert_eq!",
    "debug_assert_ne!",
];

/// Assertions and functions of a crate.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    assertions: usize,
    functions: usize,
}

/// Measures each crate under `crates/`: assertions per 100 functions, rounded down.
pub(super) fn measure(sources: &[Source]) -> Vec<Measure> {
    let mut crates: BTreeMap<&str, Tally> = BTreeMap::new();
    let products = sources
        .iter()
        .filter(|source| source.path.starts_with("crates/") && source.path.ends_with(".rs"));
    for source in products {
        let tally = crates.entry(source.krate()).or_default();
        let assertions = ASSERTIONS.map(|word| places(&source.product, word).len());
        tally.assertions += assertions.iter().sum::<usize>();
        tally.functions += functions(&source.product).len();
    }
    let measure = |(krate, tally): (&str, Tally)| {
        let number = 100 * tally.assertions / tally.functions.max(1);
        Measure::new(Kind::Assertions, krate, number)
    };
    crates.into_iter().map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_count_per_100_functions_of_a_crate() {
        let first = "fn a() {\n    assert!(x);\n    debug_assert_eq!(y, z);\n}\nfn b() {}\n";
        let second =
            "fn c() {}\n// assert!(x)\n#[cfg(test)]\nmod tests {\n    fn d() { assert!(x) }\n}\n";
        let sources = Source::all(&[
            ("crates/a/src/lib.rs", first),
            ("crates/a/src/b.rs", second),
            ("crates/a/tests/all.rs", "fn e() { assert!(x) }\n"),
            ("testing/b/src/lib.rs", "fn f() { assert!(x) }\n"),
        ]);
        let expected = Measure::new(Kind::Assertions, "crates/a", 66);
        assert_eq!(measure(&sources), [expected]);
    }
}
