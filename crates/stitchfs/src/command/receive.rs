//! `stitchfs receive`: applies a stream to a directory.

use super::{live, output, snapshot};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use serde_json::json;
use std::ffi::OsStr;
use std::io::{BufReader, IsTerminal as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use stitch_send::{Left, ReceiveOptions, Received, SendError};

/// Exit code for a directory that has not all attributes that were sent.
const NOT_ALL: u8 = 3;
/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

const AFTER: &str = "\
Reads from standard input what `stitchfs send` wrote. DIR may be in any file
system. A complete stream needs an empty directory, or makes one; an incremental
one needs the directory that received the snapshot before it, unchanged since.
The directory remembers what it holds in the attribute user.stitchfs.received.

A stream that ends early or is damaged leaves a part in DIR, marked by the
directory .stitchfs-receive in it. `receive --token DIR` prints the token with
which `stitchfs send --resume` goes on. To begin again, remove DIR.

Owners, trusted attributes and devices are for root: an ordinary user owns all
received files, without the set-id bits of others.

Exit codes: 0 success, 1 failure, 2 wrong command line, 3 received, but with
devices or attributes left out that the file system or the user cannot have.

Examples:
  stitchfs receive /backup/ada < mon.stream
  stitchfs receive --token /backup/ada";

/// Apply a stream from standard input to a directory
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct ReceiveArgs {
    /// Print what was received, or the token, as JSON
    #[arg(long)]
    json: bool,

    /// Print the token with which an interrupted transfer goes on, and read nothing
    #[arg(long, conflicts_with_all = ["snapshot", "skip_devices"])]
    token: bool,

    /// Leave out device nodes, which only root creates, instead of failing
    #[arg(long)]
    skip_devices: bool,

    /// Create a snapshot of DIR with the name of the one that was received; DIR is in a mount
    #[arg(long)]
    snapshot: bool,

    /// Directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &ReceiveArgs) -> Result<u8> {
    if args.token {
        return print_token(args);
    }
    live::check_target(&args.dir)?;
    let input = std::io::stdin();
    if input.is_terminal() {
        bail!("a stream does not come from a terminal; read it from a file or a pipe: `< FILE`");
    }
    let options = ReceiveOptions {
        skip_devices: args.skip_devices,
        ..ReceiveOptions::default()
    };
    let bar = output::progress("receiving");
    bar.set_style(output::steps_style());
    let mut advance = |step, steps, _| output::advance(&bar, step, steps);
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input.lock());
    let received = stitch_send::receive(&mut input, &args.dir, options, &mut advance);
    bar.finish_and_clear();
    let received = received.map_err(|error| explained(args, error))?;
    if received.head.is_partial {
        output::note("the sender could not read all files: some are left out");
    }
    let is_all = note_left(args, &received.left);
    if args.snapshot {
        take_snapshot(args, &received)?;
    }
    if args.json {
        let mut out = json!({
            "id": received.head.snapshot.to_string(),
            "base": received.head.base.map(|base| base.to_string()),
            "bytes": received.bytes,
            "complete": is_all,
        });
        stitchfs::set_path(
            &mut out,
            "snapshot",
            Path::new(OsStr::from_bytes(&received.name)),
        );
        output::print_json(&out)?;
    }
    Ok(if is_all { 0 } else { NOT_ALL })
}

fn print_token(args: &ReceiveArgs) -> Result<u8> {
    let Some(token) = stitch_send::token_of(&args.dir)? else {
        bail!("{}: holds no part of a stream", args.dir.display());
    };
    let text = token.encode();
    if args.json {
        output::print_json(&json!({ "token": text }))?;
    } else {
        output::print(&text)?;
    }
    Ok(0)
}

/// Adds how to go on.
fn explained(args: &ReceiveArgs, error: SendError) -> anyhow::Error {
    let dir = args.dir.display();
    match error {
        SendError::Interrupted { cause, .. } => anyhow!(
            "{cause}; {dir} holds a part: go on with \
             `stitchfs send --resume $(stitchfs receive --token {dir}) ...`, or remove it"
        ),
        SendError::Truncated { at: 0 } => anyhow!(
            "the stream is empty, and {dir} is as it was: the program that sends it failed, or \
             sent nothing"
        ),
        other => anyhow::Error::new(other),
    }
}

/// Tells what could not be set. Returns whether nothing was left out that the caller asked for.
fn note_left(args: &ReceiveArgs, left: &Left) -> bool {
    let dir = args.dir.display();
    if left.identity {
        output::note(&format!(
            "{dir}: cannot remember what it holds: its file system has no extended attributes, \
             so it takes no incremental stream"
        ));
    }
    if left.owners > 0 {
        output::note(&format!(
            "{} files were sent with other owners and are yours; only root sets owners",
            left.owners
        ));
    }
    if left.devices > 0 {
        output::note(&format!("{} device nodes are left out", left.devices));
    }
    for xattr in &left.xattrs {
        output::note(&format!("attribute left out: {xattr}"));
    }
    left.devices == 0 && left.xattrs.is_empty()
}

fn take_snapshot(args: &ReceiveArgs, received: &Received) -> Result<()> {
    let name = std::str::from_utf8(&received.name);
    let place = name
        .context("its name is no UTF-8")
        .and_then(|name| snapshot::create_at(&args.dir, name));
    let place = place.context("all was received, but there is no snapshot of it")?;
    if !args.json {
        output::print(&stitchfs::path_text(&place))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_nothing_is_not_called_cut() {
        let args = ReceiveArgs::parse_from(["receive", "/backup/ada"]);
        let said = explained(&args, SendError::Truncated { at: 0 }).to_string();
        assert!(
            said.contains("is empty, and /backup/ada is as it was"),
            "{said}"
        );
        let said = explained(&args, SendError::Truncated { at: 9 }).to_string();
        assert!(said.contains("ends after 9 bytes"), "{said}");
    }
}
