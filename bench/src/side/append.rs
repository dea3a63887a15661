//! No store at all: each write goes to the end of a raw device, past the page cache, in whole
//! pages, and is flushed. Nothing that keeps what it acknowledges can be faster, so this is the
//! floor of synced writes.

use super::{OpenOptions, Rows, Side, View, Write};
use anyhow::{Context as _, Result, bail, ensure};

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt as _;
use stitch_base::sync::Mutex;

const PAGE_BYTES: usize = 4096;

/// What a device takes at once.
#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// A device that is appended to.
pub(super) struct RawAppend {
    device: File,
    end: Mutex<u64>,
}

impl RawAppend {
    pub(super) fn open(options: &OpenOptions) -> Result<Self> {
        let path = options.dir.display();
        ensure!(!options.dir.is_dir(), "{path}: give it a device");
        let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("flags are small");
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&options.dir)
            .with_context(|| path.to_string())?;
        let end = Mutex::new(0);
        Ok(Self { device, end })
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut pages = vec![Page([0; PAGE_BYTES]); bytes.len().div_ceil(PAGE_BYTES)];
        for (page, piece) in pages.iter_mut().zip(bytes.chunks(PAGE_BYTES)) {
            page.0[..piece.len()].copy_from_slice(piece);
        }
        let slices: Vec<IoSlice<'_>> = pages.iter().map(|page| IoSlice::new(&page.0)).collect();
        let mut end = self.end.lock();
        let len = pages.len() * PAGE_BYTES;
        let written = rustix::io::pwritev(&self.device, &slices, *end)?;
        ensure!(written == len, "{written} bytes of {len} were taken");
        *end += len as u64;
        Ok(())
    }
}

fn unable<T>() -> Result<T> {
    bail!("what was appended cannot be asked for")
}

impl Side for RawAppend {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let mut bytes = Vec::new();
        for write in writes {
            match write {
                Write::Put(key, value) => bytes.extend([*key, *value].concat()),
                Write::Delete(key) => bytes.extend(*key),
            }
        }
        self.append(&bytes)?;
        if sync { self.sync() } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        Ok(self.device.sync_data()?)
    }

    fn get(&self, _key: &[u8], _see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        unable()
    }

    fn scan(&self, _start: &[u8], _rows: &mut Rows<'_>) -> Result<()> {
        unable()
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        unable()
    }

    fn space_bytes(&self) -> Result<u64> {
        Ok(*self.end.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scale;

    #[test]
    fn writes_follow_each_other_in_whole_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, [1; 1000]).unwrap();
        let options = OpenOptions {
            is_synced: false,
            dir: path.clone(),
            is_fresh: true,
            scale: Scale::tiny(),
            volume_bytes: 0,
            ours: crate::side::Ours::default(),
            has_large_values: false,
        };
        let side = RawAppend::open(&options).unwrap();
        side.write(&[Write::Put(b"key", b"value")], true).unwrap();
        let long = [7; PAGE_BYTES];
        side.write(&[Write::Put(b"k", &long)], true).unwrap();
        assert_eq!(side.space_bytes().unwrap(), 3 * 4096);
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found[..9], *b"keyvalue\0");
        assert_eq!((found[4096], found[4097], found[8192]), (b'k', 7, 7));
        assert!(side.get(b"key", &mut |_| ()).is_err());
    }
}
