//! The Redis protocol (RESP 2 and 3) over a store: `stitchfs serve`.
//!
//! One thread serves all connections, in rounds:
//!
//! 1. It waits until sockets have something to read, and reads it.
//! 2. It runs all commands that are complete, one after the other. Changes are kept in memory, and
//!    later commands of the round see them.
//! 3. It commits the changes of all of them as one batch; with [`SyncPolicy::Always`] with a sync.
//! 4. It sends the replies.
//!
//! So a command is isolated without a lock, what is replied is in the store, and clients that write
//! at the same time, or one that writes without waiting, share a batch and its sync. A batch ends
//! between two commands only: `EXEC` is one command. If a commit fails, all of its round gets the
//! error instead of replies, and nothing of it has happened.
//!
//! Keys are rows of one tree, `redis/rows`; [`stitch_format::redis`] has the layout. A hash or a
//! sorted set is a row that names a collection by a number, and rows of the collection:
//!
//! ```text
//! SET a x          k a        -> string, no expiry, "x"
//! HSET h f v       k h        -> hash, no expiry, collection 1, 1 field
//!                  m 1 f f    -> "v"
//! ZADD z 1.5 m     k z        -> sorted set, no expiry, collection 2, 1 member
//!                  m 2 m m    -> 1.5
//!                  m 2 s 1.5 m
//! EXPIRE a 10      k a        -> string, expires at T, "x"
//!                  x T a
//!                  c          -> 3 keys, 1 with an expiry, next collection 3
//! ```
//!
//! In a transaction of files and records ([`ServerOptions::branch`]) the rows are those of a
//! branch tree. There a key whose time is over is as missing, but its rows stay until it is
//! written: what a commit must look at is what commands have changed. Collections have numbers that
//! only this branch gives out. What the commit of such a transaction does with the rows is in
//! `joined` and [`RoundGate`]; what a rebase does where sides were chosen, in `merged`.
//!
//! Locks: none but the syncer's own and the gate of rounds; the engine does the rest.

mod client;
mod command;
mod error;
mod gate;
mod glob;
mod joined;
mod keyspace;
mod local;
mod merged;
mod number;
mod pending;
mod recent;
mod remote;
mod resp;
mod server;
mod service;
mod watch;

#[cfg(test)]
mod tests;

pub use error::ServeError;
pub use gate::{RoundGate, RoundPause};
pub use joined::{RowSides, is_totals, join_totals, key_of_row};
pub use local::Local;
pub use merged::{merge_keys, rows_of_key};
pub use remote::{Remote, RemoteError, Response};
pub use resp::split_words;
pub use server::{IsReadOnly, Listener, Server, ServerOptions};
pub use service::SyncPolicy;
/// Address on which a [`Listener`] listens.
pub use std::net::SocketAddr;
/// Name of the tree with the rows.
pub use stitch_format::redis::TREE as ROWS_TREE;
