//! A daemon that is killed while it starts: it ends, and the mount can be made again.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::mount::UnmountFlags;
use stitch_base::random::Rng;

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, is_mount_point};

const KILLS: u64 = 80;
/// How long a killed process may take to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time between the moment at which the mount is there and the kill.
const DELAY_US_MAX: u64 = 3000;

/// The daemon asks its own mount whether it answers. Killed meanwhile, no thread is left to answer.
pub(super) fn killed_while_it_starts(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut mount = Mount::create(context, &Spec::new("kill-starting", "64M"))?;
    mount.unmount()?;
    let kills = context.seeds.unwrap_or(KILLS);
    for kill in 0..kills {
        guardian::watch_mount(mount.dir())?;
        let mut daemon = start(context, &mount)?;
        let begun = context.elapsed();
        while !is_mount_point(mount.dir())? {
            ensure!(
                context.elapsed() - begun < PATIENCE,
                "kill {kill}: no mount"
            );
        }
        context.sleep(Duration::from_micros(rng.below(DELAY_US_MAX)));
        daemon.kill()?;
        let ended = context.wait_until(PATIENCE, || Ok(daemon.try_wait()?.is_some()))?;
        // Also where it hangs: this ends what it waits for.
        let mode = UnmountFlags::DETACH | UnmountFlags::FORCE;
        rustix::mount::unmount(mount.dir(), mode)?;
        ensure!(ended, "kill {kill}: the daemon hangs");
    }
    println!("      {kills} kills: each daemon has ended");
    mount.mount_again()?;
    mount.unmount()?;
    mount.fsck()
}

fn start(context: &Context, mount: &Mount<'_>) -> Result<Child> {
    let mut command = Command::new(&context.stitchfs);
    command.args(["mount", "--foreground", "-o", context.transport.option()]);
    command.arg(mount.store()).arg(mount.dir());
    command.stdin(Stdio::null());
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    guardian::watch_process(child.id())?;
    Ok(child)
}
