//! `stitchfs restore`: a file or directory as it was, copied out of the history, or rolled back.

mod in_place;

use super::{Moments, when};
use crate::command::quoted::quoted;
use crate::command::{live, output, snapshot};
use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use stitch_base::calendar::UtcTime;
use stitchfs::set_path;

const AFTER: &str = "\
Makes PATH what it was at the last moment of the history that is not after TIME,
after a question on a terminal, with --force without; elsewhere it is refused.
With --to it is copied to a new path, and nothing is replaced.

A directory that is still the same one, without clones in it, is rolled back as
by `stitchfs rollback`: it keeps its snapshots and inode numbers, and the state
before is kept as the snapshot that is printed. Everything else is copied by
cp(1), which must be installed: contents, holes, modes, owners, times, links and
attributes. What is at PATH is then replaced in one step. A directory that is
replaced so is a new one: its snapshots stay, and are not of the new one.
TIME is like `10 min ago`, `2h ago`, `2026-11-26 14:00` (UTC), `14:00`,
`2026-11-26T14:00:05+02:00`. The mount needs the option history=TIME.

Examples:
  stitchfs restore --at '10 min ago' /srv/home/ada/notes.txt
  stitchfs restore --at '2026-11-26 14:00' --to /tmp/then /srv/home/ada";

