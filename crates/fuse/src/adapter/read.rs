//! READ, and what it says of the pages that the kernel has.

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
    /// Reads, and notes that the kernel has pages now, if the read is for its cache.
    pub(super) fn read_request(&self, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let len = out.room();
        let read = out.append(|bytes| self.fs.read(ino, args.offset, len, bytes));
        let count = read.or_errno()?;
        // A read past the cache names who reads.
        if args.lock_owner.is_none() && !self.fs.note_cached(ino, count < len).some {
            self.drop_empty_attr(ino);
        }
        Ok(())
    }

    /// Makes the kernel ask again for the attributes of a file that has no blocks: they are other
    /// ones now.
    fn drop_empty_attr(&self, ino: Ino) {
        let attr = self.fs.get_attr(ino);
        if attr.is_ok_and(|attr| attr.blocks == 0 && attr.size > 0) {
            self.attr_cache.drop_attr(ino);
        }
    }

    /// Returns attributes as the kernel is told them.
    pub(super) fn attr_of(&self, attr: &Attr) -> reply::Attr {
        self.with_mapped(convert::attr(attr))
    }

    /// Counts a chunk for a file that has no blocks and was read: it may have pages that are dirty
    /// through a mapping, and programs take 0 blocks to mean that there is nothing to read.
    pub(super) fn with_mapped(&self, mut attr: reply::Attr) -> reply::Attr {
        let looks_empty = attr.blocks == 0 && attr.size > 0 && attr.mode & S_IFMT == S_IFREG;
        if looks_empty && self.fs.cached_pages(attr.ino).some {
            attr.blocks = CHUNK_UNITS;
        }
        attr
    }
}
