//! `stitchfs umount`: takes a mount away and waits until its store is at rest.

use super::live;
use super::output;
use anyhow::Result;
use clap::Parser;
use rustix::process::{Pid, test_kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_device::{DeviceError, OpenOptions};
use stitch_fuse::mount::{self, Unmount};

const POLL: Duration = Duration::from_millis(20);
const SAY_AFTER: Duration = Duration::from_secs(5);

/// Unmount, and wait until everything is on the medium
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// Out of sight at once, even if somebody is in it; it ends when the last one leaves
    #[arg(long, short)]
    lazy: bool,

    /// Mount point, or the store that is mounted
    #[arg(value_name = "MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    if mount::detach_dead(&args.path).unwrap_or(0) > 0 {
        output::note("the mount had lost its daemon and is cleared");
        return Ok(0);
    }
    let entry = live::mounted(&args.path)?;
    let daemon = Daemon::of(&entry.path, Path::new(&entry.source));
    if args.lazy {
        mount::unmount(&entry.path, Unmount::Lazy)?;
        return Ok(0);
    }
    mount::unmount(&entry.path, Unmount::IfIdle)?;
    daemon.wait();
    Ok(0)
}

/// Who serves a mount.
struct Daemon {
    pid: Option<Pid>,
    store: PathBuf,
}

impl Daemon {
    /// Asks for it while it can be asked; what is mounted is the store, unless a name was given.
    fn of(mount_point: &Path, source: &Path) -> Self {
        let document = live::ask(mount_point).unwrap_or_default();
        let pid = document["pid"].as_i64().and_then(|p| i32::try_from(p).ok());
        let store = document["store"].as_str().map(PathBuf::from);
        Self {
            pid: pid.and_then(Pid::from_raw),
            store: store.unwrap_or_else(|| source.to_owned()),
        }
    }

    /// Waits until it has let go of its store.
    fn wait(&self) {
        let clock = SystemClock::default();
        let mut has_said = false;
        while !self.is_gone() {
            clock.sleep(POLL);
            if !has_said && clock.monotonic() > SAY_AFTER {
                has_said = true;
                let store = self.store.display();
                output::note(&format!("waiting until {store} has written everything out"));
            }
        }
    }

    fn is_gone(&self) -> bool {
        if let Some(pid) = self.pid
            && test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
        {
            return true;
        }
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let opened = stitch_device::open_path(&self.store, options);
        !matches!(opened, Err(DeviceError::Busy { .. }))
    }
}
