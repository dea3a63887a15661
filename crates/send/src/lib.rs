//! Streams of directory trees: what `stitchfs send`, `receive` and `export` do.
//!
//! 1. [`Tree`] reads the names and attributes of a directory and all below it, or of some paths.
//! 2. [`Sender`] plans the steps from one tree to another, and writes them as a stream
//!    (`stitch_format::send_stream`). A complete stream is one from nothing.
//! 3. [`receive()`] applies a stream to a directory of any file system.
//!
//! Both ends use plain system calls, so trees can be read from any directory that does not change
//! meanwhile, such as a snapshot's. Paths are resolved beneath the directory and never through
//! symbolic links, whatever a stream says. The calls are behind a trait, [`Beneath`], so that a
//! simulation of power cuts runs the same code on files in memory.

mod beneath;
mod error;
mod export;
mod extents;
mod host;
mod numbers;
mod plan;
mod receive;
mod same;
mod sender;
#[cfg(test)]
mod tests;
mod tree;
pub mod xattrs;

pub use beneath::{Beneath, FileStat, OpenFile, OpenFor, Root};
pub use error::SendError;
pub use export::{Exported, export};
pub use numbers::{InodeNumbers, TwinView};
pub use receive::{
    Left, RECEIVED_XATTR, ReceiveOptions, Received, receive, receive_at, token_at, token_of,
};
pub use sender::{Sender, Sent, Side};
pub use stitch_format::send_stream::{SendHead, SendId, SendPosition, SendToken};
pub use tree::{Node, Tree, TreeOptions};
pub use xattrs::Xattrs;
