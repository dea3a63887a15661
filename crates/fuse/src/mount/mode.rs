//! Whether a mount is read-only at the moment.
//!
//! The kernel does not tell a daemon about `mount -o remount,ro`. It refuses what comes through
//! system calls that change files. Other ways to the daemon stay open: ioctls of directories, the
//! socket of the keys, and the daemon's own timers. What serves these asks the mount table here.
//!
//! ```text
//!  ioctl, timer    look          reads /proc/self/mountinfo
//!  keys            is_read_only  poll(2) of it: changed?  yes --> look
//!                                                         no  --> what the last look found
//! ```
//!
//! poll(2) reports a remount from the daemon's mount namespace only. One from another namespace is
//! found by the next look, at most [`AGE_MAX`] later.

use std::fs::File;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::Mutex;

use super::table::{self, MountEntry};

/// Longest time for which keys rely on a look.
const AGE_MAX: Duration = Duration::from_millis(100);

/// The mode of one mount. Writable until it is connected.
#[derive(Debug, Default)]
pub struct MountMode {
    state: Mutex<ModeState>,
    clock: SystemClock,
}

#[derive(Debug, Default)]
struct ModeState {
    device: Option<(u32, u32)>,
    /// The mount table, for poll(2).
    table: Option<File>,
    looked_at: Duration,
    is_read_only: bool,
}

impl MountMode {
    /// Connects it to the mount with this device number.
    pub fn connect(&self, device: Option<(u32, u32)>) {
        let mut state = self.state.lock();
        state.device = device;
        state.table = File::open(table::TABLE_PATH).ok();
        state.look(&self.clock);
    }

    /// Reads the mount table. Reports whether the file system is read-only as a whole; a bind mount
    /// may be read-only by itself. A mount that is no longer in the table is as it was last.
    #[must_use]
    pub fn look(&self) -> bool {
        self.state.lock().look(&self.clock)
    }

    /// Reports the same for less: it reads the mount table if that has changed, or a tenth of a
    /// second after the last time.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let mut state = self.state.lock();
        if state.device.is_none() {
            return false;
        }
        let age = self.clock.monotonic().saturating_sub(state.looked_at);
        match age < AGE_MAX && !state.has_changed() {
            true => state.is_read_only,
            false => state.look(&self.clock),
        }
    }
}

impl ModeState {
    /// Reports whether the mount table has changed since the last call.
    fn has_changed(&self) -> bool {
        let Some(table) = &self.table else {
            return true;
        };
        let mut polled = [PollFd::new(table, PollFlags::PRI | PollFlags::ERR)];
        let at_once = Timespec::default();
        poll(&mut polled, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    fn look(&mut self, clock: &SystemClock) -> bool {
        let Some(device) = self.device else {
            return false;
        };
        // Before the table is read: a change meanwhile is looked at again.
        self.looked_at = clock.monotonic();
        match table::list() {
            Ok(mounts) => {
                let found = mode_of(&mounts, device).unwrap_or(self.is_read_only);
                if found != self.is_read_only {
                    tracing::info!(read_only = found, "the mount was remounted");
                }
                self.is_read_only = found;
            }
            Err(error) => tracing::warn!(%error, "whether the mount is read-only is not known"),
        }
        self.is_read_only
    }
}

/// Reports whether the file system with this device number is read-only; `None` if it is not in the
/// table.
fn mode_of(mounts: &[MountEntry], device: (u32, u32)) -> Option<bool> {
    let mount = mounts.iter().find(|entry| entry.device == device)?;
    Some(mount.super_options.split(',').any(|option| option == "ro"))
}
