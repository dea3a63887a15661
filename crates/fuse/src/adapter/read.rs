//! READ, and what it tells about the kernel's pages.

use stitch_base::Ino;
use stitch_fs::Attr;

use super::{Adapter, OrErrno as _, convert};
use crate::handler::Answer;
use crate::wire::args::Read;
use crate::wire::codec::Sink;
use crate::wire::reply;

/// Units of `st_blocks` in one chunk.
const CHUNK_UNITS: u64 = 8;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;

impl Adapter {
    /// Serves a READ, and records that the kernel has pages now if the read fills its cache.
    pub(super) fn read_request(&self, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let len = out.room();
        let read = out.append(|bytes| self.fs.read(ino, args.offset, len, bytes));
        let count = read.or_errno()?;
        // Only a READ that bypasses the cache names a lock owner.
        if args.lock_owner.is_none() && !self.fs.note_cached(ino, count < len).some {
            self.drop_empty_attr(ino);
        }
        Ok(())
    }

    /// Drops the kernel's attributes of a file without blocks, which have changed.
    fn drop_empty_attr(&self, ino: Ino) {
        let attr = self.fs.get_attr(ino);
        if attr.is_ok_and(|attr| attr.blocks == 0 && attr.size > 0) {
            self.attr_cache.drop_attr(ino);
        }
    }

    /// Converts attributes for the kernel.
    pub(super) fn attr_of(&self, attr: &Attr) -> reply::Attr {
        let mut told = self.with_mapped(convert::attr(attr));
        told.ino = self.number(attr.ino);
        told
    }

    /// Sets the size that an atomic write gives a file: the kernel would cut its pages to another.
    ///
    /// Adds a chunk to `st_blocks` of a file without blocks that was read. It may have pages that
    /// are dirty through a mapping, and programs take 0 blocks to mean that there is nothing to
    /// read.
    pub(super) fn with_mapped(&self, mut attr: reply::Attr) -> reply::Attr {
        if let Some(size) = self.fs.staged_size(attr.ino) {
            attr.size = size;
        }
        let looks_empty = attr.blocks == 0 && attr.size > 0 && attr.mode & S_IFMT == S_IFREG;
        if looks_empty && self.fs.cached_pages(attr.ino).some {
            attr.blocks = CHUNK_UNITS;
        }
        attr
    }
}
