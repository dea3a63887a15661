//! Entries of several parts that follow each other: the tables of a level, the blocks of a table.

use crate::VtError;
use crate::entry::{EntryIter, EntryRef};
use stitch_base::Seqno;

/// Parts in key order. All versions of a key are in one of them.
pub(crate) trait ConcatParts {
    /// A cursor over a part.
    type Cursor: EntryIter;

    /// Number of parts.
    fn count(&self) -> usize;
    /// True if every key of the part is before `key`.
    fn is_before(&self, part: usize, key: &[u8]) -> bool;
    /// True if every key of the part is at or after `key`.
    fn is_from(&self, part: usize, key: &[u8]) -> bool;
    /// A cursor over the part.
    fn open(&self, part: usize) -> Self::Cursor;
}

/// A cursor over parts. At most one of them is open. Invariant: an open part is one of the parts.
pub(crate) struct Concat<P: ConcatParts> {
    parts: P,
    part: usize,
    open: Option<P::Cursor>,
}

impl<P: ConcatParts> Concat<P> {
    /// Stands nowhere until a seek.
    pub(crate) const fn new(parts: P) -> Self {
        Self {
            parts,
            part: 0,
            open: None,
        }
    }

    /// Reports whether an open part is one of the parts.
    fn holds(&self) -> bool {
        self.open.is_none() || self.part < self.parts.count()
    }

    /// The first part for which `is_past` holds; it holds for all after it.
    fn first_part(&self, is_past: impl Fn(&P, usize) -> bool) -> usize {
        let (mut low, mut high) = (0, self.parts.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if is_past(&self.parts, middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        debug_assert!(
            low == self.parts.count() || is_past(&self.parts, low),
            "it holds for the part"
        );
        debug_assert!(
            low == 0 || !is_past(&self.parts, low - 1),
            "it does not hold for the part before"
        );
        low
    }

    fn enter(&mut self, part: usize) -> &mut P::Cursor {
        debug_assert!(part < self.parts.count(), "there is such a part");
        if self.part != part {
            self.open = None;
        }
        self.part = part;
        self.open.get_or_insert_with(|| self.parts.open(part))
    }

    #[inline]
    fn is_in(&self) -> bool {
        self.open.as_ref().is_some_and(EntryIter::is_on)
    }

    /// Goes on to the next part that has an entry.
    #[cold]
    fn forward(&mut self) -> Result<(), VtError> {
        debug_assert!(self.part < self.parts.count(), "it stood in a part");
        while !self.is_in() {
            if self.part + 1 >= self.parts.count() {
                self.open = None;
                return Ok(());
            }
            let part = self.part + 1;
            self.enter(part).seek(&[], Seqno(u64::MAX))?;
        }
        debug_assert!(self.holds());
        Ok(())
    }

    /// Goes back to the next part that has an entry.
    fn backward(&mut self) -> Result<(), VtError> {
        debug_assert!(self.part < self.parts.count(), "it stood in a part");
        while !self.is_in() {
            if self.part == 0 {
                self.open = None;
                return Ok(());
            }
            let part = self.part - 1;
            self.enter(part).seek_before(None)?;
        }
        debug_assert!(self.holds());
        Ok(())
    }
}

impl<P: ConcatParts> EntryIter for Concat<P> {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        let part = self.first_part(|parts, part| !parts.is_before(part, key));
        if part == self.parts.count() {
            self.open = None;
            return Ok(());
        }
        self.enter(part).seek(key, seqno)?;
        self.forward()?;
        debug_assert!(self.holds());
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        let end = key.map_or(self.parts.count(), |key| {
            self.first_part(|parts, part| parts.is_from(part, key))
        });
        if end == 0 {
            self.open = None;
            return Ok(());
        }
        self.enter(end - 1).seek_before(key)?;
        self.backward()?;
        debug_assert!(self.holds());
        Ok(())
    }

    fn next(&mut self) -> Result<(), VtError> {
        debug_assert!(self.is_in(), "it steps from an entry");
        self.open.as_mut().expect("stands on an entry").next()?;
        if !self.is_in() {
            self.forward()?;
        }
        debug_assert!(
            self.is_in() || self.open.is_none(),
            "it stands on an entry, or beyond the end"
        );
        Ok(())
    }

    fn prev(&mut self) -> Result<(), VtError> {
        debug_assert!(self.is_in(), "it steps from an entry");
        self.open.as_mut().expect("stands on an entry").prev()?;
        self.backward()?;
        debug_assert!(
            self.is_in() || self.open.is_none(),
            "it stands on an entry, or before the first"
        );
        Ok(())
    }

    fn skip_older(&mut self, seqno: Seqno, end: &[u8]) -> Result<bool, VtError> {
        let mut has_moved = false;
        while let Some(open) = &mut self.open {
            has_moved |= open.skip_older(seqno, end)?;
            if open.is_on() {
                break;
            }
            self.forward()?;
        }
        debug_assert!(self.holds());
        Ok(has_moved)
    }

    fn skip_older_back(&mut self, seqno: Seqno, start: &[u8]) -> Result<bool, VtError> {
        let mut has_moved = false;
        while let Some(open) = &mut self.open {
            has_moved |= open.skip_older_back(seqno, start)?;
            if open.is_on() {
                break;
            }
            self.backward()?;
        }
        debug_assert!(self.holds());
        Ok(has_moved)
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        debug_assert!(self.holds());
        self.open.as_ref()?.current()
    }

    fn is_on(&self) -> bool {
        debug_assert_eq!(self.is_in(), self.current().is_some());
        self.is_in()
    }
}
