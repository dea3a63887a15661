//! The file systems of one moment, and the numbers of their inodes.
//!
//! A snapshot shows the clones that lie in its directory. Each has trees of its own, in which inode
//! numbers are given out again, so a number in a snapshot also says in which file system:
//!
//! ```text
//!   43                                   0
//!  +-------+------------------------------+
//!  | part  |         inode number         |
//!  +-------+------------------------------+
//!   0        the file system that has the directory of the snapshot
//!   1, ...   the clones of the moment, in the order of their numbers
//! ```
//!
//! The part has as many bits as the number of clones needs: none without clones. What decides is
//! stored, and of the moment, so a number is the same in each life of the store.

use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::views::{VIEW_INO_BITS, ViewOpener};
use crate::{FsError, FsResult};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};

/// How inodes of several file systems are numbered.
#[derive(Debug)]
pub(crate) struct PartNumbers {
    /// Number of the view that is part 0.
    base: u64,
    /// Numbers of the clones, in order; none if there is no room for them.
    clones: Vec<u64>,
    /// Bits of the number within a part.
    ino_bits: u32,
}

impl PartNumbers {
    /// Numbers the inodes of `base`, whose next inode has the number `next`, and of `clones`.
    pub(crate) fn new(base: u64, next: u64, clones: Vec<u64>) -> Self {
        debug_assert!(clones.is_sorted(), "the order is that of the numbers");
        let part_bits = u64::BITS - (clones.len() as u64).leading_zeros();
        let whole = Self {
            base,
            clones: Vec::new(),
            ino_bits: VIEW_INO_BITS,
        };
        let shared = Self {
            clones,
            ino_bits: VIEW_INO_BITS.saturating_sub(part_bits),
            ..whole
        };
        debug_assert!(
            shared.clones.is_empty() || shared.ino_bits < VIEW_INO_BITS,
            "a clone needs bits of its own"
        );
        match shared.has_room_for(next) {
            true => shared,
            false => Self {
                clones: Vec::new(),
                ino_bits: VIEW_INO_BITS,
                ..shared
            },
        }
    }

    /// Reports whether a part has numbers for all inodes of a file system, by its next one.
    fn has_room_for(&self, next: u64) -> bool {
        debug_assert!(
            self.ino_bits <= VIEW_INO_BITS,
            "the part is above the number"
        );
        next <= 1 << self.ino_bits
    }

    /// Returns what numbers of a view have beside the inode's; `None` without room for it.
    pub(crate) fn first(&self, view: u64) -> Option<u64> {
        if view == self.base {
            return Some(0);
        }
        let rank = self.clones.binary_search(&view).ok()?;
        let first = (rank as u64 + 1) << self.ino_bits;
        debug_assert!(
            first < 1 << VIEW_INO_BITS,
            "a snapshot has room for the part"
        );
        Some(first)
    }

    /// Returns the view that a number is in, and the inode's number there.
    fn split(&self, number: Ino) -> Option<(u64, Ino)> {
        let within = Ino(number.0 & ((1 << self.ino_bits) - 1));
        let part = usize::try_from(number.0 >> self.ino_bits).ok()?;
        let view = match part.checked_sub(1) {
            None => self.base,
            Some(rank) => *self.clones.get(rank)?,
        };
        debug_assert!(
            view == self.base || self.first(view) == Some(number.0 - within.0),
            "a number leads there and back"
        );
        Some((view, within))
    }
}

/// The file systems of a moment, opened when they are needed and kept.
#[derive(Debug)]
pub(super) struct PastViews {
    pub(super) mainline: Arc<FileSystem>,
    clones: Mutex<BTreeMap<u64, Arc<FileSystem>>>,
    /// Where reads of clones are noted.
    reads: Option<Arc<ReadSet>>,
    readers_keep_contents: bool,
}

impl PastViews {
    pub(super) fn new(mainline: FileSystem) -> Self {
        debug_assert!(mainline.is_read_only(), "the past does not change");
        debug_assert_eq!(mainline.view_number(), 0, "0 is mainline");
        Self {
            mainline: Arc::new(mainline),
            clones: Mutex::default(),
            reads: None,
            readers_keep_contents: false,
        }
    }

