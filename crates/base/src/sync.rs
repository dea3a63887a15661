//! Locks, condition variables and atomics. Everything above takes them from here, so that a model
//! checker can put its own in their place.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::Arc;
pub use std::sync::atomic;
