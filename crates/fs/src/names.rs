//! Negative entries: names that are known to be missing without a read of the trees.
//!
//! A program that makes a file looks its name up first, and mostly finds nothing. That must cost no
//! read.
//!
//! 1. A directory is *known up to* a hash, its mark: the hashes of all names up to there are in
//!    memory. A hash that is not among them belongs to no name. For one that is, the trees are
//!    asked. A new directory is *whole*: known up to the largest hash. Each page of a walk that
//!    begins at the mark or before it moves the mark on, and the last page makes the directory
//!    whole.
//! 2. Beyond the mark the names that were missed last are kept, see [`missing`].
//!
//! Invariants:
//! - the hashes of a directory are those of all its names up to the mark, and perhaps others. A
//!   hash is added before the commit that puts its name, and removed after the commit that deletes
//!   it. Names beyond the mark are not tracked: the walk will meet them;
//! - two names up to the mark never have one hash, so that a hash is removed with its name. Each
//!   new name was looked up before, in the locked directory. Where its hash was known and the name
//!   was missing, the directory is given up. That also removes a hash that a failed commit left.
//!
//! Giving a directory up is always right. When all directories take more than their bound, those
//! that were not asked for lately are given up, by a clock (Corbato, A paging experiment with the
//! Multics system, 1968). So is one that takes most of the bound itself.
//!
//! Locks: the caller holds the directory's. That of a shard is taken inside, last, and held
//! briefly.

mod missing;
mod page;

use crate::locator::Locator;
use crate::lock::stripe;
use crate::spread::Spreading;
use crate::system::FileSystem;
use missing::Missing;
pub(crate) use page::Page;
use std::collections::{HashMap, HashSet};
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stitch_format::fs_key::NAME_HASH_MAX;

const SHARDS: usize = 32;
const _: () = assert!(SHARDS.is_power_of_two(), "stripes are spread evenly");
/// The mark of a directory all of whose names are known.
const WHOLE: u64 = NAME_HASH_MAX;
/// Memory of a whole directory without its hashes: its entry, and its place in the table, both at
/// worst twice.
const DIR_BYTES: usize = 2 * (size_of::<KnownDir>() + size_of::<(Ino, usize)>() + 1);
/// What the allocator and the end of a table of hashes take.
const TABLE_BYTES: usize = 32;

type Hashes = HashSet<u64, Spreading>;

/// Places of a table for so many hashes: a power of two, filled up to seven eighths.
const fn places_for(count: usize) -> usize {
    let places = match count {
        0 => 0,
        1..4 => 4,
        _ => (count * 8).div_ceil(7).next_power_of_two(),
    };
    debug_assert!(count == 0 || places > count, "a table is never full");
    places
}

/// Memory of a directory whose table has so many places.
const fn bytes_for(places: usize) -> usize {
    debug_assert!(
        places == 0 || places.is_power_of_two(),
        "a table is doubled"
    );
    match places {
        0 => DIR_BYTES,
        _ => DIR_BYTES + TABLE_BYTES + places * (size_of::<u64>() + 1),
    }
}

#[derive(Debug)]
struct KnownDir {
    ino: Ino,
    /// All names whose hashes are no larger are known.
    mark: u64,
    hashes: Hashes,
    /// Of the table, which never shrinks.
    places: usize,
    /// Asked for since the clock's hand came by.
    is_recent: bool,
}

impl KnownDir {
    /// Nothing is known yet.
    fn new(ino: Ino) -> Self {
        Self {
            ino,
            mark: 0,
            hashes: Hashes::default(),
            places: 0,
            is_recent: true,
        }
    }

    fn bytes(&self) -> usize {
        bytes_for(self.places)
    }

    /// Places with one hash more: twice as many if most are taken. If most are free again, the
    /// table is put in order.
    fn places_grown(&self) -> usize {
        let (count, room) = (self.hashes.len(), self.hashes.capacity());
        debug_assert!(
            self.places == 0 || self.places.is_power_of_two(),
            "a table is doubled"
        );
        if count < room || count < self.places / 16 * 7 {
            self.places
        } else {
            (self.places * 2).max(4)
        }
    }

    fn insert(&mut self, hash: u64) {
        debug_assert!(hash <= self.mark, "names beyond the mark are not tracked");
        debug_assert!(
            !self.hashes.contains(&hash),
            "names that share a hash are given up"
        );
        self.places = self.places_grown();
        self.hashes.insert(hash);
        debug_assert!(
            self.hashes.len() <= self.places,
            "the table has a place for each hash"
        );
        debug_assert!(
            places_for(self.hashes.capacity()) <= self.places,
            "the table takes what is counted"
        );
    }
}

