//! The only map from errors of the file system to error numbers.

use stitch_base::ErrorKind;
use stitch_fs::FsError;

use super::Errno;

impl From<&FsError> for Errno {
    /// Exhaustive on purpose: a new error forces a decision.
    fn from(error: &FsError) -> Self {
        match error {
            FsError::NotFound => Self::ENOENT,
            FsError::Stale(_) => Self::ESTALE,
            FsError::Exists => Self::EEXIST,
            FsError::NotDir => Self::ENOTDIR,
            FsError::IsDir => Self::EISDIR,
            FsError::NotEmpty => Self::ENOTEMPTY,
            FsError::NameTooLong => Self::ENAMETOOLONG,
            FsError::Access => Self::EACCES,
            FsError::Perm => Self::EPERM,
            FsError::NoSpace => Self::ENOSPC,
            FsError::ReadOnly => Self::EROFS,
            FsError::FileTooBig => Self::EFBIG,
            FsError::Invalid(_) => Self::EINVAL,
            FsError::NoData => Self::ENODATA,
            FsError::TooBig => Self::E2BIG,
            FsError::NoSeekTarget => Self::ENXIO,
            // Not ENOSYS: for many operations the kernel would stop asking.
            FsError::Unsupported => Self::ENOTSUP,
            // The list goes another way.
            FsError::Conflict(_) => Self::EBUSY,
            FsError::Ended => Self::ESTALE,
            FsError::Unresolvable(_) => Self::EINVAL,
            FsError::NumbersTooLarge => Self::EOVERFLOW,
            FsError::Busy | FsError::Held(_) | FsError::HasInner(_) => Self::EBUSY,
            FsError::TooDeep | FsError::NestedTooDeep(_) => Self::ELOOP,
            FsError::TooManyClones(_) => Self::EMFILE,
            FsError::LaterClones(_) => Self::ENOTEMPTY,
            FsError::TooManyLinks => Self::EMLINK,
            FsError::Corrupt(_) | FsError::Format(_) | FsError::NoFolder => Self::EIO,
            FsError::External(error) => of_kind(error.kind),
            FsError::Storage(error) => of_kind(error.kind()),
        }
    }
}

/// Maps errors of the engine that have no meaning for the file system.
const fn of_kind(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Busy => Errno::EBUSY,
        ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::Invalid
        | ErrorKind::Conflict
        | ErrorKind::Unsupported
        | ErrorKind::Corrupt
        | ErrorKind::Io
        | ErrorKind::Closed
        | ErrorKind::Poisoned
        | ErrorKind::Bug => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::{Ino, TreeId};
    use stitch_format::FormatError;
    use stitch_kv::KvError;

    fn storage(kind: ErrorKind) -> FsError {
        FsError::Storage(KvError::Storage {
            kind,
            message: String::new(),
            source: None,
        })
    }

    #[test]
    fn every_error_has_its_number() {
        let checksum = FormatError::Checksum {
            record: "row",
            expected: 1,
            found: 2,
        };
        let conflict = KvError::Conflict {
            tree: TreeId(1),
            key: b"k".to_vec(),
        };
        let kept = stitch_fs::KeptClones {
            paths: Vec::new(),
            count: 1,
        };
        let table = [
            (FsError::NotFound, libc::ENOENT),
            (FsError::Stale(Ino(7)), libc::ESTALE),
            (FsError::Exists, libc::EEXIST),
            (FsError::NotDir, libc::ENOTDIR),
            (FsError::IsDir, libc::EISDIR),
            (FsError::NotEmpty, libc::ENOTEMPTY),
            (FsError::NameTooLong, libc::ENAMETOOLONG),
            (FsError::Access, libc::EACCES),
            (FsError::Perm, libc::EPERM),
            (FsError::NoSpace, libc::ENOSPC),
            (FsError::ReadOnly, libc::EROFS),
            (FsError::FileTooBig, libc::EFBIG),
            (FsError::Invalid("x"), libc::EINVAL),
            (FsError::NoData, libc::ENODATA),
            (FsError::TooBig, libc::E2BIG),
            (FsError::NoSeekTarget, libc::ENXIO),
            (FsError::Conflict([].into()), libc::EBUSY),
            (FsError::Ended, libc::ESTALE),
            (FsError::Unresolvable("x"), libc::EINVAL),
            (FsError::Unsupported, libc::EOPNOTSUPP),
            (FsError::TooManyLinks, libc::EMLINK),
            (FsError::Held(String::new()), libc::EBUSY),
            (FsError::HasInner(String::new()), libc::EBUSY),
            (FsError::NestedTooDeep(8), libc::ELOOP),
            (FsError::TooManyClones(8), libc::EMFILE),
            (FsError::LaterClones(kept), libc::ENOTEMPTY),
            (FsError::Corrupt(String::new()), libc::EIO),
            (FsError::Format(checksum), libc::EIO),
            (storage(ErrorKind::NoSpace), libc::ENOSPC),
            (storage(ErrorKind::ReadOnly), libc::EROFS),
            (storage(ErrorKind::Corrupt), libc::EIO),
            (storage(ErrorKind::Io), libc::EIO),
            (storage(ErrorKind::Bug), libc::EIO),
            (storage(ErrorKind::Busy), libc::EBUSY),
            (FsError::Storage(KvError::Closed), libc::EIO),
            (FsError::Storage(KvError::Poisoned), libc::EIO),
            (FsError::Storage(conflict), libc::EIO),
            (FsError::Storage(KvError::Unknown), libc::EIO),
            (FsError::from(KvError::ReadOnly), libc::EROFS),
        ];
        for (error, number) in table {
            assert_eq!(Errno::from(&error).raw(), number, "{error:?}");
        }
    }

    #[test]
    fn no_error_makes_the_kernel_stop_asking() {
        for error in [FsError::Unsupported, storage(ErrorKind::Unsupported)] {
            assert_ne!(Errno::from(&error), Errno::ENOSYS);
        }
    }
}
