//! Which crate may use which: the layers of the house.

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use super::Finding;
use crate::source::Source;

/// The layers, lowest first. A crate may use those before it.
const LAYERS: [&str; 16] = [
    "base", "format", "device", "volume", "filter", "kv", "vt", "be", "rocks", "tikv", "db", "fs",
    "fuse", "serve", "send", "stitchfs",
];

/// What a crate must not know although it lies lower.
const STRANGERS: [(&str, &[&str]); 9] = [
    ("volume", &["filter"]),
    ("be", &["vt"]),
    ("rocks", &["volume", "vt", "be"]),
    ("tikv", &["volume", "vt", "be", "rocks"]),
    (
        "db",
        &["device", "volume", "filter", "vt", "be", "rocks", "tikv"],
    ),
    (
        "fs",
        &["device", "volume", "filter", "vt", "be", "rocks", "tikv"],
    ),
    (
        "fuse",
        &[
            "device", "volume", "filter", "kv", "vt", "be", "rocks", "tikv", "db",
        ],
    ),
    ("serve", &["device", "volume", "vt", "be", "fuse"]),
    (
        "send",
        &[
            "device", "volume", "filter", "kv", "vt", "be", "rocks", "tikv", "db", "fs", "fuse",
            "serve",
        ],
    ),
];

/// Checks the dependencies of every crate under `crates/`.
pub(super) fn check(sources: &[Source]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for source in sources {
        let folder = source.path.strip_prefix("crates/");
        let Some(krate) = folder.and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let manifest: Table = source.text.parse().with_context(|| source.path.clone())?;
        for (section, strict) in [
            ("dependencies", true),
            ("build-dependencies", true),
            ("dev-dependencies", false),
        ] {
            for used in house_crates(&manifest, section) {
                if let Some(why) = refusal(krate, &used, strict) {
                    let at = source.text.find(&package(&used)).unwrap_or(0);
                    findings.push(Finding::new(source, at, why));
                }
            }
        }
    }
    Ok(findings)
}

/// The package of a crate's folder.
fn package(krate: &str) -> String {
    if krate == "stitchfs" {
        krate.to_owned()
    } else {
        format!("stitch-{krate}")
    }
}

/// The house's crates that a manifest's section names, by folder.
fn house_crates(manifest: &Table, section: &str) -> Vec<String> {
    let mut tables = vec![manifest.get(section)];
    if let Some(Value::Table(targets)) = manifest.get("target") {
        tables.extend(targets.values().map(|target| target.get(section)));
    }
    let names = tables
        .into_iter()
        .flatten()
        .filter_map(Value::as_table)
        .flat_map(Table::keys);
    let folder = |name: &String| match name.strip_prefix("stitch-") {
        Some(folder) => Some(folder.to_owned()),
        None => (name == "stitchfs").then(|| name.clone()),
    };
    names.filter_map(folder).collect()
}

/// Why a crate must not use another. Tests may use any lower crate.
fn refusal(krate: &str, used: &str, strict: bool) -> Option<String> {
    let layer = |name: &str| LAYERS.iter().position(|&layer| layer == name);
    let Some(own) = layer(krate) else {
        return Some(format!("crate `{krate}` has no place among the layers"));
    };
    match layer(used) {
        Some(lower) if lower < own => {}
        _ => {
            return Some(format!(
                "`{krate}` must not use `{used}`: it is not a lower layer"
            ));
        }
    }
    let strangers = STRANGERS
        .iter()
        .find(|(name, _)| *name == krate)
        .map_or(&[][..], |row| row.1);
    (strict && strangers.contains(&used)).then(|| format!("`{krate}` must not know `{used}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(krate: &str, manifest: &str) -> Vec<String> {
        let source = Source::new(&format!("crates/{krate}/Cargo.toml"), manifest);
        check(&[source])
            .unwrap()
            .into_iter()
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn lower_crates_are_allowed() {
        let manifest = "[dependencies]\nstitch-base.workspace = true\nstitch-kv.workspace = true\n\
                        bytes.workspace = true\n";
        assert!(findings("vt", manifest).is_empty());
    }

    #[test]
    fn an_edge_upwards_is_found() {
        let found = findings("volume", "[dependencies]\nstitch-kv.workspace = true\n");
        assert_eq!(
            found,
            ["`volume` must not use `kv`: it is not a lower layer"]
        );
    }

    #[test]
    fn a_stranger_is_found_also_under_a_target() {
        let edge = "[target.'cfg(unix)'.dependencies]\nstitch-vt = { path = \"../vt\" }\n";
        assert_eq!(findings("fs", edge), ["`fs` must not know `vt`"]);
        assert_eq!(findings("db", "[dependencies]\nstitch-vt = \"1\"").len(), 1);
        assert_eq!(
            findings("fuse", "[dependencies]\nstitch-kv = \"1\"").len(),
            1
        );
    }

    #[test]
    fn tests_may_know_strangers_but_only_lower_ones() {
        assert!(findings("fs", "[dev-dependencies]\nstitch-vt.workspace = true\n").is_empty());
        assert_eq!(
            findings("fs", "[dev-dependencies]\nstitch-fuse.workspace = true\n").len(),
            1
        );
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        assert_eq!(
            findings("misc", "[dependencies]\nstitch-base = \"1\"").len(),
            1
        );
    }
}
