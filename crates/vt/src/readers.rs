//! Threads that read ahead.
//!
//! A reader in order hands over what comes next, in pieces ([`Task`]), and takes them back in that
//! order. If no thread has begun a task, the reader that takes it does it itself: it never waits
//! for a thread that is not there. Threads start with the first tasks, and end when there are none
//! for a while.
//!
//! - Tasks of low priority begin when no other one waits: what may be wanted later must not delay
//!   what is wanted next.
//! - A task that is dropped is not under way any more: no thread holds anything of the store for a
//!   reader that is gone.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;
use stitch_base::sync::atomic::{AtomicUsize, Ordering};
use stitch_base::sync::{Condvar, Mutex};
use stitch_base::thread;
use stitch_kv::Priority;

/// Most threads: reads that are under way at the same time, for the device; two of them can unpack.
const THREADS_MAX: usize = 4;
/// A thread without tasks ends after so long.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// What keeps the blocks of a table where they are.
pub(crate) type Holder = Arc<dyn Any + Send + Sync>;

/// Returns work that holds nothing while it waits for a thread, so that a removed table gives its
/// space back. It is left out if `holder` is gone when it begins.
pub(crate) fn while_held<A: Default>(
    holder: &Holder,
    work: impl FnOnce() -> A + Send + 'static,
) -> impl FnOnce() -> A + Send + 'static {
    let holder = Arc::downgrade(holder);
    move || {
        let held = holder.upgrade();
        held.map(|_held| work()).unwrap_or_default()
    }
}

enum TaskState<A> {
    Waiting(Box<dyn FnOnce() -> A + Send>),
    Running,
    Done(A),
    Taken,
}

/// A piece of work, which is done once.
struct Task<A> {
    state: Mutex<TaskState<A>>,
    is_done: Condvar,
}

impl<A> Debug for Task<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// A task as threads see it.
trait Runnable: Send + Sync {
    /// Does it, unless it has begun.
    fn run(&self);
}

impl<A: Send> Runnable for Task<A> {
    fn run(&self) {
        let mut state = self.state.lock();
        if !matches!(*state, TaskState::Waiting(_)) {
            return;
        }
        let TaskState::Waiting(work) = std::mem::replace(&mut *state, TaskState::Running) else {
            unreachable!("it waits");
        };
        drop(state);
        let ending = Ending(self);
        let answer = work();
        let mut state = self.state.lock();
        debug_assert!(
            matches!(*state, TaskState::Running),
            "a task under way is neither taken nor cancelled"
        );
        *state = TaskState::Done(answer);
        drop(state);
        drop(ending);
    }
}

/// Ends a task, also where its work panics.
struct Ending<'a, A>(&'a Task<A>);

impl<A> Drop for Ending<'_, A> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        debug_assert!(
            !matches!(*state, TaskState::Waiting(_)),
            "a task that ends has begun"
        );
        if matches!(*state, TaskState::Running) {
            *state = TaskState::Taken;
        }
        self.0.is_done.notify_all();
    }
}

impl<A> Task<A> {
    fn new(work: impl FnOnce() -> A + Send + 'static) -> Self {
        Self {
            state: Mutex::new(TaskState::Waiting(Box::new(work))),
            is_done: Condvar::new(),
        }
    }
}

/// Work that was handed over.
#[derive(Debug)]
pub(crate) struct Ahead<A>(Arc<Task<A>>);

impl<A> Ahead<A> {
    /// The answer, as soon as it is there.
    pub(crate) fn take(self) -> A
    where
        A: Send,
    {
        let task = &self.0;
        task.run();
        let mut state = task.state.lock();
        loop {
            match std::mem::replace(&mut *state, TaskState::Taken) {
                TaskState::Done(answer) => return answer,
                TaskState::Taken => panic!("the thread that read ahead has panicked"),
                other => {
                    debug_assert!(matches!(other, TaskState::Running), "the task has begun");
                    *state = other;
                }
            }
            task.is_done.wait(&mut state);
        }
    }

    /// True if the answer is there: dropping this waits for no thread.
    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.0.state.lock(), TaskState::Done(_) | TaskState::Taken)
    }
}

impl<A> Drop for Ahead<A> {
    /// Cancels the task. Waits if it is under way.
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        while matches!(*state, TaskState::Running) {
            self.0.is_done.wait(&mut state);
        }
        *state = TaskState::Taken;
    }
}

/// Tasks that wait, and the threads for them.
///
/// Invariant: no more threads wait than there are, and there are at most [`THREADS_MAX`].
#[derive(Default)]
struct Queue {
    /// Tasks that wait, of each priority, the highest first.
    tasks: [VecDeque<Weak<dyn Runnable>>; 2],
    threads: usize,
    idle: usize,
}

