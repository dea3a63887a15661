//! Where the keys are: in a store that is opened for one command, or behind a socket of a mount
//! or of a transaction in one.

use super::transaction;
use crate::command::live::Place;
use crate::command::serve;
use anyhow::{Context, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use stitch_base::sync::Arc;
use stitch_serve::{Local, Remote, Response};
use stitchfs::{Store, StoreOptions};

/// Something that runs commands on keys.
pub(super) enum KeyTarget {
    Store(Box<Store>, Box<Local>),
    Mount(Remote),
}

impl KeyTarget {
    pub(super) fn open(path: &Path) -> Result<Self> {
        if let Some(socket) = transaction::socket_of(path)? {
            let stream = UnixStream::connect(&socket);
            let stream = stream.with_context(|| format!("cannot reach {}", socket.display()))?;
            return Ok(Self::Mount(Remote::new(stream)));
        }
        match Place::of(path)? {
            Place::Mount(entry) => {
                let path = serve::socket_of_mount(&entry.path)?;
                let stream = UnixStream::connect(&path);
                let stream = stream.with_context(|| format!("cannot reach {}", path.display()))?;
                Ok(Self::Mount(Remote::new(stream)))
            }
            Place::Store(path) => {
                let store = Store::open(&path, &StoreOptions::default())?;
                let local = Local::open(Arc::clone(store.engine()))?;
                Ok(Self::Store(Box::new(store), Box::new(local)))
            }
        }
    }

    /// Runs a command. What it changes is durable when this returns, or with [`Self::close`].
    pub(super) fn call(&mut self, words: &[&[u8]]) -> Result<Response> {
        Ok(match self {
            Self::Store(_, local) => local.call(words)?,
            Self::Mount(remote) => remote.call(words)?,
        })
    }

    /// Makes all changes of a store durable. A mount makes them so by its own rules.
    pub(super) fn close(self) -> Result<()> {
        if let Self::Store(store, local) = self {
            drop(local);
            store.close()?;
        }
        Ok(())
    }
}
