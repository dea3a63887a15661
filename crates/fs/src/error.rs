//! What the file system answers when it cannot do what it was asked.

use crate::{Conflict, ExternalError, KeptClones};
use stitch_base::sync::Arc;
use stitch_base::{ErrorKind, Ino};
use stitch_db::DbError;
use stitch_format::FormatError;
use stitch_kv::KvError;

/// An error of the file system. The words of POSIX, without its numbers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FsError {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The inode number is none that was looked up since the file system was opened.
    #[error("inode {0} is not known any more")]
    Stale(Ino),
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDir,
    /// Not for a directory.
    #[error("is a directory")]
    IsDir,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name or symlink target is too long.
    #[error("name too long")]
    NameTooLong,
    /// The mode or the ACL does not allow it.
    #[error("permission denied")]
    Access,
    /// The operation is refused to all users, or to all but the owner.
    #[error("operation not permitted")]
    Perm,
    /// The store is full.
    #[error("no space left")]
    NoSpace,
    /// The file system is open for reading only.
    #[error("read-only file system")]
    ReadOnly,
    /// Beyond the largest offset.
    #[error("file too large")]
    FileTooBig,
    /// The arguments make no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// No such extended attribute.
    #[error("no such attribute")]
    NoData,
    /// A value is larger than what may be stored.
    #[error("too big")]
    TooBig,
    /// There is no data or hole after this offset.
    #[error("no data or hole after this offset")]
    NoSeekTarget,
    /// Not offered, here or at all.
    #[error("operation not supported")]
    Unsupported,
    /// Inode numbers leave no room to name the inodes of snapshots.
    #[error("inode numbers are too large for snapshots")]
    NumbersTooLarge,
    /// A snapshot is held under these tags.
    #[error("it is held: {0}")]
    Held(String),
    /// A clone of a clone, and so on, too often.
    #[error("a clone of a clone of a clone, and so on, too often")]
    TooDeep,
    /// More clones lie in the source of a clone than are made in one step.
    #[error("more than {0} clones lie in it; clone directories in it one by one")]
    TooManyClones(usize),
    /// A rollback would destroy these clones, and may not: nothing was changed.
    #[error("clones in it were made later, and would be destroyed: {0}")]
    LaterClones(KeptClones),
    /// The contents of the file belong to the atomic write of another process.
    #[error("another process has an atomic write of the file: try again when it has ended")]
    Busy,
    /// The inode has as many names as it can have.
    #[error("too many links")]
    TooManyLinks,
    /// Stored rows contradict each other: run `fsck`.
    #[error("the file system is damaged: {0}")]
    Corrupt(String),
    /// A stored row does not decode: run `fsck`.
    #[error("the file system is damaged: {0}")]
    Format(#[from] FormatError),
    /// A plain file beside the store fails.
    #[error(transparent)]
    External(ExternalError),
    /// Some files are plain files beside the store, in a folder that was not given.
    #[error("its large files are in a folder that is not there")]
    NoFolder,
    /// Mainline has changed what the transaction has changed: nothing is committed.
    #[error("{}", conflicts_text(.0))]
    Conflict(Arc<[Conflict]>),
    /// The transaction was committed or aborted, or the clone removed.
    #[error("the transaction has ended")]
    Ended,
    /// Transactions that began in this one are open: their names.
    #[error("transactions in it are open: {0}; commit or abort them first")]
    HasInner(String),
    /// Transactions are in each other, too many of them.
    #[error("a transaction in a transaction, and so on: at most {0} are in each other")]
    NestedTooDeep(usize),
    /// A conflict of a transaction cannot be resolved so.
    #[error("cannot be resolved so: {0}")]
    Unresolvable(&'static str),
    /// The engine below failed.
    #[error(transparent)]
    Storage(KvError),
}

/// Names the first conflict, and how many there are.
fn conflicts_text(conflicts: &[Conflict]) -> String {
    let others = conflicts.len().saturating_sub(1);
    match conflicts {
        [] => "the transaction conflicts with later changes".to_owned(),
        [only] => format!("the transaction conflicts with a later change of {only}"),
        [first, ..] => {
            format!("the transaction conflicts with later changes of {first}, and {others} more")
        }
    }
}

impl From<KvError> for FsError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::NoSpace { .. } => Self::NoSpace,
            KvError::ReadOnly => Self::ReadOnly,
            KvError::PinExists(_) => Self::Exists,
            KvError::PinNotFound(_) => Self::NotFound,
            KvError::Unsupported(_) => Self::Unsupported,
            KvError::TooDeep => Self::TooDeep,
            // Mainline's trees are never dropped while it is open.
            KvError::NoTree(_) => Self::Ended,
            other => Self::Storage(other),
        }
    }
}

impl From<DbError> for FsError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Kv(error) => error.into(),
            DbError::NoSchema(_) => Self::NotFound,
            DbError::SchemaExists(_) => Self::Exists,
            DbError::ReadOnlyView => Self::ReadOnly,
            other => Self::Corrupt(other.to_string()),
        }
    }
}

impl FsError {
    /// The error of a way up, or a walk down, that comes to a directory again.
    pub(crate) fn ring_at(dir: Ino) -> Self {
        Self::Corrupt(format!("directory {dir} is in a directory below it"))
    }

    /// Reports whether the error is of the rows that were read, and of no others.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Corrupt | ErrorKind::Io)
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound | Self::Stale(_) | Self::Ended | Self::NoData | Self::NoSeekTarget => {
                ErrorKind::NotFound
            }
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Exists | Self::NotEmpty | Self::LaterClones(_) => ErrorKind::Exists,
            Self::NotDir
            | Self::IsDir
            | Self::NameTooLong
            | Self::Access
            | Self::Perm
            | Self::FileTooBig
            | Self::Invalid(_)
            | Self::Unresolvable(_)
            | Self::TooBig
            | Self::TooManyLinks => ErrorKind::Invalid,
            Self::Busy | Self::Held(_) | Self::HasInner(_) => ErrorKind::Busy,
            Self::NoSpace => ErrorKind::NoSpace,
            Self::ReadOnly => ErrorKind::ReadOnly,
            Self::Unsupported
            | Self::NumbersTooLarge
            | Self::TooDeep
            | Self::TooManyClones(_)
            | Self::NestedTooDeep(_) => ErrorKind::Unsupported,
            Self::Corrupt(_) | Self::NoFolder => ErrorKind::Corrupt,
            // That a plain file is missing does not mean that the name is.
            Self::External(error) => match error.kind {
                kind @ (ErrorKind::NoSpace | ErrorKind::Poisoned) => kind,
                _ => ErrorKind::Io,
            },
            Self::Format(error) => error.kind(),
            Self::Storage(error) => error.kind(),
        }
    }
}

/// Result of an operation.
pub type FsResult<T> = Result<T, FsError>;
