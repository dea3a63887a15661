//! Shared mappings of files.

use std::ffi::c_void;
use std::fs::File;

use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping of the beginning of a file.
pub(crate) struct Map {
    at: *mut c_void,
    len: usize,
}

impl Map {
    pub(crate) fn new(file: &File, len: usize) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        #[expect(unsafe_code, reason = "mapping has no safe wrapper")]
        // SAFETY: the kernel chooses the address, so no mapping is replaced.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) };
        let at = at.unwrap();
        Self { at, len }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        #[expect(unsafe_code, reason = "the file may change meanwhile")]
        // SAFETY: the range is within the mapping, which lives as long as `self`.
        unsafe {
            let to = self.at.cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "unmapping has no safe wrapper")]
        // SAFETY: the range is the mapping, which is not used from here on.
        unsafe { rustix::mm::munmap(self.at, self.len) }.unwrap();
    }
}
