//! System calls of Linux AIO: requests that the kernel goes on with after the call.
//!
//! With `O_DIRECT`, `io_submit` gives a write to the block layer, with the pages of its memory, before it returns. So
//! the write is made also where the process is killed right after; and a process that died lets go of its
//! files only when all its requests are answered. io_uring promises neither: what would block goes to a worker
//! thread, which a dying process cancels.

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

/// Requests of one process.
#[derive(Debug)]
pub(super) struct Context {
    id: libc::c_ulong,
}

/// What became of a request, as `struct io_event` has it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Event {
    /// Which request.
    pub(super) ticket: u64,
    request: u64,
    result: i64,
    result2: i64,
}

impl Event {
    /// How many bytes were written.
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
    /// Room for so many requests that are under way.
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the number of the context to `id`, which outlives the call.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { id })
    }

    /// Hands over a write. It is answered by an event with `ticket`.
    ///
    /// # Errors
    /// Those of the kernel; then there is no request.
    ///
    /// # Safety
    /// `bytes` stay where they are, and are not changed, until the event of this request was taken or the context
    /// was dropped.
    pub(super) unsafe fn write(
        &self,
        file: &File,
        offset: u64,
        bytes: &[u8],
        ticket: u64,
    ) -> io::Result<()> {
        // SAFETY: it is a row of numbers, of which zeros are valid.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_data = ticket;
        request.aio_lio_opcode = WRITE;
        request.aio_fildes = u32::try_from(file.as_raw_fd()).expect("a descriptor that is open");
        request.aio_buf = bytes.as_ptr().addr() as u64;
        request.aio_nbytes = bytes.len() as u64;
        request.aio_offset = i64::try_from(offset).expect("within the device");
        let mut list = [&raw mut request];
        let count: libc::c_long = 1;
        // SAFETY: one request, which is read during the call; its memory stays as the caller has promised.
        let result =
            unsafe { libc::syscall(libc::SYS_io_submit, self.id, count, list.as_mut_ptr()) };
        match result {
            1 => Ok(()),
            0 => Err(Errno::AGAIN.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until a request is answered, and takes the events that there are; of many, some.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = [Event::default(); 16];
        loop {
            let to = events.as_mut_ptr();
            let no_limit = std::ptr::null_mut::<libc::timespec>();
            // SAFETY: the kernel writes at most as many events as there are places, during the call.
            let result = unsafe {
                let (least, most) = (1_usize, events.len());
                libc::syscall(libc::SYS_io_getevents, self.id, least, most, to, no_limit)
            };
            if let Ok(count) = usize::try_from(result) {
                return events[..count].to_vec();
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // The kernel has addresses of memory that any other way on would free. It does not happen with a
                // context that is whole.
                std::process::abort();
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was made by `io_setup`, and nobody else has it. The call waits for all requests.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}
