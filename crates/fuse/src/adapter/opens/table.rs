//! The mode of the open files of each inode.

use std::collections::HashMap;

use stitch_base::Ino;

const O_ACCMODE: u32 = 3;
const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;

/// The access of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads only.
    Read,
    /// Writes, not through a mapping.
    Change,
    /// Reads and writes, possibly through a mapping.
    Map,
}

impl Access {
    /// Returns the access of these flags of open(2).
    pub(super) const fn of(flags: u32) -> Self {
        match flags & O_ACCMODE {
            O_RDONLY => Self::Read,
            O_RDWR => Self::Map,
            _ => Self::Change,
        }
    }
}

/// The mode of an inode's open files.
#[derive(Debug)]
pub(super) enum OpenMode<B> {
    /// Not set: there is no open file, and the first open decides.
    Unset,
    /// Through the kernel's page cache.
    Cached,
    /// Through the registered file of the host.
    Lent(B),
}

/// An inode with open files, or one that is lent.
#[derive(Debug)]
pub(super) struct Known<B> {
    count: u64,
    mode: OpenMode<B>,
    /// True if the file system has lent it.
    is_lent: bool,
    /// True if it may be written through a mapping.
    pub(super) is_mapped: bool,
}

impl<B> Known<B> {
    /// The mode is that of open files and of mappings, and goes with the last of them.
    fn check(&self) {
        let is_unset = matches!(self.mode, OpenMode::Unset);
        debug_assert_eq!(
            is_unset,
            self.count == 0 && !self.is_mapped,
            "open files have a mode"
        );
        let is_lent = matches!(self.mode, OpenMode::Lent(_));
        debug_assert!(self.is_lent || !is_lent, "the file system has lent it");
        debug_assert!(is_lent || !self.is_mapped, "mappings are of the plain file");
    }
}

/// All of them. `B` is a registered file.
#[derive(Debug)]
pub(super) struct Table<B>(HashMap<Ino, Known<B>>);

impl<B> Default for Table<B> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<B> Table<B> {
    /// Reports whether the mode of the next open file is fixed.
    pub(super) fn is_decided(&self, ino: Ino) -> bool {
        let known = self.0.get(&ino);
        known.is_some_and(|known| !matches!(known.mode, OpenMode::Unset))
    }

    /// Counts an open file. If it is the first, `lent` decides the mode. Returns the mode, whether
    /// the file may be written through a mapping from now on for the first time, and a backing file
    /// that was registered in vain.
    pub(super) fn open(
        &mut self,
        ino: Ino,
        access: Access,
        mut lent: Option<B>,
    ) -> (&OpenMode<B>, bool, Option<B>) {
        let known = self.0.entry(ino).or_insert(Known {
            count: 0,
            mode: OpenMode::Unset,
            is_lent: false,
            is_mapped: false,
        });
        known.count += 1;
        known.is_lent |= lent.is_some();
        if matches!(known.mode, OpenMode::Unset) {
            known.mode = lent.take().map_or(OpenMode::Cached, OpenMode::Lent);
        }
        let may_map = access == Access::Map && matches!(known.mode, OpenMode::Lent(_));
        let is_newly_mapped = may_map && !known.is_mapped;
        known.is_mapped |= may_map;
        known.check();
        (&known.mode, is_newly_mapped, lent)
    }

    /// Removes an open file. Returns the backing file that the kernel no longer needs.
    pub(super) fn release(&mut self, ino: Ino) -> Option<B> {
        let known = self.0.get_mut(&ino)?;
        debug_assert!(known.count > 0, "what is closed was open");
        known.count = known.count.saturating_sub(1);
        if known.count > 0 {
            known.check();
        }

        if known.count > 0 || known.is_mapped {
            return None;
        }
        let mode = std::mem::replace(&mut known.mode, OpenMode::Unset);
        known.check();
        if !known.is_lent {
            self.0.remove(&ino);
        }
        match mode {
            OpenMode::Lent(backing) => Some(backing),
            OpenMode::Unset | OpenMode::Cached => None,
        }
    }

