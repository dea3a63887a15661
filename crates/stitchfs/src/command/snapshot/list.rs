//! `stitchfs snapshot list`.

use super::super::{live, output};
use super::{about, check_reachable, shown, snapshots_dir};
use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_base::calendar::UtcTime;
use stitchfs::{path_text, set_path};

/// List the snapshots of a mount, or of one directory in it
#[derive(Debug, Parser)]
pub(super) struct SnapshotList {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

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
    if args.json {
        output::print_json(&json!({ "snapshots": found }))?;
    } else {
        found
            .iter()
            .try_for_each(|snapshot| output::print(&line(snapshot)))?;
    }
    Ok(0)
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
        let mut snapshot = about(&place).unwrap_or_else(|| json!({ "name": path_text(name) }));
        set_path(&mut snapshot, "snapshot", &place);
        found.push(snapshot);
    }
    Ok(found)
}

fn line(snapshot: &Value) -> String {
    let name = snapshot["name"].as_str().unwrap_or_default();
    let Some(created) = snapshot["created"].as_i64() else {
        return format!("{:19}  {name}", "-");
    };
    let path = snapshot["path"].as_str().unwrap_or_default();
    let is_held = snapshot["holds"]
        .as_array()
        .is_some_and(|tags| !tags.is_empty());
    format!(
        "{}  {name}  /{path}{}",
        UtcTime::of(created.div_euclid(1_000_000_000)),
        if is_held { "  (held)" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known() {
        let known = json!({ "name": "mon", "created": 5, "path": "a/b" });
        assert_eq!(line(&known), "1970-01-01 00:00:00  mon  /a/b");
        let held = json!({ "name": "mon", "created": 5, "path": "a", "holds": ["x"] });
        assert_eq!(line(&held), "1970-01-01 00:00:00  mon  /a  (held)");
        let closed = json!({ "name": "mon" });
        assert_eq!(line(&closed), "-                    mon");
    }
}
