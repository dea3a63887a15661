//! The roles of the processes of a mount.
//!
//! One program has all of them. A process starts the program again for another role, and names the
//! stage in the environment ([`Stage`]); the command line stays that of `stitchfs mount`.
//!
//! ```text
//! role      started by                     stage    does
//! launcher  the user                       none     starts a daemon or a holder, waits until the
//!                                                   mount answers or the child has ended
//! daemon    the launcher                   child    mounts and serves
//!           the user, with --foreground    none     the same
//! holder    as a daemon, with -o restart   as such  keeps descriptors and ledger, starts workers
//! worker    the holder                     worker   mounts or takes a mount over, and serves
//! watcher   the daemon                     watcher  aborts the connection if the daemon is killed
//!
//! role      ends
//! launcher  with 0 if the mount answers, or with the code of its child
//! daemon    when the mount is gone; a signal has it unmount
//! holder    the same; after too many deaths of workers
//! worker    the same; it hands the mount over for an upgrade
//! watcher   with the daemon
//! ```
//!
//! ```text
//! launcher --> daemon  --> watcher
//!          \-> holder  --> worker, again whenever one dies
//! ```
//!
//! More: [`daemon`], [`hold`], [`watch`].
//!
//! [`daemon`]: super::daemon
//! [`hold`]: super::hold
//! [`watch`]: super::watch

use std::ffi::OsStr;
use std::process::Command;

/// Variable of the environment that has the stage.
const VARIABLE: &str = "STITCHFS_STAGE";

/// The part of the way to a mount that a process was started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// To serve in the background.
    Background,
    /// To serve for a holder.
    Worker,
    /// To watch a daemon.
    Watcher,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Background, Self::Worker, Self::Watcher];

    const fn name(self) -> &'static str {
        match self {
            Self::Background => "child",
            Self::Worker => "worker",
            Self::Watcher => "watcher",
        }
    }

    /// Returns the stage that this process was started for; `None` for one that a user started.
    pub(super) fn current() -> Option<Self> {
        Self::named(&std::env::var_os(VARIABLE)?)
    }

    fn named(name: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| name == stage.name())
    }

    /// Makes `command` start a process of this stage.
    pub(super) fn mark(self, command: &mut Command) -> &mut Command {
        command.env(VARIABLE, self.name())
    }
}

/// The role of a process that runs `stitchfs mount`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Starts another process in the background and waits until that serves.
    Launcher,
    /// Mounts and serves.
    Daemon { in_background: bool },
    /// Keeps a mount, and starts workers that serve it.
    Holder { in_background: bool },
    /// Serves for a holder.
    Worker,
}

impl Role {
    /// Returns the role of a process of this stage, by the options of the mount.
    pub(super) const fn of(stage: Option<Stage>, is_foreground: bool, is_restarted: bool) -> Self {
        let in_background = match stage {
            Some(Stage::Worker) => return Self::Worker,
            Some(Stage::Background) => true,
            Some(Stage::Watcher) | None => false,
        };
        match (in_background || is_foreground, is_restarted) {
            (false, _) => Self::Launcher,
            (true, false) => Self::Daemon { in_background },
            (true, true) => Self::Holder { in_background },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_its_stage_by_name() {
        for stage in Stage::ALL {
            assert_eq!(Stage::named(OsStr::new(stage.name())), Some(stage));
            let mut command = Command::new("true");
            stage.mark(&mut command);
            let told: Vec<_> = command.get_envs().collect();
            let expected = (OsStr::new(VARIABLE), Some(OsStr::new(stage.name())));
            assert_eq!(told, [expected]);
        }
        assert_eq!(Stage::named(OsStr::new("other")), None);
    }

    #[test]
    fn a_user_starts_a_launcher_or_serves_in_the_foreground() {
        let cases = [
            (false, false, Role::Launcher),
            (false, true, Role::Launcher),
            (
                true,
                false,
                Role::Daemon {
                    in_background: false,
                },
            ),
            (
                true,
                true,
                Role::Holder {
                    in_background: false,
                },
            ),
        ];
        for (is_foreground, is_restarted, expected) in cases {
            assert_eq!(Role::of(None, is_foreground, is_restarted), expected);
        }
    }

    #[test]
    fn what_a_launcher_starts_serves_or_holds() {
        let role = |is_restarted| Role::of(Some(Stage::Background), false, is_restarted);
        assert_eq!(
            role(false),
            Role::Daemon {
                in_background: true
            }
        );
        assert_eq!(
            role(true),
            Role::Holder {
                in_background: true
            }
        );
    }

    #[test]
    fn a_worker_serves_whatever_its_options_are() {
        for (is_foreground, is_restarted) in [(false, true), (true, true), (true, false)] {
            let role = Role::of(Some(Stage::Worker), is_foreground, is_restarted);
            assert_eq!(role, Role::Worker);
        }
    }
}
