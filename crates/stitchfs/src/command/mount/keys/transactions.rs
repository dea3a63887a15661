//! The keys of transactions, each on a socket for the owner of the transaction.
//!
//! ```text
//! MNT/.stitchfs/txn/NAME/root/.stitchfs/kv.sock --> /run/stitchfs-txn/UUID-INSTANCE-tNUMBER.sock
//! ```
//!
//! A server is started when its link is looked up, and ends with the transaction. A socket has mode
//! 0600 and belongs to the owner of the transaction; other users than that, root and that of the
//! daemon are refused by what the kernel says of the connection. Sockets that a killed daemon has
//! left are removed by the next one.

use super::{Bound, Listener, Server, ServerOptions, own_dir};
use anyhow::{Context, Result};
use rustix::process::{Gid, Uid};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::TransactionView;
use stitch_fuse::{ControlLink, Errno, TransactionSockets};
use stitch_kv::{Engine, UncommittedEngine};
use stitch_serve::{IsReadOnly, SyncPolicy};
use stitchfs::{KEYS_TREE, RoundGates, Store};

/// Directory of the sockets of root's daemons: other users may pass, and see nothing.
const ROOTS_DIR: &str = "/run/stitchfs-txn";

struct TransactionServer {
    link: ControlLink,
    server: Server,
    /// Dropped last: the name goes once it is no longer served.
    _bound: Bound,
}

/// The servers of a mount's transactions, by their numbers.
pub(super) struct TransactionServers {
    dir: PathBuf,
    /// What the names of all their sockets begin with.
    prefix: String,
    sync: SyncPolicy,
    gates: Arc<RoundGates>,
    read_only: IsReadOnly,
    /// `None` when all have ended for good.
    running: Mutex<Option<BTreeMap<u64, TransactionServer>>>,
}

impl fmt::Debug for TransactionServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionServers")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl TransactionServers {
    /// No server runs yet. `dir` is a directory of this user alone; `name` names the store, which
    /// no other process has open.
    pub(super) fn new(dir: &Path, name: &str, sync: SyncPolicy, store: &Store) -> Result<Self> {
        let dir = match rustix::process::geteuid().is_root() {
            true => own_dir(ROOTS_DIR.into(), 0o711)?,
            false => dir.to_owned(),
        };
        let prefix = format!("{name}-t");
        remove_left_over(&dir, &prefix)?;
        Ok(Self {
            dir,
            prefix,
            sync,
            gates: Arc::clone(store.round_gates()),
            read_only: super::is_read_only(store.mount_mode()),
            running: Mutex::new(Some(BTreeMap::new())),
        })
    }

    fn start(&self, view: &TransactionView) -> Result<TransactionServer> {
        let (number, owner) = (view.info().number, view.info().owner);
        let records = view.records();
        let trees = Engine::trees(&**records);
        let rows = trees.iter().find(|tree| tree.name == KEYS_TREE);
        let rows = rows.context("it began before the store had keys")?;
        let own = rustix::process::geteuid();
        let bound = Bound::in_private_dir(&self.dir, &format!("{}{number}.sock", self.prefix))?;
        if owner != own.as_raw() {
            let (user, group) = (Uid::from_raw(owner), rustix::process::getegid());
            let group: Option<Gid> = Some(group);
            rustix::fs::chown(bound.path(), Some(user), group).context("chown of the socket")?;
        }
        let users = vec![owner, own.as_raw(), Uid::ROOT.as_raw()];
        let listener = Listener::unix_of(bound.listener()?, users)?;
        let options = ServerOptions {
            sync: self.sync,
            branch: records.branch_of(rows.id),
            gate: self.gates.of_transaction(number),
            read_only: Some(Arc::clone(&self.read_only)),
            ..ServerOptions::default()
        };
        let engine: Arc<dyn Engine> = Arc::new(UncommittedEngine::new(Arc::clone(records) as _));
        let server = Server::start(engine, vec![listener], &options)?;
        let link = ControlLink {
            name: b"kv.sock".to_vec(),
            target: bound.path().as_os_str().as_bytes().to_vec(),
            uid: owner,
            gid: rustix::process::getegid().as_raw(),
        };
        Ok(TransactionServer {
            link,
            server,
            _bound: bound,
        })
    }

    /// Refuses a transaction whose socket could not serve its owner.
    fn check(view: &TransactionView) -> Result<(), Errno> {
        let own = rustix::process::geteuid();
        if !own.is_root() && own.as_raw() != view.info().owner {
            return Err(Errno::EACCES);
        }
        let trees = Engine::trees(&**view.records());
        match trees.iter().any(|tree| tree.name == KEYS_TREE) {
            true => Ok(()),
            false => Err(Errno::ENOTSUP),
        }
    }
}

impl TransactionSockets for TransactionServers {
    fn open(&self, view: &Arc<TransactionView>) -> Result<ControlLink, Errno> {
        Self::check(view)?;
        let mut running = self.running.lock();
        let running = running.as_mut().ok_or(Errno::ESTALE)?;
        let number = view.info().number;
        if let Some(server) = running.get(&number) {
            return Ok(server.link.clone());
        }
        let started = self.start(view).map_err(|error| {
            tracing::error!(
                error = format!("{error:#}"),
                number,
                "no keys of a transaction"
            );
            Errno::EIO
        })?;
        let link = started.link.clone();
        running.insert(number, started);
        Ok(link)
    }

    fn end(&self, number: u64) {
        let mut running = self.running.lock();
        let ended = running.as_mut().and_then(|all| all.remove(&number));
        // Its round may wait for the engine: without the lock.
        drop(running);
        if let Some(ended) = ended {
            stop(ended);
        }
    }

    fn end_all(&self) {
        let all = self.running.lock().take();
        all.into_iter()
            .flatten()
            .for_each(|(_, server)| stop(server));
    }
}

fn stop(ended: TransactionServer) {
    let TransactionServer { server, _bound, .. } = ended;
    if let Err(error) = server.stop() {
        tracing::warn!(%error, "a server of a transaction's keys did not end well");
    }
}

impl Drop for TransactionServers {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Removes the sockets that an earlier daemon of the store has left.
fn remove_left_over(dir: &Path, prefix: &str) -> Result<()> {
    let shown = dir.display();
    let entries = fs::read_dir(dir).with_context(|| format!("{shown}: cannot be read"))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("{shown}: cannot be read"))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_suffix(".sock"));
        if number.is_some_and(|number| number.parse::<u64>().is_ok()) {
            fs::remove_file(entry.path())
                .with_context(|| format!("{}: cannot be removed", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_a_killed_daemon_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "a-main-t7.sock",
            "a-main.sock",
            "b-main-t7.sock",
            "a-main-tx.sock",
        ] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        remove_left_over(dir.path(), "a-main-t").unwrap();
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a-main-tx.sock", "a-main.sock", "b-main-t7.sock"]);
    }
}
