//! `stitchfs history`, `restore` and `undo`: going back in time.

pub(super) mod restore;
pub(super) mod undo;
mod undone;
mod when;

use super::{live, output, snapshot, sync};
use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use stitch_base::calendar::UtcTime;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::adapter::{CONTROL_DIR, HISTORY_DIR};
use stitch_fuse::snapshots;
use stitchfs::{EngineKind, set_path};

const AFTER: &str = "\
A mount with the option history=TIME keeps the moments of that time: one every
few seconds in which something was written, fewer of what is longer ago. This
lists those at which DIR, or anything below it, was different from the moment
before; the newest comes first, `now` stands for what changed after the last
moment. A change is shown with the moment after it. Reading files is no change.
Each moment is at MNT/.stitchfs/history/NAME. Times are UTC. For root, the user
who mounted, and the owner of DIR.

Examples:
  stitchfs history /srv/home/ada
  stitchfs diff /srv/.stitchfs/history/2026-11-26T20-00-05Z";

/// List the moments at which something below a directory changed
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct HistoryArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,

    /// Directory in a mount of StitchFS
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// A moment that a mount keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    second: i64,
    name: String,
}

impl Moment {
    /// Its time in JSON: nanoseconds since 1970.
    const fn ns(&self) -> i64 {
        self.second.saturating_mul(1_000_000_000)
    }
}

/// A mount, and its moments.
#[derive(Debug)]
struct Moments {
    mount: PathBuf,
    /// The oldest comes first.
    all: Vec<Moment>,
}

impl Moments {
    /// Reads the moments of the mount that a path is in.
    ///
    /// # Errors
    /// There are none.
    fn around(path: &Path) -> Result<Self> {
        let (mount, _) = live::around(path)?;
        sync::write_back(&mount)?;
        let dir = mount.join(CONTROL_DIR).join(HISTORY_DIR);
        let shown = || no_history(&mount);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&dir).with_context(shown)? {
            let name = entry.with_context(shown)?.file_name();
            let name = name.to_string_lossy().into_owned();
            if let Ok(second) = when::parse(&name, 0) {
                all.push(Moment { second, name });
            }
        }
        ensure!(!all.is_empty(), shown());
        all.sort();
        Ok(Self { mount, all })
    }

    /// Where a moment is.
    fn place(&self, moment: &Moment) -> PathBuf {
        let dir = self.mount.join(CONTROL_DIR).join(HISTORY_DIR);
        dir.join(&moment.name)
    }

    /// The last moment that is not after a second.
    ///
    /// # Errors
    /// There is none.
    fn at(&self, second: i64) -> Result<&Moment> {
        let found = self.all.iter().rev().find(|moment| moment.second <= second);
        found.with_context(|| {
            format!(
                "{}: is before the history, which begins at {} UTC",
                UtcTime::of(second),
                UtcTime::of(self.all[0].second)
            )
        })
    }
}

/// Why a mount has no history.
fn no_history(mount: &Path) -> String {
    let about = live::ask(mount).unwrap_or_default();
    format!("{}: {}", mount.display(), why_no_history(&about))
}

/// Why a store has no history, by what its daemon tells.
fn why_no_history(about: &Value) -> &'static str {
    if about["engine"] == EngineKind::RocksDb.name() {
        return "a store of the RocksDB engine keeps no history, and no snapshots";
    }
    if about["large_files"].as_u64() > Some(0) {
        return "a store with large files beside it keeps no history";
    }
    "its daemon keeps no history; `stitchfs mount -o history=1h` keeps one"
}

fn now_s() -> i64 {
    SystemClock::default().now().seconds()
}

fn canonical(given: &Path) -> Result<PathBuf> {
    given.canonicalize().with_context(|| snapshot::shown(given))
}

/// Reports whether a directory changed between two moments; `None` is the present. One that was
/// dropped meanwhile tells of no change.
fn has_changed(opened: &File, dir: &Path, from: &Moment, to: Option<&Moment>) -> Result<bool> {
    let to = to.map(|to| to.name.as_str());
    match snapshots::has_changed(opened, &from.name, to) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(false),
        told => told.map_err(|error| refused(dir, &error)),
    }
}