    /// Reports whether the inode has open files or is lent.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.0.contains_key(&ino)
    }

    /// Removes an inode that the kernel has forgotten.
    pub(super) fn forget(&mut self, ino: Ino) -> Option<Known<B>> {
        self.0.remove(&ino)
    }

    /// Reports whether the inode may be written through a mapping.
    pub(super) fn is_mapped(&self, ino: Ino) -> bool {
        self.0.get(&ino).is_some_and(|known| known.is_mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    const INO: Ino = Ino(7);

    /// The kernel's open files of one inode, with its rules.
    #[derive(Debug, Default)]
    struct Kernel {
        cached: u64,
        lent: u64,
        backing: Option<u32>,
    }

    impl Kernel {
        fn open(&mut self, backing: Option<u32>) {
            match backing {
                Some(id) => {
                    assert_eq!(self.cached, 0, "EIO: the cache is in use");
                    assert!(self.backing.is_none_or(|b| b == id), "EIO: another file");
                    (self.lent, self.backing) = (self.lent + 1, Some(id));
                }
                None => {
                    assert_eq!(self.backing, None, "EIO: it is lent");
                    self.cached += 1;
                }
            }
        }

        fn close(&mut self, is_lent: bool) {
            if !is_lent {
                self.cached -= 1;
                return;
            }
            self.lent -= 1;
            if self.lent == 0 {
                self.backing = None;
            }
        }
    }

    fn id(mode: &OpenMode<u32>) -> Option<u32> {
        match mode {
            OpenMode::Lent(id) => Some(*id),
            OpenMode::Unset | OpenMode::Cached => None,
        }
    }

    /// An OPEN that was answered or is about to be.
    enum Step {
        /// A backing file may have been registered; the table is asked next.
        Asked(Access, Option<u32>),
        /// The kernel reads the reply next.
        Answered(Option<u32>),
    }

    /// Opens and closes at random, with replies and RELEASEs in flight.
    #[test]
    fn no_order_of_opens_and_closes_breaks_the_kernels_rules() {
        let (mut lent_opens, mut cached_opens) = (0, 0);
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut table, mut kernel) = (Table::default(), Kernel::default());
            let (mut steps, mut open, mut released) = (Vec::<Step>::new(), Vec::new(), 0_u64);
            let mut next = 0;
            for _ in 0..500 {
                match rng.below(5) {
                    0 if steps.len() < 3 && open.len() < 4 => {
                        let access = [Access::Read, Access::Read, Access::Change, Access::Map];
                        let access = access[usize::try_from(rng.below(4)).unwrap()];
                        next += 1;
                        let may = access == Access::Read && !table.is_decided(INO);
                        let lent = (may && rng.one_in(2)).then_some(next);
                        steps.push(Step::Asked(access, lent));
                    }
                    1 | 2 if !steps.is_empty() => {
                        let at = usize::try_from(rng.below(steps.len() as u64)).unwrap();
                        match steps.swap_remove(at) {
                            Step::Asked(access, lent) => {
                                let (mode, _, _) = table.open(INO, access, lent);
                                let mode = id(mode);
                                steps.push(Step::Answered(mode));
                            }
                            Step::Answered(backing) => {
                                kernel.open(backing);
                                open.push(backing.is_some());
                                lent_opens += u64::from(backing.is_some());
                                cached_opens += u64::from(backing.is_none());
                            }
                        }
                    }
                    3 if !open.is_empty() => {
                        kernel.close(open.swap_remove(0));
                        released += 1;
                    }
                    4 if released > 0 => {
                        released -= 1;
                        table.release(INO);
                    }
                    _ => {}
                }
                let is_idle = steps.is_empty() && open.is_empty() && released == 0;
                if is_idle && rng.one_in(2) {
                    table.forget(INO);
                }
            }
        }
        assert!(lent_opens > 1000, "{lent_opens}");
        assert!(cached_opens > 1000, "{cached_opens}");
    }

    #[test]
    fn the_first_open_decides_for_all_until_the_last_close() {
        let mut table = Table::default();
        let open = |table: &mut Table<u32>, access, lent| id(table.open(INO, access, lent).0);
        assert_eq!(open(&mut table, Access::Change, None), None);
        assert_eq!(
            open(&mut table, Access::Read, Some(1)),
            None,
            "a writer has it"
        );
        assert_eq!(table.release(INO), None);
        assert_eq!(table.release(INO), None);
        assert!(
            table.has(INO) && !table.is_decided(INO),
            "it was lent in vain"
        );
        assert_eq!(open(&mut table, Access::Read, Some(2)), Some(2));
        assert_eq!(open(&mut table, Access::Change, None), Some(2));
        assert_eq!(table.release(INO), None);
        assert_eq!(table.release(INO), Some(2));
        assert_eq!(open(&mut table, Access::Map, None), None, "as before");
        assert!(!table.is_mapped(INO));
    }

    #[test]
    fn what_may_be_mapped_to_be_written_stays_lent_until_it_is_forgotten() {
        let mut table = Table::default();
        table.open(INO, Access::Read, Some(1));
        assert!(table.open(INO, Access::Map, None).1);
        assert!(!table.open(INO, Access::Map, None).1, "it was already");
        for _ in 0..3 {
            assert_eq!(table.release(INO), None);
        }
        assert!(table.is_mapped(INO));
        assert_eq!(id(table.open(INO, Access::Change, None).0), Some(1));
        assert!(table.forget(INO).unwrap().is_mapped);
        assert!(!table.has(INO) && !table.is_mapped(INO));
    }

    #[test]
    fn flags_tell_what_a_file_is_opened_for() {
        assert_eq!(Access::of(0o100_000), Access::Read);
        assert_eq!(Access::of(0o2001), Access::Change);
        assert_eq!(Access::of(0o2), Access::Map);
    }
}
