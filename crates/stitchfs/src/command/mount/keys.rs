//! `-o kv`: the keys of a mounted store, on a socket beside the mount.
//!
//! The socket is in a directory of the user who mounted, and `MNT/.stitchfs/kv.sock` is a link to
//! it. To bind a socket in the mount itself, the daemon would have to ask itself through the
//! kernel, and a daemon that takes a mount over could not. The keys of transactions are on sockets
//! of their own, see `transactions`.

mod transactions;

use super::MountWords;
use crate::command::serve::socket::Bound;
use anyhow::{Context, Result, ensure};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use stitch_base::sync::Arc;
use stitch_fuse::MountMode;
use stitch_serve::{IsReadOnly, Listener, Server, ServerOptions};
use stitchfs::{KeyServer, Store};
use transactions::TransactionServers;

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
    let name = format!("{}-{}", part("uuid"), part("instance").replace('/', "_"));
    let dir = runtime_dir().context(
        "kv: no directory for the socket of its keys; XDG_RUNTIME_DIR names one that only you can \
         enter",
    )?;
    let transactions = TransactionServers::new(&dir, &name, sync, store)?;
    let bound = Bound::in_private_dir(&dir, &format!("{name}.sock"))?;
    let listener = Listener::unix(bound.listener()?)?;
    let options = ServerOptions {
        sync,
        gate: Arc::clone(store.round_gates().mainline()),
        read_only: Some(is_read_only(store.mount_mode())),
        recent_bytes: store.key_rows_bytes(),
        ..ServerOptions::default()
    };
    let engine = Arc::clone(store.engine());
    let server = Server::start(engine, vec![listener], &options)?;
    store.attach_keys(KeyServer {
        socket: bound.path().to_owned(),
        transactions: Some(Arc::new(transactions)),
        stop: Box::new(move || {
            if let Err(error) = server.stop() {
                tracing::error!(%error, "the keys' server did not end well");
            }
            drop(bound);
        }),
    });
    Ok(())
}

/// What tells the servers of keys that the mount was remounted read-only.
fn is_read_only(mode: &Arc<MountMode>) -> IsReadOnly {
    let mode = Arc::clone(mode);
    Arc::new(move || mode.is_read_only())
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
    own_dir(dir, 0o700)
}

/// A directory of this user with this mode; made if missing.
fn own_dir(dir: PathBuf, mode: u32) -> Result<PathBuf> {
    debug_assert_eq!(mode & 0o022, 0, "no other user writes in it");
    let uid = rustix::process::geteuid();
    let shown = dir.display();
    let made = DirBuilder::new().recursive(true).mode(mode).create(&dir);
    made.with_context(|| format!("{shown}: the directory cannot be made"))?;
    // Another process may have made it first.
    let meta = fs::symlink_metadata(&dir).with_context(|| shown.to_string())?;
    ensure!(
        meta.is_dir() && meta.uid() == uid.as_raw() && meta.mode() & 0o777 & !mode == 0,
        "{shown}: is not a directory of this user with mode {mode:04o}"
    );
    if meta.mode() & 0o777 != mode {
        // The mode mask has taken bits away.
        let set = fs::set_permissions(&dir, fs::Permissions::from_mode(mode));
        set.with_context(|| format!("{shown}: cannot get mode {mode:04o}"))?;
    }
    Ok(dir)
}
