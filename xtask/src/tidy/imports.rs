//! Every source file belongs to a crate: it is a root, or a `mod` line leads to it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use super::Finding;
use crate::source::Source;

/// Finds source files that nothing imports, and `mod.rs` files.
pub(super) fn check(sources: &[Source]) -> Result<Vec<Finding>> {
    let files: BTreeMap<&str, &Source> = sources
        .iter()
        .filter(|source| source.path.ends_with(".rs"))
        .map(|source| (source.path.as_str(), source))
        .collect();
    let mut reached = BTreeSet::new();
    for source in sources
        .iter()
        .filter(|source| source.path.ends_with("Cargo.toml"))
    {
        let folder = source.path.trim_end_matches("Cargo.toml");
        for root in roots(folder, &source.text, &files).with_context(|| source.path.clone())? {
            follow(&root, true, &files, &mut reached);
        }
    }
    let mut findings = Vec::new();
    for (path, source) in &files {
        if !reached.contains(*path) {
            findings.push(Finding::new(source, 0, "no crate imports this file"));
        }
        // Cargo takes a file beside `tests/common/` for a test of its own.
        if path.ends_with("/mod.rs") && !path.ends_with("/tests/common/mod.rs") {
            findings.push(Finding::new(
                source,
                0,
                "name it after its folder, beside it",
            ));
        }
    }
    Ok(findings)
}

/// The files at which the crates of a package begin.
fn roots(folder: &str, manifest: &str, files: &BTreeMap<&str, &Source>) -> Result<Vec<String>> {
    let manifest: Table = manifest.parse()?;
    let mut roots: Vec<String> = ["src/lib.rs", "src/main.rs", "build.rs"]
        .map(|root| format!("{folder}{root}"))
        .to_vec();
    for targets in ["src/bin/", "tests/", "benches/", "examples/"] {
        let prefix = format!("{folder}{targets}");
        let direct = |path: &&&str| {
            path.strip_prefix(&prefix)
                .is_some_and(|rest| !rest.contains('/') || rest.ends_with("/main.rs"))
        };
        roots.extend(files.keys().filter(direct).map(|path| (*path).to_owned()));
    }
    for section in ["lib", "bin", "test", "bench", "example"] {
        let targets = match manifest.get(section) {
            Some(Value::Array(targets)) => targets.iter().collect(),
            Some(target) => vec![target],
            None => Vec::new(),
        };
        let paths = targets
            .into_iter()
            .filter_map(|target| target.get("path")?.as_str());
        roots.extend(paths.map(|path| format!("{folder}{path}")));
    }
    Ok(roots)
}

/// Marks a file and all that its `mod` lines lead to.
fn follow(
    path: &str,
    is_root: bool,
    files: &BTreeMap<&str, &Source>,
    reached: &mut BTreeSet<String>,
) {
    let Some(source) = files.get(path) else {
        return;
    };
    if !reached.insert(path.to_owned()) {
        return;
    }
    let (parent, file) = path.rsplit_once('/').unwrap_or(("", path));
    let own_folder = match (is_root || file == "mod.rs", file.strip_suffix(".rs")) {
        (false, Some(stem)) => format!("{parent}/{stem}"),
        _ => parent.to_owned(),
    };
    let named = source.text.lines().filter_map(|line| {
        let path = line.trim_start().strip_prefix("#[path = \"")?;
        path.strip_suffix("\"]")
    });
    for path in named.filter(|path| !path.contains("..")) {
        follow(&format!("{parent}/{path}"), false, files, reached);
    }
    for (at, _) in source.code.match_indices("mod ") {
        let rest = &source.code[at + 4..];
        let Some((name, _)) = rest.split_once(';') else {
            continue;
        };
        if !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            continue;
        }
        for candidate in [
            format!("{own_folder}/{name}.rs"),
            format!("{own_folder}/{name}/mod.rs"),
        ] {
            follow(&candidate, false, files, reached);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::all(files);
        check(&sources)
            .unwrap()
            .into_iter()
            .map(|finding| finding.path)
            .collect()
    }

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[test]
    fn imported_files_are_fine() {
        let found = findings(&[
            MANIFEST,
            ("crates/a/src/lib.rs", "mod x;\n#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/x.rs", "pub(crate) mod y;"),
            ("crates/a/src/x/y.rs", ""),
            ("crates/a/src/tests.rs", ""),
            ("crates/a/tests/one.rs", "mod common;"),
            ("crates/a/tests/common.rs", ""),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn files_imported_by_their_path_are_fine() {
        let mut files = vec![
            MANIFEST,
            ("crates/a/tests/suite/main.rs", "mod engine;\nmod other;\n"),
            ("crates/a/tests/suite/engine.rs", ""),
            ("crates/a/tests/suite/engine_b.rs", ""),
        ];
        let other = "crates/a/tests/suite/other.rs";
        files.push((other, "#[path = \"engine_b.rs\"]\nmod engine;\n"));
        let found = findings(&files);
        assert!(found.is_empty(), "{found:?}");
        *files.last_mut().expect("it has files") = (other, "mod engine;\n");
        assert_eq!(findings(&files), ["crates/a/tests/suite/engine_b.rs"]);
    }

    #[test]
    fn a_file_never_imported_is_found() {
        let found = findings(&[
            MANIFEST,
            ("crates/a/src/lib.rs", "// mod x;\nmod z { mod inner; }"),
            ("crates/a/src/x.rs", ""),
        ]);
        assert_eq!(found, ["crates/a/src/x.rs"]);
    }

    #[test]
    fn a_mod_file_is_found() {
        let found = findings(&[
            MANIFEST,
            ("crates/a/src/lib.rs", "mod x;"),
            ("crates/a/src/x/mod.rs", ""),
        ]);
        assert_eq!(found, ["crates/a/src/x/mod.rs"]);
    }
}
