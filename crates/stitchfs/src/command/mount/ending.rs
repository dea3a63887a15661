//! Ends a mount by signals, and tells what its end waits for.
//!
//! | signal | mount is | what happens |
//! |---|---|---|
//! | first | idle | unmounted; the store is written out and closed |
//! | first | busy | its users are named; what they wrote is kept, and then they get errors |
//! | second | in use still | the store is closed and the daemon ends; its users get errors |

use crate::command::users::Users;
use crate::command::{output, startup};
use anyhow::{Context, Result};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::MountError;
use stitch_fuse::mount;
use stitch_fuse::session::Stopper;
use stitch_fuse::transport::gate::Gate;

/// A file system that exists for this long after its unmount is in use.
const HELD_AFTER: Duration = Duration::from_millis(500);
/// Writing out that takes longer is told.
const SAY_AFTER: Duration = Duration::from_secs(5);

/// From here on signals are kept for [`end_by_signals`]: none that comes while the mount is made
/// leaves it dead.
pub(in crate::command) fn catch_signals(in_background: bool) -> Result<Signals> {
    Signals::new(startup::end_signals(in_background)).context("cannot wait for signals")
}

/// Unmounts at the first signal that was caught, and closes the store at the second one.
pub(in crate::command) fn end_by_signals(mut signals: Signals, ending: Ending) -> Result<()> {
    let ending = Arc::new(ending);
    let body = move || {
        let mut has_begun = false;
        for signal in signals.forever() {
            tracing::info!(signal, "unmounting");
            if has_begun {
                ending.insist();
            } else {
                has_begun = ending.begin();
            }
        }
    };
    stitch_base::thread::spawn("signals", body).context("cannot start a thread")?;
    Ok(())
}

/// The end of a mount.
pub(in crate::command) struct Ending {
    pub(in crate::command) stopper: Stopper,
    /// What a second signal shuts. `None` with a holder, which would start another daemon.
    pub(in crate::command) gate: Option<Arc<Gate>>,
    pub(in crate::command) in_background: bool,
}

impl Ending {
    /// Tells the user of the terminal, or the log.
    fn say(&self, text: &str) {
        if self.in_background {
            tracing::warn!("{text}");
        } else {
            output::note(text);
        }
    }

    /// Unmounts. Returns whether the end has begun.
    fn begin(self: &Arc<Self>) -> bool {
        let ended = match self.stopper.stop_if_idle() {
            Err(MountError::Busy { path }) => {
                let users = self.users(|device| Users::inside(&path, device));
                let path = path.display();
                self.say(&format!(
                    "{path}: is busy: {users}; writes are kept, and its users get errors from now \
                     on"
                ));
                self.stopper.stop()
            }
            other => other,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "cannot unmount");
            return false;
        }
        let watched = Arc::clone(self);
        if let Err(error) = stitch_base::thread::spawn("ending", move || watched.watch()) {
            tracing::debug!(%error, "what the end waits for is not told");
        }
        true
    }

    /// Tells what the end waits for. The process ends when it is over, and this thread with it.
    fn watch(&self) {
        let clock = SystemClock::default();
        clock.sleep(HELD_AFTER);
        let path = self.stopper.path().display();
        if self.is_in_use() {
            let users = self.users(Users::anywhere);
            let remedy = match self.gate {
                Some(_) => "; a second signal closes the store now, and they get errors",
                None => "",
            };
            self.say(&format!(
                "{path}: unmounted, but the file system is still {users}; waiting until they \
                 leave{remedy}"
            ));
        }
        clock.sleep(SAY_AFTER.saturating_sub(clock.monotonic()));
        if !self.is_in_use() {
            self.say(&format!("{path}: waiting until everything is written out"));
        }
    }

    fn is_in_use(&self) -> bool {
        let device = self.stopper.device();
        device.and_then(mount::is_alive) == Some(true)
    }

    fn users(&self, find: impl FnOnce((u32, u32)) -> Users) -> String {
        let users = self.stopper.device().map(find);
        users.unwrap_or_default().to_string()
    }

    /// Ends the daemon even if processes use the file system.
    fn insist(&self) {
        if let Some(gate) = self.gate.as_ref().filter(|_| self.is_in_use()) {
            gate.shut();
        }
    }
}