#[derive(Debug, Default)]
struct DirShard {
    places: HashMap<Ino, usize, Spreading>,
    dirs: Vec<KnownDir>,
    hand: usize,
}

impl DirShard {
    fn get(&mut self, ino: Ino) -> Option<&mut KnownDir> {
        let &place = self.places.get(&ino)?;
        let known = &mut self.dirs[place];
        debug_assert!(known.mark <= WHOLE, "no hash is larger");
        debug_assert_eq!(known.ino, ino, "places are right");
        known.is_recent = true;
        Some(known)
    }

    fn insert(&mut self, known: KnownDir) {
        debug_assert!(known.hashes.is_empty(), "a directory begins unknown");
        let old = self.places.insert(known.ino, self.dirs.len());
        debug_assert!(old.is_none(), "a directory is known once");
        self.dirs.push(known);
        debug_assert_eq!(
            self.places.len(),
            self.dirs.len(),
            "each directory has a place"
        );
    }

    fn remove(&mut self, ino: Ino) -> Option<KnownDir> {
        let place = self.places.remove(&ino)?;
        let known = self.dirs.swap_remove(place);
        debug_assert_eq!(known.ino, ino, "places are right");
        if let Some(moved) = self.dirs.get(place) {
            self.places.insert(moved.ino, place);
        }
        debug_assert_eq!(self.places.len(), self.dirs.len());
        Some(known)
    }

    /// Takes out one that was not asked for since the hand came by, if there is one.
    fn evict(&mut self) -> Option<KnownDir> {
        for _ in 0..self.dirs.len() {
            if self.hand >= self.dirs.len() {
                self.hand = 0;
            }
            let known = self.dirs.get_mut(self.hand)?;
            debug_assert_eq!(
                self.places.get(&known.ino),
                Some(&self.hand),
                "the place of each directory is known"
            );
            self.hand += 1;
            if !std::mem::take(&mut known.is_recent) {
                let ino = known.ino;
                return self.remove(ino);
            }
        }
        debug_assert!(
            self.dirs.iter().all(|known| !known.is_recent),
            "all were asked for since the last round"
        );
        None
    }
}

/// Use of the negative entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamesUsage {
    /// Directories whose names are all known, by hash.
    pub dirs: usize,
    /// Memory that these and those take of which a part is known.
    pub bytes: usize,
    /// How often a name was known to be missing, since the file system was opened.
    pub answers: u64,
}

#[derive(Debug)]
pub(crate) struct Names {
    shards: [Mutex<DirShard>; SHARDS],
    missing: Missing,
    bytes_max: usize,
    bytes: AtomicUsize,
    answers: AtomicU64,
    /// Where room is made next.
    next_shard: AtomicUsize,
    /// The bits of hashes that are looked at: all. (In tests few, so that names share hashes.)
    mask: u64,
}

