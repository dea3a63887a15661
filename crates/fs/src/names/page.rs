//! What a walk over a part of a directory teaches.

use super::{DIR_BYTES, KnownDir, Names, WHOLE};
use stitch_base::Ino;
use stitch_base::sync::atomic::Ordering;

/// The hashes that a walk has met so far, if they may move the mark on. The directory is locked
/// meanwhile.
pub(crate) struct Page {
    /// The walk has met all names from this hash on.
    start: u64,
    /// Those beyond the mark; none are wanted any more if they are too many.
    hashes: Option<Vec<u64>>,
    mark: u64,
    count_max: usize,
}

impl Page {
    /// A walk begins with the names of hash `start`.
    pub(crate) fn new(names: &Names, dir: Ino, start: u64) -> Self {
        let mark = names.mark(dir);
        debug_assert!(mark <= WHOLE, "no hash is larger");
        let count_max = names.count_max();
        let is_wanted = count_max > 0 && mark < WHOLE && start <= mark + 1;
        Self {
            start,
            hashes: is_wanted.then(Vec::new),
            mark,
            count_max,
        }
    }

    /// The walk meets a name of this hash.
    pub(crate) fn add(&mut self, hash: u64) {
        debug_assert!(hash > 0, "0 is the row of the directory itself");
        if hash <= self.mark {
            return;
        }
        if let Some(hashes) = &mut self.hashes {
            if hashes.len() < self.count_max && hash <= WHOLE {
                debug_assert!(
                    hashes.last().is_none_or(|last| *last <= hash),
                    "names come in order"
                );
                hashes.push(hash);
            } else {
                // Too many, or a row that is damaged.
                self.hashes = None;
            }
        }
    }

    /// The walk ends at a name of this hash, of which there may be more.
    pub(crate) fn end_at(self, names: &Names, dir: Ino, hash: u64) {
        debug_assert!(hash > 0, "the hash of a name");
        self.end(names, dir, hash - 1);
    }

    /// The walk came to the directory's end.
    pub(crate) fn end_whole(self, names: &Names, dir: Ino) {
        self.end(names, dir, WHOLE);
    }

    fn end(self, names: &Names, dir: Ino, end: u64) {
        debug_assert!(end <= WHOLE, "no hash is larger");
        if let Some(hashes) = self.hashes
            && end > self.mark
        {
            names.learn(dir, (self.start, end), &hashes);
        }
    }
}

impl Names {
    /// How many names a directory can have to be whole.
    const fn count_max(&self) -> usize {
        self.dir_bytes_max() / (size_of::<u64>() + 1)
    }

    /// How far a directory is known; 0 if nothing of it is. It is locked.
    pub(super) fn mark(&self, dir: Ino) -> u64 {
        let mut shard = self.shard(dir).lock();
        shard.get(dir).map_or(0, |known| known.mark)
    }

    /// These are the hashes of all names of a directory from `start` up to and including `end`, in
    /// order, and perhaps others; those up to the mark may be left out. It is locked, or no other
    /// operation knows it yet.
    pub(super) fn learn(&self, dir: Ino, (start, end): (u64, u64), hashes: &[u64]) {
        debug_assert!(hashes.is_sorted(), "a walk meets names in their order");
        debug_assert!(
            hashes.first() != Some(&0),
            "0 is the row of the directory itself"
        );
        debug_assert!(end <= WHOLE, "no hash is larger");
        debug_assert!(start <= end + 1, "a walk ends no earlier than it starts");
        {
            let mut shard = self.shard(dir).lock();
            if shard.get(dir).is_none() {
                if start > 1 || DIR_BYTES > self.dir_bytes_max() {
                    return;
                }
                self.bytes.fetch_add(DIR_BYTES, Ordering::Relaxed);
                shard.insert(KnownDir::new(dir));
            }
            let known = shard.get(dir).expect("it is there by now");
            debug_assert_eq!(known.ino, dir, "the entry of the directory");
            if start <= known.mark + 1 && !self.extend(known, end, hashes) {
                self.drop_from(&mut shard, dir);
            }
        }
        self.make_room();
    }

    /// Moves the mark of a directory on to `end`. `false` if that would take too much, or names
    /// share a hash.
    fn extend(&self, known: &mut KnownDir, end: u64, hashes: &[u64]) -> bool {
        debug_assert!(!self.is_off(), "nothing is known");
        // Another walk may have run at the same time, and come further.
        let mark = known.mark;
        known.mark = mark.max(end);
        debug_assert!(known.mark >= mark, "a mark moves on");
        debug_assert!(known.mark >= end, "all up to there is known");
        let mut new = hashes.iter().filter(|&&hash| hash > mark && hash <= end);
        new.all(|hash| {
            let is_shared = known.hashes.contains(&(hash & self.mask));
            !is_shared && self.insert(known, *hash)
        })
    }
}
