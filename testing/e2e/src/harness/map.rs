//! A file, mapped and shared.

use std::ffi::c_void;
use std::fs::File;

use anyhow::{Result, ensure};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A shared mapping of the beginning of a file. Bytes behind the file's last page must not be
/// touched.
pub(crate) struct Map {
    at: *mut c_void,
    len: usize,
    is_writable: bool,
}

impl Map {
    /// Maps `len` bytes to be read, or to be written as well.
    pub(crate) fn new(file: &File, len: usize, is_writable: bool) -> Result<Self> {
        let prot = match is_writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        #[expect(unsafe_code, reason = "mapping has no safe wrapper")]
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)
        }?;
        Ok(Self {
            at,
            len,
            is_writable,
        })
    }

    /// A copy of a range.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        ensure!(offset + len <= self.len, "behind the mapping");
        let mut out = vec![0; len];
        #[expect(unsafe_code, reason = "others may write to the mapping meanwhile")]
        // SAFETY: the range is within the mapping, which lives as long as `self`; `out` has `len`
        // bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at.cast::<u8>().add(offset), out.as_mut_ptr(), len);
        }
        Ok(out)
    }

    /// Writes to a range.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        ensure!(self.is_writable, "mapped to be read");
        ensure!(offset + bytes.len() <= self.len, "behind the mapping");
        #[expect(unsafe_code, reason = "others may read the mapping meanwhile")]
        // SAFETY: the range is within the mapping, which may be written and lives as long as
        // `self`.
        unsafe {
            let to = self.at.cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    /// Has what was written reach the file.
    pub(crate) fn sync(&self) -> Result<()> {
        #[expect(unsafe_code, reason = "msync has no safe wrapper")]
        // SAFETY: the range is the mapping.
        unsafe { rustix::mm::msync(self.at, self.len, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "unmapping has no safe wrapper")]
        // SAFETY: the range is the mapping, which is not used from here on.
        let unmapped = unsafe { rustix::mm::munmap(self.at, self.len) };
        if let Err(error) = unmapped {
            eprintln!("a mapping stays: {error}");
        }
    }
}
