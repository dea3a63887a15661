//! The use of space by snapshots, clones, transactions, the history and directories.
//!
//! - What a snapshot or a clone *alone* needs, the engine tells: its pin, or its trees, are the
//!   holders ([`Holder`]). An open transaction is held by its trees, with those of the transactions
//!   in it. The moments of the history are one holder: they are dropped by age, and each alone
//!   would need little.
//! - What a directory *refers to* is what its rows take. A walk lists the inodes below it, and
//!   their rows are asked for in ranges, many inodes at a time and in the order of their numbers:
//!
//! ```text
//! /dir      rows of names: meta [dir, dir + 1)
//!   a, b    inodes 20, 21   data [20, 22)   xattr [20, 22)
//!   c       inode 40        data [40, 41)   xattr [40, 41)
//! ```
//!
//! Contents that several files share are referred to by each directory with one of them, and are
//! never exclusive. Rows of the `sys` tree are not counted for any owner.

mod operations;

use crate::contents::Contents;
use crate::locator::{Locator, RowRange, Tree};
use crate::pins::Pins;
use crate::residents::Residents;
use crate::schema::{Store, view_of_tree};
use crate::snapshot::pin_name;
use crate::system::FileSystem;
use crate::views::ViewSet;
use crate::{
    CloneInfo, FsError, FsResult, MomentInfo, SnapshotInfo, TransactionInfo, Transactions,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use stitch_base::clock::Timestamp;
use stitch_base::sync::Mutex;
use stitch_base::{Ino, PinId, TreeId};
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow, row_flag};
use stitch_kv::{Engine, Holder, SpaceShare};

/// Inodes whose rows are asked for at once.
const INODES_AT_ONCE: usize = 4096;
/// How often a list of snapshots and clones is made again because one was removed meanwhile.
const TRIES: usize = 16;
const _: () = assert!(INODES_AT_ONCE > 0, "some inodes at a time");

/// What comes back when a snapshot or a clone is removed, in bytes of the medium.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Snapshots in the order of their creation, each with what it alone needs.
    pub snapshots: Vec<(SnapshotInfo, u64)>,
    /// Clones in the order of their creation, likewise.
    pub clones: Vec<(CloneInfo, u64)>,
    /// Open transactions that began in mainline, likewise, each with those in it.
    pub transactions: Vec<(TransactionInfo, u64)>,
    /// The moments of the history; `None` without any.
    pub history: Option<HistoryUsage>,
    /// What nothing needs any more and background work has not given back yet.
    pub garbage_bytes: u64,
}

/// What the history needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryUsage {
    /// Number of its moments.
    pub moments: usize,
    /// The first moment.
    pub since: Timestamp,
    /// Bytes that come back when all its moments are dropped.
    pub bytes: u64,
}

/// What snapshots refer to, as far as it was asked for: they never change.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSizes(Mutex<BTreeMap<PinId, u64>>);

impl SnapshotSizes {
    fn get(&self, id: PinId) -> Option<u64> {
        self.0.lock().get(&id).copied()
    }

    /// Remembers one. Whenever as many more are remembered as before, those that are not in
    /// `listed` are forgotten, so a list of n snapshots costs n.
    fn remember(
        &self,
        id: PinId,
        bytes: u64,
        listed: impl FnOnce() -> FsResult<HashSet<PinId>>,
    ) -> FsResult<()> {
        let is_due = {
            let mut sizes = self.0.lock();
            sizes.insert(id, bytes);
            sizes.len().is_power_of_two()
        };
        if is_due {
            let listed = listed()?;
            self.0.lock().retain(|id, _| listed.contains(id));
        }
        Ok(())
    }
}

/// The space of a store, as the rows of one of its file systems and the engine tell it.
///
/// Invariant: it reads rows, pins and records of clones, and remembers sizes of snapshots alone.
#[derive(Clone, Copy)]
pub(crate) struct SpaceUse<'fs> {
    store: &'fs Store,
    pins: Pins<'fs>,
    /// Records of clones.
    views: &'fs ViewSet,
    transactions: Transactions<'fs>,
    /// Counts the inodes that have a name.
    residents: &'fs Residents,
    sizes: &'fs SnapshotSizes,
}

