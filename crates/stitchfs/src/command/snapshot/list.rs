//! `stitchfs snapshot list`.

use super::super::{live, output, size, usage};
use super::{about, check_reachable, shown, snapshots_dir};
use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitchfs::{path_text, set_path};

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
        let mut snapshot = about(&place).unwrap_or_else(|| json!({ "name": path_text(name) }));
        set_path(&mut snapshot, "snapshot", &place);
        found.push(snapshot);
    }
    Ok(found)
}

fn line(snapshot: &Value, is_quick: bool) -> String {
    let created = snapshot["created"].as_i64();
    let time = created.map_or_else(|| "-".to_owned(), |at| time(at.div_euclid(1_000_000_000)));
    let mut rest = snapshot["name"].as_str().unwrap_or_default().to_owned();
    if created.is_some() {
        rest = format!("{rest}  /{}", snapshot["path"].as_str().unwrap_or_default());
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

/// Seconds since 1970 as date and time of UTC.
pub(in crate::command) fn time(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a number of days since 1970: years begin in March here, so that a leap
/// day is the last one.
const fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (year + era * 400 + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn a_line_has_what_is_known() {
        let known = json!({ "name": "mon", "created": 5, "path": "a/b" });
        assert_eq!(line(&known, true), "1970-01-01 00:00:00  mon  /a/b");
        let held = json!({ "name": "mon", "created": 5, "path": "a", "holds": ["x"] });
        assert_eq!(line(&held, true), "1970-01-01 00:00:00  mon  /a  (held)");
        let closed = json!({ "name": "mon" });
        assert_eq!(line(&closed, true), "-                    mon");
        let told = json!({ "name": "mon", "created": 5, "path": "a", "used_bytes": 2048,
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