impl Names {
    /// Knows nothing yet, and takes `bytes_max` bytes at most; with 0 it never knows anything.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            missing: Missing::default(),
            bytes_max,
            bytes: AtomicUsize::new(0),
            answers: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
            mask: u64::MAX,
        }
    }

    const fn is_off(&self) -> bool {
        self.bytes_max == 0
    }

    /// Most that one directory may take, so that it does not drive out all others.
    const fn dir_bytes_max(&self) -> usize {
        self.bytes_max / 4 * 3
    }

    fn shard(&self, ino: Ino) -> &Mutex<DirShard> {
        &self.shards[stripe(ino) % SHARDS]
    }

    /// Reports whether the name of this key is surely missing. Its directory is locked.
    pub(crate) fn is_missing(&self, key: &[u8]) -> bool {
        if self.is_off() {
            return false;
        }
        let (dir, hash) = parts(key);
        let known = {
            let mut shard = self.shard(dir).lock();
            let known = shard.get(dir).filter(|known| hash <= known.mark);
            known.map(|known| !known.hashes.contains(&(hash & self.mask)))
        };
        let is_missing = known.unwrap_or_else(|| self.missing.has(dir, hash, key));
        if is_missing {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        is_missing
    }

    /// The trees have no name of this key. Its directory is locked.
    pub(crate) fn note_missing(&self, key: &[u8]) {
        if self.is_off() {
            return;
        }
        let (dir, hash) = parts(key);
        debug_assert!(dir.0 > 0, "0 is no inode");
        {
            let mut shard = self.shard(dir).lock();
            if let Some(known) = shard.get(dir).filter(|known| hash <= known.mark) {
                if known.hashes.contains(&(hash & self.mask)) {
                    // The hash belongs to another name, or to none: which of them would matter
                    // when a name is removed.
                    self.drop_from(&mut shard, dir);
                }
                return;
            }
        }
        self.missing.note(dir, hash, key);
    }

    /// Notes the directory and hash of a name that is to be put, before the commit. The directory
    /// is locked.
    pub(crate) fn add(&self, (dir, hash): (Ino, u64)) {
        debug_assert!((1..=NAME_HASH_MAX).contains(&hash), "the hash of a name");
        if self.is_off() {
            return;
        }
        self.missing.clear(dir, hash);
        {
            let mut shard = self.shard(dir).lock();
            let Some(known) = shard.get(dir).filter(|known| hash <= known.mark) else {
                return;
            };
            if !known.hashes.contains(&(hash & self.mask)) && !self.insert(known, hash) {
                self.drop_from(&mut shard, dir);
            }
        }
        self.make_room();
    }

    /// Adds a hash to those of a directory, unless it would take too much.
    fn insert(&self, known: &mut KnownDir, hash: u64) -> bool {
        debug_assert!(hash <= known.mark, "names beyond the mark are not tracked");
        if bytes_for(known.places_grown()) > self.dir_bytes_max() {
            return false;
        }
        let before = known.bytes();
        known.insert(hash & self.mask);
        debug_assert!(known.bytes() >= before, "a table never shrinks");
        debug_assert!(
            known.bytes() <= self.dir_bytes_max(),
            "no directory drives out all others"
        );
        let grown = known.bytes() - before;
        debug_assert!(
            known.hashes.contains(&(hash & self.mask)),
            "the name is found now"
        );
        self.bytes.fetch_add(grown, Ordering::Relaxed);
        true
    }

    /// The name of a directory and a hash was deleted: after the commit. The directory is locked.
    pub(crate) fn remove(&self, (dir, hash): (Ino, u64)) {
        debug_assert!((1..=NAME_HASH_MAX).contains(&hash), "the hash of a name");
        let mut shard = self.shard(dir).lock();
        if let Some(known) = shard.get(dir).filter(|known| hash <= known.mark) {
            known.hashes.remove(&(hash & self.mask));
        }
    }

    /// Reports whether a directory is surely empty. It is locked.
    pub(crate) fn is_empty(&self, dir: Ino) -> bool {
        let mut shard = self.shard(dir).lock();
        let known = shard.get(dir).filter(|known| known.mark == WHOLE);
        debug_assert!(!self.is_off() || known.is_none(), "it never knows anything");
        known.is_some_and(|known| known.hashes.is_empty())
    }

    /// Notes that a new directory has no names. No other operation knows it yet.
    pub(crate) fn learn_new(&self, dir: Ino) {
        self.learn(dir, (0, WHOLE), &[]);
    }

    /// Gives a directory up.
    pub(crate) fn give_up(&self, dir: Ino) {
        self.drop_from(&mut self.shard(dir).lock(), dir);
    }

    fn drop_from(&self, shard: &mut DirShard, dir: Ino) {
        if let Some(known) = shard.remove(dir) {
            self.count_out(&known);
        }
    }

    /// Counts a directory less.
    fn count_out(&self, known: &KnownDir) {
        debug_assert!(known.bytes() >= DIR_BYTES, "an entry takes memory");
        let bytes = self.bytes.fetch_sub(known.bytes(), Ordering::Relaxed);
        debug_assert!(bytes >= known.bytes(), "every directory is counted");
    }

    /// Gives directories up, of the shards by turns, until the rest is within the bound. No shard
    /// is locked.
    fn make_room(&self) {
        // After a round in which all had been asked for, none has.
        let mut in_vain = 0;
        while self.bytes.load(Ordering::Relaxed) > self.bytes_max && in_vain < 2 * SHARDS {
            let index = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let evicted = self.shards[index].lock().evict();
            let Some(known) = evicted else {
                in_vain += 1;
                continue;
            };
            self.count_out(&known);
        }
    }

    pub(crate) fn usage(&self) -> NamesUsage {
        let is_whole = |known: &&KnownDir| known.mark == WHOLE;
        let count = |shard: &Mutex<DirShard>| shard.lock().dirs.iter().filter(is_whole).count();
        let counts = self.shards.iter().map(count);
        NamesUsage {
            dirs: counts.sum(),
            bytes: self.bytes.load(Ordering::Relaxed),
            answers: self.answers.load(Ordering::Relaxed),
        }
    }
}

/// Directory and hash of a name's key.
fn parts(key: &[u8]) -> (Ino, u64) {
    let place = Locator::place_of(key).expect("it is the key of a name");
    debug_assert!(place.hash > 0, "0 is the row of the directory itself");
    debug_assert!(place.hash <= NAME_HASH_MAX, "no hash is larger");
    (place.parent, place.hash)
}

impl FileSystem {
    /// Returns the use of the negative entries.
    #[must_use]
    pub fn names_usage(&self) -> NamesUsage {
        self.residents.names.usage()
    }
}

#[cfg(test)]
mod tests;
