//! `stitchfs serve`: the Redis protocol over a store that is not mounted.

pub(super) mod socket;

use super::live::{self, Place};
use super::mount::catch_signals;
use super::{access, log, output, size, startup};
use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use stitch_base::sync::Arc;
use stitch_serve::{Listener, Server, ServerOptions, SocketAddr, SyncPolicy};
use stitchfs::{Store, StoreOptions, memory};

/// Where Redis listens.
const DEFAULT_ADDRESS: &str = "127.0.0.1:6379";

const AFTER: &str = "\
Strings, hashes, sorted sets, expiry, SCAN and MULTI/EXEC/WATCH are served, as
one database (number 0). Keys lie beside the file system of the store and take
its space. With \"always\" a command is on the medium when it is replied to;
with \"everysec\" a power cut may take the last second, and a killed server
nothing. A mounted store is served by its mount: mount -o kv.

Prints \"STORE: serving on ADDRESS\" for each address and socket, then serves
until SIGTERM or Ctrl-C.";

/// Serve the keys of a store to Redis clients
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct ServeArgs {
    /// Listen on this address; port 0 is one that is free. Without --listen and
    /// --socket: 127.0.0.1:6379
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,

    /// Listen on a socket at this path, for its owner alone
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Clients have to give the password in this file (AUTH); needed to listen on
    /// an address that others reach
    #[arg(long, value_name = "FILE")]
    requirepass_file: Option<PathBuf>,

    /// When commands are made durable
    #[arg(long, value_name = "WHEN", default_value = "everysec")]
    appendfsync: AppendFsync,

    /// Memory for buffers and caches; by default a quarter of the machine's or
    /// control group's, at least 64M
    #[arg(long, value_name = "SIZE", value_parser = size::parse_memory)]
    memory: Option<u64>,

    /// Instance of the store
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,

    /// File, directory, block device, LABEL=NAME or UUID=NUMBER
    #[arg(value_name = "STORE")]
    pub(super) store: PathBuf,
}

/// As `appendfsync` of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AppendFsync {
    /// Before they are replied to
    Always,
    /// Once a second
    Everysec,
}

impl From<AppendFsync> for SyncPolicy {
    fn from(when: AppendFsync) -> Self {
        match when {
            AppendFsync::Always => Self::Always,
            AppendFsync::Everysec => Self::EverySecond,
        }
    }
}

pub(super) fn run(args: &ServeArgs) -> Result<u8> {
    if let Place::Mount(entry) = Place::of(&args.store)? {
        bail!(
            "{}: is mounted at {}; unmount it, or serve its keys there: stitchfs mount -o kv",
            args.store.display(),
            entry.path.display()
        );
    }
    startup::reset_for_daemon()?;
    log::subscribe(log::Target::Terminal)?;
    let password = args
        .requirepass_file
        .as_deref()
        .map(read_password)
        .transpose()?;
    let mut addresses = args.listen.clone();
    if addresses.is_empty() && args.socket.is_none() {
        addresses.push(DEFAULT_ADDRESS.parse().context("the default address")?);
    }
    for address in &addresses {
        ensure!(
            password.is_some() || address.ip().is_loopback(),
            "{address}: others reach this address; give --requirepass-file FILE as well"
        );
    }
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(Listener::tcp(address)?);
    }
    let socket = args.socket.as_deref().map(socket::Bound::new).transpose()?;
    if let Some(socket) = &socket {
        listeners.push(Listener::unix(socket.listener()?)?);
    }
    let mut signals = catch_signals(false)?;
    let store = open(args)?;
    access::warn_if_wide(store.path());
    let options = ServerOptions {
        sync: args.appendfsync.into(),
        password,
        recent_bytes: store.key_rows_bytes(),
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(store.engine()), listeners, &options)?;
    tell_where(args, &server)?;
    let _ = signals.forever().next();
    let stopped = server.stop();
    store.close()?;
    stopped?;
    Ok(0)
}

fn tell_where(args: &ServeArgs, server: &Server) -> Result<()> {
    let store = args.store.display();
    for address in server.addresses() {
        output::print(&format!("{store}: serving on {address}"))?;
    }
    if let Some(path) = &args.socket {
        output::print(&format!("{store}: serving on {}", path.display()))?;
    }
    Ok(())
}

fn open(args: &ServeArgs) -> Result<Store> {
    let memory_bytes = args.memory.unwrap_or_else(memory::default_budget);
    let options = StoreOptions {
        memory_bytes,
        key_rows_bytes: memory::key_rows_of_server(memory_bytes),
        instance: args.instance.clone(),
        ..StoreOptions::default()
    };
    let store = Store::open(&stitchfs::store_path(&args.store), &options)?;
    for finding in store.damage() {
        output::note(&format!("{}: {}", finding.rule, finding.detail));
    }
    Ok(store)
}

/// Reads a password: the file's first line.
fn read_password(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let text = fs::read(path).with_context(|| format!("{shown}: cannot read the password"))?;
    let mode = fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        output::note(&format!(
            "{shown}: others may read the password (chmod 600)"
        ));
    }
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let password = line.strip_suffix(b"\r").unwrap_or(line);
    ensure!(
        !password.is_empty(),
        "{shown}: its first line is empty: no password"
    );
    Ok(password.to_vec())
}

/// The path of the socket on which a mount serves its keys.
pub(super) fn socket_of_mount(mount_point: &Path) -> Result<PathBuf> {
    let document = live::ask(mount_point)?;
    match stitchfs::path_in(&document, "kv_socket") {
        Some(path) => Ok(path),
        None => bail!(
            "{}: serves no keys; mount it with -o kv",
            mount_point.display()
        ),
    }
}
