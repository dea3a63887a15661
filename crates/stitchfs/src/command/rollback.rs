//! `stitchfs rollback`: makes a directory what a snapshot of it shows.

use super::{diff, live, output, snapshot, sync};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::calendar::UtcTime;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::snapshots;
use stitchfs::{path_text, set_path};

const POLL: Duration = Duration::from_millis(10);
/// Names that are tried for the snapshot before.
const TRIES: usize = 100;

const AFTER: &str = "\
Contents, names, times, modes, owners, attributes and inode numbers become those
of the snapshot. Open files show the restored content. Files made later are
removed; programs that have them open read on. What was moved out of the
directory stays where it is, and the directory gets a copy. A clone in the
directory keeps its contents, and is removed if it was made later. DIR may be in
a clone. Before that, a snapshot before-rollback-TIME is created, to go back
again. Other programs wait meanwhile. After a crash the directory is as before
or as in the snapshot. Root, the user who mounted, and the owner of the
directory may, the owner only if all that changes is the owner's. Exit code: 0
if it was done, 1 if not.

Examples:
  stitchfs rollback -n before-upgrade /srv/home/ada    # what would change
  stitchfs rollback before-upgrade /srv/home/ada";

/// Make a directory what a snapshot of it shows
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct RollbackArgs {
    /// Change nothing: print the differences, as `stitchfs diff` does
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Do not ask on a terminal
    #[arg(short, long)]
    yes: bool,

    /// Print what was done as JSON; does not ask
    #[arg(long)]
    json: bool,

    /// Name of the snapshot, or its directory: MNT/.stitchfs/snap/NAME
    #[arg(value_name = "SNAP")]
    snapshot: PathBuf,

    /// The directory that the snapshot is of
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &RollbackArgs) -> Result<u8> {
    let given = &args.dir;
    let dir = given
        .canonicalize()
        .with_context(|| snapshot::shown(given))?;
    let (mount, _) = live::around(&dir)?;
    let (name, info) = find(&mount, &args.snapshot)?;
    let old = snapshot::place(&mount, &name);
    let opened = snapshot::open_dir(&dir).with_context(|| snapshot::shown(given))?;
    sync::write_back(&mount)?;
    if args.dry_run {
        return diff::show(&old, &dir, &info, args.json);
    }
    if !(args.yes || args.json || confirm(&name, &dir)?) {
        bail!("{}: nothing was changed", dir.display());
    }
    let begin = |before: &str| snapshots::roll_back(&opened, &name, before);
    let before = run_rollback(&opened, &dir, &name, &begin)?;
    let done = args.json.then(|| json!({ "rolled_back_to": name }));
    print_done(done, (&mount, &dir), &before)?;
    Ok(0)
}

/// Prints where the state before is kept; with `done`, which tells what was done, as JSON.
pub(super) fn print_done(
    done: Option<Value>,
    (mount, dir): (&Path, &Path),
    before: &str,
) -> Result<()> {
    let place = snapshot::place(mount, before);
    let Some(mut done) = done else {
        return output::print(&path_text(&place));
    };
    done["before"] = json!(before);
    set_path(&mut done, "snapshot", &place);
    set_path(&mut done, "dir", dir);
    output::print_json(&done)
}

/// The snapshot's name, and what it is of.
fn find(mount: &Path, given: &Path) -> Result<(String, Value)> {
    let shown = given.display();
    let is_name = given.components().count() == 1;
    let place = match is_name {
        true => snapshot::snapshots_dir(mount).join(given),
        false => given.canonicalize().with_context(|| shown.to_string())?,
    };
    let is_here = is_name || place.parent() == Some(&snapshot::snapshots_dir(mount));
    let listed = mount.display();
    ensure!(
        is_here && place.symlink_metadata().is_ok(),
        "{shown}: is no snapshot of {listed}; `stitchfs snapshot list {listed}` lists them"
    );
    let info = snapshot::information(given, &place, mount)?;
    let name = info["name"].as_str().unwrap_or_default().to_owned();
    Ok((name, info))
}

/// Asks the terminal; without one the answer is yes.
fn confirm(name: &str, dir: &Path) -> Result<bool> {
    if !output::can_ask() {
        return Ok(true);
    }
    let shown = dir.display();
    output::ask(&format!(
        "make {shown} what the snapshot {name} shows, and remove what was made later?"
    ))
}

/// What asks the daemon to begin, with the name of the snapshot before.
type Begin<'a> = &'a dyn Fn(&str) -> io::Result<()>;

/// Rolls back to `name`, and waits for the end. Returns the name of the snapshot before.
pub(super) fn run_rollback(
    opened: &File,
    dir: &Path,
    name: &str,
    ask: Begin<'_>,
) -> Result<String> {
    let before = begin(dir, name, ask)?;
    wait(opened, dir, name, &before)
        .with_context(|| format!("the state before is kept as the snapshot {before}"))?;
    Ok(before)
}

/// Begins the rollback. Returns the name of the snapshot before.
fn begin(dir: &Path, name: &str, ask: Begin<'_>) -> Result<String> {
    let now = SystemClock::default().now().0.div_euclid(1_000_000_000);
    let time = UtcTime::of(now).file_name();
    for number in 1..=TRIES {
        let mut before = format!("before-rollback-{time}");
        if number > 1 {
            before.push_str(&format!("-{number}"));
        }
        match ask(&before) {
            Ok(()) => return Ok(before),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {}
            Err(error) => return Err(refused(dir, name, &error)),
        }
    }
    bail!(
        "{}: too many rollbacks in this second; try again",
        dir.display()
    )
}

fn wait(opened: &File, dir: &Path, name: &str, before: &str) -> Result<()> {
    let clock = SystemClock::default();
    loop {
        match snapshots::rolled_back(opened, before) {
            Ok(()) => return Ok(()),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => clock.sleep(POLL),
            Err(error) => return Err(refused(dir, name, &error)),
        }
    }
}

fn refused(dir: &Path, name: &str, error: &io::Error) -> anyhow::Error {
    let shown = dir.display();
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => anyhow!(
            "{shown}: {name} is a snapshot of another directory, or the daemon is of an older \
             stitchfs; `stitchfs snapshot list {shown}` lists those of this one"
        ),
        Some(Errno::STALE) => anyhow!(
            "{shown}: had another path then; rename it back, or copy from the past with \
             `stitchfs restore --to`"
        ),
        Some(Errno::BUSY) => anyhow!("{shown}: another rollback of this mount runs; try again"),
        Some(Errno::PERM) => anyhow!(
            "{shown}: only root, the user who mounted it, and the owner of all that changes may; \
             no file in it may be immutable or append-only (lsattr)"
        ),
        Some(Errno::OPNOTSUPP) if live::is_in_transaction(dir) => {
            anyhow!("{shown}: is in a transaction, where nothing is rolled back: abort it")
        }
        Some(Errno::OPNOTSUPP) => anyhow!(
            "{shown}: a clone that the snapshot shows was destroyed, or moved out of the \
             directory (move it back); copy or clone what is needed from the snapshot. Or its \
             store has large files beside it"
        ),
        Some(Errno::NOSPC) => anyhow!(
            "{shown}: there is no room for what would be restored; delete a snapshot or files, and \
             try again"
        ),
        Some(Errno::IO) => anyhow!(
            "{shown}: the rollback failed, see the log; the next one, or mount, finishes it"
        ),
        _ => snapshot::refused(dir, name, error),
    }
}