impl<'fs> SpaceUse<'fs> {
    fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            pins: Pins::of(fs),
            views: &fs.standing.views,
            transactions: fs.transactions(),
            residents: &fs.residents,
            sizes: &fs.snapshot_sizes,
        }
    }

    fn engine(self) -> &'fs dyn Engine {
        self.pins.engine.as_ref()
    }

    fn is_told(self) -> bool {
        self.engine().capabilities().space_shares
    }

    /// See [`crate::FileSystem::usage`].
    fn usage(self, watch: &mut dyn FnMut(u64, u64) -> bool) -> FsResult<Option<Usage>> {
        const { assert!(TRIES > 0, "it is tried") };
        let mut tried = Err(FsError::NotFound);
        for _ in 0..TRIES {
            tried = self.try_usage(watch);
            if !matches!(tried, Err(FsError::NotFound | FsError::Ended)) {
                return tried;
            }
        }
        tried
    }

    fn try_usage(self, watch: &mut dyn FnMut(u64, u64) -> bool) -> FsResult<Option<Usage>> {
        if !self.is_told() {
            return Err(FsError::Unsupported);
        }
        let (snapshots, clones) = (self.pins.snapshots()?, self.views.live());
        let (transactions, moments) = (self.transactions.with_trees()?, self.pins.moments()?);
        debug_assert!(
            moments.is_sorted_by(|one, next| one.id < next.id),
            "the first one is the oldest"
        );
        debug_assert!(
            snapshots.is_sorted_by(|one, next| one.id < next.id),
            "in the order of their creation"
        );
        debug_assert!(
            clones.is_sorted_by(|one, next| one.number < next.number),
            "in the order of their creation"
        );
        let is_empty = snapshots.is_empty() && clones.is_empty();
        if is_empty && transactions.is_empty() && moments.is_empty() {
            return Ok(Some(Usage::default()));
        }
        let past: Vec<String> = moments.iter().map(MomentInfo::pin_name).collect();
        let past: Vec<&str> = past.iter().map(String::as_str).collect();
        let pins: Vec<String> = snapshots.iter().map(|info| pin_name(&info.name)).collect();
        let mut trees: BTreeMap<u64, Vec<TreeId>> = BTreeMap::new();
        for tree in self.engine().trees() {
            if let Some(number) = view_of_tree(&tree.name) {
                trees.entry(number).or_default().push(tree.id);
            }
        }
        let of_clone = |info: &CloneInfo| trees.get(&info.number).map_or(&[][..], Vec::as_slice);
        let mut holders = vec![Holder::Garbage];
        holders.extend(pins.iter().map(|name| Holder::Pin(name)));
        holders.push(Holder::Pins(&past));
        holders.extend(clones.iter().map(|info| Holder::Trees(of_clone(info))));
        holders.extend(transactions.iter().map(|(_, trees)| Holder::Trees(trees)));
        let Some(bytes) = self.engine().exclusive_space(&holders, watch)? else {
            return Ok(None);
        };
        debug_assert_eq!(bytes.len(), holders.len(), "one for each");
        debug_assert_eq!(
            bytes.len(),
            2 + snapshots.len() + clones.len() + transactions.len(),
            "garbage and the history, then one for each"
        );
        // In the order of the holders.
        let mut bytes = bytes.into_iter();
        let garbage_bytes = bytes.next().unwrap_or_default();
        let snapshots = snapshots.into_iter().zip(bytes.by_ref()).collect();
        let history = bytes.next().unwrap_or_default();
        let clones = clones.into_iter().zip(bytes.by_ref()).collect();
        let transactions = transactions.into_iter().map(|(info, _)| info);
        Ok(Some(Usage {
            snapshots,
            clones,
            transactions: transactions.zip(bytes).collect(),
            history: moments.first().map(|first| HistoryUsage {
                moments: moments.len(),
                since: first.created,
                bytes: history,
            }),
            garbage_bytes,
        }))
    }

    /// See [`crate::FileSystem::directory_space`].
    fn directory_space(
        self,
        dir: Ino,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> FsResult<Option<SpaceShare>> {
        if !self.is_told() {
            return Err(FsError::Unsupported);
        }
        let mut walk = SpaceWalk {
            space: self,
            dirs: vec![dir],
            met: HashSet::from([dir]),
            inodes: Vec::new(),
            contents: BTreeSet::new(),
            share: SpaceShare::default(),
        };
        let (mut seen, total) = (0, self.residents.inode_count());
        while let Some(dir) = walk.dirs.pop() {
            if !watch(seen, total.max(seen)) {
                return Ok(None);
            }
            seen += walk.directory(dir)?;
        }
        debug_assert!(walk.dirs.is_empty(), "all directories were read");
        walk.count_inodes()?;
        walk.count_contents()?;
        debug_assert!(walk.inodes.is_empty(), "all rows were counted");
        debug_assert!(walk.contents.is_empty(), "all rows were counted");
        debug_assert!(
            walk.share.exclusive_bytes <= walk.share.referenced_bytes,
            "what it alone needs is a part"
        );
        Ok(Some(walk.share))
    }

    /// See [`crate::FileSystem::snapshot_size`].
    fn snapshot_size(
        self,
        name: &str,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> FsResult<Option<u64>> {
        let info = self.pins.snapshot(name)?;
        if let Some(bytes) = self.sizes.get(info.id) {
            return Ok(Some(bytes));
        }
        let view = self.pins.open_snapshot(name)?;
        debug_assert_eq!(view.info().name, name, "the snapshot that was asked for");
        let share = view.fs().directory_space(view.info().root, watch)?;
        let bytes = share.map(|share| share.referenced_bytes);
        if let (Some(bytes), true) = (bytes, view.info().id == info.id) {
            let ids = |listed: Vec<SnapshotInfo>| listed.iter().map(|info| info.id).collect();
            let listed = || self.pins.snapshots().map(ids);
            self.sizes.remember(info.id, bytes, listed)?;
        }
        Ok(bytes)
    }
}

/// A walk below a directory.
struct SpaceWalk<'fs> {
    space: SpaceUse<'fs>,
    /// Directories to be read.
    dirs: Vec<Ino>,
    /// Directories and inodes with several names that were met: each is counted once, also where
    /// damaged rows form a ring.
    met: HashSet<Ino>,
    /// Inodes with rows in the `data` or the `xattr` tree, not counted yet.
    inodes: Vec<(Tree, Ino)>,
    /// Shared contents of these inodes and of earlier ones.
    contents: BTreeSet<Ino>,
    share: SpaceShare,
}