/// Restore a file or directory as it was at a time
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(in crate::command) struct RestoreArgs {
    /// When it was as it shall be again
    #[arg(long, value_name = "TIME", value_parser = when::parse_now)]
    at: i64,

    /// Write to this new path instead
    #[arg(long, value_name = "DEST")]
    to: Option<PathBuf>,

    /// Replace what is there without a question
    #[arg(long, short, conflicts_with = "to")]
    force: bool,

    /// Print what was restored as JSON; does not ask
    #[arg(long)]
    json: bool,

    /// File or directory in a mount of StitchFS; it may be missing by now
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub(in crate::command) fn run(args: &RestoreArgs) -> Result<u8> {
    let path = absolute(&args.path)?;
    let moments = Moments::around(path.parent().unwrap_or(&path))?;
    let moment = moments.at(args.at)?;
    let shown = args.path.display();
    let inside = path.strip_prefix(&moments.mount);
    let source = moments.place(moment).join(inside.unwrap_or(&path));
    let time = UtcTime::of(moment.second);
    let found = source.symlink_metadata();
    found
        .with_context(|| format!("{shown}: was not there at {time} UTC, or you may not see it"))?;
    let dest = match &args.to {
        Some(dest) => absolute(dest)?,
        None => path,
    };
    for target in [Some(&*dest), dest.parent()] {
        target.map_or(Ok(()), live::check_target)?;
    }
    let is_there = dest.symlink_metadata().is_ok();
    let is_in_place = in_place::is_possible(&source, &dest);
    if is_there && !args.force {
        ensure!(
            args.to.is_none(),
            "{}: is there already, and nothing is replaced; give a new path",
            dest.display()
        );
        ask(args, &dest, &time.to_string(), is_in_place)?;
    }
    let before = match is_in_place {
        true => Some(in_place::roll_back(&moments, moment, (&source, &dest))?),
        false => {
            if args.force {
                in_place::note_snapshots(&dest);
            }
            restore(&source, &dest)?;
            None
        }
    };
    if args.json {
        let mut out = json!({ "at_ns": moment.ns(), "replaced": is_there });
        set_path(&mut out, "restored", &dest);
        set_path(&mut out, "from", &source);
        if let Some(before) = &before {
            set_path(&mut out, "snapshot", before);
        }
        output::print_json(&out)?;
    } else {
        output::print(&format!("{}  as of {time} UTC", quoted(&dest)))?;
        if let Some(before) = &before {
            output::print(&format!("{}  as it was before", quoted(before)))?;
        }
    }
    Ok(0)
}

/// The path without links in what is above the last name, which may be missing.
fn absolute(given: &Path) -> Result<PathBuf> {
    let shown = || snapshot::shown(given);
    let Some(name) = given.file_name() else {
        return given.canonicalize().with_context(shown);
    };
    let above = match given.parent() {
        Some(above) if above != Path::new("") => above,
        _ => Path::new("."),
    };
    Ok(above.canonicalize().with_context(shown)?.join(name))
}

fn ask(args: &RestoreArgs, dest: &Path, time: &str, is_in_place: bool) -> Result<()> {
    let shown = dest.display();
    if args.json || !output::can_ask() {
        bail!("{shown}: is there already; --force replaces it, --to DEST writes to another path");
    }
    let question = match is_in_place {
        true => format!("make {shown} what it was at {time} UTC, and remove what was made later?"),
        false => format!("replace {shown} by what it was at {time} UTC?"),
    };
    if !is_in_place {
        in_place::note_snapshots(dest);
    }
    if !output::ask(&question)? {
        bail!("{shown}: nothing was changed");
    }
    Ok(())
}

/// Copies to a name beside the target, then gives it the target's name, in one step.
fn restore(source: &Path, dest: &Path) -> Result<()> {
    let shown = || dest.display().to_string();
    let above = dest.parent().context("there is a directory above it")?;
    dest.file_name()
        .context("the root of a file system is not replaced: use --to")?;
    // A mount point cannot be renamed.
    let device = |path: &Path| path.symlink_metadata().map(|found| found.dev());
    if let (Ok(own), Ok(other)) = (device(dest), device(above)) {
        ensure!(own == other, "{}: is a mount point; use --to", shown());
    }
    // Without the name, which may be as long as names can be.
    let beside = above.join(format!(".stitchfs-restore-{}", std::process::id()));
    let copied = copy(source, &beside).and_then(|()| {
        rename(&beside, dest).with_context(|| format!("{}: cannot be replaced", shown()))
    });
    // After a swap what was there before has the name; after a failure, a part of the copy.
    remove(&beside).with_context(|| beside.display().to_string())?;
    copied
}

fn copy(source: &Path, dest: &Path) -> Result<()> {
    let mut cp = Command::new("cp");
    let status = cp.args(["-a", "-T", "--"]).args([source, dest]).status();
    let status = status.context("cp: cannot be started; it is needed to restore")?;
    ensure!(
        status.success(),
        "{}: not all of it could be copied, see above; nothing was replaced",
        source.display()
    );
    Ok(())
}

/// Gives `from` the name `to`; what has it already is swapped.
fn rename(from: &Path, to: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT) => Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?),
        swapped => Ok(swapped?),
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn what_is_there_is_replaced_whole_and_nothing_is_left_beside() {
        let dir = dir();
        let (then, now) = (dir.path().join("then"), dir.path().join("now"));
        fs::create_dir(&then).unwrap();
        fs::write(then.join("a"), b"one").unwrap();
        restore(&then, &now).unwrap();
        assert_eq!(fs::read(now.join("a")).unwrap(), b"one");
        fs::write(now.join("b"), b"later").unwrap();
        fs::write(now.join("a"), b"two").unwrap();
        restore(&then, &now).unwrap();
        assert_eq!(fs::read(now.join("a")).unwrap(), b"one");
        assert!(!now.join("b").exists());
        restore(&then.join("a"), &now).unwrap();
        assert_eq!(fs::read(&now).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_name_may_be_as_long_as_names_can_be() {
        let dir = dir();
        let long = |byte: u8| dir.path().join(OsStr::from_bytes(&[byte; 255]));
        for now in [long(b'n'), long(0xff)] {
            let then = dir.path().join("then");
            fs::write(&then, b"one").unwrap();
            fs::write(&now, b"two").unwrap();
            restore(&then, &now).unwrap();
            assert_eq!(fs::read(&now).unwrap(), b"one");
        }
    }

    #[test]
    fn a_copy_that_fails_replaces_nothing() {
        let dir = dir();
        let now = dir.path().join("now");
        fs::write(&now, b"two").unwrap();
        assert!(restore(&dir.path().join("missing"), &now).is_err());
        assert_eq!(fs::read(&now).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