    /// See [`super::SnapshotView::readers_keep_contents`].
    pub(super) fn readers_keep_contents(&mut self) {
        self.readers_keep_contents = true;
        self.mainline.readers_keep_contents();
        let clones = self.clones.lock();
        clones.values().for_each(|fs| fs.readers_keep_contents());
    }

    /// See [`super::SnapshotView::note_reads`].
    pub(super) fn note_reads(&mut self, reads: Arc<ReadSet>) {
        debug_assert!(self.clones.lock().is_empty(), "no clone was read before");
        debug_assert!(self.reads.is_none(), "one transaction has the pin");
        self.reads = Some(reads);
    }

    /// Returns the file system of a view, opened. The directory of a clone is known in it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there was none.
    pub(super) fn open(&self, view: u64) -> FsResult<Arc<FileSystem>> {
        if view == 0 {
            return Ok(Arc::clone(&self.mainline));
        }
        let mut clones = self.clones.lock();
        if let Some(fs) = clones.get(&view) {
            return Ok(Arc::clone(fs));
        }
        let fs = Arc::new(ViewOpener::of(&self.mainline).open_past(view, self.reads.as_deref())?);
        debug_assert_eq!(fs.view_number(), view, "the view that was asked for");
        debug_assert!(fs.is_read_only(), "the past does not change");
        if self.readers_keep_contents {
            fs.readers_keep_contents();
        }
        clones.insert(view, Arc::clone(&fs));
        Ok(fs)
    }

    /// Returns the file system of a view, if it is open.
    fn find(&self, view: u64) -> Option<Arc<FileSystem>> {
        let found = match view {
            0 => Some(Arc::clone(&self.mainline)),
            view => self.clones.lock().get(&view).map(Arc::clone),
        };
        debug_assert!(found.as_ref().is_none_or(|fs| fs.view_number() == view));
        found
    }

    /// Returns the views that are open.
    fn opened(&self) -> Vec<u64> {
        let clones = self.clones.lock();
        debug_assert!(!clones.contains_key(&0), "mainline is apart");
        std::iter::once(0).chain(clones.keys().copied()).collect()
    }
}

/// One of the file systems of a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotPart {
    fs: Arc<FileSystem>,
    /// What numbers in the snapshot have beside the inode's.
    first: u64,
    root: Ino,
}

impl SnapshotPart {
    /// Returns the file system, which can be read only.
    #[must_use]
    pub const fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns the directory that is shown of it, in its own numbers: what is above is not.
    #[must_use]
    pub const fn root(&self) -> Ino {
        self.root
    }

    /// Returns the number that an inode has in the snapshot.
    #[must_use]
    pub fn number(&self, ino: Ino) -> Ino {
        debug_assert!(
            self.first == 0 || ino.0 < self.first,
            "a part has room for its inodes"
        );
        Ino(self.first | ino.0)
    }
}

impl super::SnapshotView {
    /// Returns the file system that an inode of the snapshot is in, and its number there.
    ///
    /// # Errors
    /// [`FsError::Stale`] for a number that was not given out.
    pub fn part(&self, number: Ino) -> FsResult<(SnapshotPart, Ino)> {
        let stale = || FsError::Stale(number);
        let (view, ino) = self.numbers.split(number).ok_or_else(stale)?;
        let part = self.part_of(view).map_err(|error| match error {
            FsError::NotFound => stale(),
            other => other,
        })?;
        debug_assert_eq!(part.number(ino), number, "the number leads there and back");
        Ok((part, ino))
    }

    /// Returns the same, if the file system is open.
    #[must_use]
    pub fn open_part(&self, number: Ino) -> Option<(SnapshotPart, Ino)> {
        let (view, ino) = self.numbers.split(number)?;
        let fs = self.views.find(view)?;
        let part = self.part_with(view, fs).ok()?;
        debug_assert_eq!(part.number(ino), number, "the number leads there and back");
        Some((part, ino))
    }

    /// Returns the file systems that are open.
    #[must_use]
    pub fn open_parts(&self) -> Vec<SnapshotPart> {
        let opened = self.views.opened();
        debug_assert!(opened.is_sorted(), "mainline, then clones by number");
        let opened = opened.into_iter();
        let part = |view| self.part_with(view, self.views.find(view)?).ok();
        opened.filter_map(part).collect()
    }

