//! The ratchet: numbers that may only get better.
//!
//! `xtask/ratchet.txt` has a line `<kind> <subject> <number>` for each subject that does not meet
//! the kind's mark yet, and for each crate's floor of assertions. A number that got worse is a
//! finding. `tidy --bless` moves each line to the number of today where that is better, and
//! removes lines that meet the mark. It never loosens a line.
//!
//! ```text
//! kind     subject            number                                 better  mark
//! file     path of a file     lines of code                          less    500
//! fn       path::name         lines of the function                  less    70
//! long     crate              lines over 100 columns                 less    0
//! doc      crate              docs that begin with a banned word     less    0
//! types    crate              types whose name the crate has twice   less    0
//! actor    crate              words that hide the actor              less    0
//! asserts  crate              assertions per 100 functions           more    0
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Finding;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Lines of code of a file, without comments, blank lines and tests.
    File,
    /// Lines of a function.
    Function,
    /// Lines of a crate that are over 100 columns wide.
    Long,
    /// Doc comments of a crate that begin with a banned word.
    Doc,
    /// Types of a crate beside another one of the same name.
    Types,
    /// Words of a crate that hide the actor of a sentence.
    Actor,
    /// Assertions per 100 functions of a crate.
    Assertions,
}

impl Kind {
    /// The word at the beginning of a line of the ratchet.
    const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Function => "fn",
            Self::Long => "long",
            Self::Doc => "doc",
            Self::Types => "types",
            Self::Actor => "actor",
            Self::Assertions => "asserts",
        }
    }

    /// The number that a subject without a line of its own must meet.
    const fn mark(self) -> usize {
        match self {
            Self::File => 500,
            Self::Function => 70,
            Self::Long | Self::Doc | Self::Types | Self::Actor | Self::Assertions => 0,
        }
    }

    /// Reports whether a larger number is the better one.
    const fn rises(self) -> bool {
        matches!(self, Self::Assertions)
    }

    /// Returns the better of two numbers.
    fn better(self, one: usize, other: usize) -> usize {
        if self.rises() {
            one.max(other)
        } else {
            one.min(other)
        }
    }

    /// What is counted, in words.
    const fn unit(self) -> &'static str {
        match self {
            Self::File => "lines of code",
            Self::Function => "lines",
            Self::Long => "lines over 100 columns",
            Self::Doc => "docs that begin with `Answers`, `Says` or `Who`",
            Self::Types => "types of a name that another type of the crate has",
            Self::Actor => "words such as `somebody` and `nobody`",
            Self::Assertions => "assertions per 100 functions",
        }
    }

    /// What to do about a number that is worse than its limit.
    const fn remedy(self) -> &'static str {
        match self {
            Self::File | Self::Function => "split it",
            Self::Long | Self::Doc | Self::Types | Self::Actor => {
                "`cargo xtask tidy --all` lists them"
            }
            Self::Assertions => "assert what the new functions rely on",
        }
    }
}

/// A number as it is today.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Measure {
    pub(super) kind: Kind,
    /// A crate's folder, a file's path, or `path::function`.
    pub(super) subject: String,
    pub(super) number: usize,
}

impl Measure {
    pub(super) fn new(kind: Kind, subject: impl Into<String>, number: usize) -> Self {
        Self {
            kind,
            subject: subject.into(),
            number,
        }
    }

    fn key(&self) -> String {
        format!("{} {}", self.kind.word(), self.subject)
    }
}

/// The limits of the ratchet file, by kind and subject.
#[derive(Debug, Default)]
pub(super) struct Ratchet(BTreeMap<String, usize>);

impl Ratchet {
    /// Reads the file. Lines that do not end with a number are left out.
    pub(super) fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (key, number) = line.rsplit_once(' ')?;
            Some((key.to_owned(), number.parse().ok()?))
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// The number that a subject must meet.
    pub(super) fn limit(&self, measure: &Measure) -> usize {
        let line = self.0.get(&measure.key()).copied();
        line.unwrap_or(measure.kind.mark())
    }

