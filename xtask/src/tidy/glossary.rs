//! The glossary: a word has one entry.

use std::collections::BTreeMap;

use super::Finding;
use crate::source::Source;

const GLOSSARY: &str = "docs/glossary.md";

/// Finds words of the glossary that have two entries.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let pages = sources.iter().filter(|source| source.path == GLOSSARY);
    pages.flat_map(find_second_entries).collect()
}

fn find_second_entries(page: &Source) -> Vec<Finding> {
    let mut first: BTreeMap<String, usize> = BTreeMap::new();
    let mut findings = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        for word in words(line) {
            let line = index + 1;
            if let Some(entry) = first.get(&word) {
                findings.push(Finding {
                    path: page.path.clone(),
                    line,
                    what: format!("`{word}` has an entry already, in line {entry}"),
                });
            } else {
                first.insert(word, line);
            }
        }
    }
    findings
}

/// The words of an entry, which a comma separates. What is in brackets is not part of a word.
fn words(line: &str) -> Vec<String> {
    let Some((entry, _)) = line
        .strip_prefix('|')
        .and_then(|cells| cells.split_once('|'))
    else {
        return Vec::new();
    };
    let word = |part: &str| {
        let word = part.split('(').next().unwrap_or_default();
        word.trim_matches([' ', '`', '-']).to_lowercase()
    };
    let words = entry.split(',').map(word);
    words.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let findings = check(&[Source::new(GLOSSARY, text)]);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_word_with_two_entries_is_found() {
        let head = "# Glossary\n\n| word | means here |\n|---|---|\n";
        let table =
            format!("{head}| base, Record | a |\n| mark | b |\n| record (of a log) | c |\n");
        assert_eq!(lines(&table), [7]);
        assert!(lines(&format!("{head}| log mark | a |\n| mark | mark, mark |\n")).is_empty());
    }
}