    /// Returns the clone that lies at a directory of a part, opened.
    ///
    /// # Errors
    /// [`FsError::NumbersTooLarge`] if the numbers of a snapshot have no room for its inodes.
    pub fn clone_in(&self, part: &SnapshotPart, dir: Ino) -> FsResult<Option<SnapshotPart>> {
        let found = part.fs.clone_at(dir);
        found.map(|info| self.part_of(info.number)).transpose()
    }

    /// Returns the low bits of a number that are the inode's in its file system, and the clones
    /// that the bits above stand for: 1 for the first one, and 0 for the file system of the
    /// snapshot.
    #[must_use]
    pub fn numbered_clones(&self) -> (u32, &[u64]) {
        debug_assert!(self.numbers.clones.is_sorted(), "part 1 is the first one");
        (self.numbers.ino_bits, &self.numbers.clones)
    }

    /// Returns what numbers of inodes of a view have beside these; `None` without room for it.
    pub(crate) fn first_number(&self, view: u64) -> Option<u64> {
        debug_assert!(view > 0, "mainline is no clone");
        self.numbers.first(view)
    }

    /// Returns the number of the directory of the clone that lies at a directory of a part, if one
    /// does and numbers have room for it. Opens nothing.
    #[must_use]
    pub fn number_of_clone(&self, part: &SnapshotPart, dir: Ino) -> Option<Ino> {
        let info = part.fs.clone_at(dir)?;
        let first = self.numbers.first(info.number)?;
        debug_assert_eq!(info.home, part.fs.view_number(), "it lies in the part");
        Some(Ino(first | info.root.0))
    }

    fn part_of(&self, view: u64) -> FsResult<SnapshotPart> {
        if self.numbers.first(view).is_none() {
            return Err(FsError::NumbersTooLarge);
        }
        self.part_with(view, self.views.open(view)?)
    }

    fn part_with(&self, view: u64, fs: Arc<FileSystem>) -> FsResult<SnapshotPart> {
        debug_assert_eq!(fs.view_number(), view, "the file system of the view");
        let first = self.numbers.first(view);
        let first = first.filter(|_| self.numbers.has_room_for(fs.numbers.next()));
        let root = match view == self.info.view {
            true => self.info.root,
            false => fs.clone_of(view)?.root,
        };
        Ok(SnapshotPart {
            first: first.ok_or(FsError::NumbersTooLarge)?,
            fs,
            root,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << VIEW_INO_BITS;

    #[test]
    fn a_number_leads_to_its_part() {
        let numbers = PartNumbers::new(0, 1 << 20, vec![3, 5, 9]);
        assert_eq!(numbers.ino_bits, VIEW_INO_BITS - 2);
        assert_eq!(numbers.first(0), Some(0));
        for (view, part) in [(0, 0), (3, 1), (5, 2), (9, 3)] {
            let first = numbers.first(view).unwrap();
            assert_eq!(first, part << numbers.ino_bits);
            let number = Ino(first | 77);
            assert!(number.0 < ALL);
            assert_eq!(numbers.split(number), Some((view, Ino(77))));
        }
        assert_eq!(numbers.first(4), None);
    }

    #[test]
    fn without_clones_a_number_is_the_inodes() {
        let numbers = PartNumbers::new(7, ALL / 2, Vec::new());
        let last = Ino(ALL - 1);
        assert_eq!(numbers.split(last), Some((7, last)));
        assert_eq!(numbers.first(0), None);
    }

    #[test]
    fn the_directory_is_part_0_also_if_a_clone_has_it() {
        let numbers = PartNumbers::new(5, 100, vec![3, 5]);
        assert_eq!(numbers.first(5), Some(0));
        assert_eq!(numbers.first(3), Some(1 << (VIEW_INO_BITS - 2)));
        assert_eq!(numbers.split(Ino(3 << (VIEW_INO_BITS - 2))), None);
    }

    #[test]
    fn large_inode_numbers_leave_no_room_for_clones() {
        let one = PartNumbers::new(0, ALL / 2, vec![1]);
        assert_eq!(one.first(1), Some(ALL / 2));
        let none = PartNumbers::new(0, ALL / 2 + 1, vec![1]);
        assert_eq!(none.first(1), None);
        assert_eq!(none.split(Ino(ALL - 1)), Some((0, Ino(ALL - 1))));
    }
}
