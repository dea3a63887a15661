//! The folder of large files beside a store in a file, or in the directory of a store, and what
//! sees to them in the background.
//!
//! In a store that is a directory, `STORE/files` stands for `STORE.files`. `STORE.files/uuid` says
//! which store it belongs to; `STORE.files/INSTANCE/XX/INO.NUMBER` are the contents of an inode,
//! with the last byte of the number as `XX`, all in hexadecimal; `STORE.files/INSTANCE/lost+found`
//! has what `fsck` has set aside. Only the store may change these files: a change by hand changes
//! contents without its knowledge.

use crate::StoreError;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_base::thread::JoinHandle;
use stitch_device::{DeviceError, Folder};
use stitch_fs::{ExternalError, ExternalFiles, ExternalName, ExternalResult, FileSystem, SeekFor};
use uuid::Uuid;

const MARK: &str = "uuid";
const ASIDE: &str = "lost+found";

/// Where the large files of a store in a file or a directory are.
#[must_use]
pub fn folder_path(store: &Path) -> PathBuf {
    if store.is_dir() {
        return store.join("files");
    }
    let mut name = store.as_os_str().to_owned();
    name.push(".files");
    PathBuf::from(name)
}

/// What is to be done about the folder of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// The store's file or directory.
    pub(crate) store: &'a Path,
    /// What the store says it is.
    pub(crate) uuid: Uuid,
    pub(crate) instance: &'a str,
    /// The engine's space is that of the host.
    pub(crate) shares_space: bool,
    /// New large files go there.
    pub(crate) is_wanted: bool,
    /// Some are there.
    pub(crate) is_needed: bool,
    pub(crate) read_only: bool,
}

impl Request<'_> {
    fn refused(&self, reason: &str) -> StoreError {
        StoreError::LargeFiles {
            path: folder_path(self.store),
            reason: reason.to_owned(),
        }
    }

    /// The folder, made if it is wanted; `None` where there is none and none is needed.
    ///
    /// # Errors
    /// [`StoreError::LargeFiles`] if it is missing or belongs to another store, or cannot be;
    /// [`StoreError::Host`].
    pub(crate) fn find(&self) -> Result<Option<Arc<dyn ExternalFiles>>, StoreError> {
        if !self.store.is_file() && !self.store.is_dir() {
            return match self.is_wanted || self.is_needed {
                true => Err(StoreError::LargeFiles {
                    path: self.store.to_owned(),
                    reason: "is no regular file; large files can be beside a store in a file, \
                             and in one that is a directory"
                        .to_owned(),
                }),
                false => Ok(None),
            };
        }
        let path = folder_path(self.store);
        if !path.exists() {
            if self.is_needed {
                return Err(self.refused(
                    "is missing, and has the contents of large files: put it back beside the \
                     store, under this name",
                ));
            }
            if !self.is_wanted || self.read_only {
                return Ok(None);
            }
        }
        match self.check_mark(&path) {
            Ok(true) => {}
            Ok(false) if !self.is_wanted && !self.is_needed => return Ok(None),
            Ok(false) => {
                return Err(self.refused(
                    "belongs to another store, or to none: move it away; if this store has large \
                     files, put theirs back under this name",
                ));
            }
            Err(error) => return Err(error),
        }
        self.open(&path.join(self.instance))
    }

    fn open(&self, path: &Path) -> Result<Option<Arc<dyn ExternalFiles>>, StoreError> {
        if !path.exists() {
            if self.is_needed {
                return Err(StoreError::LargeFiles {
                    path: path.to_owned(),
                    reason: "is missing, and has the contents of large files: put it back"
                        .to_owned(),
                });
            }
            if !self.is_wanted || self.read_only {
                return Ok(None);
            }
        }
        let folder = match self.read_only {
            true => Folder::open(path, true)?,
            false => Folder::create(path)?,
        };
        Ok(Some(Arc::new(PlainFiles {
            folder,
            shares_space: self.shares_space,
        })))
    }

    /// Whether the folder is this store's. One that is wanted is made, one that is empty is taken.
    fn check_mark(&self, path: &Path) -> Result<bool, StoreError> {
        let mark = path.join(MARK);
        let uuid = self.uuid.to_string();
        let failed = |source| StoreError::Host {
            op: "read",
            path: mark.clone(),
            source,
        };
        match std::fs::read_to_string(&mark) {
            Ok(text) if text.trim() == uuid => return Ok(true),
            Ok(text) if !text.trim().is_empty() => return Ok(false),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            // A crash may have left it without the mark.
            Ok(_) | Err(_) => {}
        }
        if !self.is_wanted || self.is_needed || self.read_only {
            return Ok(false);
        }
        let folder = Folder::create(path)?;
        let others = std::fs::read_dir(path).map_err(failed)?;
        let mut others = others.filter_map(Result::ok);
        if others.any(|entry| entry.file_name() != MARK) {
            return Ok(false);
        }
        folder.remove(MARK)?;
        folder.make(MARK)?;
        folder.write_at(MARK, 0, format!("{uuid}\n").as_bytes())?;
        folder.publish(MARK)?;
        Ok(true)
    }
}

