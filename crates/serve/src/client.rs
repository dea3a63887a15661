//! What the server knows of a client, apart from its socket.

use crate::command::Queue;
use crate::resp::{Limits, Protocol};
use crate::watch::ClientId;

/// State of one client.
#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) id: ClientId,
    /// What the client calls itself.
    pub(crate) name: Vec<u8>,
    pub(crate) protocol: Protocol,
    pub(crate) is_authenticated: bool,
    /// Between `MULTI` and `EXEC`.
    pub(crate) queue: Option<Queue>,
    /// The client has said good-bye: what was replied goes out, nothing more is read.
    pub(crate) is_closing: bool,
}

impl ClientState {
    pub(crate) const fn new(id: ClientId, is_authenticated: bool) -> Self {
        Self {
            id,
            name: Vec::new(),
            protocol: Protocol::Two,
            is_authenticated,
            queue: None,
            is_closing: false,
        }
    }

    pub(crate) const fn limits(&self) -> Limits {
        if self.is_authenticated {
            Limits::FULL
        } else {
            Limits::BEFORE_AUTH
        }
    }
}
