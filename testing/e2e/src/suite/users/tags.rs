//! Stores on block devices that are named by label or uuid, and what other tools are told of them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{text, unmount};
use crate::harness::context::Context;
use crate::harness::disk::Disk;
use crate::harness::guardian;
use crate::harness::mount::{is_live_fuse, stitchfs};
use crate::harness::process::{command, run};

/// Formats a device and returns its uuid.
fn format(context: &Context, disk: &Disk, label: &str) -> Result<String> {
    let device = text(disk.device());
    let (code, said) = stitchfs(context, &["mkfs", "--force", "-L", label, &device])?;
    ensure!(code == 0, "mkfs: {said}");
    let (code, said) = stitchfs(context, &["info", "--udev", &device])?;
    ensure!(code == 0, "info --udev: {said}");
    let uuid = said
        .lines()
        .find_map(|line| line.strip_prefix("ID_FS_UUID="));
    Ok(uuid.unwrap_or_default().to_owned())
}

fn mounts(context: &Context, tag: &str, store: &Path) -> Result<()> {
    let dir = context.work.join("tagged");
    guardian::watch_mount(&dir)?;
    let (code, said) = stitchfs(context, &["mount", tag, &text(&dir)])?;
    ensure!(code == 0, "mount {tag}: {said}");
    ensure!(is_live_fuse(&dir), "{tag} is not mounted");
    unmount(context, &dir, store)
}

/// `LABEL=` and `UUID=` name a device; two devices of one label are told apart by no guess.
pub(super) fn stores_are_found_by_label_and_uuid(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let disk = Disk::attach(context, "tags-one", "64M")?;
    let label = format!("box {}", std::process::id());
    let uuid = format(context, &disk, &label)?;
    let tag = format!("LABEL={label}");
    mounts(context, &tag, disk.device())?;
    mounts(context, &format!("UUID={uuid}"), disk.device())?;
    let (code, said) = stitchfs(context, &["fsck", "-n", &tag])?;
    ensure!(code == 0, "fsck {tag}: {code}\n{said}");

    let (_, said) = stitchfs(context, &["info", "--udev", &tag])?;
    let encoded = format!("ID_FS_LABEL_ENC=box\\x20{}", std::process::id());
    ensure!(
        said.contains("ID_FS_TYPE=stitchfs") && said.contains(&encoded),
        "{said}"
    );

    let (code, said) = stitchfs(context, &["fsck", "-n", "LABEL=of no device"])?;
    ensure!(
        code == 8 && said.contains("no block device"),
        "{code}: {said}"
    );
    let twin = Disk::attach(context, "tags-two", "64M")?;
    format(context, &twin, &label)?;
    let (code, said) = stitchfs(context, &["fsck", "-n", &tag])?;
    ensure!(code == 8 && said.contains("both have it"), "{code}: {said}");
    told_by_file(disk.device(), &label)
}

/// file(1) knows a store by the entry in `dist/magic`.
fn told_by_file(device: &Path, label: &str) -> Result<()> {
    let magic = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/magic/stitchfs");
    let mut file: Command = command("file", &["-s", "-b", "-m", magic]);
    let said = run(file.arg(device))?;
    let expected = format!("label \"{label}\"");
    ensure!(
        said.starts_with("StitchFS store") && said.contains(&expected),
        "{said}"
    );
    ensure!(said.contains("67108864 bytes"), "{said}");
    Ok(())
}
