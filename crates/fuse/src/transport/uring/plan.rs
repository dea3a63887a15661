//! Number of entries of each processor's queue, and length of their buffers.
//!
//! Every entry has a buffer for the largest request. It takes memory only once a request was that
//! large, but may keep it. Invariants:
//! - each possible processor of the machine has a queue, as the kernel requires, and each queue an
//!   entry;
//! - the buffers take at most [`MEMORY_MAX`] together, if two entries of [`PAGES_MIN`] for each
//!   processor fit in that.

use std::io;

/// Most bytes of all buffers.
const MEMORY_MAX: usize = 64 << 20;
/// Fewest entries of a present processor: this many of its requests may wait for the disk at a
/// time.
const ENTRIES_MIN: usize = 2;
const ENTRIES_MAX: usize = 8;
/// Fewest pages of a request, which extended attributes and long listings need.
const PAGES_MIN: u16 = 32;
const PAGE_SIZE: usize = 4096;

/// One processor's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlan {
    /// Its number in the kernel.
    pub(super) id: u16,
    /// The processor, if it is present.
    pub(super) cpu: Option<usize>,
    /// Entries, each with a thread.
    pub(super) entries: usize,
}

/// All queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) queues: Vec<QueuePlan>,
    /// Most pages of a request.
    pub(crate) pages: u16,
}

impl Plan {
    /// Returns the number of requests that are served at a time for any one processor.
    pub(crate) fn served_at_once(&self) -> usize {
        let there = self.queues.iter().filter(|queue| queue.cpu.is_some());
        there.map(|queue| queue.entries).min().unwrap_or(1)
    }

    /// Makes a plan for this machine.
    ///
    /// # Errors
    /// If the system does not list its processors.
    pub(crate) fn of_machine(max_pages: u16) -> io::Result<Self> {
        let list = |name: &str| {
            let path = format!("/sys/devices/system/cpu/{name}");
            parse_list(&std::fs::read_to_string(path)?)
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        Ok(Self::new(
            list("possible")?.len(),
            &list("online")?,
            max_pages,
        ))
    }

    fn check(&self) {
        debug_assert!(!self.queues.is_empty(), "a machine has a processor");
        debug_assert!(
            self.queues.iter().all(|queue| queue.entries > 0),
            "the kernel waits for each"
        );
        debug_assert!(self.pages >= PAGES_MIN, "attributes and listings fit");
    }

    fn new(queue_count: usize, online: &[usize], max_pages: u16) -> Self {
        let there = online.len().max(1);
        let mut pages = max_pages.max(PAGES_MIN);
        let bytes = |pages: u16, entries: usize| usize::from(pages) * PAGE_SIZE * entries * there;
        while pages > PAGES_MIN && bytes(pages, ENTRIES_MIN) > MEMORY_MAX {
            pages = (pages / 2).max(PAGES_MIN);
        }
        let entries = (MEMORY_MAX / bytes(pages, 1)).clamp(ENTRIES_MIN, ENTRIES_MAX);
        let queue_count = u16::try_from(queue_count).unwrap_or(u16::MAX).max(1);
        let queue = |id: u16| {
            let cpu = Some(usize::from(id)).filter(|cpu| online.contains(cpu));
            QueuePlan {
                id,
                cpu,
                entries: if cpu.is_some() { entries } else { 1 },
            }
        };
        let plan = Self {
            queues: (0..queue_count).map(queue).collect(),
            pages,
        };
        plan.check();
        plan
    }

    /// Returns the number of entries of all queues.
    pub(super) fn entry_count(&self) -> usize {
        self.queues.iter().map(|queue| queue.entries).sum()
    }
}

/// Parses a list of the kernel: `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last > usize::from(u16::MAX) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(count: usize) -> Plan {
        let online: Vec<usize> = (0..count).collect();
        Plan::new(count, &online, 256)
    }

    #[test]
    fn small_machines_get_the_most_entries_of_the_full_size() {
        let plan = on(2);
        assert_eq!((plan.pages, plan.entry_count()), (256, 16));
        assert_eq!(plan.queues[1].cpu, Some(1));
    }

    #[test]
    fn memory_has_a_bound_on_machines_of_any_size() {
        for count in 1..=256 {
            let plan = on(count);
            let bytes = plan.entry_count() * usize::from(plan.pages) * PAGE_SIZE;
            assert!(bytes <= MEMORY_MAX, "{count}: {bytes}");
            assert!(plan.queues.iter().all(|queue| queue.entries >= 2));
        }
        assert_eq!(on(1024).pages, PAGES_MIN);
    }

    #[test]
    fn processors_that_may_come_have_a_queue_with_one_entry() {
        let plan = Plan::new(4, &[0, 2], 256);
        let entries: Vec<usize> = plan.queues.iter().map(|queue| queue.entries).collect();
        assert_eq!(entries, [8, 1, 8, 1]);
        assert_eq!(plan.queues[3].cpu, None);
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse_list("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("3-1"), None);
    }
}
