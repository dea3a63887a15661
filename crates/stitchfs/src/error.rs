//! What goes wrong with a store as a whole.

use crate::{Conflict, EngineKind};
use std::io;
use std::path::PathBuf;
use stitch_base::ErrorKind;
use stitch_db::DbError;
use stitch_device::DeviceError;
use stitch_format::FormatError;
use stitch_fs::{FsError, KeptClones};
use stitch_fuse::SessionError;
use stitch_kv::KvError;
use stitch_volume::VolumeError;
use stitch_vt::VtError;

/// An error of a store. Each names the thing and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is something already where a store was to be made.
    #[error("{}: holds {what}, which would be overwritten", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What is there.
        what: String,
    },
    /// The block device is in use.
    #[error("{}: is mounted at {}", path.display(), at.display())]
    Mounted {
        /// The device.
        path: PathBuf,
        /// Its mount point.
        at: PathBuf,
    },
    /// There is nothing that a store could be made in, and no size to make something with.
    #[error("{}: {found}, and no size is given to make a store of", path.display())]
    NoSize {
        /// Where.
        path: PathBuf,
        /// What is there: `is empty`.
        found: &'static str,
    },
    /// The size that was given, or not given, does not do.
    #[error("{}: {reason}", path.display())]
    Size {
        /// The store.
        path: PathBuf,
        /// Why, and what would do.
        reason: String,
    },
    /// The host's file system refuses.
    #[error("{}: cannot {op}", path.display())]
    Host {
        /// What was tried.
        op: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// An instance without a file system.
    #[error("{}: {}", path.display(), no_file_system(instance, *is_empty))]
    NoFileSystem {
        /// The store.
        path: PathBuf,
        /// The instance's name.
        instance: String,
        /// Whether the whole store holds neither records nor files, as after an interrupted making.
        is_empty: bool,
        /// Names of instances that have a file system.
        others: Vec<String>,
    },
    /// The folder of large files beside the store is missing or another's, or cannot be.
    #[error("{}: {reason}", path.display())]
    LargeFiles {
        /// The folder, or the store that can have none.
        path: PathBuf,
        /// Why, and what can be done.
        reason: String,
    },
    /// The directory of a store cannot be made into one, or is not complete.
    #[error("{}: {reason}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why, and what would do.
        reason: String,
    },
    /// The identity of a store in a directory is damaged, or of a newer program.
    #[error("{}: {source}", path.display())]
    Identity {
        /// The file that holds it.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The engine of the store does not have what was asked for.
    #[error("{}: the {engine} engine has no {what}", path.display())]
    Lacks {
        /// The store.
        path: PathBuf,
        /// Its engine.
        engine: EngineKind,
        /// What was asked for, as a noun.
        what: &'static str,
    },
    /// This program was built without the engine of the store.
    #[error(
        "{}: needs the {engine} engine, which this program was built without; build it with \
         `--features stitchfs/{}`, and install librocksdb7.8 or librocksdb-dev",
        path.display(),
        engine.name()
    )]
    NoEngine {
        /// The store.
        path: PathBuf,
        /// The engine.
        engine: EngineKind,
    },
    /// The library of the store's engine cannot be loaded: install it.
    #[error("{}: needs the {engine} engine: {reason}", path.display())]
    NoLibrary {
        /// The store.
        path: PathBuf,
        /// The engine.
        engine: EngineKind,
        /// Which library is missing and what to install.
        reason: String,
    },
    /// A handle of another store, or of another instance or opening of this one.
    #[error("{handle} is of {owner}, not of {asked}")]
    Foreign {
        /// The handle: a tree, a snapshot, the result of a check.
        handle: String,
        /// The instance that it is of, with its store.
        owner: String,
        /// The instance that was asked.
        asked: String,
    },
    /// The file system of the instance is open already, in this process.
    #[error("{}: the file system of instance {instance} is open already", path.display())]
    FileSystemOpen {
        /// The store.
        path: PathBuf,
        /// The instance's name.
        instance: String,
    },
    /// There is a snapshot or branch of this name.
    #[error("there is {what} already")]
    Exists {
        /// What there is, with its name: `a branch named "sale"`.
        what: String,
    },
    /// There is no snapshot or branch of this name.
    #[error("there is no {what}")]
    Missing {
        /// What there is not, with its name: `snapshot named "monday"`.
        what: String,
    },
    /// Other writers changed keys that a transaction depends on: run it again.
    #[error("{}", conflict_text(conflicts))]
    Conflict {
        /// The keys, by tree: at least one, and at most 1000.
        conflicts: Vec<Conflict>,
    },
    /// A transaction was refused otherwise.
    #[error(transparent)]
    Transaction(DbError),
    /// From the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// From the volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// From the engine, at opening.
    #[error(transparent)]
    Vt(#[from] VtError),
    /// From the engine.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// From the file system.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The mount cannot be given to the process that is to keep it, or be had from it.
    #[error("cannot keep the mount for another daemon")]
    Keep(#[source] io::Error),
    /// From the mount.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl StoreError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Occupied { .. } | Self::Exists { .. } => ErrorKind::Exists,
            Self::Mounted { .. } | Self::FileSystemOpen { .. } => ErrorKind::Busy,
            Self::NoSize { .. }
            | Self::Size { .. }
            | Self::LargeFiles { .. }
            | Self::Directory { .. }
            | Self::Foreign { .. } => ErrorKind::Invalid,
            Self::Host { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::StorageFull => ErrorKind::NoSpace,
                _ => ErrorKind::Io,
            },
            Self::Identity { source, .. } => source.kind(),
            Self::Lacks { .. } | Self::NoEngine { .. } | Self::NoLibrary { .. } => {
                ErrorKind::Unsupported
            }
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Transaction(error) => error.kind(),
            Self::Device(error) => error.kind(),
            Self::NoFileSystem { .. } | Self::Missing { .. } => ErrorKind::NotFound,
            Self::Volume(error) => error.kind(),
            Self::Vt(error) => error.kind(),
            Self::Kv(error) => error.kind(),
            Self::Fs(error) => error.kind(),
            Self::Keep(_) => ErrorKind::Io,
            Self::Session(error) => error.kind(),
        }
    }

    /// The keys that other writers changed, if that is why a transaction was not committed.
    #[must_use]
    pub fn conflicts(&self) -> &[Conflict] {
        match self {
            Self::Conflict { conflicts } => conflicts,
            _ => &[],
        }
    }

    /// The files and records that others changed, if that is why a transaction of files was not
    /// committed.
    #[must_use]
    pub fn file_conflicts(&self) -> &[stitch_fs::Conflict] {
        match self {
            Self::Fs(FsError::Conflict(conflicts)) => conflicts,
            _ => &[],
        }
    }

    /// The clones that were to be kept, if that is why a directory was not rolled back.
    #[must_use]
    pub fn kept_clones(&self) -> Option<&KeptClones> {
        match self {
            Self::Fs(FsError::LaterClones(kept)) => Some(kept),
            _ => None,
        }
    }

    /// True if another process has the store.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Device(DeviceError::Busy { .. }) => true,
            Self::Kv(KvError::Storage { kind, .. }) => *kind == ErrorKind::Busy,
            _ => false,
        }
    }

    /// True if the end of the log is damaged, and the rest can be had by giving it up.
    #[must_use]
    pub fn is_log_damaged(&self) -> bool {
        match self {
            Self::Volume(VolumeError::LogDamaged { .. }) => true,
            Self::Vt(error) => is_log_damaged(error),
            _ => false,
        }
    }

    /// Reports whether opening the store in this way is denied, to this user or to all.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            Self::Device(DeviceError::Io { op: "open", source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied
        )
    }

    /// Reports whether the host refused to open the medium in the way that was asked for.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        let (Self::Device(error) | Self::Volume(VolumeError::Device(error))) = self else {
            return false;
        };
        matches!(error, DeviceError::Io { op: "open", source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// True if the medium takes no writes: a write-protected device, or a file in a read-only
    /// file system.
    #[must_use]
    pub fn is_write_protected(&self) -> bool {
        let (Self::Device(error) | Self::Volume(VolumeError::Device(error))) = self else {
            return false;
        };
        match error {
            DeviceError::Io { op, source, .. } => match source.kind() {
                io::ErrorKind::ReadOnlyFilesystem => true,
                // A write-protected block device can be opened for writing.
                io::ErrorKind::PermissionDenied => *op == "write",
                _ => false,
            },
            _ => false,
        }
    }
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Kv(error) => Self::Kv(error),
            other => Self::Transaction(other),
        }
    }
}