impl Queue {
    fn len(&self) -> usize {
        self.tasks.iter().map(VecDeque::len).sum()
    }

    fn push(&mut self, task: Weak<dyn Runnable>, priority: Priority) {
        debug_assert!(
            task.strong_count() > 0,
            "a task is handed over by its owner"
        );
        let number = match priority {
            Priority::Soon => 0,
            Priority::Later => 1,
        };
        self.tasks[number].push_back(task);
        debug_assert!(self.holds(), "threads are counted");
    }

    fn pop(&mut self) -> Option<Weak<dyn Runnable>> {
        debug_assert!(self.holds(), "threads are counted");
        self.tasks.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Reports whether its threads are counted.
    const fn holds(&self) -> bool {
        self.idle <= self.threads && self.threads <= THREADS_MAX
    }
}

struct Shared {
    queue: Mutex<Queue>,
    has_tasks: Condvar,
}

/// How blocks that follow each other in the order of keys lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Most have their neighbour beside them.
    Rows,
    /// In many places.
    Scattered,
}

/// The threads of a store that read ahead.
pub(crate) struct Readers {
    shared: Arc<Shared>,
    /// Bytes that all read-aheads may hold together; 0: there is no reading ahead.
    bytes_max: u64,
    /// Number of read-aheads of each layout.
    counts: [AtomicUsize; 2],
}

impl Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readers")
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

impl Readers {
    /// Readers that hold at most about `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                has_tasks: Condvar::new(),
            }),
            bytes_max,
            counts: Default::default(),
        }
    }

    /// True if reads may read ahead.
    pub(crate) const fn may_read_ahead(&self) -> bool {
        self.bytes_max > 0
    }

    const fn count(&self, layout: Layout) -> &AtomicUsize {
        &self.counts[layout as usize]
    }

    /// Counts a read-ahead of this layout that begins.
    pub(crate) fn enter(&self, layout: Layout) {
        debug_assert!(self.may_read_ahead(), "it has memory for what it reads");
        self.count(layout).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read-ahead of this layout that ends.
    pub(crate) fn leave(&self, layout: Layout) {
        let before = self.count(layout).fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a read-ahead that ends has begun");
    }

    /// How much each of those who read so, or the first, may hold. What is scattered gets three
    /// quarters of all: it needs long windows, and is mostly the level with most of the data.
    pub(crate) fn share_bytes(&self, layout: Layout) -> u64 {
        let count = self.count(layout).load(Ordering::Relaxed);
        let quarters = match layout {
            Layout::Rows => 1,
            Layout::Scattered => 3,
        };
        let share = self.bytes_max / 4 * quarters / count.max(1) as u64;
        debug_assert!(share <= self.bytes_max, "a share is a part of all");
        share
    }

    /// Hands work over.
    pub(crate) fn hand<A: Send + 'static>(
        &self,
        work: impl FnOnce() -> A + Send + 'static,
        priority: Priority,
    ) -> Ahead<A> {
        let task = Arc::new(Task::new(work));
        let weak: Weak<Task<A>> = Arc::downgrade(&task);
        let mut queue = self.shared.queue.lock();
        queue.push(weak, priority);
        let needs_thread = queue.idle < queue.len() && queue.threads < THREADS_MAX;
        if needs_thread {
            queue.threads += 1;
        }
        debug_assert!(queue.holds(), "threads are counted");
        drop(queue);
        self.shared.has_tasks.notify_one();
        if needs_thread {
            let shared = Arc::clone(&self.shared);
            if thread::spawn("stitch-read", move || shared.work()).is_err() {
                // The reader does the task itself when it takes it.
                let mut queue = self.shared.queue.lock();
                debug_assert!(
                    queue.threads > queue.idle,
                    "a thread that did not start is counted"
                );
                queue.threads -= 1;
                debug_assert!(queue.holds(), "threads are counted");
            }
        }
        Ahead(task)
    }
}

impl Shared {
    fn work(&self) {
        while let Some(task) = self.next() {
            if let Some(task) = task.upgrade() {
                task.run();
            }
        }
    }

    /// The next task; `None` when there was none for a while.
    fn next(&self) -> Option<Weak<dyn Runnable>> {
        let mut queue = self.queue.lock();
        if queue.len() == 0 {
            queue.idle += 1;
            debug_assert!(queue.holds(), "a thread that waits is one of them");
            self.has_tasks.wait_for(&mut queue, IDLE_AFTER);
            debug_assert!(queue.idle > 0, "a thread that waits is counted");
            queue.idle -= 1;
        }
        let task = queue.pop();
        if task.is_none() {
            debug_assert!(queue.threads > queue.idle, "a thread that ends is counted");
            queue.threads -= 1;
        }
        debug_assert!(queue.holds(), "threads are counted");
        task
    }
}

#[cfg(test)]
mod tests;
