//! Locks, condition variables and atomics. Everything above takes them from here, so that a model
//! checker can put its own in their place: the feature `shuttle` does, for tests that go through the
//! orders in which threads can meet. Nothing else may run with it.

#[cfg(feature = "shuttle")]
pub mod explored;
mod sharded;
#[cfg(feature = "shuttle")]
mod shuttled;

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use sharded::{Apart, SHARDS, Sharded};
#[cfg(feature = "shuttle")]
pub use shuttle;
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic;
#[cfg(feature = "shuttle")]
pub use shuttled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::Arc;
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic;
