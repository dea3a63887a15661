//! Waiting for the end of the daemon of a mount that was taken away.

use crate::command::{live, output};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::mount::{self, table::MountEntry};

const POLL: Duration = Duration::from_millis(20);
const SAY_AFTER: Duration = Duration::from_secs(5);
/// A file system that exists for this long after its unmount is in use elsewhere.
pub(super) const HELD_AFTER: Duration = Duration::from_millis(500);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The daemon has ended: the store is closed.
    Closed,
    /// The file system is in use elsewhere.
    Held,
}

/// The daemon that serves a mount.
pub(super) struct Daemon {
    device: (u32, u32),
    process: Option<DaemonProcess>,
    store: PathBuf,
    /// The store's file, whatever becomes of its name.
    file: Option<File>,
}

/// A process that can be waited for.
enum DaemonProcess {
    Descriptor(OwnedFd),
    /// Linux before 5.3.
    Pid(Pid),
}

impl Daemon {
    /// Asks for it while it can be asked; the source of the mount is the store, unless `fsname` was
    /// given.
    pub(super) fn of(entry: &MountEntry) -> Self {
        let document = live::ask(&entry.path).unwrap_or_default();
        // A number of another namespace stands for another process here.
        let namespace = &document["pid_namespace"];
        let is_ours = namespace.is_null() || namespace.as_u64() == stitchfs::pid_namespace();
        let pid = document["pid"].as_i64().and_then(|p| i32::try_from(p).ok());
        let pid = pid.and_then(Pid::from_raw).filter(|_| is_ours);
        let store = stitchfs::path_in(&document, "store");
        let store = store.unwrap_or_else(|| PathBuf::from(&entry.source));
        Self {
            device: entry.device,
            process: pid.and_then(DaemonProcess::of),
            file: open_store(&store),
            store,
        }
    }

    /// Waits until it has let go of its store, or its file system has lived on for `patience`.
    pub(super) fn wait(&self, patience: Duration) -> Ended {
        let clock = SystemClock::default();
        let mut has_said = false;
        while !self.is_gone() {
            let waited = clock.monotonic();
            if waited >= patience && mount::is_alive(self.device) == Some(true) {
                return Ended::Held;
            }
            clock.sleep(POLL);
            if !has_said && waited > SAY_AFTER {
                has_said = true;
                let store = self.store.display();
                output::note(&format!("waiting until {store} has written everything out"));
            }
        }
        Ended::Closed
    }

    /// Reports whether the process has ended; where none is known, whether the store is unlocked.
    fn is_gone(&self) -> bool {
        match (&self.process, &self.file) {
            (Some(process), _) => process.has_ended(),
            (None, Some(file)) => flock(file, FlockOperation::NonBlockingLockShared).is_ok(),
            (None, None) => mount::is_alive(self.device) != Some(true),
        }
    }
}

impl DaemonProcess {
    /// `None` if it has ended.
    fn of(pid: Pid) -> Option<Self> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Some(Self::Descriptor(descriptor)),
            Err(rustix::io::Errno::SRCH) => None,
            Err(_) => Some(Self::Pid(pid)),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Descriptor(descriptor) => {
                let mut watched = [PollFd::new(descriptor, PollFlags::IN)];
                poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Self::Pid(pid) => test_kill_process(*pid) == Err(rustix::io::Errno::SRCH),
        }
    }
}

/// Opens nothing that would wait, such as a pipe.
fn open_store(store: &Path) -> Option<File> {
    let kind = store.metadata().ok()?.file_type();
    let is_store = kind.is_file() || kind.is_block_device() || kind.is_dir();
    File::open(store).ok().filter(|_| is_store)
}
