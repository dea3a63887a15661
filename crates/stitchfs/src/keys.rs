//! What serves the keys of an open store to other programs.

use std::fmt;
use std::path::PathBuf;
use stitch_base::sync::{Arc, Mutex};
use stitch_fuse::TransactionSockets;

/// A server of keys, which ends before its store is closed.
pub struct KeyServer {
    /// The socket on which it listens.
    pub socket: PathBuf,
    /// What serves the keys of transactions.
    pub transactions: Option<Arc<dyn TransactionSockets>>,
    /// Ends it.
    pub stop: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for KeyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyServer")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// The server of a store, if it has one.
#[derive(Debug, Default)]
pub(crate) struct AttachedKeys(Mutex<Option<KeyServer>>);

impl AttachedKeys {
    pub(crate) fn set(&self, server: KeyServer) {
        self.stop();
        *self.0.lock() = Some(server);
    }

    pub(crate) fn socket(&self) -> Option<PathBuf> {
        self.0.lock().as_ref().map(|server| server.socket.clone())
    }

    pub(crate) fn transactions(&self) -> Option<Arc<dyn TransactionSockets>> {
        let server = self.0.lock();
        server
            .as_ref()
            .and_then(|server| server.transactions.clone())
    }

    pub(crate) fn stop(&self) {
        // Not under the lock: it may take a while.
        let server = self.0.lock().take();
        if let Some(server) = server {
            (server.stop)();
        }
    }
}

impl Drop for AttachedKeys {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_server_is_ended_once() {
        let ends = Arc::new(AtomicU64::new(0));
        let server = |name: &str| {
            let ends = Arc::clone(&ends);
            KeyServer {
                socket: PathBuf::from(name),
                transactions: None,
                stop: Box::new(move || {
                    ends.fetch_add(1, Ordering::Relaxed);
                }),
            }
        };
        let keys = AttachedKeys::default();
        assert_eq!(keys.socket(), None);
        keys.set(server("a"));
        keys.set(server("b"));
        assert_eq!(
            (keys.socket(), ends.load(Ordering::Relaxed)),
            (Some("b".into()), 1)
        );
        keys.stop();
        keys.stop();
        assert_eq!((keys.socket(), ends.load(Ordering::Relaxed)), (None, 2));
        keys.set(server("c"));
        drop(keys);
        assert_eq!(ends.load(Ordering::Relaxed), 3);
    }
}
