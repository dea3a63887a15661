//! What workloads ask of a side: file operations by paths relative to its root.

mod kernel;
mod library;

pub(crate) use kernel::Kernel;
pub(crate) use library::Library;

use anyhow::Result;

/// What `stat` says, as far as workloads look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) perm: u32,
    /// Time of last change of contents, in seconds.
    pub(crate) mtime_s: i64,
}

/// Told the name of an entry, and its attributes if they were asked for.
pub(crate) type Entries<'a> = dyn FnMut(&[u8], Option<Stat>) + 'a;

/// A side, open.
pub(crate) trait Target: Send + Sync {
    /// Makes an empty file and closes it.
    fn create(&self, path: &str) -> Result<()>;
    /// Makes a file with these contents and closes it.
    fn put(&self, path: &str, data: &[u8]) -> Result<()>;
    /// Makes a directory.
    fn make_dir(&self, path: &str) -> Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &str) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> Result<()>;
    /// Renames, and replaces what has the new name.
    fn rename(&self, source: &str, target: &str) -> Result<()>;
    /// Attributes; `None` where there is nothing.
    fn stat(&self, path: &str) -> Result<Option<Stat>>;
    /// Sets permission bits.
    fn set_perm(&self, path: &str, perm: u32) -> Result<()>;
    /// Sets both times, in seconds.
    fn set_times(&self, path: &str, seconds: i64) -> Result<()>;
    /// Lists a directory, without `.` and `..`; with a `stat` of each entry if asked.
    fn list(&self, path: &str, is_plus: bool, see: &mut Entries<'_>) -> Result<()>;
    /// Opens a file, reads all of it into `out`, and closes it.
    fn read(&self, path: &str, out: &mut Vec<u8>) -> Result<()>;
    /// Opens a file; makes it if asked.
    fn open(&self, path: &str, is_new: bool) -> Result<Box<dyn OpenFile>>;
    /// Opens a file that is there, only to read it.
    fn open_to_read(&self, path: &str) -> Result<Box<dyn OpenFile>>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// Ends its use.
    fn close(&self) -> Result<()>;
}

/// An open file.
pub(crate) trait OpenFile: Send + Sync {
    /// Replaces what is in `out` by up to `len` bytes; fewer only at the end of the file.
    fn read_at(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> Result<()>;
    /// Writes all of it.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;
    /// Makes the file durable.
    fn sync(&self) -> Result<()>;
}
