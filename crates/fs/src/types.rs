//! What operations take and give.

use crate::external::External;
use crate::ledger::Ledger;
use crate::transaction::{PlainRecords, RecordRules};
use stitch_base::Ino;
use stitch_base::clock::{Clock, SystemClock, Timestamp};
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{InodeHead, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;

pub use stitch_format::fs_inode::FileKind;

/// When reading a file changes its time of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimePolicy {
    /// Where it is not after the last change, or a day old.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strictatime,
}

/// How a file system is opened.
#[derive(Clone)]
pub struct FsOptions {
    /// Gives times.
    pub clock: Arc<dyn Clock>,
    /// Refuse every change.
    pub read_only: bool,
    /// When reading changes the time of access.
    pub atime: AtimePolicy,
    /// Check permissions of operations on names here: no layer above does.
    pub check_permissions: bool,
    /// Inodes that may be known, above which [`crate::FileSystem::unused`] names those to forget;
    /// each takes [`crate::INODE_BYTES`].
    pub inodes_max: usize,
    /// Memory for the names of directories that are known whole, in bytes, so that missing names
    /// are answered without reading. 0 turns that off.
    pub names_bytes: usize,
    /// Look in the trees too where a name is known to be missing, and panic if it is there. On in
    /// debug builds.
    pub confirm_names: bool,
    /// For `format`: the seed of the order of names in directories; `None` is a secret random one.
    pub name_seed: Option<u64>,
    /// Where the inodes in use are written down for the next process, which takes over what this
    /// one served. With one that is not empty, this is that next process.
    pub ledger: Option<Arc<dyn Ledger>>,
    /// Seconds for which the file system keeps its history, by rounds of
    /// [`crate::History::run`]; `None` keeps none.
    pub history_s: Option<u64>,
    /// Bytes after which a rollback commits a batch; `None` is half of the engine's largest.
    pub rollback_batch_bytes: Option<u64>,
    /// Where large files are, and go. One that has some does not open without.
    pub external: Option<External>,
    /// How records beside the file system are joined by commits of transactions. By default none
    /// is.
    pub records: Arc<dyn RecordRules>,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            read_only: false,
            atime: AtimePolicy::default(),
            check_permissions: false,
            inodes_max: usize::MAX,
            names_bytes: 1 << 20,
            confirm_names: cfg!(debug_assertions),
            name_seed: None,
            ledger: None,
            history_s: None,
            rollback_batch_bytes: None,
            external: None,
            records: Arc::new(PlainRecords),
        }
    }
}

impl FsOptions {
    /// Returns the options for a moment of the same file system, which can be read only.
    pub(crate) fn of_past(&self) -> Self {
        Self {
            read_only: true,
            names_bytes: 0,
            ledger: None,
            external: None,
            ..self.clone()
        }
    }
}

impl std::fmt::Debug for FsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FsOptions")
            .field("read_only", &self.read_only)
            .field("atime", &self.atime)
            .finish_non_exhaustive()
    }
}

/// The caller of an operation. User 0 may do everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, as far as they are known.
    pub groups: &'a [u32],
}

impl Caller<'_> {
    /// The superuser.
    pub const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        groups: &[],
    };

    /// True for the superuser.
    #[must_use]
    pub const fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Reports whether the caller is in this group.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// What an inode is, as of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number. Stable for ever, never reused.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Permission bits, at most 0o7777.
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken by contents and allocated, in units of 512 bytes; of a sparse file an upper
    /// bound.
    pub blocks: u64,
    /// Time of last access.
    pub atime: Timestamp,
    /// Time of last change of contents.
    pub mtime: Timestamp,
    /// Time of last change of anything.
    pub ctime: Timestamp,
    /// Time of birth.
    pub btime: Timestamp,
    /// Flags as of `chattr`.
    pub iflags: u32,
}

impl Attr {
    pub(crate) fn of(head: &InodeHead) -> Self {
        debug_assert!(head.ino.0 > 0, "0 is no inode");
        debug_assert!(head.perm <= 0o7777, "the kind is not among the bits");
        Self {
            ino: head.ino,
            kind: head.kind,
            perm: head.perm,
            nlink: head.nlink,
            uid: head.uid,
            gid: head.gid,
            rdev: head.rdev,
            size: head.size,
            blocks: blocks_of(head),
            atime: Timestamp(head.atime),
            mtime: Timestamp(head.mtime),
            ctime: Timestamp(head.ctime),
            btime: Timestamp(head.btime),
            iflags: head.iflags,
        }
    }

    /// Type and permissions as in `st_mode`.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        debug_assert!(
            self.kind.mode_bits() & self.perm == 0,
            "the kind is not among the bits"
        );
        (self.kind.mode_bits() | self.perm) as u32
    }
}

