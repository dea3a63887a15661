//! The directory of a store: its identity and its lock.
//!
//! ```text
//!  DIR/STITCHFS         the identity (`stitch_format::store_identity`)
//!  DIR/CURRENT, ...     files of the engine
//!  DIR/files/           large files as plain files
//!  DIR/lost+found/      of the host's file system, where DIR is its root; left alone
//! ```
//!
//! Making a store, so that a crash leaves nothing that can be taken for one:
//! 1. the directory is locked; what it holds is refused, or removed if it is an unfinished making
//!    or may be overwritten;
//! 2. an identity in the state `Making` is made durable;
//! 3. the engine makes its files and closes them;
//! 4. an identity in the state `Made` takes the place of the other.

use crate::StoreError;
use crate::engine::dir::{is_store, read};
use crate::make::MakeOptions;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use stitch_base::random;
use stitch_device::{DirLock, Folder, STORE_FILE_NAME};
use stitch_format::store_identity::{FILE_NAME, Identity, State};
use stitch_format::superblock::LABEL_BYTES_MAX;

/// An identity that is written takes the name of the old one.
const NEW_FILE_NAME: &str = "STITCHFS.new";
/// Size beyond which files are plain files, unless the making says otherwise: what an inode's row
/// holds.
const LARGE_FILES: u64 = 4 << 10;
const LOST_FOUND: &str = "lost+found";
const MODE: u32 = 0o700;

/// A directory with a store in it, locked.
#[derive(Debug)]
pub(crate) struct StoreDir {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    _lock: DirLock,
}

impl StoreDir {
    /// Locks the directory at `path` and reads its identity.
    ///
    /// # Errors
    /// [`StoreError::is_busy`] if another opener has it; [`StoreError::Identity`],
    /// [`StoreError::Directory`] for an unfinished store.
    pub(super) fn open(path: &Path, read_only: bool) -> Result<Self, StoreError> {
        let path = &full(path)?;
        let lock = DirLock::new(path, read_only)?;
        let identity = read(path)?;
        if identity.state == State::Making {
            let reason = "its making was interrupted, and nothing is in it; make it anew";
            return Err(unfit(path, reason));
        }
        Ok(Self {
            path: path.clone(),
            identity,
            _lock: lock,
        })
    }
}

/// A store that is being made in a directory. Dropped before [`Self::finish`], it leaves nothing
/// behind.
pub(super) struct Making {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    was_missing: bool,
    is_finished: bool,
    _lock: DirLock,
}

impl Making {
    /// Steps 1 and 2: takes the directory at `path`, which is made if it is missing.
    ///
    /// # Errors
    /// [`StoreError::Occupied`] for a store that may not be overwritten, [`StoreError::Directory`]
    /// for what never is, [`StoreError::is_busy`]; see [`StoreError`].
    pub(super) fn begin(path: &Path, options: &MakeOptions) -> Result<Self, StoreError> {
        let identity = identity_of(path, options)?;
        let was_missing = !path.exists();
        if !was_missing && !path.is_dir() {
            let reason = "is no directory; a store of the RocksDB engine needs one of its own";
            return Err(unfit(path, reason));
        }
        let folder = Folder::create(path)?;
        let path = full(path)?;
        let lock = DirLock::new(&path, false)?;
        check_vacant(&path, options.force)?;
        let mode = fs::Permissions::from_mode(MODE);
        fs::set_permissions(&path, mode).map_err(|e| host("protect", &path, e))?;
        write(&folder, &identity)?;
        clear(&path, &[FILE_NAME])?;
        Ok(Self {
            path,
            identity,
            was_missing,
            is_finished: false,
            _lock: lock,
        })
    }

    /// Step 4.
    ///
    /// # Errors
    /// [`StoreError::Device`].
    ///
    /// # Durability
    /// The store is durable when this returns, if the engine's files are.
    pub(super) fn finish(mut self) -> Result<(), StoreError> {
        self.identity.state = State::Made;
        write(&Folder::open(&self.path, false)?, &self.identity)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // The error that stopped us says more than a failed clean-up would.
        let cleared = clear(&self.path, &[]);
        if self.was_missing && cleared.is_ok() {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn identity_of(path: &Path, options: &MakeOptions) -> Result<Identity, StoreError> {
    let label = options.label.clone();
    if label.len() > LABEL_BYTES_MAX || label.contains('\0') {
        let reason = format!("a label has at most {LABEL_BYTES_MAX} bytes, none of them zero");
        return Err(unfit(path, reason));
    }
    let bytes = random::bytes16().map_err(|e| host("find random numbers for", path, e))?;
    Ok(Identity {
        state: State::Making,
        uuid: *uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes(),
        large_files: options.large_files.threshold(Some(LARGE_FILES)),
        label,
    })
}

/// Refuses a directory whose contents may not be removed.
fn check_vacant(path: &Path, force: bool) -> Result<(), StoreError> {
    if is_store(path) {
        // A making that was interrupted holds nothing.
        let is_unfinished = read(path).is_ok_and(|identity| identity.state == State::Making);
        return match force || is_unfinished {
            true => Ok(()),
            false => Err(StoreError::Occupied {
                path: path.to_owned(),
                what: "a store of the RocksDB engine".to_owned(),
            }),
        };
    }
    // A making that ended before its identity was there has left the file that was to become it.
    match others(path, &[NEW_FILE_NAME])?.first() {
        None => Ok(()),
        Some(found) if found.ends_with(STORE_FILE_NAME) => Err(unfit(
            path,
            "holds a store of the VT-tree engine; give another directory",
        )),
        Some(found) => {
            let name = found.file_name().unwrap_or_default().display();
            let reason =
                format!("holds {name}, and maybe more, which is no store; give an empty directory");
            Err(unfit(path, reason))
        }
    }
}

/// Removes everything in a directory but these names.
fn clear(path: &Path, kept: &[&str]) -> Result<(), StoreError> {
    for found in others(path, kept)? {
        let is_dir = found.symlink_metadata().is_ok_and(|m| m.is_dir());
        let removed = match is_dir {
            true => fs::remove_dir_all(&found),
            false => fs::remove_file(&found),
        };
        removed.map_err(|e| host("remove", &found, e))?;
    }
    Ok(())
}

/// What is in a directory but for these names, and what the host's file system has there.
fn others(path: &Path, kept: &[&str]) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |e| host("list", path, e);
    let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(failed)?.collect();
    let mut found: Vec<PathBuf> = entries
        .map_err(failed)?
        .iter()
        .map(fs::DirEntry::path)
        .collect();
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_none_or(|name| name != LOST_FOUND && !kept.contains(&name))
    });
    found.sort();
    Ok(found)
}

/// Writes an identity in place of the old one. It is durable when this returns; a crash leaves
/// either.
fn write(folder: &Folder, identity: &Identity) -> Result<(), StoreError> {
    folder.remove(NEW_FILE_NAME)?;
    folder.make(NEW_FILE_NAME)?;
    folder.write_at(NEW_FILE_NAME, 0, &identity.encode())?;
    folder.publish(NEW_FILE_NAME)?;
    Ok(folder.rename(NEW_FILE_NAME, FILE_NAME)?)
}

fn full(path: &Path) -> Result<PathBuf, StoreError> {
    path.canonicalize().map_err(|e| host("find", path, e))
}

fn host(op: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Host {
        op,
        path: path.to_owned(),
        source,
    }
}

fn unfit(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Directory {
        path: path.to_owned(),
        reason: reason.into(),
    }
}
