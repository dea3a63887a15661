//! Parallel reads by io_uring.
//!
//! A ring belongs to one caller at a time. A call submits all its requests and waits for each of
//! them, even if some fail: no buffer is freed while the kernel may write to it.

#![expect(
    unsafe_code,
    reason = "the kernel is given addresses of buffers, and writes to them on its own"
)]

use crate::{Wanted, positioned};
use io_uring::{IoUring, Probe, opcode, types};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use stitch_base::sync::Mutex;

/// Concurrent requests of one caller.
const DEPTH: u32 = 32;
/// Rings that are kept for later callers.
const KEPT_MAX: usize = 8;

/// A pool of rings, each used by one caller at a time.
pub(crate) struct Rings {
    kept: Mutex<Vec<IoUring>>,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").finish_non_exhaustive()
    }
}

impl Rings {
    /// Creates the pool, if the kernel offers io_uring and permits it.
    ///
    /// # Errors
    /// The error of the kernel if not.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Submit nothing as a test: a filter of system calls may permit creating rings but not
        // using them.
        ring.submit()?;
        Ok(Self {
            kept: Mutex::new(vec![ring]),
        })
    }

    /// Reads all extents. After an error some of them may have been read.
    pub(crate) fn read(&self, file: &File, parts: &mut [Wanted<'_>]) -> io::Result<()> {
        let kept = self.kept.lock().pop();
        let mut ring = match kept {
            Some(ring) => ring,
            None => IoUring::new(DEPTH)?,
        };
        for some in parts.chunks_mut(DEPTH as usize) {
            read_some(&mut ring, file, some)?;
        }
        let mut kept = self.kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(ring);
        }
        Ok(())
    }
}

/// Reads at most [`DEPTH`] extents.
fn read_some(ring: &mut IoUring, file: &File, parts: &mut [Wanted<'_>]) -> io::Result<()> {
    assert!(parts.len() <= DEPTH as usize, "they fit the ring");
    for (number, part) in parts.iter_mut().enumerate() {
        let len = u32::try_from(part.out.len()).expect("a request is bounded");
        let to = part.out.as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), to, len)
            .offset(part.offset)
            .build()
            .user_data(number as u64);
        // SAFETY: the buffer is `len` bytes long, has no other borrow, and outlives the request.
        // This function does not return, not even by an error, before the kernel has completed all
        // requests (`wait_for_all`).
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.expect("the ring has room for them");
    }
    let results = wait_for_all(ring, parts.len());
    for (part, result) in parts.iter_mut().zip(results) {
        let done = match result {
            Ok(done) => done,
            // Both mean that the request must be repeated.
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        if done < part.out.len() {
            // Continue after a short read.
            let rest = &mut part.out[done..];
            positioned::read_exact(file, part.offset + done as u64, rest)?;
        }
    }
    Ok(())
}

/// Submits the pushed requests and waits until all `count` are complete. Returns the number of
/// bytes that each has read.
fn wait_for_all(ring: &mut IoUring, count: usize) -> Vec<Result<usize, Errno>> {
    let mut results = vec![Ok(0); count];
    let mut left = count;
    while left > 0 {
        if let Err(error) = ring.submit_and_wait(left) {
            let is_passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY]
                .iter()
                .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
            if !is_passing {
                // The kernel still has addresses of memory that every other way out would free,
                // unwinding included. This does not happen with a valid ring.
                std::process::abort();
            }
        }
        for answer in ring.completion() {
            let number = usize::try_from(answer.user_data()).expect("as was given");
            let result = answer.result();
            results[number] =
                usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
            left -= 1;
        }
    }
    results
}
