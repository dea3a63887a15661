//! The store of a mount: made if it is missing, and opened.

use super::{MountArgs, keys};
use crate::command::options::{AccessTimes, MountWords};
use crate::command::{busy, live, output};
use anyhow::Result;
use std::path::Path;
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_base::clock::{Clock, SystemClock};
use stitchfs::{
    AtimePolicy, CompressOptions, Durability, MakeOptions, RootOwner, Store, StoreError,
    StoreOptions, memory,
};

/// How long to wait for a store that is in use but not mounted.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// Makes the store if it is missing and `--create` was given. Reports whether it did.
pub(super) fn create_if_missing(args: &MountArgs, words: &MountWords) -> Result<bool> {
    let Some(len_bytes) = args.create else {
        return Ok(false);
    };
    let path = stitchfs::store_path(&args.store);
    if path.exists() {
        return Ok(false);
    }
    words.io.check_for_file(&path.display().to_string())?;
    let options = MakeOptions {
        len_bytes: Some(len_bytes),
        root: RootOwner {
            uid: words
                .uid
                .unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid: words
                .gid
                .unwrap_or_else(|| rustix::process::getegid().as_raw()),
            mode: 0o777 & !words.umask.unwrap_or(0o022),
        },
        ..MakeOptions::default()
    };
    let bar = output::progress("making the store");
    let made = stitchfs::make(&path, &options, &mut |done, total| {
        output::advance(&bar, done, total);
    });
    bar.finish_and_clear();
    made?;
    Ok(true)
}

/// Opens the store; an error says what can be done.
pub(super) fn open(args: &MountArgs, words: &MountWords) -> Result<Store> {
    let options = store_options(args, words);
    open_patiently(&args.store, &options).map_err(|error| explain(&args.store, error))
}

fn store_options(args: &MountArgs, words: &MountWords) -> StoreOptions {
    let memory = args.memory.or(words.memory_bytes);
    let memory_bytes = memory.unwrap_or_else(memory::default_budget);
    StoreOptions {
        read_only: words.read_only,
        memory_bytes,
        key_rows_bytes: match words.keys {
            Some(_) => memory::key_rows_of_mount(memory_bytes),
            None => 0,
        },
        history: words.history_s.map(Duration::from_secs),
        sync_interval: Duration::from_secs(u64::from(words.commit_s.unwrap_or(5))),
        atime: match words.access_times {
            AccessTimes::None => AtimePolicy::Noatime,
            AccessTimes::Relative => AtimePolicy::Relatime,
            AccessTimes::Strict => AtimePolicy::Strictatime,
        },
        // The kernel leaves `dirsync` to us, and `sync` in part.
        durability: if words.sync || words.dir_sync {
            Durability::Device
        } else {
            Durability::default()
        },
        discard: words.discard,
        io: words.io,
        large_files: words.large_files,
        instance: words.instance.clone(),
        compress: CompressOptions {
            data: words.compress,
            meta: words.compress_meta,
        },
        ..StoreOptions::default()
    }
}

/// A store that was unmounted a moment ago is in use until its daemon has written everything out;
/// `umount` and `mount` one after the other are to work all the same.
fn open_patiently(path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
    let clock = SystemClock::default();
    let store = stitchfs::store_path(path);
    loop {
        match Store::open(path, options) {
            Err(error) if error.is_busy() && clock.monotonic() < PATIENCE => {
                let is_mounted = live::mount_of(&store).is_ok_and(|entry| entry.is_some());
                if is_mounted || busy::is_mounted_elsewhere(&store) {
                    return Err(error);
                }
            }
            other => return other,
        }
        clock.sleep(POLL);
    }
}

/// Adds what the user can do here.
fn explain(store: &Path, error: StoreError) -> anyhow::Error {
    let path = stitchfs::store_path(store);
    if error.kind() == ErrorKind::NotFound && !path.exists() {
        let path = path.display();
        return anyhow::anyhow!("{path}: does not exist; to make it, add --create SIZE");
    }
    if error.is_write_protected() {
        let path = path.display();
        return anyhow::anyhow!("{path}: is write-protected; mount it with -o ro");
    }
    if error.is_permission_denied() && std::fs::File::open(&path).is_ok() {
        let path = path.display();
        return anyhow::anyhow!("{path}: you may only read it; mount it with -o ro");
    }
    if error.is_log_damaged() {
        let path = path.display();
        return anyhow::anyhow!(
            "{path}: {error}; restore the store from a copy, or give that up and keep what was \
             before it: stitchfs fsck -y --drop-log-tail {path}"
        );
    }
    if error.kind() == ErrorKind::Corrupt {
        let path = path.display();
        return anyhow::anyhow!("{error}; see what `stitchfs fsck {path}` can do");
    }
    error.into()
}

impl MountArgs {
    /// Opens the store of a mount whose daemon has ended, perhaps a moment ago.
    pub(in crate::command) fn open_again(&self, path: &Path) -> Result<Store> {
        let options = store_options(self, &self.words());
        let clock = SystemClock::default();
        loop {
            match Store::open(path, &options) {
                Err(error) if error.is_busy() && clock.monotonic() < PATIENCE => {
                    clock.sleep(POLL);
                }
                other => {
                    let store = other?;
                    keys::serve(&store, &self.words())?;
                    return Ok(store);
                }
            }
        }
    }
}