fn conflict_text(conflicts: &[Conflict]) -> String {
    let Some(first) = conflicts.first() else {
        return "another writer changed keys of the transaction".to_owned();
    };
    let key = first.key.escape_ascii();
    let text = format!(
        "another writer changed key \"{key}\" of tree {:?}",
        first.tree_name
    );
    match conflicts.len() - 1 {
        0 => text,
        more => format!("{text}, and {more} more"),
    }
}

fn no_file_system(instance: &str, is_empty: bool) -> String {
    match (instance, is_empty) {
        (_, true) => "is empty: there are neither files nor records in it".to_owned(),
        ("main", false) => "is a database without a file system".to_owned(),
        (name, false) => format!("instance {name} is a database without a file system"),
    }
}

fn is_log_damaged(error: &VtError) -> bool {
    match error {
        VtError::Volume(VolumeError::LogDamaged { .. }) => true,
        VtError::Instance { source, .. } => is_log_damaged(source),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_protection_is_told_from_missing_rights() {
        let failed = |op, kind: io::ErrorKind| DeviceError::Io {
            name: "store".to_owned(),
            op,
            at: 4096,
            len_bytes: 4096,
            source: kind.into(),
        };
        let denied = io::ErrorKind::PermissionDenied;
        let write = VolumeError::Device(failed("write", denied));
        assert!(StoreError::Volume(write).is_write_protected());
        assert!(!StoreError::Device(failed("open", denied)).is_write_protected());
        let open = failed("open", io::ErrorKind::ReadOnlyFilesystem);
        assert!(StoreError::Device(open).is_write_protected());
        let broken = failed("write", io::ErrorKind::Other);
        assert!(!StoreError::Device(broken).is_write_protected());
    }
}
