//! System calls of Linux AIO: requests that continue after the call.
//!
//! With `O_DIRECT`, `io_submit` passes a write and its memory to the block layer before it returns.
//! So the write is made even if the process is killed right after. A dying process closes its files
//! only when all its requests are complete. io_uring guarantees neither: requests that would block
//! go to a worker thread, which a dying process cancels.

#![expect(
    unsafe_code,
    reason = "the calls have no wrapper, and the kernel is given addresses of memory"
)]

use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `IOCB_CMD_PWRITE`
const WRITE: u16 = 1;

/// An AIO context: the requests of one process.
#[derive(Debug)]
pub(super) struct Context {
    id: libc::c_ulong,
}

/// The completion of a request: `struct io_event`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Event {
    /// Identifies the request.
    pub(super) ticket: u64,
    request: u64,
    result: i64,
    result2: i64,
}

impl Event {
    /// Returns the number of bytes written.
    pub(super) fn written(&self) -> Result<usize, Errno> {
        match usize::try_from(self.result) {
            Ok(len) => Ok(len),
            Err(_) => Err(Errno::from_raw_os_error(
                i32::try_from(-self.result).unwrap_or(libc::EIO),
            )),
        }
    }
}

impl Context {
    /// Creates a context for `depth` concurrent requests.
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the number of the context to `id`, which outlives the call.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { id })
    }

    /// Submits a write. Its completion is an event with `ticket`.
    ///
    /// # Errors
    /// Those of the kernel. No request was submitted then.
    ///
    /// # Safety
    /// `bytes` must neither move nor change until the event of this request was taken or the
    /// context was dropped.
    pub(super) unsafe fn write(
        &self,
        file: &File,
        offset: u64,
        bytes: &[u8],
        ticket: u64,
    ) -> io::Result<()> {
        // SAFETY: the struct holds only integers, for which zeros are valid.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_data = ticket;
        request.aio_lio_opcode = WRITE;
        request.aio_fildes = u32::try_from(file.as_raw_fd()).expect("a descriptor that is open");
        request.aio_buf = bytes.as_ptr().addr() as u64;
        request.aio_nbytes = bytes.len() as u64;
        request.aio_offset = i64::try_from(offset).expect("within the device");
        let mut list = [&raw mut request];
        let count: libc::c_long = 1;
        // SAFETY: the kernel reads one request during the call; the caller guarantees that its
        // memory stays.
        let result =
            unsafe { libc::syscall(libc::SYS_io_submit, self.id, count, list.as_mut_ptr()) };
        match result {
            1 => Ok(()),
            0 => Err(Errno::AGAIN.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until a request is complete, and takes available events, possibly not all.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = [Event::default(); 16];
        loop {
            let to = events.as_mut_ptr();
            let no_limit = std::ptr::null_mut::<libc::timespec>();
            // SAFETY: the kernel writes at most as many events as `out` has room for, during the
            // call.
            let result = unsafe {
                let (least, most) = (1_usize, events.len());
                libc::syscall(libc::SYS_io_getevents, self.id, least, most, to, no_limit)
            };
            if let Ok(count) = usize::try_from(result) {
                return events[..count].to_vec();
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // The kernel still has addresses of memory that every other way out would free.
                // This does not happen with a valid context.
                std::process::abort();
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was made by `io_setup`, and this is its only owner. The call waits
        // for all requests.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}
