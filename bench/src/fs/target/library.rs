//! The same operations by our library, without a mount.

use super::{Entries, OpenFile, Stat, Target};
use anyhow::Result;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use stitchfs::fs::{Attr, Dir, File, Files, SetTime, Timestamp};
use stitchfs::{ErrorKind, StoreOptions};

/// A store, opened. Paths are walked from its root.
#[derive(Debug)]
pub(crate) struct Library {
    files: Files,
    root: Dir,
}

impl Library {
    /// The store on a device.
    pub(crate) fn open(device: &Path, memory_bytes: u64) -> Result<Self> {
        let options = StoreOptions {
            memory_bytes,
            ..StoreOptions::default()
        };
        let files = Files::open(device, &options)?;
        let root = files.root();
        Ok(Self { files, root })
    }
}

fn stat_of(attr: &Attr) -> Stat {
    Stat {
        size: attr.size,
        perm: u32::from(attr.perm),
        mtime_s: attr.mtime.seconds(),
    }
}

impl Target for Library {
    fn create(&self, path: &str) -> Result<()> {
        self.root.create(path)?;
        Ok(())
    }

    fn put(&self, path: &str, data: &[u8]) -> Result<()> {
        Ok(self.root.create(path)?.write_at(data, 0)?)
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        Ok(self.root.make_dir(path)?)
    }

    fn unlink(&self, path: &str) -> Result<()> {
        Ok(self.root.remove_file(path)?)
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        Ok(self.root.remove_dir(path)?)
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        Ok(self.root.rename(source, target)?)
    }

    fn stat(&self, path: &str) -> Result<Option<Stat>> {
        match self.root.stat_link(path) {
            Ok(attr) => Ok(Some(stat_of(&attr))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn set_perm(&self, path: &str, perm: u32) -> Result<()> {
        self.root.set_perm(path, perm)?;
        Ok(())
    }

    fn set_times(&self, path: &str, seconds: i64) -> Result<()> {
        let time = SetTime::At(Timestamp::from_parts(seconds, 0));
        self.root.set_times(path, time, time)?;
        Ok(())
    }

    fn list(&self, path: &str, is_plus: bool, see: &mut Entries<'_>) -> Result<()> {
        for entry in self.root.entries(path)? {
            let entry = entry?;
            let stat = is_plus.then(|| stat_of(&entry.attr));
            see(entry.name().as_bytes(), stat);
        }
        Ok(())
    }

    fn read(&self, path: &str, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        self.root.open(path)?.read_at(0, usize::MAX, out)?;
        Ok(())
    }

    fn open(&self, path: &str, is_new: bool) -> Result<Box<dyn OpenFile>> {
        let file = match is_new {
            true => self.root.create(path)?,
            false => self.root.open(path)?,
        };
        Ok(Box::new(file))
    }

    fn open_to_read(&self, path: &str) -> Result<Box<dyn OpenFile>> {
        self.open(path, false)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.files.sync()?)
    }

    fn close(&self) -> Result<()> {
        Ok(self.files.close()?)
    }
}

impl OpenFile for File {
    fn read_at(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> Result<()> {
        out.clear();
        Self::read_at(self, offset, len, out)?;
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        Ok(Self::write_at(self, data, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(Self::sync(self)?)
    }
}