fn refused(dir: &Path, error: &io::Error) -> anyhow::Error {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => snapshot::refused(dir, "", &Errno::NOTTY.into()),
        Some(Errno::NOTDIR) => anyhow!("{}: is no directory", dir.display()),
        _ => snapshot::refused(dir, "", error),
    }
}

pub(super) fn run(args: &HistoryArgs) -> Result<u8> {
    let dir = canonical(&args.dir)?;
    let moments = Moments::around(&dir)?;
    let opened = snapshot::open_dir(&dir).with_context(|| snapshot::shown(&args.dir))?;
    let bar = output::progress("comparing");
    bar.set_style(output::steps_style());
    let mut changed = Vec::new();
    let count = moments.all.len();
    let mut later = None;
    for (done, moment) in moments.all.iter().rev().enumerate() {
        output::advance(&bar, done as u64, count as u64);
        if has_changed(&opened, &dir, moment, later)? {
            changed.push(later);
        }
        later = Some(moment);
    }
    bar.finish_and_clear();
    if args.json {
        let each: Vec<Value> = changed.iter().map(|at| to_json(&moments, *at)).collect();
        let since = moments.all[0].ns();
        output::print_json(&json!({ "since_ns": since, "changes": each }))?;
    } else {
        changed
            .iter()
            .try_for_each(|at| output::print(&line(*at, now_s())))?;
    }
    Ok(0)
}

fn to_json(moments: &Moments, at: Option<&Moment>) -> Value {
    let Some(moment) = at else {
        return json!({ "at_ns": null });
    };
    let mut out = json!({ "at_ns": moment.ns(), "name": moment.name });
    set_path(&mut out, "moment", &moments.place(moment));
    out
}

fn line(at: Option<&Moment>, now_s: i64) -> String {
    match at {
        Some(moment) => format!(
            "{}  {}",
            UtcTime::of(moment.second),
            ago(now_s - moment.second)
        ),
        None => "now".to_owned(),
    }
}

/// How long ago something was, in one unit.
fn ago(seconds: i64) -> String {
    let (number, unit) = match seconds.max(0) {
        seconds @ 0..120 => (seconds, "s"),
        seconds @ 120..7200 => (seconds / 60, "min"),
        seconds @ 7200..172_800 => (seconds / 3600, "h"),
        seconds => (seconds / 86_400, "days"),
    };
    format!("{number} {unit} ago")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(seconds: &[i64]) -> Moments {
        let each = |second: &i64| Moment {
            second: *second,
            name: UtcTime::of(*second).file_name(),
        };
        Moments {
            mount: PathBuf::from("/srv"),
            all: seconds.iter().map(each).collect(),
        }
    }

    #[test]
    fn the_last_moment_that_is_not_later_is_found() {
        let moments = moments(&[100, 200, 300]);
        assert_eq!(moments.at(250).unwrap().second, 200);
        assert_eq!(moments.at(300).unwrap().second, 300);
        assert_eq!(moments.at(9999).unwrap().second, 300);
        let before = moments.at(99).unwrap_err().to_string();
        assert!(before.contains("begins at 1970-01-01 00:01:40"), "{before}");
        let place = moments.place(&moments.all[0]);
        assert_eq!(
            place,
            Path::new("/srv/.stitchfs/history/1970-01-01T00-01-40Z")
        );
    }

    #[test]
    fn a_history_is_advised_where_one_can_be_kept() {
        assert!(why_no_history(&json!({ "engine": "rocksdb" })).contains("RocksDB"));
        let external = json!({ "engine": "vt", "large_files": 2 });
        assert!(why_no_history(&external).contains("large files"));
        for about in [json!(null), json!({ "engine": "vt", "large_files": 0 })] {
            assert!(why_no_history(&about).contains("-o history=1h"));
        }
    }

    #[test]
    fn a_line_tells_when_and_how_long_ago() {
        let moments = moments(&[100]);
        let at = moments.all.first();
        assert_eq!(line(at, 160), "1970-01-01 00:01:40  60 s ago");
        assert_eq!(line(at, 820), "1970-01-01 00:01:40  12 min ago");
        assert_eq!(
            line(at, 100 + 3 * 86_400),
            "1970-01-01 00:01:40  3 days ago"
        );
        assert_eq!(line(None, 160), "now");
    }
}
