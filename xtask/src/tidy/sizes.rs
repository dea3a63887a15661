//! Sizes of files and functions, held by a ratchet.
//!
//! The ratchet file lists today's exceptions, one a line: `file <path> <lines>` and
//! `fn <path>::<name> <lines>`. A new exception or a grown one is a finding; a shrunk one is lowered
//! by `tidy --bless`, which never raises one.

use std::collections::BTreeMap;

use super::Finding;
use crate::source::{Source, item_end};

/// Lines of code, without comments, blank lines and tests, at which a file asks for a split.
const FILE_LINES: usize = 500;
/// Lines at which a function asks for a split.
const FN_LINES: usize = 70;

/// What is over the mark: `file path` or `fn path::name`, and its lines.
pub(super) type Sizes = BTreeMap<String, usize>;

/// Measures all product code.
pub(super) fn measure(sources: &[Source]) -> Sizes {
    let mut sizes = Sizes::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let lines = source
            .product
            .lines()
            .filter(|line| !line.trim().is_empty())
            .count();
        if lines > FILE_LINES {
            sizes.insert(format!("file {}", source.path), lines);
        }
        for (name, lines) in functions(&source.product) {
            if lines > FN_LINES {
                let size = sizes
                    .entry(format!("fn {}::{name}", source.path))
                    .or_default();
                *size = lines.max(*size);
            }
        }
    }
    sizes
}

/// Names and lines of all functions with a body.
fn functions(code: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let begins = at == 0 || !code.as_bytes()[at - 1].is_ascii_alphanumeric();
        let name: String = code[at + 3..]
            .chars()
            .take_while(|&letter| letter.is_ascii_alphanumeric() || letter == '_')
            .collect();
        if !begins || name.is_empty() {
            continue;
        }
        let end = item_end(code.as_bytes(), at);
        found.push((name, code[at..end].lines().count()));
    }
    found
}

/// Compares with the ratchet.
pub(super) fn check(measured: &Sizes, ratchet: &str) -> Vec<Finding> {
    let allowed = parse(ratchet);
    let mut findings = Vec::new();
    for (what, &lines) in measured {
        let limit = allowed.get(what).copied();
        if limit.is_some_and(|limit| lines <= limit) {
            continue;
        }
        let note = match limit {
            Some(limit) => format!("grew from {limit} to {lines} lines"),
            None if what.starts_with("file ") => {
                format!("{lines} lines of code, over {FILE_LINES}: split it")
            }
            None => format!("{lines} lines, over {FN_LINES}: split it"),
        };
        let path = what.split_once(' ').map_or(what.as_str(), |(_, path)| path);
        findings.push(Finding {
            path: path.to_owned(),
            line: 1,
            what: note,
        });
    }
    findings
}

/// The ratchet with every exception lowered to its size now, and those gone that are no more.
pub(super) fn bless(measured: &Sizes, ratchet: &str) -> String {
    let mut out = String::new();
    for (what, limit) in parse(ratchet) {
        if let Some(&lines) = measured.get(&what) {
            out += &format!("{what} {}\n", lines.min(limit));
        }
    }
    out
}

fn parse(ratchet: &str) -> Sizes {
    let entry = |line: &str| {
        let (what, lines) = line.rsplit_once(' ')?;
        Some((what.to_owned(), lines.parse().ok()?))
    };
    ratchet.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_function(lines: usize) -> Source {
        let body = "    step();\n".repeat(lines - 2);
        Source::new(
            "crates/a/src/lib.rs",
            &format!("pub(crate) fn long() {{\n{body}}}\n"),
        )
    }

    #[test]
    fn a_long_function_is_found_and_a_known_one_is_not() {
        let measured = measure(&[long_function(71)]);
        assert_eq!(check(&measured, "").len(), 1);
        assert!(check(&measured, "fn crates/a/src/lib.rs::long 71\n").is_empty());
        assert!(measure(&[long_function(70)]).is_empty());
    }

    #[test]
    fn a_grown_exception_is_found() {
        let measured = measure(&[long_function(80)]);
        let found = check(&measured, "fn crates/a/src/lib.rs::long 75\n");
        assert_eq!(found[0].what, "grew from 75 to 80 lines");
    }

    #[test]
    fn a_long_file_is_found_without_its_comments_and_tests() {
        let code = "const A: u8 = 1;\n".repeat(501);
        assert_eq!(
            measure(&[Source::new("a/src/b.rs", &code)])["file a/src/b.rs"],
            501
        );
        let comments = "// words\n\n".repeat(600);
        assert!(measure(&[Source::new("a/src/b.rs", &comments)]).is_empty());
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert!(measure(&[Source::new("a/src/b.rs", &tests)]).is_empty());
    }

    #[test]
    fn blessing_only_lowers() {
        let ratchet = "fn crates/a/src/lib.rs::long 75\nfn gone.rs::gone 90\n";
        let lowered = bless(&measure(&[long_function(72)]), ratchet);
        assert_eq!(lowered, "fn crates/a/src/lib.rs::long 72\n");
        let kept = bless(&measure(&[long_function(80)]), ratchet);
        assert_eq!(kept, "fn crates/a/src/lib.rs::long 75\n");
    }
}
