//! Notices about pages, sent while a request waits for them.
//!
//! ```text
//! program   kernel                         worker                 thread of ours
//! lseek --> LSEEK ---------------------->  finds a hole
//!                                          queues a job --------> notice: drop the hole's pages
//!           WRITE of each dirty page --->  (another worker)
//!           pages are dropped <---------------------------------- the notice returns
//!                                          looks again <--------- the job is done
//!       <-- offset <---------------------- answers
//! ```
//!
//! The worker cannot send the notice itself: the kernel may need a reply from this very worker to
//! complete the notice, which would be a deadlock.
//!
//! Invariants:
//! - every wait has a timeout, and a job is not started if its request no longer waits;
//! - fewer requests wait for write-back than are served at a time ([`Notifier::waits_max`]), so
//!   that a worker is left for the WRITEs;
//! - a waiting request holds no lock of the file system.
//!
//! Locks: `state` of the queue, then `state` of a job.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_base::thread::JoinHandle;

use super::chore::LINGER;
use crate::notify::Notifier;

/// Most threads that send notices: while one waits for pages, another is free.
const THREADS: usize = 2;
/// Most queued jobs.
const JOBS_MAX: usize = 64;
/// How long a request waits for its turn: a notice that finds no dirty page takes about 10 us.
const TURN_PATIENCE: Duration = Duration::from_millis(5);
/// The zeros that [`Pages::zero`] stores, at most one page.
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
/// Length of a page of the kernel.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A notice about pages of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    /// Write dirty pages back, then drop all.
    Drop(Range<u64>),
    /// Fill these bytes of one page with zeros.
    Zero(Range<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Queued,
    Done,
    /// The kernel refused the notice.
    Failed,
    /// The request was answered without waiting.
    Abandoned,
}

#[derive(Debug)]
struct Job {
    ino: Ino,
    work: Work,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<Arc<Job>>,
    is_stopped: bool,
    /// Threads that have not ended for want of jobs, and how many of them wait for one.
    running: usize,
    waiting: usize,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct JobQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    clock: SystemClock,
}

/// The jobs, and the threads that run them, which are there while there are jobs.
#[derive(Debug, Default)]
pub(super) struct Pages {
    notifier: OnceLock<Notifier>,
    queue: Arc<JobQueue>,
    /// Number of requests that wait for pages to be written back.
    waiting: Mutex<usize>,
    has_left: Condvar,
    clock: SystemClock,
}

impl Pages {
    /// Takes jobs from now on.
    pub(super) fn start(&self, notifier: &Notifier) {
        // Mounted twice: only the pages of the first mount are tracked.
        let _ = self.notifier.set(notifier.clone());
    }

    /// Ends the threads. No request may come afterwards.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.queue.state.lock();
            state.is_stopped = true;
            std::mem::take(&mut state.threads)
        };
        self.queue.changed.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread for notices about pages panicked");
            }
        }
    }

    /// Makes the kernel write back and drop its pages of a range. Returns whether it did so within
    /// `patience`. Returns false soon if too many requests wait already.
    pub(super) fn drop_range(&self, ino: Ino, range: Range<u64>, patience: Duration) -> bool {
        if !self.take_turn() {
            return false;
        }
        let is_done = self.run(ino, Work::Drop(range), patience);
        let mut waiting = self.waiting.lock();
        debug_assert!(*waiting > 0, "each gives its turn back once");
        *waiting -= 1;
        drop(waiting);
        self.has_left.notify_one();
        is_done
    }

    /// Counts a request that will wait, if it may.
    fn take_turn(&self) -> bool {
        let waits_max = self.notifier.get().map_or(0, Notifier::waits_max);
        if waits_max == 0 {
            return false;
        }
        let end = self.clock.monotonic() + TURN_PATIENCE;
        let mut waiting = self.waiting.lock();
        while *waiting >= waits_max {
            let left = end.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return false;
            }
            self.has_left.wait_for(&mut waiting, left);
        }
        *waiting += 1;
        true
    }

    /// Makes the kernel zero a range within one page, if it has that page. Returns whether it did
    /// so within `patience`. The caller of the request must not hold the page's lock.
    pub(super) fn zero(&self, ino: Ino, range: Range<u64>, patience: Duration) -> bool {
        debug_assert!(range.end - range.start < PAGE_BYTES, "less than a page");
        self.run(ino, Work::Zero(range), patience)
    }

    fn run(&self, ino: Ino, work: Work, patience: Duration) -> bool {
        debug_assert!(ino != Ino(0), "an inode of the view");
        let job = Arc::new(Job {
            ino,
            work,
            progress: Mutex::new(Progress::Queued),
            changed: Condvar::new(),
        });
        let notifier = self.notifier.get();
        notifier.is_some_and(|notifier| self.queue.push(&job, notifier))
            && job.wait(&self.clock, patience)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.stop();
    }
}

impl JobQueue {
    /// Adds a job if the queue is running and not full. Returns whether it was added.
    fn push(self: &Arc<Self>, job: &Arc<Job>, notifier: &Notifier) -> bool {
        let mut state = self.state.lock();
        state
            .jobs
            .retain(|job| *job.progress.lock() == Progress::Queued);
        if state.is_stopped || state.jobs.len() >= JOBS_MAX {
            return false;
        }
        state.jobs.push_back(Arc::clone(job));
        if state.waiting < state.jobs.len() && state.running < THREADS {
            self.start_thread(&mut state, notifier);
        }
        if state.running == 0 {
            // Without a thread nothing would take it.
            state.jobs.pop_back();
            return false;
        }
        self.changed.notify_one();
        true
    }

