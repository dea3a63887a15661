//! Which inodes the kernel is to be asked to forget, so that the table stays within its bound.
//!
//! The table cannot drop an entry by itself: the kernel goes on to use the number. So the front end
//! asks the kernel to let go of what it does not use, and it answers with `forget`, or not at all
//! for what is open, a working directory, or above something that is cached.
//!
//! The shards are searched in turn. Each gives away its least recently seen entries down to
//! seven eighths of its share. What was named counts as just seen: it is named again only after all
//! others. A directory is as recent as what was looked up in it, so it is named after that.

use super::{Inodes, Node, SHARDS};
use stitch_base::Ino;
use stitch_base::sync::atomic::Ordering;

/// Memory that one inode takes which is known: its entry, its place in the table, a name of usual
/// length, and hints.
pub const INODE_BYTES: usize = 272;

impl Inodes {
    /// Reports whether more inodes are known than are to be.
    pub(crate) fn is_crowded(&self) -> bool {
        self.count() > self.count_max
    }

    /// Reports whether an inode is known.
    pub(crate) fn is_known(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    pub(super) fn numbers(&self) -> Vec<Ino> {
        let shards = self.shards.iter();
        let numbers: Vec<Ino> = shards
            .flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>())
            .collect();
        debug_assert!(numbers.contains(&Ino::ROOT), "the root is known");
        numbers
    }

    pub(super) fn unused(&self, count_max: usize) -> Vec<Ino> {
        let mut found = Vec::new();
        for _ in 0..SHARDS {
            if found.len() >= count_max || !self.is_crowded() {
                break;
            }
            let index = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            debug_assert!(found.len() < count_max, "more are asked for");
            self.unused_of(index, count_max - found.len(), &mut found);
        }
        debug_assert!(found.len() <= count_max, "no more than was asked for");
        found
    }

    fn unused_of(&self, index: usize, count_max: usize, found: &mut Vec<Ino>) {
        debug_assert!(index < SHARDS, "one of the shards");
        let now = self.moment();
        let mut shard = self.shards[index].lock();
        let keep = self.count_max / SHARDS * 7 / 8;
        let excess = shard.len().saturating_sub(keep).min(count_max);
        debug_assert!(keep <= self.count_max, "a share of all");
        let is_unused = |node: &Node| node.handles == 0 && node.pins == 0;
        let nodes = shard.values_mut();
        let mut nodes: Vec<&mut Box<Node>> = nodes
            .filter(|node| is_unused(node) && node.inode.head.ino != Ino::ROOT)
            .collect();
        if excess < nodes.len() {
            nodes.select_nth_unstable_by_key(excess, |node| node.seen);
            nodes.truncate(excess);
        }
        nodes.sort_unstable_by_key(|node| node.seen);
        debug_assert!(nodes.len() <= excess, "each shard keeps its share");
        for node in nodes {
            node.seen = now;
            found.push(node.inode.head.ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::HINT_BYTES;
    use crate::inode::{Hold, Inode, Location};
    use crate::testing::head;
    use stitch_format::fs_inode::FileKind;

    fn inode(ino: u64, kind: FileKind, parent: Ino) -> Inode {
        Inode {
            head: head(Ino(ino), kind),
            location: Location::entry(parent, b"name"),
            chain: 0,
            is_temp: false,
        }
    }

    /// A table for `max` inodes that knows the root and `count` files from number 100 on.
    fn table(max: usize, count: u64) -> Inodes {
        let root = inode(Ino::ROOT.0, FileKind::Directory, Ino::ROOT);
        let inodes = Inodes::new(root.head, max, None);
        for ino in 100..100 + count {
            let file = inode(ino, FileKind::Regular, Ino::ROOT);
            inodes.add(file).expect("the root is known");
        }
        inodes
    }

    fn forget_all(inodes: &Inodes, named: &[Ino]) {
        for &ino in named {
            inodes.release(ino, Hold::Lookups(u64::MAX));
        }
    }

    #[test]
    fn an_entry_takes_what_is_said() {
        // Sixteen bytes and one in the table, at worst twice that; the name's two counts.
        let in_table = 2 * 17;
        let name = 16 + 24;
        let sum = size_of::<Node>() + in_table + name + HINT_BYTES;
        assert!(sum <= INODE_BYTES, "{sum} bytes");
    }

    #[test]
    fn nothing_is_named_within_the_bound() {
        let inodes = table(1000, 999);
        assert!(!inodes.is_crowded());
        assert!(inodes.unused(1000).is_empty());
    }

    #[test]
    fn the_longest_unseen_are_named_until_the_table_fits() {
        let inodes = table(10_000, 20_000);
        // The older half is asked for again, in part.
        for ino in 100..2_100 {
            inodes.get(Ino(ino)).expect("known");
        }
        while inodes.is_crowded() {
            let named = inodes.unused(512);
            assert!(!named.is_empty() && named.len() <= 512);
            forget_all(&inodes, &named);
        }
        assert!(inodes.count() > 8_000);
        let kept = (100..2_100).filter(|&ino| inodes.find(Ino(ino)).is_some());
        assert!(kept.count() > 1_900, "what was asked for stays");
        let old = (2_100..8_000).filter(|&ino| inodes.find(Ino(ino)).is_some());
        assert!(old.count() < 600, "what was not goes");
    }

    #[test]
    fn what_is_held_is_never_named() {
        let inodes = table(100, 200);
        let dir = inode(50, FileKind::Directory, Ino::ROOT);
        inodes.add(dir).expect("the root is known");
        let below = inode(51, FileKind::Directory, Ino(50));
        inodes.add(below).expect("the directory is known");
        inodes.hold(Ino(100), Hold::Handle).expect("known");
        for _ in 0..200 {
            let named = inodes.unused(64);
            let held = [Ino::ROOT, Ino(50), Ino(100)];
            assert!(named.iter().all(|ino| !held.contains(ino)));
        }
    }

    #[test]
    fn what_stays_though_named_is_named_last() {
        let inodes = table(100, 200);
        let mut named = std::collections::HashMap::new();
        for _ in 0..20 {
            for ino in inodes.unused(10) {
                *named.entry(ino).or_insert(0_u32) += 1;
            }
        }
        assert!(named.len() > 100, "{} named", named.len());
        assert!(named.values().all(|&times| times <= 2), "{named:?}");
    }

    #[test]
    fn a_parent_is_named_after_what_was_found_in_it() {
        let inodes = table(64, 0);
        let dir = inode(2, FileKind::Directory, Ino::ROOT);
        inodes.add(dir).expect("the root is known");
        for ino in 100..400 {
            inodes.get_dir(Ino(2)).expect("known");
            let file = inode(ino, FileKind::Regular, Ino(2));
            inodes.add(file).expect("known");
        }
        inodes.get_dir(Ino(2)).expect("known");
        let first = inodes.unused(64);
        assert!(!first.is_empty());
        assert!(first.iter().all(|&ino| ino != Ino(2)));
    }
}
