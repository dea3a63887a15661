//! Prefetching: what is likely to be read next is guessed from what was read last, and the engine
//! loads it.
//!
//! | history | access pattern | prefetched |
//! |---|---|---|
//! | [`sequential`] | reads of a file follow each other | the next megabytes of the file |
//! | [`siblings`] of reads | small files of a directory are read whole | its other files |
//! | [`siblings`] of listings | directory after directory is listed | names of the next ones |
//! | [`walk`] | directories are read in the order of listing | files of the next ones |
//!
//! Invariants:
//! - a guess changes no row and fails no operation: errors surface on the foreground read;
//! - the history of each pattern is bounded, and so are the bytes that one guess asks for;
//! - no lock of the file system is taken, and none of a history is held while the engine is called,
//!   but that of the walk, which no reader waits for.

mod sequential;
mod siblings;
mod slots;
mod walk;

use crate::inode::{Inode, Inodes};
use crate::schema::Store;
use sequential::LastReads;
use siblings::Siblings;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_db::{Caching, Coming};
use stitch_format::fs_inode::InodeHead;
use stitch_format::fs_key::CHUNK_BYTES;
use walk::Walk;

/// The access history of an open file system.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    last_reads: LastReads,
    /// Directories whose files are read.
    siblings: Siblings,
    walk: Walk,
    /// Directories that hold the directories that are listed.
    listings: Siblings,
    /// Readers keep what they have read.
    bypasses_cache: AtomicBool,
}

impl Prefetch {
    /// From now on prefetched contents bypass the cache of the engine: the reader keeps them.
    pub(crate) fn bypass_cache(&self) {
        self.bypasses_cache.store(true, Ordering::Relaxed);
    }

    fn caching(&self) -> Caching {
        match self.bypasses_cache.load(Ordering::Relaxed) {
            true => Caching::Past,
            false => Caching::IfRoom,
        }
    }
}

/// The access history with what guesses are made from: rows, and where known directories are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetcher<'fs> {
    history: &'fs Prefetch,
    store: &'fs Store,
    inodes: &'fs Inodes,
}

impl<'fs> Prefetcher<'fs> {
    pub(crate) const fn new(
        history: &'fs Prefetch,
        store: &'fs Store,
        inodes: &'fs Inodes,
    ) -> Self {
        Self {
            history,
            store,
            inodes,
        }
    }

    /// Prefetches what comes after a read of `len` bytes of a file in chunks, which are under
    /// `number`, and with a read of its start the other files of its directory, where they are
    /// likely to be read.
    pub(crate) fn file_read(&self, inode: &Inode, number: Ino, offset: u64, len: u64) {
        self.read_on(&inode.head, number, offset, len);
        if offset == 0 {
            self.siblings_of(inode);
        }
    }

    /// Prefetches the next range of a file whose reads follow each other.
    fn read_on(&self, head: &InodeHead, number: Ino, offset: u64, len: u64) {
        let last_reads = &self.history.last_reads;
        let next = last_reads.note(head.ino, offset, len, head.size);
        let caching = self.history.caching();
        for piece in LastReads::pieces(next) {
            let chunks = piece.start / CHUNK_BYTES..piece.end.div_ceil(CHUNK_BYTES);
            let range = self.store.keys.chunks(number, &chunks);
            self.store.read_ahead(&range, Coming::InOrder, caching);
        }
    }
}