/// How many plain files a store that is not open has in its folder, and how many bytes they have;
/// `None` without a folder.
#[must_use]
pub fn count(store: &Path) -> Option<(u64, u64)> {
    let instances = std::fs::read_dir(folder_path(store)).ok()?;
    let mut total = (0, 0);
    for instance in instances.filter_map(Result::ok) {
        let is_dir = instance.file_type().is_ok_and(|kind| kind.is_dir());
        let folder = Folder::open(&instance.path(), true).ok().filter(|_| is_dir);
        let files = folder.map(|folder| PlainFiles::of(folder).list());
        for (_, len) in files.and_then(Result::ok).unwrap_or_default() {
            total = (total.0 + 1, total.1 + len);
        }
    }
    Some(total)
}

/// Large files in a folder of the host.
struct PlainFiles {
    folder: Folder,
    shares_space: bool,
}

fn file_name(name: ExternalName) -> String {
    format!("{:02x}/{name}", name.number & 0xff)
}

/// In the words of the file system.
trait OrExternal<T> {
    fn told(self, files: &PlainFiles, name: ExternalName, op: &'static str) -> ExternalResult<T>;
}

impl<T> OrExternal<T> for Result<T, DeviceError> {
    fn told(self, files: &PlainFiles, name: ExternalName, op: &'static str) -> ExternalResult<T> {
        self.map_err(|error| files.error(files.path(name), op, &error))
    }
}

impl PlainFiles {
    const fn of(folder: Folder) -> Self {
        Self {
            folder,
            shares_space: false,
        }
    }

    #[expect(clippy::unused_self, reason = "reads as what it is")]
    fn error(&self, path: String, op: &'static str, error: &DeviceError) -> ExternalError {
        let (reason, kind) = match error {
            DeviceError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
                (source.to_string(), ErrorKind::Invalid)
            }
            DeviceError::Io { source, .. } => (source.to_string(), error.kind()),
            other => (other.to_string(), other.kind()),
        };
        ExternalError {
            path,
            op,
            reason,
            kind,
        }
    }
}

impl ExternalFiles for PlainFiles {
    fn create(&self, name: ExternalName) -> ExternalResult<()> {
        self.folder
            .make(&file_name(name))
            .told(self, name, "make it")
    }

