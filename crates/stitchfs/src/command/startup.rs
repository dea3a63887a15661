//! Makes the process independent of the shell, service or program that started it.
//!
//! | inherited | what would happen | what is done |
//! |---|---|---|
//! | soft limits (`ulimit -S`) | a write, thread or file is refused later | the hard limits |
//! | stack limit (`ulimit -s`) | the main thread overflows | 8 MiB, or refused |
//! | mode mask | files that not even their owner can open | the owner's bits are taken out |
//! | blocked signals | Ctrl-C and SIGTERM never arrive | unblocked |
//! | SIGCHLD ignored | waiting for a child fails | the default again |
//! | SIGHUP ignored (nohup) | | stays so in the foreground |
//! | working directory | its file system stays busy | left for `/` once the mount serves |
//!
//! Standard descriptors that are closed are `/dev/null` before `main` begins: the standard library
//! of Rust opens it. Nice value, `oom_score_adj`, control group and environment stay as they are.

use super::output;
use anyhow::{Context, Result, ensure};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Open files without which no mount can be served.
const FILES_MIN: u64 = 24;
/// Stack without which no command runs: the main thread's grows up to the limit. Twice what a mount
/// was seen to need in the development profile.
const STACK_BYTES_MIN: u64 = 512 << 10;
/// Stack that is enough.
const STACK_BYTES: u64 = 8 << 20;
/// Limits that a command and a daemon meet.
const COMMON: [Resource; 2] = [Resource::Fsize, Resource::Nofile];
/// Those that [`reset`] raises.
const RAISED: [Resource; COMMON.len() + 1] = [COMMON[0], COMMON[1], Resource::Stack];
/// Limits that a daemon meets: it runs for long and has many threads.
const DAEMON: [Resource; 5] = [
    Resource::As,
    Resource::Cpu,
    Resource::Data,
    Resource::Memlock,
    Resource::Nproc,
];

/// What a process was started with and [`reset`] replaces, for a command that the user runs by us.
#[derive(Debug)]
pub(super) struct Inherited {
    mask: Mode,
    limits: [(Resource, Rlimit); RAISED.len()],
}

impl Inherited {
    /// Restores it for this process and those that it starts.
    ///
    /// # Errors
    /// If a limit is refused.
    pub(super) fn restore(&self) -> Result<()> {
        umask(self.mask);
        for (resource, limit) in &self.limits {
            setrlimit(*resource, *limit).context("cannot restore a limit (ulimit)")?;
        }
        Ok(())
    }
}

/// Resets what every command could stumble over, and returns what it was. To be called before the
/// first thread starts.
pub(super) fn reset() -> Inherited {
    unblock_signals();
    restore_default(libc::SIGCHLD);
    let mask = umask(Mode::empty());
    // The group's bits and those of others are the user's choice.
    umask(owner_can_use(mask));
    let limits = RAISED.map(|resource| (resource, getrlimit(resource)));
    raise_limits(&COMMON);
    raise_stack();
    if let Err(error) = outlive_limits() {
        output::note(&format!("cannot handle SIGXFSZ: {error}"));
    }
    Inherited { mask, limits }
}

/// Checks that the main thread has the stack that it needs. To be called first of all.
///
/// # Errors
/// If the hard limit is too small.
pub(super) fn check_stack() -> Result<()> {
    let Some(bytes) = getrlimit(Resource::Stack).maximum else {
        return Ok(());
    };
    ensure!(
        bytes >= STACK_BYTES_MIN,
        "the limit of the stack (ulimit -s) is {} KiB, and {} KiB are needed",
        bytes >> 10,
        STACK_BYTES_MIN >> 10
    );
    Ok(())
}

/// Raises a soft limit of the stack that is small. Programs that we start lay out their memory in
/// another way where there is none at all.
fn raise_stack() {
    let Rlimit { current, maximum } = getrlimit(Resource::Stack);
    let enough = STACK_BYTES.min(maximum.unwrap_or(u64::MAX));
    if current.is_some_and(|bytes| bytes < enough) {
        let current = Some(enough);
        if let Err(error) = setrlimit(Resource::Stack, Rlimit { current, maximum }) {
            tracing::debug!(%error, "the limit of the stack stays");
        }
    }
}

