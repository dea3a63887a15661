//! The threads of a mount that shows many clones and snapshots.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::clone;
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::text;

const CLONES: usize = 30;
/// Threads end two seconds after their last work.
const LIMIT: Duration = Duration::from_secs(30);

fn threads_of(mount: &Mount<'_>) -> Result<usize> {
    let tasks = fs::read_dir(format!("/proc/{}/task", mount.daemon_id()?))?;
    Ok(tasks.count())
}

/// Each has work for threads of its own while it is written to, and none later.
pub(super) fn clones_at_rest_have_no_threads(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-threads", "256M"))?;
    let top = mount.dir().join("top");
    fs::create_dir(&top)?;
    fs::write(top.join("file"), b"before")?;
    let before = threads_of(&mount)?;
    for index in 0..CLONES {
        let twin = mount.dir().join(format!("twin{index}"));
        clone(context, &top, &twin)?;
        fs::write(twin.join("file"), b"after")?;
        fs::remove_file(twin.join("file"))?;
        command_of(
            context,
            &["snapshot", "create", &text(&twin), &format!("s{index}")],
        )?;
        let seen = mount.dir().join(format!(".stitchfs/snap/s{index}"));
        ensure!(fs::read_dir(seen)?.count() == 0, "the file was removed");
    }
    let most = before + CLONES / 3;
    let have_ended = context.wait_until(LIMIT, || Ok(threads_of(&mount)? <= most))?;
    let now = threads_of(&mount)?;
    ensure!(
        have_ended,
        "{now} threads of {CLONES} clones, {before} before"
    );
    mount.unmount()?;
    mount.fsck()
}
