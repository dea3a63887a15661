//! The rounds of a write-back: a syncfs(2) and a wait each.

use std::io;
use std::time::Duration;

use rustix::io::Errno as OsError;
use stitch_base::clock::Clock;

use super::Look;
use super::settling::{Settling, TICK, Verdict};

/// Fewest rounds: the first ends write-back that is under way, the second sends what it left out.
const ROUNDS_MIN: u32 = 2;
/// WRITEs of a round from which on the kernel may have left out files. It does with 48 requests in
/// its queue, of which the first may be served before they are counted here.
const CROWDED: u64 = 32;
/// The longest time of all rounds.
const TIME_MAX: Duration = Duration::from_secs(120);

/// The kernel's cache of a mount, and its daemon.
pub(crate) trait Kernel {
    /// Makes the kernel send its dirty pages. Returns errors of earlier ones.
    fn sync(&mut self) -> io::Result<()>;
    /// Returns how far the daemon is.
    fn look(&mut self) -> io::Result<Look>;
}

/// Writes back what is dirty now, and waits until the daemon has it. `before` is an earlier look.
///
/// # Errors
/// Those of the kernel; `ETIMEDOUT` if the end cannot be seen.
pub(crate) fn run(kernel: &mut dyn Kernel, before: Look, clock: &dyn Clock) -> io::Result<()> {
    let start = clock.monotonic();
    let mut before = before;
    for round in 1.. {
        kernel.sync()?;
        let settled = settle(kernel, clock)?;
        let sent = settled.drained.begun.saturating_sub(before.begun);
        let is_crowded = sent + settled.queued >= CROWDED;
        if round >= ROUNDS_MIN && !is_crowded {
            return match sent {
                0 => Ok(()),
                // It returns errors of this round.
                _ => kernel.sync(),
            };
        }
        if clock.monotonic() - start >= TIME_MAX {
            break;
        }
        before = settled.last;
    }
    Err(OsError::TIMEDOUT.into())
}

/// The end of a round.
struct Settled {
    /// The look by which the round's WRITEs had been served. Later ones are those of others.
    drained: Look,
    last: Look,
    /// Requests that the kernel had no reply of when the round's pages had been sent.
    queued: u64,
}

/// Waits until what is queued now has been served.
fn settle(kernel: &mut dyn Kernel, clock: &dyn Clock) -> io::Result<Settled> {
    let first = kernel.look()?;
    let start = clock.monotonic();
    let (mut settling, mut verdict) = Settling::begin(first);
    while verdict == Verdict::Wait {
        clock.sleep(TICK);
        let look = kernel.look()?;
        let elapsed = clock.monotonic() - start;
        verdict = settling.note(look, elapsed);
        if elapsed >= TIME_MAX && verdict == Verdict::Wait {
            verdict = Verdict::Stalled;
        }
    }
    match verdict {
        Verdict::Settled => Ok(Settled {
            drained: settling.drained(),
            last: settling.last(),
            queued: first.others.unwrap_or(0),
        }),
        Verdict::Wait | Verdict::Stalled => Err(OsError::TIMEDOUT.into()),
    }
}

#[cfg(test)]
mod tests;
