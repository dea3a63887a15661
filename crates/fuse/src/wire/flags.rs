//! Flag words of the protocol. The numbers are the kernel's: do not renumber.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};

macro_rules! flag_word {
    (
        $(#[$doc:meta])*
        $name:ident($inner:ty) {
            $($(#[$flag_doc:meta])* $flag:ident = $bit:expr;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name(pub $inner);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// No flag.
            #[must_use]
            pub const fn empty() -> Self {
                Self(0)
            }

            /// True if every flag of `other` is set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// With the flags of `other`, if `condition`.
            #[must_use]
            pub const fn with(self, other: Self, condition: bool) -> Self {
                if condition { Self(self.0 | other.0) } else { self }
            }

            /// Without the flags of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut rest = self.0;
                let mut list = f.debug_set();
                $(if self.contains(Self::$flag) {
                    list.entry(&stringify!($flag));
                    rest &= !Self::$flag.0;
                })*
                if rest != 0 {
                    list.entry(&rest);
                }
                list.finish()
            }
        }
    };
}

flag_word! {
    /// Flags of INIT: those that the kernel offers, and those that the daemon accepts.
    InitFlags(u64) {
        /// Several reads of one file at a time.
        ASYNC_READ = 0;
        /// The daemon keeps POSIX locks.
        POSIX_LOCKS = 1;
        /// OPEN carries `O_TRUNC`.
        ATOMIC_O_TRUNC = 3;
        /// The daemon can look up `.` and `..` of any inode, so file handles work.
        EXPORT_SUPPORT = 4;
        /// Writes longer than a page.
        BIG_WRITES = 5;
        /// The daemon applies the umask.
        DONT_MASK = 6;
        /// The daemon keeps flock locks.
        FLOCK_LOCKS = 10;
        /// ioctl on directories.
        HAS_IOCTL_DIR = 11;
        /// Drop cached pages when attributes change.
        AUTO_INVAL_DATA = 12;
        /// READDIRPLUS instead of READDIR.
        DO_READDIRPLUS = 13;
        /// READDIRPLUS only where it looks useful.
        READDIRPLUS_AUTO = 14;
        /// Direct I/O in parallel.
        ASYNC_DIO = 15;
        /// Pages are written later.
        WRITEBACK_CACHE = 16;
        /// ENOSYS for OPEN means: do not send it again.
        NO_OPEN_SUPPORT = 17;
        /// Lookups and listings of one directory at a time.
        PARALLEL_DIROPS = 18;
        /// The daemon clears set-id bits (first version).
        HANDLE_KILLPRIV = 19;
        /// The kernel enforces POSIX ACLs that the daemon stores. Implies `default_permissions`.
        POSIX_ACL = 20;
        /// Reads of the device after an abort give ECONNABORTED.
        ABORT_ERROR = 21;
        /// INIT carries the most pages of a request.
        MAX_PAGES = 22;
        /// READLINK is cached.
        CACHE_SYMLINKS = 23;
        /// ENOSYS for OPENDIR means: do not send it again.
        NO_OPENDIR_SUPPORT = 24;
        /// Cached pages are dropped only by notices.
        EXPLICIT_INVAL_DATA = 25;
        /// The daemon clears set-id bits if a request's flag demands it.
        HANDLE_KILLPRIV_V2 = 28;
        /// SETXATTR has flags of its own.
        SETXATTR_EXT = 29;
        /// INIT has a second word of flags.
        INIT_EXT = 30;
        /// Creations carry security labels.
        SECURITY_CTX = 32;
        /// Creations carry a matching supplementary group.
        CREATE_SUPP_GROUP = 34;
        /// Entries can be expired without being dropped.
        HAS_EXPIRE_ONLY = 35;
        /// mmap of files open for direct I/O.
        DIRECT_IO_ALLOW_MMAP = 36;
        /// Reads and writes go to another file.
        PASSTHROUGH = 37;
        /// Requests in flight can be sent again.
        HAS_RESEND = 39;
        /// Mounts with mapped ids. Needs `default_permissions`.
        ALLOW_IDMAP = 40;
        /// Requests over io_uring.
        OVER_IO_URING = 41;
        /// Requests time out.
        REQUEST_TIMEOUT = 42;
    }
}

flag_word! {
    /// Flags of the reply to OPEN, OPENDIR, CREATE and TMPFILE.
    OpenFlags(u32) {
        /// Bypass the page cache.
        DIRECT_IO = 0;
        /// Keep the cached pages.
        KEEP_CACHE = 1;
        /// No seeking.
        NONSEEKABLE = 2;
        /// Keep the cached listing.
        CACHE_DIR = 3;
        /// No position.
        STREAM = 4;
        /// Closing writes nothing out.
        NO_FLUSH = 5;
        /// Direct writes of one file at a time.
        PARALLEL_DIRECT_WRITES = 6;
        /// Reads, writes and mappings are another file's. With `DIRECT_IO`, mappings only.
        PASSTHROUGH = 7;
    }
}

flag_word! {
    /// Flags of WRITE.
    WriteFlags(u32) {
        /// Written back from the page cache: file handle and caller may be wrong.
        CACHE = 0;
        /// The lock owner is valid.
        LOCK_OWNER = 1;
        /// Clear set-user-id, and set-group-id if the group may execute.
        KILL_SUIDGID = 2;
    }
}

flag_word! {
    /// The fields that SETATTR changes.
    SetAttrMask(u32) {
        /// Permission bits.
        MODE = 0;
        /// Owner.
        UID = 1;
        /// Group.
        GID = 2;
        /// Size.
        SIZE = 3;
        /// Access time.
        ATIME = 4;
        /// Modification time.
        MTIME = 5;
        /// File handle.
        FH = 6;
        /// Access time is now.
        ATIME_NOW = 7;
        /// Modification time is now.
        MTIME_NOW = 8;
        /// Lock owner.
        LOCK_OWNER = 9;
        /// Change time.
        CTIME = 10;
        /// Clear set-id bits.
        KILL_SUIDGID = 11;
    }
}

/// OPEN and CREATE: clear set-id bits, since the file is truncated.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// SETXATTR: clear set-group-id, since a caller outside the group sets an ACL.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// GETATTR: the file handle is valid.
pub const GETATTR_FH: u32 = 1;
/// Locks: flock, not POSIX.
pub const LK_FLOCK: u32 = 1;
/// RELEASE: write out.
pub const RELEASE_FLUSH: u32 = 1;
/// RELEASE: drop the flock of this owner.
pub const RELEASE_FLOCK_UNLOCK: u32 = 2;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1;
/// READ: the lock owner is valid.
pub const READ_LOCKOWNER: u32 = 2;
/// Notice of an entry: mark it expired, drop nothing.
pub const EXPIRE_ONLY: u32 = 1;
/// Extension: supplementary groups.
pub const EXT_GROUPS: u32 = 32;
/// IOCTL: the caller is a 32-bit process.
pub const IOCTL_COMPAT: u32 = 1;
/// IOCTL: on a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
