//! `send -i` from a snapshot of a directory to one of its clone.

use super::compared::{change_few, grow_many};
use super::{clone, destroy, grow_with_clones};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::{shell, text};
use crate::harness::tree::{Rules, expect_equal, scan};

/// Makes what both sides have, with other contents under the same numbers and names.
fn make_apart(top: &Path, bytes: &[u8]) -> Result<()> {
    let made = top.join("made-apart");
    fs::create_dir(&made)?;
    fs::write(made.join("file"), bytes)?;
    std::os::unix::fs::symlink(text(top), made.join("link"))?;
    fs::rename(top.join("many/10"), made.join("moved"))?;
    Ok(())
}

pub(super) fn changes_between_a_directory_and_its_clone_are_sent(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-sent", "512M"))?;
    let root = mount.dir().to_owned();
    let (dir, all) = (root.join("dir"), root.join("all"));
    let inner = Path::new("twin/d2/inner");
    grow_with_clones(context, &dir)?;
    grow_many(&dir)?;
    grow_many(&dir.join(inner))?;
    clone(context, &dir.join("top"), &dir.join("gone"))?;
    clone(context, &dir, &all)?;
    make_apart(&dir, b"in the source")?;
    fs::write(dir.join("many/11/f1"), b"changed in the source")?;
    fs::write(
        dir.join(inner).join("many/9/f9"),
        b"changed in the source, too",
    )?;
    command_of(context, &["snapshot", "create", &text(&dir), "mon"])?;
    make_apart(&all, b"in the clone")?;
    change_few(&all)?;
    change_few(&all.join(inner))?;
    destroy(context, &all.join("gone"))?;
    clone(context, &all.join("top"), &all.join("late"))?;
    fs::rename(all.join("twin"), all.join("moved"))?;
    command_of(context, &["snapshot", "create", &text(&all), "tue"])?;
    let snapshots = root.join(".stitchfs/snap");
    let (mon, tue) = (snapshots.join("mon"), snapshots.join("tue"));
    for (old, new) in [(&mon, &tue), (&tue, &mon)] {
        send_and_compare(context, &mut mount, (old, new), 1_200)?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// Sends the changes by rows, with fewer lookups than `lookups_max`, and by a walk. Applies them to
/// a copy of the first side.
pub(super) fn send_and_compare(
    context: &Context,
    mount: &mut Mount<'_>,
    (old, new): (&Path, &Path),
    lookups_max: u64,
) -> Result<()> {
    let name = |side: &Path| {
        side.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let (mounted, new_name) = (name(mount.dir()), name(new));
    let out = format!(
        "{}-{}-copy",
        mounted.unwrap_or_default(),
        new_name.unwrap_or_default()
    );
    let out = context.dir(&out)?;
    let program = context.stitchfs.display().to_string();
    let (old, new) = (text(old), text(new));
    let asked = format!("{program} send -i {old} {new} > asked");
    shell(&out, &asked)?;
    mount.remount()?;
    let before = mount.stats()?;
    shell(&out, &asked)?;
    let lookups = mount.stats()?.since(&before, "fuse.requests.lookup")?;
    ensure!(lookups < lookups_max, "{lookups} names were looked up");
    let walked = format!("{program} send --walk -i {old} {new} > walked");
    shell(&out, &walked)?;
    let (asked, walked) = (fs::read(out.join("asked"))?, fs::read(out.join("walked"))?);
    let lens = (asked.len(), walked.len());
    ensure!(asked == walked, "bytes by rows and by a walk: {lens:?}");
    let complete = format!("{program} send {old} | {program} receive copy");
    shell(&out, &complete)?;
    shell(&out, &format!("{program} receive copy < asked"))?;
    let rules = Rules::copy();
    let mut found = scan(&out.join("copy"), rules)?;
    // What the directory itself remembers.
    if let Some(top) = found.get_mut(Path::new(""))
        && let Some(at) = top.find(", user.stitchfs.received=")
    {
        top.truncate(at);
    }
    expect_equal(&scan(Path::new(&new), rules)?, &found).context("the copy")
}
