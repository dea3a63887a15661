use super::*;

struct Square(u64);

impl ReaderWork for Square {
    type Answer = u64;

    fn run(self) -> u64 {
        self.0 * self.0
    }
}

/// Takes a while, and holds something as long.
struct Slow(Arc<AtomicUsize>);

impl ReaderWork for Slow {
    type Answer = ();

    fn run(self) {
        (0..1000).for_each(|_| std::thread::yield_now());
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn answers_come_to_who_asked() {
    let readers = Readers::new(1 << 20);
    let tasks: Vec<Ahead<Square>> = (0..100).map(|n| readers.hand(Square(n))).collect();
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.take(), (n * n) as u64);
    }
    assert!(readers.shared.queue.lock().threads <= THREADS_MAX);
}

#[test]
fn nothing_is_held_after_a_task_was_dropped() {
    let readers = Readers::new(1 << 20);
    let held = Arc::new(AtomicUsize::new(0));
    let hand = |_| readers.hand(Slow(Arc::clone(&held)));
    let tasks: Vec<Ahead<Slow>> = (0..20).map(hand).collect();
    while held.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    drop(tasks);
    assert_eq!(Arc::strong_count(&held), 1, "no task holds it");
}

struct Panics;

impl ReaderWork for Panics {
    type Answer = ();

    fn run(self) {
        panic!("on purpose");
    }
}

#[test]
fn who_waits_for_a_thread_that_panics_is_told() {
    let readers = Readers::new(1 << 20);
    let task = readers.hand(Panics);
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.take()));
    assert!(taken.is_err());
}

#[test]
fn bytes_are_shared_by_those_who_read_ahead() {
    let readers = Readers::new(1 << 20);
    assert_eq!(readers.share_bytes(Layout::Rows), 1 << 18);
    (0..4).for_each(|_| readers.enter(Layout::Rows));
    assert_eq!(readers.share_bytes(Layout::Rows), 1 << 16);
    assert_eq!(readers.share_bytes(Layout::Scattered), 3 << 18);
    (0..3).for_each(|_| readers.leave(Layout::Rows));
    assert_eq!(readers.share_bytes(Layout::Rows), 1 << 18);
}
