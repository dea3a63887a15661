//! What compactions that run now have written and not installed yet.
//!
//! A compaction writes its tables before those that go in are given back, and space is kept for
//! that. What it has taken of it needs not be kept any more: counted both ways, commits would wait
//! for each compaction's end.

use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// All compactions of a store that run now.
#[derive(Debug, Default)]
pub(crate) struct CompactionWork {
    planned_bytes: AtomicU64,
    written_bytes: AtomicU64,
    run_bytes: AtomicU64,
}

impl CompactionWork {
    /// What they may write in all.
    pub(crate) fn planned_bytes(&self) -> u64 {
        self.planned_bytes.load(Ordering::Relaxed)
    }

    /// What they have written.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Of these, what is in no value block.
    pub(crate) fn run_bytes(&self) -> u64 {
        self.run_bytes.load(Ordering::Relaxed)
    }
}

/// One of them: `wrote* end`. Ends when dropped, at the latest.
#[derive(Debug)]
pub(crate) struct UnderWay {
    work: Arc<CompactionWork>,
    planned_bytes: AtomicU64,
    written_bytes: AtomicU64,
    run_bytes: AtomicU64,
}

impl UnderWay {
    /// One that may write so many bytes.
    pub(crate) fn begin(work: &Arc<CompactionWork>, planned_bytes: u64) -> Arc<Self> {
        let all = &work.planned_bytes;
        let before = all.fetch_add(planned_bytes, Ordering::Relaxed);
        debug_assert!(
            before.checked_add(planned_bytes).is_some(),
            "plans are within what a volume has"
        );
        Arc::new(Self {
            work: Arc::clone(work),
            planned_bytes: AtomicU64::new(planned_bytes),
            written_bytes: AtomicU64::new(0),
            run_bytes: AtomicU64::new(0),
        })
    }

    /// It has taken space; `is_value`: for value blocks.
    pub(crate) fn wrote(&self, bytes: u64, is_value: bool) {
        debug_assert!(bytes > 0, "a block takes space");
        let run_bytes = if is_value { 0 } else { bytes };
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.run_bytes.fetch_add(run_bytes, Ordering::Relaxed);
        debug_assert!(
            self.run_bytes.load(Ordering::Relaxed) <= self.written_bytes.load(Ordering::Relaxed),
            "runs are a part of all that is written"
        );
        let all = &self.work;
        all.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        all.run_bytes.fetch_add(run_bytes, Ordering::Relaxed);
    }

    /// What it has written is installed, or about to be given back: before any of that, or of what
    /// went in, is free.
    pub(crate) fn end(&self) {
        let all = &self.work;
        for (own, sum) in [
            (&self.written_bytes, &all.written_bytes),
            (&self.run_bytes, &all.run_bytes),
            (&self.planned_bytes, &all.planned_bytes),
        ] {
            let bytes = own.swap(0, Ordering::Relaxed);
            let before = sum.fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes, "what ends has begun");
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_counts_until_it_ends() {
        let work = Arc::default();
        let one = UnderWay::begin(&work, 100);
        let two = UnderWay::begin(&work, 50);
        one.wrote(30, false);
        two.wrote(20, true);
        assert_eq!(work.planned_bytes(), 150);
        assert_eq!((work.written_bytes(), work.run_bytes()), (50, 30));
        one.end();
        one.end();
        assert_eq!((work.planned_bytes(), work.written_bytes()), (50, 20));
        drop(one);
        drop(two);
        assert_eq!((work.planned_bytes(), work.written_bytes()), (0, 0));
        assert_eq!(work.run_bytes(), 0);
    }
}