    fn read_at(
        &self,
        name: ExternalName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> ExternalResult<usize> {
        let read = self.folder.read_at(&file_name(name), offset, len, out);
        read.told(self, name, "read it")
    }

    fn write_at(&self, name: ExternalName, offset: u64, bytes: &[u8]) -> ExternalResult<()> {
        let written = self.folder.write_at(&file_name(name), offset, bytes);
        written.told(self, name, "write to it")
    }

    fn set_len(&self, name: ExternalName, len: u64) -> ExternalResult<()> {
        let cut = self.folder.set_len(&file_name(name), len);
        cut.told(self, name, "cut it")
    }

    fn punch(&self, name: ExternalName, offset: u64, len: u64) -> ExternalResult<()> {
        let punched = self.folder.punch(&file_name(name), offset, len);
        punched.told(self, name, "make a hole in it")
    }

    fn allocate(&self, name: ExternalName, offset: u64, len: u64) -> ExternalResult<()> {
        let allocated = self.folder.allocate(&file_name(name), offset, len);
        allocated.told(self, name, "allocate space for it")
    }

    fn seek(&self, name: ExternalName, offset: u64, what: SeekFor) -> ExternalResult<Option<u64>> {
        let file = file_name(name);
        let found = match what {
            SeekFor::Data => self.folder.seek_data(&file, offset),
            SeekFor::Hole => self.folder.seek_hole(&file, offset),
        };
        found.told(self, name, "search it")
    }

    fn len(&self, name: ExternalName) -> ExternalResult<u64> {
        self.folder
            .len(&file_name(name))
            .told(self, name, "open it")
    }

    fn sync(&self, name: ExternalName) -> ExternalResult<()> {
        self.folder
            .sync(&file_name(name))
            .told(self, name, "sync it")
    }

    fn publish(&self, name: ExternalName) -> ExternalResult<()> {
        let synced = self.folder.publish(&file_name(name));
        synced.told(self, name, "sync it")
    }

    fn remove(&self, name: ExternalName) -> ExternalResult<()> {
        let removed = self.folder.remove(&file_name(name));
        removed.told(self, name, "remove it")
    }

    fn set_aside(&self, name: ExternalName) -> ExternalResult<String> {
        let target = format!("{ASIDE}/{name}");
        let moved = self.folder.rename(&file_name(name), &target);
        moved.told(self, name, "move it away")?;
        Ok(self.folder.path(&target).display().to_string())
    }

    fn list(&self) -> ExternalResult<Vec<(ExternalName, u64)>> {
        let found = self.folder.list();
        let path = || self.folder.path("").display().to_string();
        let found = found.map_err(|e| self.error(path(), "list it", &e))?;
        let ours = found.into_iter().filter_map(|(path, len)| {
            let (_, name) = path.split_once('/')?;
            let name: ExternalName = name.parse().ok()?;
            // Not what is set aside.
            (file_name(name) == path).then_some((name, len))
        });
        Ok(ours.collect())
    }

    fn path(&self, name: ExternalName) -> String {
        self.folder.path(&file_name(name)).display().to_string()
    }

    fn free_bytes(&self) -> ExternalResult<u64> {
        let path = || self.folder.path("").display().to_string();
        let free = self.folder.free_bytes();
        free.map_err(|e| self.error(path(), "see how much space is left", &e))
    }

    fn shares_engine_space(&self) -> bool {
        self.shares_space
    }

    fn modified(&self, name: ExternalName) -> ExternalResult<u64> {
        self.folder
            .modified(&file_name(name))
            .told(self, name, "open it")
    }

    fn host_file(&self, name: ExternalName) -> ExternalResult<OwnedFd> {
        let opened = self.folder.open_file(&file_name(name));
        opened.map(OwnedFd::from).told(self, name, "open it")
    }

    fn sample(&self) -> ExternalResult<OwnedFd> {
        // The mark of the folder that ours is in.
        let mark = format!("../{MARK}");
        let opened = self.folder.open_direct(&mark);
        let path = || self.folder.path(&mark).display().to_string();
        let opened = opened.map(OwnedFd::from);
        opened.map_err(|e| self.error(path(), "open it past the page cache", &e))
    }
}

/// A thread that makes large files durable now and then, as the engine does with its log, and
/// removes plain files that no inode refers to any more. Ends when dropped.
pub(crate) struct Settler {
    shared: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Settler {
    /// Starts it, if the file system has a folder of large files.
    pub(crate) fn start(fs: &Arc<FileSystem>, interval: Duration) -> Self {
        let shared: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let thread = (fs.has_large_files() && !fs.is_read_only()).then(|| {
            let (fs, shared) = (Arc::clone(fs), Arc::clone(&shared));
            let body = move || {
                while wait(&shared, interval) {
                    if fs.has_unsettled_files()
                        && let Err(error) = fs.sync()
                        && !matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::Closed)
                    {
                        tracing::error!(%error, "large files could not be made durable");
                    }
                }
            };
            stitch_base::thread::spawn("large-files", body)
        });
        let thread = thread.and_then(|thread| match thread {
            Ok(thread) => Some(thread),
            Err(error) => {
                let what = "no thread: large files are durable when they are synced only";
                tracing::warn!(%error, "{what}");
                None
            }
        });
        Self {
            shared,
            thread: Mutex::new(thread),
        }
    }

    /// Ends it.
    pub(crate) fn stop(&self) {
        *self.shared.0.lock() = true;
        self.shared.1.notify_one();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of large files panicked");
        }
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for the next round; `false` if there is none.
fn wait(shared: &(Mutex<bool>, Condvar), interval: Duration) -> bool {
    let mut is_stopped = shared.0.lock();
    if !*is_stopped {
        shared.1.wait_for(&mut is_stopped, interval);
    }
    !*is_stopped
}
