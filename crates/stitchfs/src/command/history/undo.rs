//! `stitchfs undo`: a directory as it was before the last change.

use super::undone::{Past, before_name};
use super::{Moments, canonical, has_changed};
use crate::command::rollback::{self, RollbackRequest};
use crate::command::{diff, output, snapshot};
use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use std::path::PathBuf;
use stitch_base::calendar::UtcTime;
use stitch_fuse::snapshots;

const AFTER: &str = "\
Finds the last moment of the history at which DIR, or anything below it, was
different from now, shows what changed since, as `stitchfs diff` does, asks, and
rolls DIR back to it, as `stitchfs rollback` does. The state before is kept as
the snapshot before-undo-TIME-to-MOMENT: the command that goes back to it, to
undo the undo, is printed. Another undo goes back further: to before the last
change at the moment that the first one restored. It finds that one by its
snapshot. Clones that were made later are destroyed with --destroy-clones alone;
without it nothing is done where there are any. Without a terminal nothing is
done unless --yes is given. The mount needs the option history=TIME. Exit code:
0 if it was done, 1 if not.

Examples:
  stitchfs undo -n /srv/home/ada                      # what would be undone
  stitchfs undo /srv/home/ada";

/// Make a directory what it was before the last change
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(in crate::command) struct UndoArgs {
    /// Change nothing: print the differences
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Destroy clones in it that were made after that moment
    #[arg(long)]
    destroy_clones: bool,

    /// Print what was done, or with -n would be done, as JSON; does not ask
    #[arg(long)]
    json: bool,

    /// Directory in a mount of StitchFS
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(in crate::command) fn run(args: &UndoArgs) -> Result<u8> {
    let dir = canonical(&args.dir)?;
    let moments = Moments::around(&dir)?;
    let opened = snapshot::open_dir(&dir).with_context(|| snapshot::shown(&args.dir))?;
    let shown = dir.display();
    let past = Past::read(&moments, &dir)?;
    let differs = |index: usize| has_changed(&opened, &dir, &moments.all[index], None);
    let Some(found) = past.before_last_change(differs)? else {
        let since = UtcTime::of(moments.all[0].second);
        bail!("{shown}: did not change since {since} UTC, when the history begins");
    };
    let moment = &moments.all[found];
    let time = UtcTime::of(moment.second);
    let inside = dir.strip_prefix(&moments.mount).unwrap_or(&dir);
    let old = moments.place(moment).join(inside);
    if !old.is_dir() {
        bail!("{shown}: was not there at {time} UTC, or you may not see it; nothing was changed");
    }
    let created = json!({ "created_ns": moment.ns() });
    if args.dry_run || !args.json {
        let changes = diff::changes(&old, &dir, &created)?;
        diff::print(&changes, args.json)?;
        if args.dry_run {
            return Ok(0);
        }
        let clones = diff::added_clones(&dir, &changes);
        rollback::check_clones(&dir, &clones, args.destroy_clones)?;
        let destroyed = rollback::destroyed(&clones);
        let question = format!("make {shown} what it was at {time} UTC{destroyed}?");
        if !(args.yes || (output::can_ask() && output::ask(&question)?)) {
            bail!("{shown}: nothing was changed; --yes undoes without a question");
        }
    }
    let request = RollbackRequest {
        opened: &opened,
        dir: &dir,
        name: &moment.name,
        past: (&old, &created),
        before: &|time| before_name(time, &moment.name),
        later_clones: rollback::later_clones(args.destroy_clones),
        ask: &|terms| snapshots::undo(&opened, &moment.name, terms),
    };
    let before = request.run()?;
    let done = args.json.then(|| json!({ "undone_to_ns": moment.ns() }));
    if done.is_none() {
        output::print(&format!("to go back: stitchfs rollback {before} {shown}"))?;
    }
    rollback::print_done(done, (&moments.mount, &dir), &before)?;
    Ok(0)
}
