//! Import circles: modules of a crate of which none can be read without the others.
//!
//! A module is a file or folder right under `src`, and an edge is a `crate::name` outside of
//! tests. A circle is a set of modules each of which reaches all others.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::source::Source;

/// The most modules that the largest circle of a crate may have. It is only ever lowered.
const CIRCLE_MAX: [(&str, usize); 1] = [("vt", 4)];

/// Modules with the modules that they import.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Finds crates whose largest import circle has grown.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let of_crate = |(krate, count_max): (&str, usize)| check_crate(krate, count_max, sources);
    CIRCLE_MAX.into_iter().filter_map(of_crate).collect()
}

fn check_crate(krate: &str, count_max: usize, sources: &[Source]) -> Option<Finding> {
    let folder = format!("crates/{krate}/src/");
    let root = format!("{folder}lib.rs");
    let root = sources.iter().find(|source| source.path == root)?;
    let circle = largest_circle(&graph(&folder, sources));
    let count = circle.len();
    let names: Vec<String> = circle.into_iter().collect();
    let names = names.join(", ");
    let what = format!("{count} modules import each other, over {count_max}: {names}");
    (count > count_max).then(|| Finding::new(root, 0, what))
}

/// The modules of a crate and what they import, without tests.
fn graph(folder: &str, sources: &[Source]) -> Graph {
    let mut graph = Graph::new();
    for source in sources {
        let Some(path) = source.path.strip_prefix(folder) else {
            continue;
        };
        let module = path.split('/').next().unwrap_or(path);
        let module = module.trim_end_matches(".rs");
        if module == "lib" || source.product.trim().is_empty() {
            continue;
        }
        let imports = graph.entry(module.to_owned()).or_default();
        imports.extend(imports_of(&source.product));
    }
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for (module, imports) in &mut graph {
        imports.retain(|name| name != module && modules.contains(name));
    }
    graph
}

/// The names right behind each `crate::`, also those in braces.
fn imports_of(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.extend(name_at(rest));
            continue;
        };
        let mut depth = 0usize;
        let mut is_next = true;
        for (at, byte) in list.bytes().enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 0 => break,
                b'}' => depth -= 1,
                b',' if depth == 0 => is_next = true,
                _ if is_next && !byte.is_ascii_whitespace() => {
                    names.extend(name_at(&list[at..]));
                    is_next = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// The identifier at the start of `code`.
fn name_at(code: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = code.find(|c| !is_part(c)).unwrap_or(code.len());
    (end > 0).then(|| code[..end].to_owned())
}

/// The largest set of modules each of which reaches all others; empty if there is none.
fn largest_circle(graph: &Graph) -> BTreeSet<String> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|module| (module.as_str(), reached_from(module, graph)))
        .collect();
    let circle_of = |module: &str| -> BTreeSet<String> {
        let others = reached[module].iter();
        let both = others.filter(|other| reached[**other].contains(module));
        both.map(|name| (*name).to_owned()).collect()
    };
    let circles = graph.keys().map(|module| circle_of(module));
    circles.max_by_key(BTreeSet::len).unwrap_or_default()
}

/// The modules that a module reaches over one import or more.
fn reached_from<'a>(module: &str, graph: &'a Graph) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = graph[module].iter().map(String::as_str).collect();
    while let Some(name) = next.pop() {
        if reached.insert(name) {
            next.extend(graph[name].iter().map(String::as_str));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::all(files);
        let circle = largest_circle(&graph("crates/a/src/", &sources));
        circle.into_iter().collect()
    }

    #[test]
    fn the_largest_circle_is_found_over_folders_and_braces() {
        let found = circle(&[
            ("crates/a/src/lib.rs", "mod b; mod c; mod d; mod e;"),
            ("crates/a/src/b.rs", "use crate::{c::{e, X}, Y};"),
            ("crates/a/src/c.rs", ""),
            ("crates/a/src/c/inner.rs", "use crate::d;"),
            ("crates/a/src/d.rs", "fn f() { crate::b::f() }"),
            ("crates/a/src/e.rs", "use crate::b::X;"),
        ]);
        assert_eq!(found, ["b", "c", "d"]);
    }

    #[test]
    fn tests_and_own_names_make_no_circle() {
        let found = circle(&[
            ("crates/a/src/b.rs", "use crate::{VtError, b::X, c};"),
            (
                "crates/a/src/c.rs",
                "#[cfg(test)]\nmod tests { use crate::b; }",
            ),
            ("crates/a/src/c/tests.rs", "use crate::b;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_circle_over_the_bound_is_told_with_its_modules() {
        let sources = Source::all(&[
            ("crates/a/src/lib.rs", "mod b; mod c;"),
            ("crates/a/src/b.rs", "use crate::c;"),
            ("crates/a/src/c.rs", "use crate::b;"),
        ]);
        assert_eq!(check_crate("a", 2, &sources), None);
        let found = check_crate("a", 1, &sources).expect("it is over the bound");
        assert_eq!(found.what, "2 modules import each other, over 1: b, c");
    }
}