    /// Finds the numbers that are worse than their limit.
    pub(super) fn check(&self, measures: &[Measure]) -> Vec<Finding> {
        let worse = measures.iter().filter(|measure| {
            let limit = self.limit(measure);
            measure.kind.better(measure.number, limit) != measure.number
        });
        let finding = |measure: &Measure| {
            let Measure { kind, number, .. } = *measure;
            let limit = self.limit(measure);
            let bound = if kind.rises() { "at least" } else { "at most" };
            let (unit, remedy) = (kind.unit(), kind.remedy());
            Finding {
                path: measure.subject.clone(),
                line: 1,
                what: format!("{number} {unit}, {bound} {limit} allowed: {remedy}"),
            }
        };
        worse.map(finding).collect()
    }

    /// The text of the ratchet with each line moved to the number of today where that is better.
    /// Only a kind that rises gets new lines.
    pub(super) fn bless(&self, measures: &[Measure]) -> String {
        let mut lines = BTreeMap::new();
        for measure in measures {
            let key = measure.key();
            let number = match self.0.get(&key) {
                Some(&limit) => measure.kind.better(measure.number, limit),
                None if measure.kind.rises() => measure.number,
                None => continue,
            };
            if number > measure.kind.mark() {
                lines.insert(key, number);
            }
        }
        lines.iter().fold(String::new(), |mut out, (key, number)| {
            let _ = writeln!(out, "{key} {number}");
            out
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "crates/a";

    fn long(number: usize) -> [Measure; 1] {
        [Measure::new(Kind::Long, LONG, number)]
    }

    fn asserts(number: usize) -> [Measure; 1] {
        [Measure::new(Kind::Assertions, LONG, number)]
    }

    #[test]
    fn a_number_over_its_limit_is_found() {
        let ratchet = Ratchet::parse("long crates/a 3\n");
        assert!(ratchet.check(&long(3)).is_empty());
        let found = ratchet.check(&long(4));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, LONG);
        assert!(found[0].what.contains("at most 3 allowed"));
    }

    #[test]
    fn a_subject_without_a_line_must_meet_the_mark() {
        let ratchet = Ratchet::default();
        assert!(ratchet.check(&long(0)).is_empty());
        assert_eq!(ratchet.check(&long(1)).len(), 1);
        let file = |lines| [Measure::new(Kind::File, "a.rs", lines)];
        assert!(ratchet.check(&file(500)).is_empty());
        assert_eq!(ratchet.check(&file(501)).len(), 1);
    }

    #[test]
    fn assertions_below_their_floor_are_found() {
        let ratchet = Ratchet::parse("asserts crates/a 27\n");
        assert!(ratchet.check(&asserts(27)).is_empty());
        assert!(ratchet.check(&asserts(28)).is_empty());
        let found = ratchet.check(&asserts(26));
        assert!(found[0].what.contains("at least 27 allowed"), "{found:?}");
    }

    #[test]
    fn blessing_lowers_counts_and_never_raises_them() {
        let ratchet = Ratchet::parse("long crates/a 3\nlong crates/gone 9\n");
        assert_eq!(ratchet.bless(&long(2)), "long crates/a 2\n");
        assert_eq!(ratchet.bless(&long(4)), "long crates/a 3\n");
        assert_eq!(ratchet.bless(&long(0)), "");
        assert_eq!(Ratchet::default().bless(&long(2)), "");
    }

    #[test]
    fn blessing_raises_floors_and_never_lowers_them() {
        let ratchet = Ratchet::parse("asserts crates/a 27\n");
        assert_eq!(ratchet.bless(&asserts(30)), "asserts crates/a 30\n");
        assert_eq!(ratchet.bless(&asserts(20)), "asserts crates/a 27\n");
        assert_eq!(
            Ratchet::default().bless(&asserts(5)),
            "asserts crates/a 5\n"
        );
    }

    #[test]
    fn blessing_keeps_a_floor_whose_crate_lost_all_assertions() {
        let ratchet = Ratchet::parse("asserts crates/a 27\n");
        assert_eq!(ratchet.bless(&asserts(0)), "asserts crates/a 27\n");
    }
}
