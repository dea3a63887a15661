//! `stitchfs snapshot policy`, and the options of `create` that set one.

use super::super::quoted::{harmless, quoted};
use super::super::{live, output, size, sync};
use super::{open_dir, path_from_root, shown};
use anyhow::{Context, Result, anyhow};
use clap::{Parser, Subcommand};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use stitch_base::calendar::UtcTime;
use stitch_fs::{POLICY_EVERY_S_MAX, POLICY_PREFIX_BYTES_MAX};
use stitch_fuse::snapshots;
use stitchfs::{POLICIES_XATTR, set_path};

/// What is kept where `--keep` says nothing.
const KEEP_DEFAULT: &str = "hourly=24,daily=7,weekly=4,monthly=12";
/// What names begin with where nothing is given.
const PREFIX_DEFAULT: &str = "auto";

/// List or delete policies: snapshots that the daemon creates every so often
#[derive(Debug, Parser)]
pub(super) struct SnapshotPolicy {
    #[command(subcommand)]
    what: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    List(PolicyList),
    Delete(PolicyDelete),
}

/// List the policies of a mount; other users than root and the one who mounted see their own
#[derive(Debug, Parser)]
struct PolicyList {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or any directory in the mount
    #[arg(value_name = "MNT", default_value = ".")]
    path: PathBuf,
}

/// Delete the policy of a directory; its snapshots stay
#[derive(Debug, Parser)]
struct PolicyDelete {
    /// Print what was deleted as JSON
    #[arg(long)]
    json: bool,

    /// Directory in a mount of StitchFS
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &SnapshotPolicy) -> Result<u8> {
    match &args.what {
        PolicyCommand::List(args) => list(args),
        PolicyCommand::Delete(args) => delete(args),
    }
}

/// Sets the policy of a directory.
pub(super) fn set(
    given: &Path,
    prefix: Option<&str>,
    every_s: u64,
    keep: Option<&str>,
    is_json: bool,
) -> Result<u8> {
    let keep = keep.unwrap_or(KEEP_DEFAULT);
    let prefix = prefix.unwrap_or(PREFIX_DEFAULT);
    if prefix.len() > POLICY_PREFIX_BYTES_MAX || prefix.contains(char::is_control) {
        let prefix = quoted(prefix);
        return Err(output::bad_argument(format!(
            "{prefix}: names of a policy begin with at most {POLICY_PREFIX_BYTES_MAX} bytes, and \
             without control characters"
        )));
    }
    let dir = given.canonicalize().with_context(|| shown(given))?;
    let (mount, _) = live::around(&dir)?;
    let opened = open_dir(&dir).with_context(|| shown(given))?;
    sync::write_back(&mount)?;
    snapshots::set_policy(&opened, prefix, every_s, keep).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::INVAL) => super::refused(&dir, prefix, &Errno::NOTTY.into()),
            _ => super::refused(&dir, prefix, &error),
        }
    })?;
    if is_json {
        let mut out = json!({ "every_s": every_s, "keep": keep, "prefix": prefix });
        set_path(&mut out, "dir", &dir);
        output::print_json(&out)?;
    }
    Ok(0)
}

fn delete(args: &PolicyDelete) -> Result<u8> {
    let dir = args.dir.canonicalize().with_context(|| shown(&args.dir))?;
    live::around(&dir)?;
    let opened = open_dir(&dir).with_context(|| shown(&args.dir))?;
    snapshots::delete_policy(&opened).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => anyhow!(
            "{}: has no policy; `stitchfs snapshot policy list` lists those of the mount",
            dir.display()
        ),
        Some(Errno::INVAL) => super::refused(&dir, "", &Errno::NOTTY.into()),
        _ => super::refused(&dir, "", &error),
    })?;
    if args.json {
        let mut out = json!({});
        set_path(&mut out, "deleted", &dir);
        output::print_json(&out)?;
    }
    Ok(0)
}

fn list(args: &PolicyList) -> Result<u8> {
    let path = args.path.canonicalize();
    let path = path.with_context(|| shown(&args.path))?;
    let (mount, _) = live::around(&path)?;
    let found = live::ask_for(&mount, POLICIES_XATTR)?;
    if args.json {
        output::print_json(&json!({ "policies": found["policies"] }))?;
        return Ok(0);
    }
    let policies = found["policies"].as_array().cloned().unwrap_or_default();
    policies
        .iter()
        .try_for_each(|policy| output::print(&line(policy)))?;
    Ok(0)
}

fn line(policy: &Value) -> String {
    let text = |name: &str| policy[name].as_str().unwrap_or_default();
    let every = interval(policy["every_s"].as_u64().unwrap_or_default());
    let next = policy["next_ns"].as_i64().unwrap_or_default();
    let next = UtcTime::of(next.div_euclid(1_000_000_000));
    let (path, prefix, keep) = (path_from_root(policy), quoted(text("prefix")), text("keep"));
    let mut line = format!("{path}  {prefix}  every {every}  keep {keep}  next {next}");
    if let Some(error) = policy["last_error"].as_str() {
        line.push_str("  failed: ");
        line.push_str(&harmless(error));
    }
    line
}

fn interval(seconds: u64) -> String {
    let unit = size::TIME_UNITS
        .iter()
        .find(|(_, length)| seconds.is_multiple_of(*length));
    let (unit, length) = unit.copied().unwrap_or(("s", 1));
    format!("{}{unit}", seconds / length)
}

/// Returns the seconds of an interval like `15m`.
pub(super) fn parse_every(text: &str) -> Result<u64, String> {
    match size::parse_seconds(text) {
        Some(seconds @ 1..=POLICY_EVERY_S_MAX) => Ok(seconds),
        _ => {
            Err("is no interval: one is like 30s, 15m, 2h, 1d or 1w, at most ten years".to_owned())
        }
    }
}

/// Returns rules of what is kept.
pub(super) fn parse_keep(text: &str) -> Result<String, String> {
    match snapshots::parse_keep(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(
            "is not understood: it is like last=3,hourly=24,daily=7,weekly=4,monthly=12,yearly=5, \
             with counts up to 65535"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_shown() {
        for (text, expected) in [
            ("30s", 30),
            ("15m", 900),
            ("2h", 7200),
            ("1d", 86_400),
            ("1w", 604_800),
        ] {
            assert_eq!(parse_every(text).unwrap(), expected);
            assert_eq!(interval(expected), text);
        }
        assert_eq!(interval(90), "90s");
        for wrong in [
            "",
            "m",
            "0m",
            "-1m",
            "15",
            "1 h",
            "9999w",
            "99999999999999999w",
        ] {
            assert!(parse_every(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_has_what_is_to_be_done_and_what_failed() {
        let mut policy = json!({
            "path": "home", "prefix": "auto", "every_s": 900, "keep": "hourly=24", "next_ns": 0,
        });
        let expected = "/home  auto  every 15m  keep hourly=24  next 1970-01-01 00:00:00";
        assert_eq!(line(&policy), expected);
        policy["path"] = json!("ho\nme");
        assert!(line(&policy).starts_with(r#""/ho\nme"  auto"#));
        policy["path"] = json!("home");
        policy["last_error"] = json!("no space");
        assert_eq!(line(&policy), format!("{expected}  failed: no space"));
        assert!(snapshots::parse_keep(KEEP_DEFAULT).is_some());
    }
}
