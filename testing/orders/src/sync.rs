//! What the sources take for `stitch_base::sync`: the checker's.

use loom::sync::MutexGuard;
use std::cell::Cell;

/// A lock of the checker.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics with the lock")
    }
}

/// What is relaxed on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weakened {
    Nothing,
    Stores,
    Loads,
}

thread_local! {
    /// The checker runs all threads of a model on the one that asks for it.
    static WEAKENED: Cell<Weakened> = const { Cell::new(Weakened::Nothing) };
}

/// Runs a model with pointers and numbers that are weakened.
pub(crate) fn weakened(what: Weakened, model: impl Fn() + Send + Sync + 'static) {
    WEAKENED.set(what);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
    WEAKENED.set(Weakened::Nothing);
}

pub(crate) mod atomic {
    //! Atomics of the checker.

    use super::{WEAKENED, Weakened};
    use loom::cell::UnsafeCell;
    use loom::sync::atomic as checked;
    pub(crate) use std::sync::atomic::Ordering;

    pub(crate) use checked::{AtomicU32, AtomicUsize};

    fn for_store(order: Ordering) -> Ordering {
        match WEAKENED.get() {
            Weakened::Stores => Ordering::Relaxed,
            Weakened::Nothing | Weakened::Loads => order,
        }
    }

    fn for_load(order: Ordering) -> Ordering {
        match WEAKENED.get() {
            Weakened::Loads => Ordering::Relaxed,
            Weakened::Nothing | Weakened::Stores => order,
        }
    }

    /// A link of a node.
    pub(crate) struct AtomicPtr<T> {
        pointer: checked::AtomicPtr<T>,
        /// Stands for all that is written without atomics when the node is made.
        made: UnsafeCell<bool>,
    }

    impl<T> AtomicPtr<T> {
        pub(crate) fn new(pointer: *mut T) -> Self {
            let made = UnsafeCell::new(false);
            // The checker only notes that it is written.
            made.with_mut(|_| ());
            let pointer = checked::AtomicPtr::new(pointer);
            Self { pointer, made }
        }

        pub(crate) fn load(&self, order: Ordering) -> *mut T {
            self.made.with(|_| ());
            self.pointer.load(for_load(order))
        }

        pub(crate) fn store(&self, pointer: *mut T, order: Ordering) {
            self.made.with(|_| ());
            self.pointer.store(pointer, for_store(order));
        }
    }

    /// A number that is published, or bits that are set.
    #[derive(Debug, Default)]
    pub(crate) struct AtomicU64(checked::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(checked::AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.0.load(for_load(order))
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, for_store(order));
        }

        pub(crate) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            self.0.fetch_or(bits, for_store(order))
        }
    }
}
