//! The keys of a store that this process has open, without a server.

use crate::client::ClientState;
use crate::remote::{self, RemoteError, Response};
use crate::service::Service;
use crate::{ServeError, ServerOptions};
use std::fmt;
use stitch_base::sync::Arc;
use stitch_kv::Engine;

/// Runs commands one after the other, as a server does for one client.
pub struct Local {
    service: Service,
    client: ClientState,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl Local {
    /// Opens the keys of a store. Nothing else may change the tree `redis/rows` meanwhile.
    ///
    /// # Errors
    /// [`ServeError::Db`] and [`ServeError::Format`] for keys that cannot be opened.
    pub fn open(engine: Arc<dyn Engine>) -> Result<Self, ServeError> {
        let mut service = Service::open(engine, &ServerOptions::default())?;
        let client = service.connect();
        Ok(Self { service, client })
    }

    /// Runs a command.
    ///
    /// # Errors
    /// [`RemoteError::Refused`] with what a server would say. [`RemoteError::Protocol`] for no
    /// words.
    ///
    /// # Durability
    /// Survives a killed process when this returns, and a power cut after a sync of the store.
    pub fn call(&mut self, args: &[&[u8]]) -> Result<Response, RemoteError> {
        let mut out = Vec::new();
        self.service.begin_round();
        let _kind = self.service.execute(&mut self.client, args, &mut out);
        self.service.commit().map_err(RemoteError::Refused)?;
        if out.is_empty() {
            return Err(RemoteError::Protocol);
        }
        remote::response_of(&mut out.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_kv::{ModelEngine, UpsertRegistry};

    #[test]
    fn commands_run_without_a_server() {
        let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let mut local = Local::open(Arc::clone(&engine) as _).unwrap();
        let set = local.call(&[b"SET", b"a", b"1"]).unwrap();
        assert_eq!(set, Response::Simple("OK".to_owned()));
        drop(local);
        let mut local = Local::open(engine).unwrap();
        assert_eq!(
            local.call(&[b"GET", b"a"]).unwrap(),
            Response::Bulk(b"1".to_vec())
        );
        assert_eq!(local.call(&[b"GET", b"x"]).unwrap(), Response::Null);
        assert!(matches!(
            local.call(&[b"HGET", b"a", b"f"]),
            Err(RemoteError::Refused(_))
        ));
        assert!(matches!(local.call(&[]), Err(RemoteError::Protocol)));
    }
}
