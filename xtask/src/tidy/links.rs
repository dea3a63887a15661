//! Links of the documentation: each relative link leads to a file, each path in code quotes exists,
//! and each decision record stands in the index of records.

use std::path::Path;

use super::Finding;
use crate::source::Source;

const RECORDS: &str = "docs/adr/";
const INDEX: &str = "docs/adr/README.md";
const TEMPLATE: &str = "docs/adr/0000-template.md";
/// Folders that a path in code quotes begins with.
const FOLDERS: [&str; 6] = ["bench/", "crates/", "docs/", "fuzz/", "testing/", "xtask/"];

/// Checks all Markdown files; `exists` reports whether a path from the root is there.
pub(super) fn check(sources: &[Source], exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        if source.path.ends_with(".md") {
            find_broken_links(source, exists, &mut findings);
            if is_about_today(&source.path) {
                find_missing_paths(source, exists, &mut findings);
            }
        }
    }
    if let Some(index) = sources.iter().find(|source| source.path == INDEX) {
        find_unlisted_records(index, sources, &mut findings);
    }
    findings
}

fn find_broken_links(source: &Source, exists: &dyn Fn(&Path) -> bool, findings: &mut Vec<Finding>) {
    let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    for (at, _) in source.text.match_indices("](") {
        let rest = &source.text[at + 2..];
        let Some(end) = rest.find([')', ' ', '\n']) else {
            continue;
        };
        let target = rest[..end].split('#').next().unwrap_or_default();
        let elsewhere = target.is_empty() || target.contains(':');
        if !elsewhere && !exists(&folder.join(target)) {
            findings.push(Finding::new(
                source,
                at,
                format!("no such file: `{target}`"),
            ));
        }
    }
}

/// Records of decisions and changes name files as they were at their time.
fn is_about_today(page: &str) -> bool {
    !page.ends_with("CHANGELOG.md") && (!page.starts_with(RECORDS) || page == INDEX)
}

fn find_missing_paths(
    source: &Source,
    exists: &dyn Fn(&Path) -> bool,
    findings: &mut Vec<Finding>,
) {
    let mut at = 0;
    for (number, quoted) in source.text.split('`').enumerate() {
        let is_path = number % 2 == 1
            && FOLDERS.iter().any(|folder| quoted.starts_with(folder))
            && !quoted.contains([' ', '*', '{', '<', '\n']);
        if is_path && !exists(Path::new(quoted)) {
            findings.push(Finding::new(
                source,
                at,
                format!("no such file: `{quoted}`"),
            ));
        }
        at += quoted.len() + 1;
    }
}

fn find_unlisted_records(index: &Source, sources: &[Source], findings: &mut Vec<Finding>) {
    for record in sources {
        let Some(name) = record.path.strip_prefix(RECORDS) else {
            continue;
        };
        let is_record = name.ends_with(".md") && record.path != INDEX && record.path != TEMPLATE;
        if is_record && !index.text.contains(&format!("({name})")) {
            findings.push(Finding::new(index, 0, format!("`{name}` is not listed")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::all(files);
        let exists = |path: &Path| files.iter().any(|(known, _)| Path::new(known) == path);
        let found = check(&sources, &exists);
        found.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let page = (
            "docs/a.md",
            "[b](b.md#part), [c](c.md), [d](https://d), [e](#e)\n",
        );
        let known = ("docs/b.md", "# B\n");
        assert_eq!(findings(&[page, known]), ["no such file: `c.md`"]);
        assert!(findings(&[page, known, ("docs/c.md", "# C\n")]).is_empty());
    }

    #[test]
    fn a_path_in_code_quotes_that_is_not_there_is_found() {
        let page = ("ARCHITECTURE.md", "| a | `crates/a.rs`, `lib.rs` |\n");
        assert_eq!(findings(&[page]), ["no such file: `crates/a.rs`"]);
        assert!(findings(&[page, ("crates/a.rs", "")]).is_empty());
        let news = ("CHANGELOG.md", "`crates/a.rs` was removed\n");
        assert!(findings(&[news]).is_empty());
    }

    #[test]
    fn a_record_that_the_index_lacks_is_found() {
        let index = (INDEX, "[0001](0001-a.md)\n");
        let first = ("docs/adr/0001-a.md", "Status: accepted\n");
        assert!(findings(&[index, first, (TEMPLATE, "Status: proposed\n")]).is_empty());
        let second = ("docs/adr/0002-b.md", "Status: accepted\n");
        assert_eq!(
            findings(&[index, first, second]),
            ["`0002-b.md` is not listed"]
        );
    }
}
