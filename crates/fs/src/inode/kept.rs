//! The table as the ledger has it: written with every change, read by the next process.

use super::{CHAIN_UNKNOWN, CachedPages, Hold, Inode, Inodes, Location, Node, NodeShard};
use crate::ledger::{LedgerInode, Record};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::InodeHead;

impl Inodes {
    /// Adds to the log of a locked shard, and writes it anew once it is long.
    pub(super) fn write(&self, record: &Record<'_>, ino: Ino, shard: &NodeShard) {
        if let Some(register) = &self.register {
            let log = Self::index(ino);
            if register.add(log, record) {
                register.rewrite(log, shard.values().map(|node| node.entry()));
            }
        }
    }

    pub(super) fn write_count(&self, ino: Ino, shard: &NodeShard) {
        debug_assert!(shard.contains_key(&ino), "the inode is known");
        if self.register.is_some()
            && let Some(node) = shard.get(&ino)
        {
            let lookups = node.lookups;
            self.write(&Record::Count { ino, lookups }, ino, shard);
        }
    }

    pub(super) fn write_at(&self, ino: Ino, shard: &NodeShard) {
        debug_assert!(shard.contains_key(&ino), "the inode is known");
        if self.register.is_some()
            && let Some(node) = shard.get(&ino)
        {
            self.write(&node.entry().at(), ino, shard);
        }
    }

    /// Before a commit: where the row of an inode will be.
    pub(crate) fn intend(&self, new: &Inode) {
        if self.register.is_none() {
            return;
        }
        let ino = new.head.ino;
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get_mut(&ino)
            && node.inode.location != new.location
        {
            debug_assert_eq!(node.inode.head.kind, new.head.kind, "a type never changes");
            debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
            node.intent = Some(Box::new(new.clone()));
            self.write(&Record::may(new), ino, &shard);
        }
    }

    /// After a commit that failed: the row of an inode is where it was.
    pub(crate) fn stay(&self, ino: Ino) {
        if self.register.is_none() {
            return;
        }
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get_mut(&ino)
            && node.intent.take().is_some()
        {
            debug_assert_eq!(node.inode.head.ino, ino, "the inode of the number");
            self.write_at(ino, &shard);
        }
    }

    /// What the last process knew; empty in the first.
    pub(crate) fn known_before(&self) -> Vec<LedgerInode> {
        self.register
            .as_ref()
            .map(crate::ledger::Register::known)
            .unwrap_or_default()
    }

    pub(crate) fn ledger(&self) -> Option<&Arc<dyn crate::Ledger>> {
        self.register.as_ref().map(|register| &register.ledger)
    }

    /// Takes over an inode that the last process knew.
    pub(crate) fn restore(&self, known: &LedgerInode, head: InodeHead, location: Location) {
        debug_assert!(
            head.nlink == 0 || !matches!(location, Location::Memory(_)),
            "what has a name has a row"
        );
        debug_assert_eq!(known.ino, head.ino, "the inode that the last process knew");
        let inode = Inode {
            head,
            location,
            chain: CHAIN_UNKNOWN,
            is_temp: known.is_temp && head.nlink == 0,
        };
        let mut shard = self.shard(head.ino).lock();
        if let Some(root) = shard.get_mut(&head.ino) {
            debug_assert_eq!(head.ino, Ino::ROOT, "each is restored once");
            root.lookups = root.lookups.max(known.lookups);
            return;
        }
        self.count_in(&inode);
        let mut node = Node::new(inode, self.tick());
        node.lookups = known.lookups;
        // What the last process has answered to readers is not in the ledger.
        node.pages = CachedPages::ANY;
        node.check();
        shard.insert(head.ino, node);
    }

    /// Once all are restored: directories keep their parents, and the ledger says what is known
    /// now.
    pub(crate) fn restored(&self) {
        let mut pins = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let dirs = shard.values().filter(|node| node.inode.is_dir());
            let below_root = dirs.filter(|node| node.inode.head.ino != Ino::ROOT);
            pins.extend(
                below_root.filter_map(|node| Some((node.inode.head.ino, node.inode.parent()?))),
            );
        }
        for (ino, parent) in pins {
            if self.hold(parent, Hold::Pin).is_err() {
                tracing::error!(%ino, %parent, "a directory is known and its parent is not");
            }
        }
        self.drop_unheld();
        if let Some(register) = &self.register {
            for (log, shard) in self.shards.iter().enumerate() {
                let shard = shard.lock();
                register.rewrite(log, shard.values().map(|node| node.entry()));
            }
        }
    }

    /// Lets go of what nothing holds: what was known for the sake of a request that was under way.
    fn drop_unheld(&self) {
        for shard in &self.shards {
            let free: Vec<Ino> = {
                let shard = shard.lock();
                let free = shard.values().filter(|node| node.is_free());
                let inos = free.map(|node| node.inode.head.ino);
                inos.filter(|&ino| ino != Ino::ROOT).collect()
            };
            for ino in free {
                let gone = self.release(ino, Hold::Lookups(0));
                debug_assert!(gone.is_some(), "nothing holds it");
            }
        }
    }
}
