//! BlockedSignals of a process that runs a command: waited for, not handled.
//!
//! They are blocked in this process, and unblocked in a command before it is executed.

use super::super::startup;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::mem::MaybeUninit;
use std::time::Duration;

/// BlockedSignals that the command gets from us.
const PASSED_ON: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A child may have ended.
    Child,
    /// The signal is for the command.
    PassOn(Signal),
    /// The terminal sent the signal to the command too.
    FromTerminal,
    /// The time is up.
    TimeOut,
}

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub(super) struct BlockedSignals {
    set: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks SIGCHLD and the signals that are passed on, but for those that are ignored: the
    /// command ignores them too.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn block() -> Result<Self> {
        let passed_on = PASSED_ON.iter().map(|signal| signal.as_raw());
        let wanted = passed_on.filter(|&signal| !startup::is_ignored(signal));
        let wanted: Vec<libc::c_int> = wanted.chain([libc::SIGCHLD]).collect();
        debug_assert!(!startup::is_ignored(libc::SIGCHLD), "reset at the start");
        let set = set_of(&wanted);
        change_mask(libc::SIG_BLOCK, &set).context("cannot block signals")?;
        Ok(Self { set })
    }

    /// Unblocks them, in a process that was just forked: no memory is allocated.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn unblock(&self) -> std::io::Result<()> {
        change_mask(libc::SIG_UNBLOCK, &self.set)
    }

    /// Waits for the next event, at most for as long as `limit`.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Result<Event> {
        let Some((number, code)) = next(&self.set, limit).context("cannot wait for signals")?
        else {
            return Ok(Event::TimeOut);
        };
        Ok(match Signal::from_named_raw(number) {
            Some(Signal::CHILD) => Event::Child,
            Some(_) if code == libc::SI_KERNEL => Event::FromTerminal,
            Some(signal) => Event::PassOn(signal),
            None => Event::TimeOut,
        })
    }
}

#[expect(unsafe_code, reason = "signal sets have no wrapper")]
fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set that the others change.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

#[expect(unsafe_code, reason = "the signal mask has no wrapper")]
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> std::io::Result<()> {
    // SAFETY: the set is read; the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
    if error == 0 {
        Ok(())
    } else {
        Err(std::io::Error::from_raw_os_error(error))
    }
}

/// Takes the next signal of a set: its number, and what sent it. `None` if none came in time.
#[expect(unsafe_code, reason = "sigtimedwait(2) has no wrapper")]
fn next(
    set: &libc::sigset_t,
    limit: Option<Duration>,
) -> std::io::Result<Option<(libc::c_int, libc::c_int)>> {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the set and the limit, if there is one, are read, and `info` is filled.
    let number = unsafe { libc::sigtimedwait(set, info.as_mut_ptr(), limit) };
    if number >= 0 {
        // SAFETY: zeros are a valid value, and the call has filled it.
        return Ok(Some((number, unsafe { info.assume_init() }.si_code)));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // A stop and its end, or a signal that is not in the set, is as good as no time left.
        Some(libc::EAGAIN | libc::EINTR) => Ok(None),
        _ => Err(error),
    }
}
