//! An `io_uring` with one command under way: an entry of a queue, waiting for its next request.

#![expect(
    unsafe_code,
    reason = "the kernel is given addresses of buffers, and writes to them on its own"
)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno as OsError;

use super::entry::Entry;
use crate::wire::ring::{COMMIT_AND_FETCH, REGISTER, encode_command};

/// Submissions that a ring has room for.
const DEPTH: u32 = 2;
/// Where a submission says how many buffers it names.
const LENGTH_AT: usize = 24;

/// A ring, used by the thread that made it.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring, if the kernel has one for us.
    ///
    /// # Errors
    /// What the kernel says if not.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // The thread that waits is the one that the kernel copies requests for: no interrupt.
        builder.setup_single_issuer().setup_defer_taskrun();
        Ok(Self {
            ring: builder.build(DEPTH)?,
        })
    }

    /// Hands an entry's buffers to the kernel. Requests for queue `queue` of the mount behind `device`
    /// may come from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn register(
        self,
        device: &OwnedFd,
        queue: u16,
        mut entry: Entry,
    ) -> io::Result<Registered> {
        self.ring
            .submitter()
            .register_files(&[device.as_raw_fd()])?;
        let buffers = entry.buffers().map(|(base, length)| libc::iovec {
            iov_base: base.cast(),
            iov_len: length,
        });
        let command = opcode::UringCmd80::new(types::Fixed(0), REGISTER)
            .cmd(encode_command(queue, 0))
            .addr(Some(buffers.as_ptr().addr() as u64))
            .build();
        let mut registered = Registered {
            ring: self,
            entry,
            queue,
        };
        registered.push(&with_length(command, 2));
        registered.ring.submit()?;
        let refused = registered.ring.ring.completion().next();
        match refused.map(|refused| refused.result()) {
            // It waits for a request.
            None => Ok(registered),
            Some(result) => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    fn submit(&self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if is_passing(&error) => {}
                other => return other.map(drop),
            }
        }
    }
}

/// `command`, naming so many buffers, which its builder has no word for.
fn with_length(mut command: Entry128, length: u32) -> Entry128 {
    const { assert!(size_of::<Entry128>() == 128 && align_of::<Entry128>() >= 4) };
    let start = std::ptr::from_mut(&mut command).cast::<u8>();
    // SAFETY: a submission is 128 bytes, laid out as the kernel has it, with the 32 bits of `len` at
    // this place; it is ours alone.
    unsafe { start.add(LENGTH_AT).cast::<u32>().write(length) };
    command
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [OsError::INTR, OsError::AGAIN, OsError::BUSY];
    OsError::from_io_error(error).is_some_and(|error| passing.contains(&error))
}

/// A ring whose entry the kernel knows.
#[derive(Debug)]
pub(super) struct Registered {
    // Dropped before the entry, so that no command that names its buffers is left.
    ring: Ring,
    entry: Entry,
    queue: u16,
}

impl Registered {
    /// The entry, when a request is in it.
    pub(super) fn entry(&mut self) -> &mut Entry {
        &mut self.entry
    }

    /// Says that the entry holds the answer to request `commit_id`. It is gone with the next
    /// [`Self::wait`] or [`Self::submit`].
    pub(super) fn commit(&mut self, commit_id: u64) {
        let command = opcode::UringCmd80::new(types::Fixed(0), COMMIT_AND_FETCH)
            .cmd(encode_command(self.queue, commit_id))
            .build();
        self.push(&command);
    }

    fn push(&mut self, command: &Entry128) {
        // SAFETY: the buffers that it names belong to `self.entry`, which never moves nor frees them,
        // and which is dropped after the ring. The list of them is read while it is submitted.
        let pushed = unsafe { self.ring.ring.submission().push(command) };
        pushed.expect("one command is under way at a time");
    }

    /// Submits what was committed.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn submit(&self) -> io::Result<()> {
        self.ring.submit()
    }

    /// Submits what was committed, and waits for the next request.
    ///
    /// # Errors
    /// What the kernel says of the ring, or of the entry.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        loop {
            if let Some(done) = self.ring.ring.completion().next() {
                return match done.result() {
                    0.. => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            match self.ring.ring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
        }
    }
}
