//! FUSE wire protocol, transports and the adapter to the file system.
//!
//! ```text
//!   kernel <-> transport (a queue per worker) -> dispatch -> Handler (a file system)
//!                   ^                              |
//!                   +------------ reply -----------+
//! ```
//!
//! [`wire`] encodes and decodes, [`transport`] moves the bytes, [`dispatch`] calls the [`Handler`],
//! and [`session`] and [`mount`] combine them into a mount. Workers are plain threads that wait in
//! the kernel, each with one request at a time and buffers of its own.

pub mod adapter;
pub mod backing;
pub mod clones;
pub mod counts;
pub mod differences;
pub mod dispatch;
pub mod errno;
pub mod handler;
pub mod mount;
pub mod notify;
pub mod report;
pub mod session;
pub mod snapshots;
pub mod survive;
pub mod transactions;
pub mod transport;
pub mod usage;
pub mod wire;
pub mod write_back;

pub use adapter::{
    Adapter, AdapterOptions, ControlLink, RootReport, TellUsage, TransactionSockets, Trim,
    TrimArgs, Views,
};
pub use counts::{CountsSnapshot, RequestCounts};
pub use errno::Errno;
pub use handler::{Caller, Context, Deferred, Handler};
pub use mount::{MountError, MountMode, MountOptions};
pub use notify::Notifier;
pub use session::{Negotiated, RunningSession, Session, SessionConfig, SessionError};
pub use transport::{Transport, TransportChoice};