impl SpaceWalk<'_> {
    /// Counts the rows of a directory and notes what is in it. Returns the number of its names.
    fn directory(&mut self, dir: Ino) -> FsResult<u64> {
        let store = self.space.store;
        self.count(&[store.keys.directory(dir)])?;
        let mut links = Vec::new();
        let mut names = 0;
        let mut scan = store.scan(&store.keys.dentries(dir))?;
        while let Some((key, row)) = scan.next()? {
            debug_assert_eq!(Locator::ino_of(key), Some(dir), "a row of the directory");
            names += 1;
            match MetaRow::decode(row)? {
                MetaRow::Inode(head, _) => self.note(&head)?,
                MetaRow::Link { ino, .. } if self.met.insert(ino) => links.push(ino),
                MetaRow::Link { .. } => {}
            }
        }
        drop(scan);
        for ino in links {
            let Some((head, _)) = store.own_row(ino)? else {
                return Err(FsError::Corrupt(format!(
                    "a link names inode {ino}, which is not"
                )));
            };
            self.count(&[store.keys.directory(ino)])?;
            self.note(&head)?;
        }
        if self.inodes.len() >= INODES_AT_ONCE {
            self.count_inodes()?;
        }
        Ok(names)
    }

    fn note(&mut self, head: &InodeHead) -> FsResult<()> {
        match Contents::of_inode(head) {
            Some(Contents::Chunked) if head.size > 0 => self.inodes.push((Tree::Data, head.ino)),
            Some(Contents::Shared) => {
                let row = self.space.store.shared_row(head.ino)?;
                self.inodes.push((Tree::Data, row.own));
                self.contents.extend(row.contents);
            }
            // Its plain file is its own.
            Some(Contents::External) => self.share.add(SpaceShare {
                referenced_bytes: head.size,
                exclusive_bytes: head.size,
            }),
            _ => {}
        }
        if head.has(row_flag::XATTRS) {
            self.inodes.push((Tree::Xattr, head.ino));
        }
        if head.kind == FileKind::Directory && self.met.insert(head.ino) {
            self.dirs.push(head.ino);
        }
        Ok(())
    }

    /// Counts contents that files below the directory share with each other or with other files.
    fn count_contents(&mut self) -> FsResult<()> {
        debug_assert!(self.inodes.is_empty(), "own contents are counted first");
        let (keys, exclusive_bytes) = (self.space.store.keys, self.share.exclusive_bytes);
        let ranges: Vec<RowRange> = std::mem::take(&mut self.contents)
            .into_iter()
            .map(|number| keys.chunks_from(number, 0))
            .collect();
        for ranges in ranges.chunks(INODES_AT_ONCE) {
            self.count(ranges)?;
        }
        self.share.exclusive_bytes = exclusive_bytes;
        Ok(())
    }

    /// Counts the rows of the inodes that were noted. Neighbours are one range.
    fn count_inodes(&mut self) -> FsResult<()> {
        let mut inodes = std::mem::take(&mut self.inodes);
        inodes.sort_unstable_by_key(|(tree, ino)| (*tree == Tree::Xattr, *ino));
        inodes.dedup();
        let keys = self.space.store.keys;
        let follow = |a: &(Tree, Ino), b: &(Tree, Ino)| a.0 == b.0 && a.1.0 + 1 == b.1.0;
        let ranges: Vec<RowRange> = inodes
            .chunk_by(follow)
            .filter_map(|run| {
                let ((tree, first), (_, last)) = (*run.first()?, *run.last()?);
                debug_assert!(first <= last, "neighbours are in their order");
                Some(keys.inodes(tree, first, Ino(last.0 + 1)))
            })
            .collect();
        debug_assert!(
            ranges
                .windows(2)
                .all(|pair| pair[0].tree() != pair[1].tree() || pair[0].end() <= pair[1].start()),
            "each row is counted once"
        );
        let (data, xattrs): (Vec<_>, Vec<_>) = ranges
            .into_iter()
            .partition(|range| range.tree() == Tree::Data);
        debug_assert!(
            xattrs.iter().all(|range| range.tree() == Tree::Xattr),
            "rows of two trees"
        );
        self.count(&data)?;
        self.count(&xattrs)
    }

    /// Counts ranges of one tree.
    fn count(&mut self, ranges: &[RowRange]) -> FsResult<()> {
        let Some(first) = ranges.first() else {
            return Ok(());
        };
        debug_assert!(
            ranges.iter().all(|range| range.tree() == first.tree()),
            "ranges of one tree"
        );
        let tree = self.space.store.tree(first.tree());
        let keys: Vec<_> = ranges.iter().map(RowRange::keys).collect();
        let share = self.space.engine().range_space(tree, &keys, None)?;
        debug_assert!(
            share.exclusive_bytes <= share.referenced_bytes,
            "what it alone needs is a part"
        );
        self.share.add(share);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_remembered_and_a_list_of_snapshots_is_read_a_few_times() {
        let (sizes, mut lists) = (SnapshotSizes::default(), 0);
        for id in 1..=1000 {
            let listed = || {
                lists += 1;
                Ok((1..=1000).map(PinId).collect())
            };
            let remembered = sizes.remember(PinId(id), 10 * id, listed);
            remembered.expect("the list is read");
        }
        assert_eq!(lists, 10, "at 1, 2, 4, ..., 512");
        assert_eq!(sizes.get(PinId(1000)), Some(10_000));
        assert_eq!(sizes.get(PinId(1001)), None);
        // Of those that were deleted no more are kept than of others.
        for id in 1001..=1024 {
            let listed = || Ok((1020..=1024).map(PinId).collect());
            let remembered = sizes.remember(PinId(id), id, listed);
            remembered.expect("the list is read");
        }
        assert_eq!(
            (sizes.get(PinId(1)), sizes.get(PinId(1020))),
            (None, Some(1020))
        );
        assert_eq!(sizes.0.lock().len(), 5);
    }
}
