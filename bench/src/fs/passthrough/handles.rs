//! Open files and directories, by the numbers that the kernel is told.

use super::listing::OpenDir;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_fuse::Errno;
use stitch_fuse::handler::Answer;
use stitch_fuse::wire::args::Fh;

/// Something open.
pub(super) enum OpenHandle {
    /// A file.
    File(File),
    /// A directory.
    Dir(OpenDir),
}

impl OpenHandle {
    /// The file that it is.
    pub(super) const fn file(&self) -> Answer<&File> {
        match self {
            Self::File(file) => Ok(file),
            Self::Dir(_) => Err(Errno::EISDIR),
        }
    }

    /// The directory that it is.
    pub(super) const fn dir(&self) -> Answer<&OpenDir> {
        match self {
            Self::Dir(dir) => Ok(dir),
            Self::File(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Does something with its descriptor.
    pub(super) fn with_fd<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> Answer<T>) -> Answer<T> {
        match self {
            Self::File(file) => act(file.as_fd()),
            Self::Dir(dir) => dir.with_fd(act),
        }
    }
}

/// All that is open.
#[derive(Default)]
pub(super) struct Handles {
    table: Mutex<HandleTable>,
}

#[derive(Default)]
struct HandleTable {
    open: HashMap<Fh, Arc<OpenHandle>>,
    last: u64,
}

impl Handles {
    /// Gives it a number.
    pub(super) fn add(&self, handle: OpenHandle) -> Fh {
        let mut table = self.table.lock();
        table.last += 1;
        let fh = Fh(table.last);
        let before = table.open.insert(fh, Arc::new(handle));
        debug_assert!(before.is_none(), "numbers are used once");
        fh
    }

    /// What has this number.
    pub(super) fn get(&self, fh: Fh) -> Answer<Arc<OpenHandle>> {
        let table = self.table.lock();
        table.open.get(&fh).map(Arc::clone).ok_or(Errno::EBADF)
    }

    /// Closes it after its last user.
    pub(super) fn remove(&self, fh: Fh) {
        let removed = self.table.lock().open.remove(&fh);
        debug_assert!(removed.is_some(), "only what is open is closed");
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_has_no_number() {
        let handles = Handles::default();
        let file = || OpenHandle::File(File::open("/dev/null").unwrap());
        let (one, two) = (handles.add(file()), handles.add(file()));
        assert_ne!(one, two);
        assert!(handles.get(one).unwrap().file().is_ok());
        assert_eq!(handles.get(one).unwrap().dir().err(), Some(Errno::ENOTDIR));
        handles.remove(one);
        assert_eq!(handles.get(one).err(), Some(Errno::EBADF));
        assert!(handles.get(two).is_ok());
    }
}
