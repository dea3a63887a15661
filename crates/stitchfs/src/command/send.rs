//! `stitchfs send`: a snapshot, or the changes from one to another, as a stream.

pub(super) mod source;

use super::{output, sync};
use anyhow::{Result, anyhow, bail};
use clap::Parser;
use source::{FoundSnapshot, Source};
use std::io::{BufWriter, IsTerminal as _};
use std::path::PathBuf;
use stitch_send::{SendToken, Sender};

/// Exit code for a stream without the files that could not be read.
const LEFT_OUT: u8 = 3;
/// Bytes that are written at once.
const BUFFER_BYTES: usize = 256 << 10;

const AFTER: &str = "\
Writes to standard output what `stitchfs receive` applies: names, contents,
holes, modes, owners, times, links, devices, extended attributes and access
lists. With -i, only what changed since OLD: names that came, went or moved, and
changed pages of files. The stream has checksums; its format is in
docs/format.md. File flags (chattr) and times of access that changed alone are
not sent.

With -i it takes as long as what was written between the snapshots, and what is
sent. The first time in the life of a store it takes as long as `find`. Both
snapshots are walked, as by `find`, in the cases that `stitchfs diff --help`
tells, and with --skip-unreadable. The stream is the same in either way.

A user who is not root can send files that the user may read. With
--skip-unreadable, other files are left out and named on standard error, and
the exit code is 3.

An interrupted transfer goes on with the token that `stitchfs receive --token
DIR` prints, and the same snapshots and options as before.

Exit codes: 0 success, 1 failure, 2 wrong command line, 3 files were left out.

Examples:
  stitchfs send mnt/.stitchfs/snap/mon > mon.stream
  stitchfs send mon mnt > mon.stream
  stitchfs send -i mnt/.stitchfs/snap/mon mnt/.stitchfs/snap/tue > tue.stream
  stitchfs send mnt/.stitchfs/snap/mon | ssh host stitchfs receive /backup/ada";

/// Write a snapshot, or the changes between two, to standard output
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct SendArgs {
    /// Send only what changed since this snapshot, which the receiver has
    #[arg(short = 'i', long, value_name = "OLD")]
    incremental: Option<PathBuf>,

    /// Walk both snapshots: do not ask the daemon for what was written between
    #[arg(long, requires = "incremental")]
    walk: bool,

    /// Send the rest of a stream, from where the token says
    #[arg(long, value_name = "TOKEN", value_parser = parse_token)]
    resume: Option<SendToken>,

    /// Leave out files that cannot be read, instead of failing
    #[arg(long)]
    skip_unreadable: bool,

    /// Snapshot: its directory MNT/.stitchfs/snap/NAME, or its name
    #[arg(value_name = "SNAP")]
    snapshot: PathBuf,

    /// Directory in the mount that has snapshots given by name
    #[arg(value_name = "MNT", default_value = ".")]
    at: PathBuf,
}

fn parse_token(text: &str) -> Result<SendToken, String> {
    SendToken::decode(text).map_err(|error| error.to_string())
}

pub(super) fn run(args: &SendArgs) -> Result<u8> {
    if std::io::stdout().is_terminal() {
        bail!("a stream is not for a terminal; send it to a file or a pipe: `> FILE`");
    }
    let spinner = output::spinner("names read");
    let (base, snapshot) = read(args)?;
    spinner.finish_and_clear();
    let bar = output::progress("sending");
    let mut advance = |step, steps, _| output::advance(&bar, step, steps);
    bar.set_style(output::steps_style());
    let base = base.as_ref().map(Source::side);
    let mut sender = Sender::new(base, snapshot.side(), &mut advance)?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, output::unbuffered()?);
    let sent = sender.send(&mut out, args.resume.as_ref());
    drop(sender);
    bar.finish_and_clear();
    sent.map_err(explained)?;
    Ok(snapshot.code())
}

/// Reads the base, if there is one, and the snapshot.
fn read(args: &SendArgs) -> Result<(Option<Source>, Source)> {
    let Some(base) = &args.incremental else {
        let snapshot = Source::read((&args.snapshot, &args.at), args.skip_unreadable)?;
        return Ok((None, snapshot));
    };
    let (mut base, mut snapshot) = (
        FoundSnapshot::find(base, &args.at)?,
        FoundSnapshot::find(&args.snapshot, &args.at)?,
    );
    if base.mount != snapshot.mount {
        bail!(
            "{}: is in another mount than {}",
            base.place.display(),
            snapshot.place.display()
        );
    }
    // Times and sizes of what was written to are the kernel's until then.
    sync::write_back(&snapshot.mount)?;
    base.meet(&mut snapshot);
    // Only a walk finds all that the caller cannot read.
    let is_walked = args.walk || args.skip_unreadable;
    let touched = match is_walked {
        true => None,
        false => base.touched_paths(&snapshot),
    };
    let (base, snapshot) = match touched {
        Some(paths) => (
            base.read_paths(&paths.old)?,
            snapshot.read_paths(&paths.new)?,
        ),
        None => (
            base.read(args.skip_unreadable)?,
            snapshot.read(args.skip_unreadable)?,
        ),
    };
    Ok((Some(base), snapshot))
}

/// Adds what the user can do about it.
pub(super) fn explained(error: stitch_send::SendError) -> anyhow::Error {
    match error.is_permission() {
        true => anyhow!("{error}; --skip-unreadable leaves out what you cannot read"),
        false => anyhow::Error::new(error),
    }
}
