//! Locks, condition variables and atomics. All other crates take them from here, so that a model
//! checker can replace them: the feature `shuttle` does, for tests that explore thread
//! interleavings. Code outside such tests cannot run with it.

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
