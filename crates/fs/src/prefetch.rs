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
//! The guesses are those of one [`Policy`], a pure state machine. A [`Prefetcher`] brings it events
//! and what it asks for, and hands its hints to the engine.
//!
//! Invariants:
//! - a guess changes no row and fails no operation: errors surface on the foreground read;
//! - the history of each pattern is bounded, and so are the bytes that one guess asks for;
//! - no lock of the file system is taken, and that of the policy is not held while the engine is
//!   called.

mod listing;
mod policy;
mod sequential;
mod siblings;
mod slots;
mod walk;

use crate::inode::{Inode, Inodes};
use crate::schema::Store;
use listing::{Listing, is_prefetched};
use policy::{HashedName, Load, LoadSpan, Need, Observation, Policy};
use sequential::FileRead;
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_db::{ReadHint, ReadOrder};
use stitch_format::fs_key::CHUNK_BYTES;

/// Most events of one read: itself, the files of its directory, and the next directories.
const EVENTS_MAX: usize = 3;

/// The access history of an open file system.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    policy: Mutex<Policy>,
    /// Readers keep what they have read.
    bypasses_cache: AtomicBool,
}

impl Prefetch {
    /// From now on prefetched contents bypass the cache of the engine: the reader keeps them.
    pub(crate) fn bypass_cache(&self) {
        self.bypasses_cache.store(true, Ordering::Relaxed);
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
        debug_assert!(len > 0, "something is read");
        debug_assert!(offset + len <= inode.head.size, "within the size");
        let head = &inode.head;
        self.observe(Observation::Read(FileRead {
            contents: number,
            offset,
            len,
            size: head.size,
        }));
        if offset == 0
            && is_prefetched(head)
            && let Some(name) = HashedName::of(inode, self.store)
        {
            self.observe(Observation::Started(name));
        }
    }

    /// Prefetches the names of a directory that is about to be listed, and of its neighbours, where
    /// directory after directory is listed.
    pub(crate) fn dir_listed(&self, inode: &Inode) {
        debug_assert!(inode.is_dir(), "names are in directories");
        if let Some(name) = HashedName::of(inode, self.store) {
            let dir = inode.head.ino;
            self.observe(Observation::Listed { dir, name });
        }
    }

    /// Brings an event to the policy, hands its hints to the engine, and brings what it must know
    /// then, until it asks for nothing.
    fn observe(&self, event: Observation) {
        let (mut next, mut count) = (Some(event), 0);
        while let Some(event) = next {
            count += 1;
            debug_assert!(count <= EVENTS_MAX, "each need is answered once");
            let (loads, need) = self.history.policy.lock().observe(event);
            for load in loads {
                debug_assert!(load.of.0 > 0, "0 is no inode");
                if self.load(&load) {
                    continue;
                }
                self.history.policy.lock().refused(&load);
                if load.order() == ReadOrder::Sequential {
                    // The pieces behind it are read after it.
                    break;
                }
            }
            next = need.map(|need| self.answer(need));
        }
    }

    /// Has rows loaded. Reports whether there was memory for them.
    fn load(&self, load: &Load) -> bool {
        let keys = &self.store.keys;
        let chunk = |ino| keys.chunk(ino, 0);
        let own = |ino| keys.own(ino);
        let (range, beyond) = match &load.span {
            LoadSpan::Bytes(bytes) => {
                debug_assert!(bytes.start < bytes.end, "some bytes are loaded");
                let chunks = bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES);
                (keys.chunks(load.of, &chunks), None)
            }
            LoadSpan::Files(numbers) => {
                debug_assert!(numbers.start < numbers.end, "some files are loaded");
                debug_assert!(
                    load.beyond.is_none_or(|beyond| beyond.0 >= numbers.end),
                    "it is behind the files"
                );
                let files = keys.chunks_of(Ino(numbers.start), Ino(numbers.end));
                (files, load.beyond.map(chunk))
            }
            LoadSpan::Names => {
                debug_assert!(
                    load.beyond.is_none_or(|beyond| beyond > load.of),
                    "it is behind the directory"
                );
                (keys.directory(load.of), load.beyond.map(own))
            }
        };
        let is_contents = load.span != LoadSpan::Names;
        let hint = ReadHint {
            range: range.keys(),
            beyond: beyond.as_deref(),
            order: load.order(),
            priority: load.priority,
            once: is_contents && self.history.bypasses_cache.load(Ordering::Relaxed),
        };
        self.store.read_ahead(range.tree(), &hint)
    }

    /// Returns what the policy must know. Errors surface on the foreground read.
    fn answer(&self, need: Need) -> Observation {
        match need {
            Need::Files(guess) => {
                let found = Listing::of(self.store, guess.dir, guess.from_hash);
                Observation::Files(guess, found.ok())
            }
            Need::NextDirs {
                mut order,
                dirs,
                bytes,
            } => {
                let found = order.next_dirs((self.store, self.inodes), dirs, bytes);
                debug_assert!(found.len() <= dirs, "no more than was asked for");
                Observation::NextDirs(order, found)
            }
        }
    }
}
