//! Sizes of files and functions, held by the [ratchet](super::ratchet).

use std::collections::BTreeMap;

use super::ratchet::{Kind, Measure};
use crate::source::{Source, item_end};

/// Measures the files and the functions of all product code. Functions of one name in a file
/// count as one, with the lines of the longest.
pub(super) fn measure(sources: &[Source]) -> Vec<Measure> {
    let mut measures = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let lines = source.product.lines();
        let lines = lines.filter(|line| !line.trim().is_empty()).count();
        measures.push(Measure::new(Kind::File, &source.path, lines));
        for (name, lines) in longest(functions(&source.product)) {
            let subject = format!("{}::{name}", source.path);
            measures.push(Measure::new(Kind::Function, subject, lines));
        }
    }
    measures
}

fn longest(functions: Vec<(String, usize)>) -> BTreeMap<String, usize> {
    let mut sizes = BTreeMap::new();
    for (name, lines) in functions {
        let size: &mut usize = sizes.entry(name).or_default();
        *size = lines.max(*size);
    }
    sizes
}

/// Names and lines of all functions, those of traits without a body too.
pub(super) fn functions(code: &str) -> Vec<(String, usize)> {
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

#[cfg(test)]
mod tests {
    use super::super::ratchet::Ratchet;
    use super::*;

    fn long_function(lines: usize) -> Source {
        let body = "    step();\n".repeat(lines - 2);
        Source::new(
            "crates/a/src/lib.rs",
            &format!("pub(crate) fn long() {{\n{body}}}\n"),
        )
    }

    /// The number of findings with this ratchet.
    fn findings(source: Source, ratchet: &str) -> usize {
        Ratchet::parse(ratchet).check(&measure(&[source])).len()
    }

    #[test]
    fn a_long_function_is_found_and_a_known_one_is_not() {
        assert_eq!(findings(long_function(71), ""), 1);
        let known = "fn crates/a/src/lib.rs::long 71\n";
        assert_eq!(findings(long_function(71), known), 0);
        assert_eq!(findings(long_function(72), known), 1);
        assert_eq!(findings(long_function(70), ""), 0);
    }

    #[test]
    fn a_long_file_is_found_without_its_comments_and_tests() {
        let code = "const A: u8 = 1;\n".repeat(501);
        let file = |text: &str| Source::new("a/src/b.rs", text);
        assert_eq!(findings(file(&code), ""), 1);
        assert_eq!(findings(file(&"// words\n\n".repeat(600)), ""), 0);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(findings(file(&tests), ""), 0);
    }

    #[test]
    fn functions_of_one_name_count_as_the_longest() {
        let text = "fn a() {\n}\nmod m {\n    fn a() {\n        b();\n    }\n}\n";
        let measures = measure(&[Source::new("crates/a/src/lib.rs", text)]);
        let function = Measure::new(Kind::Function, "crates/a/src/lib.rs::a", 3);
        assert_eq!(measures[1..], [function]);
    }
}