/// Resets what only a daemon stumbles over.
///
/// # Errors
/// When a hard limit makes a mount impossible.
pub(super) fn reset_for_daemon() -> Result<()> {
    raise_limits(&DAEMON);
    if let Some(files) = getrlimit(Resource::Nofile).current {
        ensure!(
            files >= FILES_MIN,
            "the limit of open files (ulimit -n) is {files}, and a mount needs {FILES_MIN}"
        );
    }
    if let Some(seconds) = getrlimit(Resource::Cpu).current {
        output::note(&format!(
            "the limit of processor time (ulimit -t) will kill the daemon after {seconds} s"
        ));
    }
    Ok(())
}

/// Returns the signals by which a mount is ended.
pub(super) fn end_signals(in_background: bool) -> Vec<libc::c_int> {
    let mut signals = vec![SIGTERM, SIGINT];
    // In the background there is no terminal whose end could be meant.
    if in_background || !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Leaves the working directory, which would keep its file system busy. All paths are absolute by
/// then.
pub(super) fn leave_directory() -> Result<()> {
    std::env::set_current_dir("/").context("cannot change to /")
}

fn raise_limits(resources: &[Resource]) {
    for &resource in resources {
        let Rlimit { current, maximum } = getrlimit(resource);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        if current != maximum
            && let Err(error) = setrlimit(resource, raised)
        {
            // What the limit is in the way of is refused with a reason.
            tracing::debug!(%error, ?resource, "the limit stays");
        }
    }
}

fn owner_can_use(mask: Mode) -> Mode {
    mask & (Mode::RWXG | Mode::RWXO)
}

/// A write beyond `RLIMIT_FSIZE` fails with `EFBIG` and does not end the daemon. A handler and not
/// `SIG_IGN`, which programs that we start would inherit.
fn outlive_limits() -> std::io::Result<()> {
    let is_met = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGXFSZ, is_met).map(drop)
}

#[expect(unsafe_code, reason = "the signal mask has no wrapper")]
fn unblock_signals() {
    let mut none = std::mem::MaybeUninit::uninit();
    // SAFETY: the first call fills the set that the second one reads; the old mask is not asked
    // for.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

#[expect(unsafe_code, reason = "signal dispositions have no wrapper")]
fn restore_default(signal: libc::c_int) {
    // SAFETY: no handler of ours is set yet, and the default runs no code of this process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Reports whether this process ignores a signal.
#[expect(unsafe_code, reason = "signal dispositions have no wrapper")]
pub(super) fn is_ignored(signal: libc::c_int) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new disposition the call only fills `now`, for which zeros are valid too.
    let now = unsafe {
        libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    now.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_leaves_the_owner_all_rights() {
        let left = |mask| owner_can_use(Mode::from_raw_mode(mask)).as_raw_mode();
        assert_eq!([0o777, 0o027, 0].map(left), [0o077, 0o027, 0]);
    }

    #[test]
    fn soft_limits_are_raised_to_the_hard_ones() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Core);
        let current = Some(0);
        setrlimit(Resource::Core, Rlimit { current, maximum }).unwrap();
        raise_limits(&[Resource::Core]);
        assert_eq!(getrlimit(Resource::Core).current, maximum);
    }

    #[test]
    fn a_command_gets_the_limits_and_the_mask_of_the_caller() {
        // A limit that no other test sets.
        let resource = Resource::Sigpending;
        let mut limit = getrlimit(resource);
        let maximum = limit.maximum;
        limit.current = Some(7);
        let mask = umask(Mode::empty());
        umask(mask);
        let limits = [(resource, limit); RAISED.len()];
        Inherited { mask, limits }.restore().unwrap();
        assert_eq!(getrlimit(resource), limit);
        raise_limits(&[resource]);
        assert_eq!(getrlimit(resource).current, maximum);
    }

    #[test]
    fn a_hangup_that_is_not_ignored_ends_a_mount() {
        // The process that started the tests may ignore it, as nohup(1) does.
        restore_default(SIGHUP);
        assert!(!is_ignored(SIGHUP) && end_signals(false).contains(&SIGHUP));
        assert_eq!(end_signals(true), [SIGTERM, SIGINT, SIGHUP]);
    }
}