    fn start_thread(self: &Arc<Self>, state: &mut QueueState, notifier: &Notifier) {
        let (queue, notifier) = (Arc::clone(self), notifier.clone());
        let body = move || {
            while let Some(job) = queue.next() {
                job.run(&notifier);
            }
        };
        match stitch_base::thread::spawn("fuse-pages", body) {
            Ok(thread) => {
                state.running += 1;
                state.threads.retain(|thread| !thread.is_finished());
                state.threads.push(thread);
            }
            Err(error) => tracing::warn!(%error, "cannot start a thread for notices about pages"),
        }
        debug_assert!(state.running <= THREADS, "threads are bounded");
    }

    /// Waits for the next job. Returns `None` after the end, or if none comes for a while.
    fn next(&self) -> Option<Arc<Job>> {
        let end = self.clock.monotonic() + LINGER;
        let mut state = self.state.lock();
        loop {
            let left = end.saturating_sub(self.clock.monotonic());
            if state.is_stopped || (state.jobs.is_empty() && left.is_zero()) {
                debug_assert!(state.running > 0, "this one");
                state.running -= 1;
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.waiting += 1;
            self.changed.wait_for(&mut state, left);
            state.waiting -= 1;
        }
    }
}

impl Job {
    fn run(&self, notifier: &Notifier) {
        if *self.progress.lock() == Progress::Abandoned {
            return;
        }
        let sent = match &self.work {
            Work::Drop(range) => {
                notifier.invalidate_data(self.ino, range.start, range.end - range.start)
            }
            Work::Zero(range) => {
                let len = usize::try_from(range.end - range.start).unwrap_or(ZEROS.len());
                notifier.store(self.ino, range.start, &ZEROS[..len.min(ZEROS.len())])
            }
        };
        let progress = match sent {
            Ok(()) => Progress::Done,
            Err(error) => {
                tracing::debug!(%error, ino = self.ino.0, "the kernel refused a page notice");
                Progress::Failed
            }
        };
        let before = std::mem::replace(&mut *self.progress.lock(), progress);
        debug_assert!(
            matches!(before, Progress::Queued | Progress::Abandoned),
            "a job is run once"
        );
        self.changed.notify_all();
    }

    /// Waits for the job, at most for `patience`. Returns whether it is done.
    fn wait(&self, clock: &SystemClock, patience: Duration) -> bool {
        let end = clock.monotonic() + patience;
        let mut progress = self.progress.lock();
        while *progress == Progress::Queued {
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() {
                *progress = Progress::Abandoned;
                return false;
            }
            self.changed.wait_for(&mut progress, left);
        }
        *progress == Progress::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ReplySender;
    use std::io;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(30);

    /// Records notices, and delays them while `gate` is locked.
    #[derive(Debug, Default)]
    struct Kernel {
        gate: Mutex<()>,
        taken: Mutex<Vec<Vec<u8>>>,
    }

    impl ReplySender for Kernel {
        fn send(&self, message: &[u8]) -> io::Result<()> {
            let _open = self.gate.lock();
            self.taken.lock().push(message.to_vec());
            Ok(())
        }
    }

    fn pages(waits_max: usize) -> (Arc<Kernel>, Pages) {
        let kernel = Arc::new(Kernel::default());
        let notifier = Notifier::new(Arc::clone(&kernel) as _, 45);
        notifier.set_waits_max(waits_max);
        let pages = Pages::default();
        pages.start(&notifier);
        (kernel, pages)
    }

    #[test]
    fn a_range_is_dropped_before_the_call_returns() {
        let (kernel, pages) = pages(1);
        assert!(pages.drop_range(Ino(7), 4096..8192, LATE));
        assert!(pages.zero(Ino(7), 100..110, LATE));
        let taken = kernel.taken.lock();
        let codes: Vec<u8> = taken.iter().map(|notice| notice[4]).collect();
        assert_eq!(codes, [2, 4]);
        assert!(taken[1].ends_with(&[0; 10]));
    }

    #[test]
    fn a_wait_ends_and_what_was_not_begun_is_never_sent() {
        let (kernel, pages) = pages(1);
        let shut = kernel.gate.lock();
        for _ in 0..THREADS + 2 {
            assert!(!pages.drop_range(Ino(7), 0..4096, SOON));
        }
        drop(shut);
        assert!(pages.drop_range(Ino(7), 0..4096, LATE));
        pages.stop();
        assert_eq!(kernel.taken.lock().len(), THREADS + 1);
        assert!(!pages.drop_range(Ino(7), 0..4096, LATE), "it has stopped");
    }

    #[test]
    fn fewer_requests_wait_than_are_served() {
        let (kernel, one) = pages(1);
        let shut = kernel.gate.lock();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| one.drop_range(Ino(7), 0..4096, LATE));
            while *one.waiting.lock() == 0 {
                std::thread::yield_now();
            }
            assert!(!one.drop_range(Ino(8), 0..4096, LATE), "soon");
            drop(shut);
            assert!(first.join().expect("it does not panic"));
            assert!(one.drop_range(Ino(8), 0..4096, LATE), "its turn");
        });
        let (kernel, none) = pages(0);
        assert!(!none.drop_range(Ino(7), 0..4096, LATE));
        assert!(none.zero(Ino(7), 0..1, LATE));
        assert_eq!(kernel.taken.lock().len(), 1);
    }

    #[test]
    fn requests_take_turns() {
        let (_kernel, one) = pages(1);
        let search = || {
            (0..50)
                .filter(|_| one.drop_range(Ino(7), 0..4096, LATE))
                .count()
        };
        let done = std::thread::scope(|scope| {
            let other = scope.spawn(search);
            search() + other.join().expect("it does not panic")
        });
        assert!(done > 50, "{done} of 100");
    }
}
