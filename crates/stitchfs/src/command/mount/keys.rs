//! `-o kv`: the keys of a mounted store, on a socket beside the mount.
//!
//! The socket is in a directory of the user who mounted, and `MNT/.stitchfs/kv.sock` is a link to
//! it. To bind a socket in the mount itself, the daemon would have to ask itself through the
//! kernel, and a daemon that takes a mount over could not.

use super::MountWords;
use crate::command::serve::socket::Bound;
use anyhow::{Context, Result, ensure};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::PathBuf;
use stitch_base::sync::Arc;
use stitch_serve::{Listener, Server, ServerOptions};
use stitchfs::{KeyServer, Store};

/// Refuses what cannot be served.
pub(super) fn check(words: &MountWords) -> Result<()> {
    ensure!(
        words.keys.is_none() || !words.read_only,
        "kv: needs a store that is mounted for writing; leave kv or ro away"
    );
    Ok(())
}

/// Serves the keys until the store is closed, if that was asked for.
pub(super) fn serve(store: &Store, words: &MountWords) -> Result<()> {
    let Some(sync) = words.keys else {
        return Ok(());
    };
    let identity = store.identity();
    let part = |name: &str| identity[name].as_str().unwrap_or_default().to_owned();
    let name = format!(
        "{}-{}.sock",
        part("uuid"),
        part("instance").replace('/', "_")
    );
    let bound = Bound::in_private_dir(&runtime_dir()?, &name)?;
    let listener = Listener::unix(bound.listener()?)?;
    let options = ServerOptions {
        sync,
        ..ServerOptions::default()
    };
    let engine = Arc::clone(store.engine());
    let server = Server::start(engine, vec![listener], &options)?;
    store.attach_keys(KeyServer {
        socket: bound.path().to_owned(),
        stop: Box::new(move || {
            if let Err(error) = server.stop() {
                tracing::error!(%error, "the keys' server did not end well");
            }
            drop(bound);
        }),
    });
    Ok(())
}

/// A directory for sockets that no other user can enter; made if missing.
fn runtime_dir() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let dir = match own {
        _ if uid.is_root() => PathBuf::from("/run/stitchfs"),
        Some(own) => PathBuf::from(own).join("stitchfs"),
        None => PathBuf::from(format!("/tmp/stitchfs-{}", uid.as_raw())),
    };
    let shown = dir.display();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("{shown}: cannot be made"))?;
    // Somebody else may have made it first.
    let meta = fs::symlink_metadata(&dir).with_context(|| shown.to_string())?;
    ensure!(
        meta.is_dir() && meta.uid() == uid.as_raw() && meta.mode() & 0o077 == 0,
        "{shown}: is not a directory of this user alone (mode 0700)"
    );
    Ok(dir)
}
