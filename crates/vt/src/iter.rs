//! Several cursors as one.
//!
//! The cursors stand in a heap, the one with the next entry on top. Going the other way moves
//! every cursor to its entry next to the current one on that side.
//!
//! - Entries come in entry order; of equal ones (same key and sequence number) that of the earlier
//!   cursor first.

use crate::VtError;
use crate::entry::{BoxIter, EntryIter, EntryRef};
use std::cmp::Ordering;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    Forward,
    Backward,
}

/// Several cursors as one, in entry order. Invariant: an input is in the heap once at most.
pub(crate) struct MergeIter {
    inputs: Vec<BoxIter>,
    /// Inputs that stand on an entry; the next entry's on top.
    heap: Vec<usize>,
    heading: Heading,
}

/// Entry order.
pub(crate) fn cmp_entries(a: &EntryRef<'_>, b: &EntryRef<'_>) -> Ordering {
    a.key.cmp(b.key).then_with(|| b.seqno.cmp(&a.seqno))
}

impl MergeIter {
    /// A cursor over all of `inputs`, not yet positioned.
    pub(crate) const fn new(inputs: Vec<BoxIter>) -> Self {
        Self {
            inputs,
            heap: Vec::new(),
            heading: Heading::Forward,
        }
    }

    const fn holds(&self) -> bool {
        self.heap.len() <= self.inputs.len()
    }

    fn entry(&self, input: usize) -> EntryRef<'_> {
        let entry = self.inputs[input].current();
        entry.expect("inputs in the heap stand on an entry")
    }

    /// True if input `a` comes before input `b` in the direction of travel.
    fn leads(&self, a: usize, b: usize) -> bool {
        debug_assert_ne!(a, b, "an input is in the heap once");
        let order = cmp_entries(&self.entry(a), &self.entry(b)).then(a.cmp(&b));
        debug_assert!(order.is_ne(), "one of two inputs comes first");
        match self.heading {
            Heading::Forward => order.is_lt(),
            Heading::Backward => order.is_gt(),
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        debug_assert!(
            at < self.heap.len() || self.heap.is_empty(),
            "an input of the heap"
        );
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut first = at;
            for child in [left, right] {
                if child < self.heap.len() && self.leads(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.heap.swap(at, first);
            at = first;
        }
    }

    /// Makes the heap of where the inputs stand.
    fn rebuild(&mut self, heading: Heading) {
        self.heading = heading;
        let inputs = &self.inputs;
        debug_assert!(self.holds());
        self.heap.clear();
        self.heap
            .extend((0..inputs.len()).filter(|&i| inputs[i].is_on()));
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
        debug_assert!(self.is_heap(), "no input leads the one above it");
        debug_assert!(self.holds());
    }

    fn is_heap(&self) -> bool {
        let leads = |at: usize| self.leads(self.heap[at], self.heap[(at - 1) / 2]);
        !(1..self.heap.len()).any(leads)
    }

    /// Moves every input but the top one to its entry next to the current one on the other side.
    fn turn(&mut self, heading: Heading) -> Result<(), VtError> {
        let top = self.heap[0];
        debug_assert!(self.heading != heading, "it turns around");
        let entry = self.entry(top);
        let (key, seqno) = (entry.key.to_vec(), entry.seqno);
        self.heap.clear();
        for (index, input) in self.inputs.iter_mut().enumerate() {
            if index == top {
                continue;
            }
            input.seek(&key, seqno)?;
            let found = input.current();
            let is_equal = found.is_some_and(|e| e.key == key && e.seqno == seqno);
            match heading {
                // An equal entry of an earlier input was before the current one.
                Heading::Forward if is_equal && index < top => input.next()?,
                Heading::Forward => {}
                Heading::Backward if is_equal && index < top => {}
                Heading::Backward if found.is_some() => input.prev()?,
                Heading::Backward => input.seek_before(None)?,
            }
        }
        self.rebuild(heading);
        debug_assert_eq!(self.heap.first(), Some(&top), "the current entry stays");
        debug_assert_eq!(self.entry(top).key, key, "it stands where it stood");
        debug_assert_eq!(self.entry(top).seqno, seqno, "it stands where it stood");
        Ok(())
    }

    fn step(&mut self, heading: Heading) -> Result<(), VtError> {
        assert!(!self.heap.is_empty(), "stands on an entry");
        if self.heading != heading {
            self.turn(heading)?;
        }
        debug_assert_eq!(self.heading, heading, "all inputs go the same way");
        let top = self.heap[0];
        let result = match heading {
            Heading::Forward => self.inputs[top].next(),
            Heading::Backward => self.inputs[top].prev(),
        };
        if result.is_err() {
            self.heap.clear();
            return result;
        }
        if !self.inputs[top].is_on() {
            self.heap.swap_remove(0);
            debug_assert!(!self.heap.contains(&top), "an input is in the heap once");
        }
        self.sift_down(0);
        debug_assert!(self.holds());
        Ok(())
    }
}

impl EntryIter for MergeIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        self.heap.clear();
        for input in &mut self.inputs {
            input.seek(key, seqno)?;
        }
        self.rebuild(Heading::Forward);
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<(), VtError> {
        self.heap.clear();
        for input in &mut self.inputs {
            input.seek_before(key)?;
        }
        self.rebuild(Heading::Backward);
        Ok(())
    }

    fn next(&mut self) -> Result<(), VtError> {
        self.step(Heading::Forward)
    }

    fn prev(&mut self) -> Result<(), VtError> {
        self.step(Heading::Backward)
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        debug_assert!(self.holds());
        self.heap.first().map(|&top| self.entry(top))
    }

    fn is_on(&self) -> bool {
        !self.heap.is_empty()
    }

    fn carried(&self) -> Option<&IndexEntry> {
        let carried = self.inputs[*self.heap.first()?].carried();
        debug_assert!(
            carried.is_none_or(|block| block.is_value),
            "only value blocks are carried over"
        );
        carried
    }
}

#[cfg(test)]
pub(crate) mod tests;
