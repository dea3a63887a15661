//! Descriptors that this process was started with: a daemon must not keep them open. A process that
//! waits for the end of a pipe would wait for the unmount.
//!
//! They are marked to be closed when the background process starts, and not closed here: code of
//! this process that uses one of them keeps it.

use std::io;

const FIRST: libc::c_uint = 3;

/// Keeps every descriptor but the standard ones from processes that are started from now on.
pub(in super::super) fn keep_from_children() {
    if let Err(error) = mark_all() {
        // Linux before 5.11: one by one.
        tracing::debug!(%error, "descriptors are marked one by one");
        for number in open_descriptors() {
            mark(number);
        }
    }
}

#[expect(unsafe_code, reason = "close_range has no wrapper")]
fn mark_all() -> io::Result<()> {
    let last = libc::c_uint::MAX;
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: the call takes three numbers. With this flag it closes nothing, so that no descriptor
    // goes away under its owner.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn open_descriptors() -> Vec<libc::c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.parse().ok());
    numbers.filter(|&number| number >= 3).collect()
}

#[expect(
    unsafe_code,
    reason = "a descriptor without an owner in this program has no type"
)]
fn mark(number: libc::c_int) {
    // SAFETY: the call takes numbers, and closes nothing; one that is not open is an error, which
    // leaves nothing to do.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    #[test]
    fn both_ways_mark_a_descriptor() {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile().unwrap();
        let is_marked = || fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC);
        for way in [keep_from_children as fn(), || mark_listed()] {
            fcntl_setfd(&file, FdFlags::empty()).unwrap();
            assert!(!is_marked());
            way();
            assert!(is_marked());
        }
        assert!(open_descriptors().contains(&file.as_raw_fd()));
    }

    fn mark_listed() {
        for number in open_descriptors() {
            mark(number);
        }
    }
}
