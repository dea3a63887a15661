//! `stitchfs snapshot list`.

use super::super::quoted::quoted;
use super::super::{live, output, size, usage};
use super::{about, check_reachable, path_from_root, shown, snapshots_dir};
use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_base::calendar::UtcTime;
use stitchfs::{path_in, set_path};

/// List the snapshots of a mount, or of one directory in it
#[derive(Debug, Parser)]
pub(super) struct SnapshotList {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    /// Leave out what they need of the space, which takes long for many files
    #[arg(short, long)]
    quick: bool,

    /// Mount point, or a directory that has snapshots
    #[arg(value_name = "DIR|MNT", default_value = ".")]
    path: PathBuf,
}

pub(super) fn run(args: &SnapshotList) -> Result<u8> {
    let path = args
        .path
        .canonicalize()
        .with_context(|| shown(&args.path))?;
    let (mount, inside) = live::around(&path)?;
    check_reachable(&mount)?;
    let mut found = all(&mount)?;
    if inside != Path::new("") {
        let ino = path.metadata().with_context(|| shown(&path))?.ino();
        found.retain(|snapshot| snapshot["root"] == ino);
    }
    if !args.quick && !found.is_empty() {
        add_space(&mount, &mut found);
    }
    if args.json {
        output::print_json(&json!({ "snapshots": found }))?;
        return Ok(0);
    }
    if !args.quick && !found.is_empty() {
        output::print(&columns("CREATED", "USED", "REFER", "NAME"))?;
    }
    found
        .iter()
        .try_for_each(|snapshot| output::print(&line(snapshot, args.quick)))?;
    Ok(0)
}

/// Adds what each snapshot alone needs, and what it refers to. Where the daemon does not tell they
/// are listed without.
fn add_space(mount: &Path, found: &mut [Value]) {
    let told = match usage::of_snapshots(mount) {
        Ok(told) => told,
        Err(error) => {
            let why = output::explain(&error);
            return output::note(&format!("what they need is not known: {why}"));
        }
    };
    let told: BTreeMap<u64, [u64; 2]> = told.into_iter().collect();
    for snapshot in found {
        let id = snapshot["id"].as_u64().unwrap_or_default();
        if let Some([used, referenced]) = told.get(&id) {
            snapshot["used_bytes"] = json!(used);
            snapshot["referenced_bytes"] = json!(referenced);
        }
    }
}

fn columns(time: &str, used: &str, refer: &str, rest: &str) -> String {
    format!("{time:19}  {used:>9}  {refer:>9}  {rest}")
}

/// All snapshots, in the order of their creation. Of one whose directory the caller may not read
/// the name alone is known.
fn all(mount: &Path) -> Result<Vec<Value>> {
    let dir = snapshots_dir(mount);
    let entries = std::fs::read_dir(&dir).with_context(|| shown(&dir))?;
    let mut found = Vec::new();
    for entry in entries {
        let place = entry.with_context(|| shown(&dir))?.path();
        // One that was deleted meanwhile is left out.
        if place.symlink_metadata().is_err() {
            continue;
        }
        let name = place.file_name().map(Path::new).unwrap_or(&place);
        let mut snapshot = about(&place).unwrap_or_else(|| {
            let mut closed = json!({});
            set_path(&mut closed, "name", name);
            closed
        });
        set_path(&mut snapshot, "snapshot", &place);
        found.push(snapshot);
    }
    Ok(found)
}

fn line(snapshot: &Value, is_quick: bool) -> String {
    let created = snapshot["created_ns"].as_i64();
    let time = created.map_or_else(
        || "-".to_owned(),
        |at| UtcTime::of(at.div_euclid(1_000_000_000)).to_string(),
    );
    let mut rest = quoted(path_in(snapshot, "name").unwrap_or_default());
    if created.is_some() {
        rest = format!("{rest}  {}", path_from_root(snapshot));
    }
    let tags = snapshot["holds"].as_array();
    if tags.is_some_and(|tags| !tags.is_empty()) {
        rest.push_str("  (held)");
    }
    if is_quick {
        return format!("{time:19}  {rest}");
    }
    let bytes = |name: &str| {
        let known = snapshot[name].as_u64();
        known.map_or_else(|| "-".to_owned(), size::show)
    };
    columns(
        &time,
        &bytes("used_bytes"),
        &bytes("referenced_bytes"),
        &rest,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known() {
        let known = json!({ "name": "mon", "created_ns": 5, "path": "a/b" });
        assert_eq!(line(&known, true), "1970-01-01 00:00:00  mon  /a/b");
        let held = json!({ "name": "mon", "created_ns": 5, "path": "a", "holds": ["x"] });
        assert_eq!(line(&held, true), "1970-01-01 00:00:00  mon  /a  (held)");
        let closed = json!({ "name": "mon" });
        let odd = json!({ "name": "a\nb", "created_ns": 5, "path": "c\td" });
        assert_eq!(line(&odd, true), r#"1970-01-01 00:00:00  "a\nb"  "/c\td""#);
        assert_eq!(line(&closed, true), "-                    mon");
        let told = json!({ "name": "mon", "created_ns": 5, "path": "a", "used_bytes": 2048,
                           "referenced_bytes": 1 << 20 });
        let lines = [
            columns("CREATED", "USED", "REFER", "NAME"),
            line(&told, false),
            line(&closed, false),
        ];
        assert_eq!(
            lines,
            [
                "CREATED                   USED      REFER  NAME",
                "1970-01-01 00:00:00      2 KiB      1 MiB  mon  /a",
                "-                            -          -  mon",
            ]
        );
    }
}
