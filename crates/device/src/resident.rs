//! The one request to the page cache that no safe call covers.

use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `cachestat(2)`, since Linux 6.5. The number is the same on every architecture that we build for.
const CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`: offset and length in bytes.
type Range = [u64; 2];
/// `struct cachestat`: pages cached, dirty, in write-back, evicted, recently evicted.
type Stat = [u64; 5];

/// Returns the number of pages of a range that the page cache holds.
#[expect(
    unsafe_code,
    reason = "the C library has no function for this system call"
)]
pub(crate) fn pages(file: &File, offset: u64, len_bytes: u64) -> Result<u64, Errno> {
    let range: Range = [offset, len_bytes];
    let mut stat: Stat = [0; 5];
    let no_flags: libc::c_uint = 0;
    // SAFETY: the kernel reads two 64-bit values from the second argument and writes five to the
    // third; both live through the call, and the descriptor is open.
    let answer = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut stat),
            no_flags,
        )
    };
    match answer {
        0 => Ok(stat[0]),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}
