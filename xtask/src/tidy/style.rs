//! Wide lines, banned first words of docs, types of one name, and [words that hide the
//! actor](super::actors): counted by crate, and held by the [ratchet](super::ratchet) where a crate
//! is not clean yet.

use std::collections::BTreeMap;

use super::Finding;
use super::actors;
use super::ratchet::{Kind, Measure, Ratchet};
use crate::source::Source;

/// Columns of a line, in comments too.
const COLUMNS_MAX: usize = 100;
/// First words of a paragraph of docs that hide its subject.
const BANNED: [&str; 3] = ["Answers", "Says", "Who"];
/// What declares a type.
const DECLARATIONS: [&str; 5] = ["struct ", "enum ", "union ", "trait ", "type "];

/// What breaks a rule of style, with the kind under which the ratchet counts it.
#[derive(Debug)]
pub(super) struct Breach {
    kind: Kind,
    krate: String,
    pub(super) finding: Finding,
}

impl Breach {
    /// Reports whether the crate must have no breach of this kind.
    pub(super) fn is_unexpected(&self, ratchet: &Ratchet) -> bool {
        ratchet.limit(&Measure::new(self.kind, &self.krate, 0)) == 0
    }
}

/// Finds all breaches: of Rust files, and of the words in pages, too.
pub(super) fn find(sources: &[Source]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut types = Types::new();
    for source in sources {
        let mut add = |kind, line, what: String| {
            let finding = Finding {
                path: source.path.clone(),
                line,
                what,
            };
            let krate = source.krate().to_owned();
            breaches.push(Breach {
                kind,
                krate,
                finding,
            });
        };
        actors::find(source, &mut add);
        if source.path.ends_with(".rs") {
            find_wide_lines(source, &mut add);
            find_banned_docs(source, &mut add);
            find_second_types(source, &mut types, &mut add);
        }
    }
    breaches
}

/// Counts the breaches of each crate, by kind.
pub(super) fn measure(breaches: &[Breach]) -> Vec<Measure> {
    let mut counts: BTreeMap<(Kind, &str), usize> = BTreeMap::new();
    for breach in breaches {
        *counts.entry((breach.kind, &breach.krate)).or_default() += 1;
    }
    let measure = |((kind, krate), number)| Measure::new(kind, krate, number);
    counts.into_iter().map(measure).collect()
}

fn find_wide_lines(source: &Source, add: &mut impl FnMut(Kind, usize, String)) {
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let what = format!("{columns} columns, at most {COLUMNS_MAX} allowed");
            add(Kind::Long, index + 1, what);
        }
    }
}

/// Finds paragraphs of doc comments that begin with a banned word.
fn find_banned_docs(source: &Source, add: &mut impl FnMut(Kind, usize, String)) {
    let mut begins = true;
    for (index, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        let doc = ["///", "//!"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark));
        let words = doc.unwrap_or_default().trim();
        if begins && let Some(word) = BANNED.iter().find(|word| first_word(words) == **word) {
            let what = format!("docs begin with `{word}`: name the subject, or `Returns`");
            add(Kind::Doc, index + 1, what);
        }
        begins = words.is_empty();
    }
}

fn first_word(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric());
    &text[..end.unwrap_or(text.len())]
}

/// Where a crate declared a type first, by crate and name.
type Types = BTreeMap<(String, String), String>;

/// Finds types of product code whose name an earlier type of the crate has.
fn find_second_types(
    source: &Source,
    types: &mut Types,
    add: &mut impl FnMut(Kind, usize, String),
) {
    for (index, line) in source.product.lines().enumerate() {
        let Some(name) = declared_type(line) else {
            continue;
        };
        let key = (source.krate().to_owned(), name.to_owned());
        if let Some(first) = types.get(&key) {
            let what = format!("a second type `{name}` in the crate; the first: {first}");
            add(Kind::Types, index + 1, what);
        } else {
            types.insert(key, format!("{}:{}", source.path, index + 1));
        }
    }
}

/// The type that a line declares. An indented `type` belongs to a trait or its implementation.
fn declared_type(line: &str) -> Option<&str> {
    let indented = line.starts_with(' ');
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        let restricted = public
            .strip_prefix('(')
            .and_then(|scope| scope.split_once(')'));
        rest = restricted.map_or(public, |(_, rest)| rest).trim_start();
    }
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let declares = |word: &&&str| rest.starts_with(**word) && !(indented && **word == "type ");
    let word = DECLARATIONS.iter().find(declares)?;
    let name = first_word(&rest[word.len()..]);
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(files: &[(&str, &str)], kind: Kind) -> Vec<usize> {
        let breaches = find(&Source::all(files));
        let of_kind = breaches.iter().filter(|breach| breach.kind == kind);
        of_kind.map(|breach| breach.finding.line).collect()
    }

    const LIB: &str = "crates/a/src/lib.rs";

    #[test]
    fn a_wide_line_is_found_in_comments_too() {
        let text = format!("// {}\n// {}\n", "a".repeat(97), "a".repeat(98));
        assert_eq!(lines(&[(LIB, &text)], Kind::Long), [2]);
    }

    #[test]
    fn docs_that_begin_with_a_banned_word_are_found() {
        let text = "//! Who reads.\n\n/// Says it.\n///\n/// Answers it.\nfn f() {}\n// Says so.\n";
        assert_eq!(lines(&[(LIB, text)], Kind::Doc), [1, 3, 5]);
    }

    #[test]
    fn a_banned_word_within_a_paragraph_is_fine() {
        let text =
            "/// The owner.\n/// Says the kernel.\nfn f() {}\n/// Whole blocks.\nfn g() {}\n";
        assert!(lines(&[(LIB, text)], Kind::Doc).is_empty());
    }

    #[test]
    fn a_second_type_of_a_name_is_found_within_its_crate() {
        let first = (LIB, "pub(crate) struct Place;\n");
        let second = ("crates/a/src/b.rs", "\npub enum Place {}\n");
        let elsewhere = ("crates/b/src/lib.rs", "struct Place<'a>(&'a str);\n");
        // Files count in the order given.
        assert_eq!(lines(&[first, second, elsewhere], Kind::Types), [2]);
        assert!(lines(&[first, elsewhere], Kind::Types).is_empty());
    }

    #[test]
    fn types_of_tests_and_of_implementations_may_share_a_name() {
        let text = "type Item = u8;\nimpl A for B {\n    type Item = u8;\n}\n\
                    #[cfg(test)]\nmod tests {\n    struct Item;\n}\n";
        let test = ("crates/a/tests/all.rs", "struct Item;\n");
        assert!(lines(&[(LIB, text), test], Kind::Types).is_empty());
    }

    #[test]
    fn breaches_are_counted_by_crate() {
        let wide = format!("// {}\n", "a".repeat(98)).repeat(2);
        let sources = Source::all(&[(LIB, &wide), ("testing/b/src/lib.rs", &wide)]);
        let counts = measure(&find(&sources));
        let count = |krate| Measure::new(Kind::Long, krate, 2);
        assert_eq!(counts, [count("crates/a"), count("testing/b")]);
    }
}
