use super::*;

#[test]
fn answers_come_to_who_asked() {
    let readers = Readers::new(1 << 20);
    let hand = |n: usize| readers.hand(move || n * n, Priority::Soon);
    let tasks: Vec<_> = (0..100).map(hand).collect();
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.take(), n * n);
    }
    assert!(readers.shared.queue.lock().threads <= THREADS_MAX);
}

#[test]
fn nothing_is_held_after_a_task_was_dropped() {
    let readers = Readers::new(1 << 20);
    let held = Arc::new(AtomicUsize::new(0));
    let hand = |_| {
        let held = Arc::clone(&held);
        // Takes a while, and holds something as long.
        let work = move || {
            (0..1000).for_each(|_| std::thread::yield_now());
            held.fetch_add(1, Ordering::Relaxed);
        };
        readers.hand(work, Priority::Soon)
    };
    let tasks: Vec<_> = (0..20).map(hand).collect();
    while held.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    drop(tasks);
    assert_eq!(Arc::strong_count(&held), 1, "no task holds it");
}

#[test]
fn who_waits_for_a_thread_that_panics_is_told() {
    let readers = Readers::new(1 << 20);
    let panics = || -> u64 { panic!("on purpose") };
    let task = readers.hand(panics, Priority::Later);
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

#[test]
fn a_task_of_low_priority_begins_when_no_other_one_waits() {
    let mut queue = Queue::default();
    let order = Arc::new(Mutex::new(Vec::new()));
    let task = |number| {
        let order = Arc::clone(&order);
        Arc::new(Task::new(move || order.lock().push(number)))
    };
    let priorities = [
        Priority::Later,
        Priority::Soon,
        Priority::Later,
        Priority::Soon,
    ];
    let tasks: Vec<_> = (0..4).map(task).collect();
    for (task, priority) in tasks.iter().zip(priorities) {
        let weak: Weak<Task<()>> = Arc::downgrade(task);
        queue.push(weak, priority);
    }
    assert_eq!(queue.len(), 4);
    while let Some(task) = queue.pop() {
        task.upgrade().expect("it is held").run();
    }
    assert_eq!(*order.lock(), [1, 3, 0, 2]);
}
