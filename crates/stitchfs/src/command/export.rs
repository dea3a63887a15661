//! `stitchfs export`: a snapshot as a tar archive.

mod records;

use super::output;
use super::send::source::Source;
use anyhow::{Context as _, Result, bail};
use clap::Parser;
use records::RecordWriter;
use std::io::IsTerminal as _;
use std::path::PathBuf;

const AFTER: &str = "\
Writes a tar archive to standard output: GNU entries with pax headers for
extended attributes, access lists and times in nanoseconds. Holes stay holes.
It comes in whole records of 10,240 bytes, as tar(1) writes them. Extract it
with `tar -xp --xattrs --xattrs-include='*' --acls`. Sockets are left out and
named.

Exit codes: 0 success, 1 failure, 2 wrong command line, 3 files were left out.

Examples:
  stitchfs export mnt/.stitchfs/snap/mon > mon.tar
  stitchfs export mnt/.stitchfs/snap/mon | zstd > mon.tar.zst";

/// Write a snapshot to standard output as a tar archive
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct ExportArgs {
    /// Leave out files that cannot be read, instead of failing
    #[arg(long)]
    skip_unreadable: bool,

    /// Snapshot: its directory MNT/.stitchfs/snap/NAME, or its name
    #[arg(value_name = "SNAP")]
    snapshot: PathBuf,

    /// Directory in the mount that has a snapshot given by name
    #[arg(value_name = "MNT", default_value = ".")]
    at: PathBuf,
}

pub(super) fn run(args: &ExportArgs) -> Result<u8> {
    if std::io::stdout().is_terminal() {
        bail!("an archive is not for a terminal; write it to a file or a pipe: `> FILE.tar`");
    }
    let source = Source::read((&args.snapshot, &args.at), args.skip_unreadable)?;
    let bar = output::progress("exporting");
    bar.set_style(output::steps_style());
    let mut advance = |done, total| output::advance(&bar, done, total);
    let mut out = RecordWriter::new(output::unbuffered()?);
    let exported = stitch_send::export(&source.tree, &mut out, &mut advance);
    // One that failed is cut: no program takes it for a whole one.
    let ended = exported.map_err(super::send::explained).and_then(|done| {
        let ended = out.finish();
        ended.map(|_| done).context("cannot write the archive")
    });
    bar.finish_and_clear();
    let exported = ended?;
    for socket in &exported.sockets {
        output::note(&format!("{}: left out, it is a socket", socket.display()));
    }
    Ok(source.code())
}
