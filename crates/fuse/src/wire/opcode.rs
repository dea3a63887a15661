//! Opcodes of requests.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Number of an operation. Part of the kernel's interface: do not renumber.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// All opcodes, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the opcode with this number, if it is known.
            #[must_use]
            pub const fn from_raw(raw: u32) -> Option<Self> {
                match raw {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its name in the kernel, without the prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

opcodes! {
    /// Find a name.
    Lookup = 1, "LOOKUP";
    /// Give back lookups of one inode; has no reply.
    Forget = 2, "FORGET";
    /// Read attributes.
    GetAttr = 3, "GETATTR";
    /// Change attributes.
    SetAttr = 4, "SETATTR";
    /// Read a symbolic link.
    ReadLink = 5, "READLINK";
    /// Make a symbolic link.
    Symlink = 6, "SYMLINK";
    /// Make a file, device, pipe or socket.
    MkNod = 8, "MKNOD";
    /// Make a directory.
    MkDir = 9, "MKDIR";
    /// Remove a name.
    Unlink = 10, "UNLINK";
    /// Remove a directory.
    RmDir = 11, "RMDIR";
    /// Move a name.
    Rename = 12, "RENAME";
    /// Make a further name.
    Link = 13, "LINK";
    /// Open a file.
    Open = 14, "OPEN";
    /// Read from a file.
    Read = 15, "READ";
    /// Write to a file.
    Write = 16, "WRITE";
    /// Space and limits of the file system.
    StatFs = 17, "STATFS";
    /// The last descriptor of an open file was closed.
    Release = 18, "RELEASE";
    /// Make a file durable.
    FSync = 20, "FSYNC";
    /// Set an extended attribute.
    SetXattr = 21, "SETXATTR";
    /// Read an extended attribute.
    GetXattr = 22, "GETXATTR";
    /// List extended attributes.
    ListXattr = 23, "LISTXATTR";
    /// Remove an extended attribute.
    RemoveXattr = 24, "REMOVEXATTR";
    /// A descriptor was closed.
    Flush = 25, "FLUSH";
    /// First request: agree on the protocol.
    Init = 26, "INIT";
    /// Open a directory.
    OpenDir = 27, "OPENDIR";
    /// List a directory.
    ReadDir = 28, "READDIR";
    /// Close a directory.
    ReleaseDir = 29, "RELEASEDIR";
    /// Make a directory durable.
    FSyncDir = 30, "FSYNCDIR";
    /// Test for a lock.
    GetLk = 31, "GETLK";
    /// Take or drop a lock.
    SetLk = 32, "SETLK";
    /// Take a lock, waiting for it.
    SetLkW = 33, "SETLKW";
    /// Check the caller's rights.
    Access = 34, "ACCESS";
    /// Make and open a file.
    Create = 35, "CREATE";
    /// The caller of another request got a signal.
    Interrupt = 36, "INTERRUPT";
    /// Device block of a file block.
    BMap = 37, "BMAP";
    /// Last request of some kinds of mount.
    Destroy = 38, "DESTROY";
    /// Device control.
    Ioctl = 39, "IOCTL";
    /// Wait for readiness.
    Poll = 40, "POLL";
    /// Reply to a notice.
    NotifyReply = 41, "NOTIFY_REPLY";
    /// Give back lookups of many inodes; has no reply.
    BatchForget = 42, "BATCH_FORGET";
    /// Allocate, punch or zero a range.
    Fallocate = 43, "FALLOCATE";
    /// List a directory with the attributes of what is in it.
    ReadDirPlus = 44, "READDIRPLUS";
    /// Move a name, with flags.
    Rename2 = 45, "RENAME2";
    /// Find data or a hole.
    LSeek = 46, "LSEEK";
    /// Copy between files, up to 4 GiB.
    CopyFileRange = 47, "COPY_FILE_RANGE";
    /// Map for direct access.
    SetupMapping = 48, "SETUPMAPPING";
    /// Unmap.
    RemoveMapping = 49, "REMOVEMAPPING";
    /// Make the file system durable.
    SyncFs = 50, "SYNCFS";
    /// Make a file without a name.
    TmpFile = 51, "TMPFILE";
    /// Read attributes that GETATTR does not have.
    Statx = 52, "STATX";
    /// Copy between files.
    CopyFileRange64 = 53, "COPY_FILE_RANGE_64";
}

/// One more than the largest number.
pub const OPCODE_COUNT: usize = 54;

const _: () = {
    let mut at = 0;
    while at < Opcode::ALL.len() {
        assert!(
            (Opcode::ALL[at] as usize) < OPCODE_COUNT,
            "the count covers every opcode"
        );
        at += 1;
    }
};
