//! Documents that make promises: decision records have a status and name each dependency,
//! statements name their test.
//!
//! A statement of `docs/semantics.md` is a list item. It ends with `test: <file>::<function>`;
//! items under a heading that contains "limits" or "not offered" may go without.

use std::collections::BTreeSet;

use super::Finding;
use crate::source::Source;

const DEPENDENCIES: &str = "docs/adr/0001-dependencies.md";
const SEMANTICS: &str = "docs/semantics.md";
/// What a decision record's status may be.
const STATUSES: [&str; 4] = ["proposed", "accepted", "rejected", "superseded"];

/// Checks the documents.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let is_record = source.path.starts_with("docs/adr/0") && source.path.ends_with(".md");
        if is_record {
            check_status(source, &mut findings);
        }
        if source.path == DEPENDENCIES {
            check_dependencies(source, sources, &mut findings);
        }
        if source.path == SEMANTICS {
            check_statements(source, sources, &mut findings);
        }
    }
    findings
}

fn check_status(record: &Source, findings: &mut Vec<Finding>) {
    let status = record.text.lines().find_map(|line| {
        let rest = line
            .trim_start_matches(['*', '-', ' '])
            .strip_prefix("Status:")?;
        Some(rest.trim_matches(['*', ' ']).to_lowercase())
    });
    match status {
        None => findings.push(Finding::new(
            record,
            0,
            "a decision record has a `Status:` line",
        )),
        Some(status) if !STATUSES.iter().any(|known| status.starts_with(known)) => {
            let what = format!("status is one of {STATUSES:?}");
            findings.push(Finding::new(record, 0, what));
        }
        Some(_) => {}
    }
}

/// Every dependency of every crate stands in the record, in backquotes.
fn check_dependencies(record: &Source, sources: &[Source], findings: &mut Vec<Finding>) {
    let manifests = sources
        .iter()
        .filter(|source| source.path.ends_with("Cargo.toml"));
    let mut names = BTreeSet::new();
    for table in manifests.filter_map(|manifest| manifest.text.parse::<toml::Table>().ok()) {
        let workspace = table.get("workspace").and_then(toml::Value::as_table);
        for owner in [Some(&table), workspace].into_iter().flatten() {
            for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
                let section = owner.get(section).and_then(toml::Value::as_table);
                names.extend(section.into_iter().flat_map(toml::Table::keys).cloned());
            }
        }
    }
    for name in names {
        let ours = name.starts_with("stitch");
        if !ours && !record.text.contains(&format!("`{name}`")) {
            findings.push(Finding::new(
                record,
                0,
                format!("dependency `{name}` is not explained"),
            ));
        }
    }
}

fn check_statements(document: &Source, sources: &[Source], findings: &mut Vec<Finding>) {
    for (line, statement, needs_test) in statements(&document.text) {
        let mut finding = |what: String| {
            findings.push(Finding {
                path: document.path.clone(),
                line,
                what,
            })
        };
        let mut references = statement.split("test: ").skip(1).peekable();
        if references.peek().is_none() && needs_test {
            finding("a statement ends with `test: <file>::<function>`".to_owned());
        }
        for reference in references.flat_map(|rest| rest.split(", ")) {
            let reference = reference.trim_matches(['`', '.', ' ', ')']);
            if !test_exists(reference, sources) {
                finding(format!("no such test: `{reference}`"));
            }
        }
    }
}

/// The list items of a document: line, text in one line, and whether a test must be named.
fn statements(text: &str) -> Vec<(usize, String, bool)> {
    let mut found: Vec<(usize, String, bool)> = Vec::new();
    let mut needs_test = true;
    let mut in_item = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if line.starts_with('#') {
            let heading = line.to_lowercase();
            needs_test = !heading.contains("limits") && !heading.contains("not offered");
            in_item = false;
        } else if let Some(item) = trimmed.strip_prefix("- ") {
            found.push((index + 1, item.to_owned(), needs_test));
            in_item = true;
        } else if trimmed.is_empty() || !line.starts_with(' ') {
            in_item = false;
        } else if let (true, Some(last)) = (in_item, found.last_mut()) {
            last.1.push(' ');
            last.1.push_str(trimmed);
        }
    }
    found
}

fn test_exists(reference: &str, sources: &[Source]) -> bool {
    let Some((path, name)) = reference.split_once("::") else {
        return false;
    };
    let name = name.rsplit("::").next().unwrap_or(name);
    let declares = |source: &Source| {
        ["(", "<"]
            .iter()
            .any(|end| source.code.contains(&format!("fn {name}{end}")))
    };
    sources
        .iter()
        .any(|source| source.path == path && declares(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::all(files);
        check(&sources)
            .into_iter()
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn a_record_without_a_status_is_found() {
        assert!(findings(&[("docs/adr/0001-a.md", "# A\n\nStatus: accepted\n")]).is_empty());
        assert_eq!(findings(&[("docs/adr/0001-a.md", "# A\n")]).len(), 1);
        assert_eq!(
            findings(&[("docs/adr/0001-a.md", "Status: maybe\n")]).len(),
            1
        );
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest = (
            "Cargo.toml",
            "[workspace.dependencies]\nbytes = \"1\"\nstitch-fs = \"1\"\n",
        );
        let good = "Status: accepted\n| `bytes` | why |\n";
        assert!(findings(&[manifest, (DEPENDENCIES, good)]).is_empty());
        assert_eq!(
            findings(&[manifest, (DEPENDENCIES, "Status: accepted\n")]).len(),
            1
        );
    }

    #[test]
    fn statements_name_tests_that_exist() {
        let test = ("crates/fs/tests/rename.rs", "fn keeps_the_target() {}");
        let good = "- Rename keeps.\n  test: `crates/fs/tests/rename.rs::keeps_the_target`\n";
        assert!(findings(&[test, (SEMANTICS, good)]).is_empty());
        let gone = "- Rename keeps. test: crates/fs/tests/rename.rs::is_gone\n";
        assert_eq!(
            findings(&[test, (SEMANTICS, gone)]),
            ["no such test: `crates/fs/tests/rename.rs::is_gone`"]
        );
    }

    #[test]
    fn a_statement_without_a_test_is_found_but_not_among_limits() {
        assert_eq!(findings(&[(SEMANTICS, "# Rename\n- It keeps.\n")]).len(), 1);
        assert!(findings(&[(SEMANTICS, "# Limits\n- It is slow.\n")]).is_empty());
    }
}
