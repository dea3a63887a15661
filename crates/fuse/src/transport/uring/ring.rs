//! An `io_uring` with one command in flight: an entry of a queue that waits for its next request.

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

use super::entry::RingEntry;
use crate::wire::ring::{COMMIT_AND_FETCH, REGISTER, encode_command};

/// Number of submissions in a ring.
const DEPTH: u32 = 2;
/// Offset in a submission of the number of buffers.
const LENGTH_AT: usize = 24;

/// A ring, used only by the thread that made it.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

impl Ring {
    /// Creates a ring.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // The kernel copies requests in the waiting thread, without an interrupt. Not
        // IORING_SETUP_DEFER_TASKRUN: a request that is given to the ring of a dead thread would
        // wait until the ring is gone, and no abort of the connection would reach it.
        builder.setup_single_issuer().setup_coop_taskrun();
        Ok(Self {
            ring: builder.build(DEPTH)?,
        })
    }

    /// Registers an entry's buffers with the kernel. Requests for queue `queue` of the mount behind
    /// `device` may arrive from now on.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn register(
        self,
        device: &OwnedFd,
        queue: u16,
        mut entry: RingEntry,
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
            has_request: false,
        };
        registered.push(&with_length(command, 2));
        registered.ring.submit()?;
        let done = registered.ring.ring.completion().next();
        match done.map(|done| done.result()) {
            // The command waits for a request.
            None => Ok(registered),
            Some(0..) if registered.entry.has_request() => {
                registered.has_request = true;
                Ok(registered)
            }
            // A device that takes any command and does nothing.
            Some(0..) => Err(io::ErrorKind::Unsupported.into()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
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

/// Sets the number of buffers of `command`, for which its builder has no method.
fn with_length(mut command: Entry128, length: u32) -> Entry128 {
    const { assert!(size_of::<Entry128>() == 128 && align_of::<Entry128>() >= 4) };
    let start = std::ptr::from_mut(&mut command).cast::<u8>();
    // SAFETY: a submission is 128 bytes in the kernel's layout, with the 32 bits of `len` at this
    // offset; nothing else refers to it.
    unsafe { start.add(LENGTH_AT).cast::<u32>().write(length) };
    command
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [OsError::INTR, OsError::AGAIN, OsError::BUSY];
    OsError::from_io_error(error).is_some_and(|error| passing.contains(&error))
}

/// A ring with a registered entry.
#[derive(Debug)]
pub(super) struct Registered {
    // Dropped before the entry, so that no command that names its buffers remains.
    ring: Ring,
    entry: RingEntry,
    queue: u16,
    /// The first request arrived with the registration.
    has_request: bool,
}

impl Registered {
    /// Returns the entry while it holds a request.
    pub(super) fn entry(&mut self) -> &mut RingEntry {
        &mut self.entry
    }

    /// Queues a command that commits the reply to request `commit_id`. It is sent by the next
    /// [`Self::wait`] or [`Self::submit`].
    pub(super) fn commit(&mut self, commit_id: u64) {
        debug_assert!(
            !self.has_request,
            "a request is taken before it is answered"
        );
        let command = opcode::UringCmd80::new(types::Fixed(0), COMMIT_AND_FETCH)
            .cmd(encode_command(self.queue, commit_id))
            .build();
        self.push(&command);
    }

    fn push(&mut self, command: &Entry128) {
        // SAFETY: the named buffers belong to `self.entry`, which never moves or frees them, and is
        // dropped after the ring. The list of buffers is read during submission.
        let pushed = unsafe { self.ring.ring.submission().push(command) };
        pushed.expect("one command is under way at a time");
    }

    /// Submits the queued command.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn submit(&self) -> io::Result<()> {
        self.ring.submit()
    }

    /// Submits the queued command, and waits for the next request.
    ///
    /// # Errors
    /// The kernel's error for the ring or the entry.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.has_request) {
            return Ok(());
        }
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
