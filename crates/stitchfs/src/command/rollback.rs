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
use stitch_fs::LaterClones;
use stitch_fuse::snapshots::{self, RollbackTerms};
use stitchfs::{path_text, set_path};

const POLL: Duration = Duration::from_millis(10);
/// Names that are tried for the snapshot before.
const TRIES: usize = 100;

const AFTER: &str = "\
Contents, names, times, modes, owners, attributes and inode numbers become those
of the snapshot. Open files show the restored content. Files made later are
removed; programs that have them open read on. What was moved out of the
directory stays where it is, and the directory gets a copy. A clone in the
directory keeps its contents. One that the snapshot shows, and that was
destroyed or moved out, is made again of what the snapshot shows. One that was
made later, or moved in, would be destroyed: without --destroy-clones nothing is
done then, and the clones are named. DIR may be in a clone. Before that, a
snapshot before-rollback-TIME is created, to go back again; it is deleted if the
rollback is refused. Other programs wait meanwhile. After a crash the directory
is as before or as in the snapshot. Root, the user who mounted, and the owner of
the directory may, the owner only if all that changes is the owner's. Exit code:
0 if it was done, 1 if not.

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

    /// Destroy clones in it that were made after the snapshot
    #[arg(long)]
    destroy_clones: bool,

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
    let is_sure = args.yes || args.json || !output::can_ask();
    if !is_sure {
        ask(args, (&old, &dir), (&name, &info))?;
    }
    let request = RollbackRequest {
        opened: &opened,
        dir: &dir,
        name: &name,
        past: (&old, &info),
        before: &before_name,
        later_clones: later_clones(args.destroy_clones),
        ask: &|terms| snapshots::roll_back(&opened, &name, terms),
    };
    let before = request.run()?;
    let done = args.json.then(|| json!({ "rolled_back_to": name }));
    print_done(done, (&mount, &dir), &before)?;
    Ok(0)
}

/// Asks on the terminal. The question names the clones that would be destroyed; without the right
/// to destroy them there is no question.
fn ask(
    args: &RollbackArgs,
    (old, dir): (&Path, &Path),
    (name, info): (&str, &Value),
) -> Result<()> {
    let clones = diff::added_clones(dir, &diff::changes(old, dir, info)?);
    check_clones(dir, &clones, args.destroy_clones)?;
    let question = format!(
        "make {} what the snapshot {name} shows, and remove what was made later{}?",
        dir.display(),
        destroyed(&clones)
    );
    if !output::ask(&question)? {
        bail!("{}: nothing was changed", dir.display());
    }
    Ok(())
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

/// Returns what becomes of clones that were made later.
pub(super) const fn later_clones(may_destroy: bool) -> LaterClones {
    match may_destroy {
        true => LaterClones::Destroy,
        false => LaterClones::Keep,
    }
}

/// Refuses to destroy clones that were made later, unless the user said so.
pub(super) fn check_clones(dir: &Path, clones: &[String], may_destroy: bool) -> Result<()> {
    match may_destroy || clones.is_empty() {
        true => Ok(()),
        false => Err(clones_kept(dir, clones)),
    }
}

/// Returns the error of a rollback that would destroy clones.
fn clones_kept(dir: &Path, clones: &[String]) -> anyhow::Error {
    let listed = match clones.is_empty() {
        true => String::new(),
        false => format!(": {}", clones.join(", ")),
    };
    anyhow!(
        "{}: clones in it were made later, and would be destroyed{listed}; nothing was changed; \
         move them out of the directory, or give --destroy-clones",
        dir.display(),
    )
}

/// Returns what a question adds about clones.
pub(super) fn destroyed(clones: &[String]) -> String {
    match clones.is_empty() {
        true => String::new(),
        false => format!(", and destroy the clones {}", clones.join(", ")),
    }
}

/// Returns the name of the snapshot before a rollback.
pub(super) fn before_name(time: &str) -> String {
    format!("before-rollback-{time}")
}

/// A rollback to be asked for.
pub(super) struct RollbackRequest<'a> {
    pub(super) opened: &'a File,
    pub(super) dir: &'a Path,
    /// What it goes back to.
    pub(super) name: &'a str,
    /// Where it is what it goes back to, and what the daemon tells of that.
    pub(super) past: (&'a Path, &'a Value),
    /// Returns the name of the snapshot before, by the time and a number.
    pub(super) before: &'a dyn Fn(&str) -> String,
    pub(super) later_clones: LaterClones,
    /// Asks the daemon to begin.
    pub(super) ask: &'a dyn Fn(RollbackTerms<'_>) -> io::Result<()>,
}

impl RollbackRequest<'_> {
    /// Rolls back, and waits for the end. Returns the name of the snapshot before.
    pub(super) fn run(&self) -> Result<String> {
        let before = self.begin()?;
        let Err(error) = self.wait(&before) else {
            return Ok(before);
        };
        let told = match Errno::from_io_error(&error) {
            Some(Errno::NOTEMPTY) => self.clones_kept(),
            _ => refused(self.dir, self.name, &error),
        };
        // The daemon has deleted it if nothing was changed.
        let (mount, _) = live::around(self.dir)?;
        match snapshot::place(&mount, &before).symlink_metadata() {
            Err(_) => Err(told),
            Ok(_) => Err(told)
                .with_context(|| format!("the state before is kept as the snapshot {before}")),
        }
    }

    /// Returns the error of a rollback that would have destroyed clones, with their names.
    fn clones_kept(&self) -> anyhow::Error {
        let (old, info) = self.past;
        let changes = diff::changes(old, self.dir, info).unwrap_or_default();
        clones_kept(self.dir, &diff::added_clones(self.dir, &changes))
    }

    /// Begins the rollback. Returns the name of the snapshot before.
    fn begin(&self) -> Result<String> {
        let now = SystemClock::default().now().0.div_euclid(1_000_000_000);
        let time = UtcTime::of(now).file_name();
        for number in 1..=TRIES {
            let before = (self.before)(&match number {
                1 => time.clone(),
                _ => format!("{time}-{number}"),
            });
            let terms = RollbackTerms {
                before: &before,
                later_clones: self.later_clones,
            };
            match (self.ask)(terms) {
                Ok(()) => return Ok(before),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {}
                Err(error) => return Err(refused(self.dir, self.name, &error)),
            }
        }
        bail!(
            "{}: too many rollbacks in this second; try again",
            self.dir.display()
        )
    }

    fn wait(&self, before: &str) -> io::Result<()> {
        let clock = SystemClock::default();
        loop {
            match snapshots::rolled_back(self.opened, before) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => {
                    clock.sleep(POLL);
                }
                told => return told,
            }
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
            "{shown}: its store has large files beside it, or needs a repair (stitchfs fsck)"
        ),
        Some(Errno::LOOP | Errno::MFILE | Errno::OVERFLOW) => anyhow!(
            "{shown}: the clones that the snapshot shows cannot be made again: they are clones of \
             clones, 32 deep, or more than 1024, or inode numbers are too large; copy from the \
             snapshot"
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
