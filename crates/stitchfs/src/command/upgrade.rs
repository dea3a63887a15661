//! `stitchfs upgrade`: the program on disk for a mount that is served.

use super::live;
use super::output;
use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::random;
use stitchfs::RESTART_XATTR;

const POLL: Duration = Duration::from_millis(5);
/// The new daemon serves before, or it never will.
const PATIENCE: Duration = Duration::from_secs(120);

/// Replace the daemon of a mount by the program on disk, without unmounting
#[derive(Debug, Parser)]
#[command(after_help = "\
The mount must have been made with -o restart. Requests wait while the store is
closed and opened again; open files stay open. If the new program cannot serve
the store, the old one goes on, and the exit code is 1.")]
pub(super) struct UpgradeArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,

    /// Mount point, or the store that is mounted
    #[arg(value_name = "MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &UpgradeArgs) -> Result<u8> {
    let entry = live::mounted(&args.path)?;
    let done = upgrade(&entry.path)?;
    if args.json {
        output::print_json(&done)?;
    }
    let shown = entry.path.display();
    if let Some(error) = done["error"].as_str() {
        output::note(&format!("{shown}: not upgraded: {error}"));
        return Ok(1);
    }
    if !args.json {
        let word = |name: &str| done[name].as_str().unwrap_or_default();
        let (before, after) = (word("version_before"), word("version"));
        let pause_ms = &done["pause_ms"];
        output::print(&format!(
            "{shown}: version {after}, before {before}; requests waited for {pause_ms} ms"
        ))?;
    }
    Ok(0)
}

/// What came of it.
fn upgrade(mount_point: &Path) -> Result<Value> {
    let shown = mount_point.display();
    let before = live::ask(mount_point)?;
    if before["restart"].is_null() {
        bail!(
            "{shown}: no holder keeps this mount while its daemon is replaced; unmount it and \
             mount it with -o restart"
        );
    }
    let token = random::bytes16().context("no random number")?;
    let token = json!(u128::from_le_bytes(token).to_string());
    let request = json!({ "do": "upgrade", "token": token }).to_string();
    let told = rustix::fs::setxattr(
        mount_point,
        RESTART_XATTR,
        request.as_bytes(),
        XattrFlags::empty(),
    );
    match told {
        Ok(()) => {}
        Err(Errno::IO) => bail!(
            "{shown}: the process that keeps this mount is gone; unmount it and mount it again"
        ),
        Err(error) => return Err(live::refusal(mount_point, error)),
    }
    let clock = SystemClock::default();
    loop {
        let mut document = live::ask(mount_point)?;
        let upgrade = document["restart"]["upgrade"].take();
        if upgrade["token"] == token {
            return Ok(answer(upgrade, &document));
        }
        if clock.monotonic() > PATIENCE {
            bail!("{shown}: the upgrade does not come to an end; see the log");
        }
        clock.sleep(POLL);
    }
}

fn answer(mut upgrade: Value, document: &Value) -> Value {
    if let Some(fields) = upgrade.as_object_mut() {
        fields.remove("token");
        fields.retain(|_, value| !value.is_null());
        fields.insert("pid".to_owned(), document["pid"].clone());
    }
    if let Some(store) = stitchfs::path_in(document, "store") {
        stitchfs::set_path(&mut upgrade, "store", &store);
    }
    upgrade
}
