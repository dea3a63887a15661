//! Waits until what the kernel's cache held dirty has reached the daemon.
//!
//! syncfs(2) of a FUSE mount makes the kernel send its dirty pages. Since Linux 6.18.21 it returns
//! before they were served, and it leaves out pages of which an older content is on its way, and
//! files once the kernel has 48 requests in its queue. So [`complete`] does two rounds at least:
//!
//! ```text
//!  program         kernel                         daemon
//!  store to page   dirty
//!  syncfs      --> queue: WRITE WRITE WRITE ... -> begun, ended
//!  look        --> ------------------------------> { begun, busy, others }    (repeated)
//!              <-- nothing left: the round is over
//! ```
//!
//! 1. Round 1 ends all write-back that began before.
//! 2. Round 2 sends the pages that round 1 left out. Pages that are being written back then have
//!    their contents from after the beginning of round 1.
//! 3. A round with many WRITEs may have left out files, so another one follows.
//! 4. A last syncfs(2) returns errors of WRITEs of the last round.
//!
//! The caller waits, not the daemon: a look returns at once, so it takes no worker, and any user
//! may send it. The daemon serves it in [`crate::dispatch`], for all views of a mount, without
//! a lock.

mod counts;
mod rounds;
mod settling;
mod unanswered;

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno as OsError;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use stitch_base::clock::SystemClock;

use crate::wire::codec::{Fields, Reader, WireError};

pub use counts::WriteBackCounts;
pub(crate) use rounds::{Kernel, run};

/// Bytes of a look.
const LOOK_SIZE: usize = 32;
/// The command, of any directory of a mount.
pub(crate) const LOOK: Opcode = opcode::read::<[u8; LOOK_SIZE]>(b'S', 6);
/// Stands for an unknown number of other requests.
const UNKNOWN: u64 = u64::MAX;

/// The write-back of a mount at one moment.
///
/// Invariant: `busy` is at most `begun`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// WRITEs from the kernel's cache that the daemon has begun to serve since it started.
    pub begun: u64,
    /// How many of them it is serving.
    pub busy: u64,
    /// All requests that the kernel has no reply of, beside the look itself; `None` if the daemon
    /// cannot read that, for want of a mounted fusectl.
    pub others: Option<u64>,
}

impl Look {
    /// Encodes the reply.
    pub(crate) fn encode(&self) -> [u8; LOOK_SIZE] {
        assert!(self.busy <= self.begun, "a WRITE begins before it ends");
        Fields::default()
            .u64(self.begun)
            .u64(self.busy)
            .u64(self.others.unwrap_or(UNKNOWN))
            .zeros(8)
            .done()
    }

    fn decode(reply: &[u8; LOOK_SIZE]) -> Result<Self, WireError> {
        let mut reply = Reader::new(reply);
        let (begun, busy, others) = (reply.u64()?, reply.u64()?, reply.u64()?);
        if busy > begun {
            return Err(WireError::BadValue);
        }
        Ok(Self {
            begun,
            busy,
            others: Some(others).filter(|&others| others != UNKNOWN),
        })
    }
}

/// Has the kernel write back its dirty pages of a mount, and waits until the daemon has them. `dir`
/// is any directory of the mount. A daemon of an older StitchFS is not waited for.
///
/// # Errors
/// Those of syncfs(2), among them those of writing back; `ETIMEDOUT` if the end cannot be seen:
/// nothing comes on for 10 s, or other programs write all the time, for 2 minutes.
pub fn complete(dir: impl AsFd) -> io::Result<()> {
    let mut mount = MountedKernel { dir: dir.as_fd() };
    match mount.look() {
        Err(error) if OsError::from_io_error(&error) == Some(OsError::NOTTY) => mount.sync(),
        Err(error) => Err(error),
        Ok(before) => run(&mut mount, before, &SystemClock::default()),
    }
}

/// Asks the daemon of a mount how far it is. `dir` is any directory of the mount; any user may ask.
///
/// # Errors
/// `ENOTTY` if the daemon is older than this command, or the directory is in no such mount.
pub fn look(dir: impl AsFd) -> io::Result<Look> {
    let reply = ask(dir)?;
    Look::decode(&reply).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The kernel and the daemon of a mount, as another process sees them.
struct MountedKernel<D> {
    dir: D,
}

impl<D: AsFd> Kernel for MountedKernel<D> {
    fn sync(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }

    fn look(&mut self) -> io::Result<Look> {
        look(&self.dir)
    }
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn ask(dir: impl AsFd) -> io::Result<[u8; LOOK_SIZE]> {
    // SAFETY: the command makes the kernel write exactly `LOOK_SIZE` bytes, for which any bytes are
    // valid. A directory is no device that could interpret the number differently.
    Ok(unsafe { ioctl(dir, Getter::<LOOK, [u8; LOOK_SIZE]>::new()) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(LOOK, 0x8020_5306);
    }

    #[test]
    fn a_look_goes_there_and_back() {
        for others in [None, Some(0), Some(7)] {
            let look = Look {
                begun: 5,
                busy: 2,
                others,
            };
            assert_eq!(Look::decode(&look.encode()), Ok(look));
        }
        let mut impossible = Look::default().encode();
        impossible[8] = 1;
        assert_eq!(Look::decode(&impossible), Err(WireError::BadValue));
    }

    #[test]
    fn elsewhere_the_kernel_alone_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let opened = std::fs::File::open(dir.path()).unwrap();
        let refused = ask(&opened).unwrap_err();
        assert_eq!(OsError::from_io_error(&refused), Some(OsError::NOTTY));
        complete(&opened).unwrap();
    }
}
