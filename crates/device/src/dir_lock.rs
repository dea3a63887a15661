//! The lock of a store that is a directory.

use crate::DeviceError;
use crate::counter::Request;
use crate::open::Locked;
use std::fs::File;
use std::path::Path;

/// Keeps other processes, and other openers in this one, away from a directory. Unlocked when
/// dropped.
#[derive(Debug)]
pub struct DirLock {
    _locked: Locked,
}

impl DirLock {
    /// Locks a directory without waiting: for this opener alone, or with `read_only` together with
    /// others that only read.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] if another opener has it; [`DeviceError::Io`] if it cannot be opened,
    /// or is not writable and must be.
    pub fn new(path: &Path, read_only: bool) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let failed = |source| Request::new("open", 0, 0).failed(&name, source);
        let dir = File::open(path).map_err(failed)?;
        if !read_only {
            // A directory cannot be opened for writing, so the access right is checked instead.
            let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            rustix::fs::access(path, access).map_err(|errno| failed(errno.into()))?;
        }
        let locked = Locked::new(dir, path, read_only)?;
        Ok(Self { _locked: locked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::ErrorKind;

    #[test]
    fn one_writer_or_several_readers_have_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let lock = |read_only| DirLock::new(dir.path(), read_only);
        let is_busy = |read_only| lock(read_only).is_err_and(|e| e.kind() == ErrorKind::Busy);
        let writer = lock(false).unwrap();
        assert!(is_busy(false) && is_busy(true));
        drop(writer);
        let readers = [lock(true).unwrap(), lock(true).unwrap()];
        assert!(is_busy(false));
        drop(readers);
        drop(lock(false).unwrap());
    }

    #[test]
    fn a_directory_that_is_missing_cannot_be_locked() {
        let dir = tempfile::tempdir().unwrap();
        let missing = DirLock::new(&dir.path().join("none"), true);
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