fn blocks_of(head: &InodeHead) -> u64 {
    match head.kind {
        FileKind::Regular => {
            let full = head.size.div_ceil(CHUNK_BYTES);
            let chunks = if head.has(row_flag::ALLOCATED) {
                // Beyond the end, too.
                head.chunks
            } else if head.has(row_flag::HOLES) {
                head.chunks.min(full)
            } else {
                full
            };
            chunks.saturating_mul(CHUNK_BYTES / 512)
        }
        FileKind::Directory => CHUNK_BYTES / 512,
        _ => 0,
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the clock.
    Now,
    /// This time.
    At(Timestamp),
}

/// What `set_attr` is to change. `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; higher bits are ignored.
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: cuts the file or adds a hole.
    pub size: Option<u64>,
    /// Time of access.
    pub atime: Option<SetTime>,
    /// Time of content.
    pub mtime: Option<SetTime>,
    /// Time of attributes; without one it becomes now.
    pub ctime: Option<Timestamp>,
    /// With a size: the set-id bits that the caller has no right to keep.
    pub clear_setid: ClearSetId,
}

/// What a new inode is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// Permission bits as asked for; higher bits are ignored.
    pub perm: u32,
    /// Bits that the process does not want, where no default ACL says otherwise.
    pub umask: u32,
}

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// At the end of the file, wherever that is.
    pub append: bool,
    /// The set-id bits that the caller has no right to keep.
    pub clear_setid: ClearSetId,
}

const SET_UID: u16 = 0o4000;
/// Set-group-id bit of the mode.
pub(crate) const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// The set-id bits that a change of a file's contents or owner clears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClearSetId {
    /// None: the caller has the right to keep them.
    #[default]
    None,
    /// Set-user-id, and set-group-id where the group may execute: the caller is in the file's
    /// group.
    Executable,
    /// Set-user-id and set-group-id: the caller is outside the file's group.
    All,
}

impl ClearSetId {
    /// Returns the permissions that are left.
    #[must_use]
    pub const fn apply(self, perm: u16) -> u16 {
        let left = self.left_of(perm);
        debug_assert!(left & !perm == 0, "bits are cleared alone");
        debug_assert!(left & 0o777 == perm & 0o777, "no other bit is cleared");
        left
    }

    const fn left_of(self, perm: u16) -> u16 {
        match self {
            Self::None => perm,
            Self::Executable if perm & GROUP_EXECUTE == 0 => perm & !SET_UID,
            Self::Executable | Self::All => perm & !(SET_UID | SET_GID),
        }
    }

    /// Returns what clears the bits of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        let both = self.stricter(other);
        let bits = SET_UID | SET_GID | GROUP_EXECUTE;
        debug_assert!(
            both.left_of(bits) == self.left_of(bits) & other.left_of(bits),
            "bits that one of them clears are cleared"
        );
        both
    }

    const fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Executable, _) | (_, Self::Executable) => Self::Executable,
            (Self::None, Self::None) => Self::None,
        }
    }
}

/// What `rename` does with the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    #[default]
    Replace,
    /// Fails if it exists.
    NoReplace,
    /// Swaps both names.
    Exchange,
    /// Replaces it, and leaves a whiteout (character device 0:0) under the old name.
    Whiteout,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirName<'a> {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> DirName<'a> {
    /// A name in a directory.
    #[must_use]
    pub const fn new(parent: Ino, name: &'a [u8]) -> Self {
        Self { parent, name }
    }
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Makes the file at least as long; refuses what the store cannot hold now.
    Allocate {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Makes the range a hole.
    PunchHole,
    /// Makes the range read as zeros.
    ZeroRange {
        /// Leave the size as it is.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}

/// A directory entry, borrowed from a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
    /// Where the walk goes on after this entry; 1 to `i64::MAX`, valid for ever.
    pub offset: u64,
    /// With `read_dir_plus`, except of `.` and `..`: the attributes; one lookup is counted.
    pub attr: Option<Attr>,
}

/// What a consumer of directory entries answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Go on.
    More,
    /// It did not fit: the walk ends before this entry.
    Full,
}

/// Whether an attribute may or must exist before it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    #[default]
    Set,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Rights that `access` is asked about; bits may be joined.
pub mod access_mask {
    /// Execute, or search in a directory.
    pub const EXECUTE: u32 = 1;
    /// Write.
    pub const WRITE: u32 = 2;
    /// Read.
    pub const READ: u32 = 4;

    const _: () = assert!(EXECUTE | WRITE | READ == 7, "rights are three bits");
}

/// Inode flags as of `chattr`, those that mean something here.
pub mod inode_flag {
    /// Nothing may change.
    pub const IMMUTABLE: u32 = 0x10;
    /// Contents may only grow.
    pub const APPEND: u32 = 0x20;
    /// Not for `dump`.
    pub const NODUMP: u32 = 0x40;
    /// Reading does not change the time of access.
    pub const NOATIME: u32 = 0x80;
    /// All of them.
    pub const ALL: u32 = IMMUTABLE | APPEND | NODUMP | NOATIME;

    const _: () = assert!(ALL.count_ones() == 4, "each flag has a bit of its own");
}

/// What `statfs` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, in bytes.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks left.
    pub blocks_free: u64,
    /// Inodes that exist and could exist.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// Longest name.
    pub name_bytes_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::head;

    #[test]
    fn a_damaged_count_of_chunks_is_as_many_blocks_as_there_can_be() {
        let damaged = InodeHead {
            flags: row_flag::HOLES | row_flag::ALLOCATED,
            chunks: u64::MAX,
            ..head(Ino(9), FileKind::Regular)
        };
        assert_eq!(Attr::of(&damaged).blocks, u64::MAX);
    }
}
