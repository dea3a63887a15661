//! What can be wrong with a file system, one variant for each broken rule.

mod text;

use self::text::{back_text, lost_text};
use crate::ExternalName;
use std::path::PathBuf;
use stitch_base::Ino;

/// An inode that an issue is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number.
    pub ino: Ino,
    /// One of its paths from the root; `None` if a name on the way is lost.
    pub path: Option<PathBuf>,
}

/// A broken rule. Its `Display` is a line for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Issue {
    /// There is no header, or none that this version reads: nothing else can be checked.
    #[error("the file system has no valid header: {detail}")]
    NoHeader {
        /// What is wrong with it.
        detail: String,
    },
    /// A row of the meta tree does not decode or has no valid key.
    #[error("meta row {} is damaged: {detail}", key.escape_ascii())]
    BadMetaRow {
        /// Its key.
        key: Vec<u8>,
        /// The fault, for a person.
        detail: String,
    },
    /// The place of a name in its directory's order is not that of its hash: lookups miss it.
    #[error(
        "directory {parent}: {:?} is under the wrong hash",
        String::from_utf8_lossy(name)
    )]
    WrongHash {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// Key of the row.
        key: Vec<u8>,
    },
    /// A row of another tree has no valid key or value.
    #[error("{tree} row {} is damaged", key.escape_ascii())]
    BadRow {
        /// `data`, `xattr` or `sys`.
        tree: &'static str,
        /// Its key.
        key: Vec<u8>,
    },
    /// There is no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// Names point to an inode that does not exist.
    #[error("name {} points to inode {ino}, which does not exist", key.escape_ascii())]
    DanglingName {
        /// Key of the row.
        key: Vec<u8>,
        /// The inode.
        ino: Ino,
    },
    /// A name says another type than its inode.
    #[error("name {} has another type than its inode {ino}", key.escape_ascii())]
    WrongType {
        /// Key of the row.
        key: Vec<u8>,
        /// The inode.
        ino: Ino,
    },
    /// Two rows hold an inode of one number.
    #[error("inode {ino} has a second row, {}", key.escape_ascii())]
    TwoRows {
        /// The inode.
        ino: Ino,
        /// Key of the second row.
        key: Vec<u8>,
    },
    /// The number of links is not that of the names (of a directory: 2 and one for each directory
    /// in it).
    #[error("inode {ino} says {stored} links and has {counted}")]
    LinkCount {
        /// The inode.
        ino: Ino,
        /// Key of its row.
        key: Vec<u8>,
        /// What it says.
        stored: u32,
        /// What is right.
        counted: u32,
    },
    /// An inode has links by its own account, but no name.
    #[error("inode {ino} has no name")]
    Nameless {
        /// The inode.
        ino: Ino,
    },
    /// An inode with no links is not in the list of orphans: its space would never come back.
    #[error("inode {ino} has no links and is no orphan")]
    UnlistedOrphan {
        /// The inode.
        ino: Ino,
    },
    /// The list of orphans names an inode that has names or does not exist.
    #[error("inode {ino} is listed as an orphan and is none")]
    FalseOrphan {
        /// The inode.
        ino: Ino,
    },
    /// Names are in a directory that does not exist.
    #[error("directory {ino} has entries and does not exist")]
    MissingDirectory {
        /// The directory.
        ino: Ino,
    },
    /// Names are in an inode that is no directory.
    #[error("inode {ino} has entries and is no directory")]
    NotADirectory {
        /// The inode.
        ino: Ino,
    },
    /// A directory cannot be reached from the root.
    #[error("directory {ino} cannot be reached from the root")]
    Unreachable {
        /// The directory.
        ino: Ino,
        /// Key of its row.
        key: Vec<u8>,
    },
    /// Contents of an inode that does not exist or has none.
    #[error("inode {ino} has contents and does not exist, or holds them in its row")]
    LooseData {
        /// The inode.
        ino: Ino,
    },
    /// Contents beyond the end of a file.
    #[error("inode {ino} has contents beyond its end, from chunk {chunk} on")]
    DataBeyondEnd {
        /// The inode.
        ino: Ino,
        /// First chunk beyond the end.
        chunk: u64,
    },
    /// The last chunk of a file reaches beyond its end: growing again would show what was cut off.
    #[error("inode {ino} has contents beyond its end, in its last chunk {chunk}")]
    LongChunk {
        /// The inode.
        ino: Ino,
        /// The chunk.
        chunk: u64,
        /// How long it may be.
        len_bytes: u64,
    },
    /// A file has holes that its row does not know of, or more chunks than its row says.
    #[error("inode {ino} has {counted} chunks, which its row does not allow for")]
    ChunkCount {
        /// The inode.
        ino: Ino,
        /// Key of its row.
        key: Vec<u8>,
        /// What is right.
        counted: u64,
    },
    /// Extended attributes of an inode that does not exist, or whose row says it has none.
    #[error("inode {ino} has extended attributes that its row does not know of")]
    LooseXattr {
        /// The inode.
        ino: Ino,
        /// Key of the inode's row, if it exists.
        key: Option<Vec<u8>>,
    },
    /// The inode's row holds more contents than its size allows.
    #[error("inode {ino} holds more contents in its row than its size allows")]
    LongInline {
        /// The inode.
        ino: Ino,
        /// Key of its row.
        key: Vec<u8>,
    },
    /// A policy of snapshots is of an inode that is, or was, no directory.
    #[error("inode {ino} has a policy of snapshots and never was a directory")]
    FalsePolicy {
        /// The inode.
        ino: Ino,
    },
    /// A policy of snapshots is of what is, or was, no directory in a clone, or of no clone.
    #[error("inode {ino} of clone {number} has a policy of snapshots and never was a directory")]
    FalseClonePolicy {
        /// Number of the clone.
        number: u64,
        /// The inode in it.
        ino: Ino,
    },
    /// The record of a moment of the history cannot be read, so it would never be dropped.
    #[error("the moment {pin} of the history is damaged: {detail}")]
    BadMoment {
        /// Name of its pin.
        pin: String,
        /// The fault.
        detail: String,
    },
    /// A rollback was interrupted: a directory is restored in part.
    #[error(
        "the rollback of directory {} to {past} was interrupted; a mount finishes it, and so does \
         a repair",
        dir.ino
    )]
    InterruptedRollback {
        /// The directory.
        dir: Owner,
        /// The snapshot or the moment of the history that it goes back to, for a person.
        past: String,
    },
    /// A rollback was interrupted and cannot be finished: the file system cannot be opened.
    #[error(
        "a rollback was interrupted and cannot be finished: {detail}; a repair ends it, and what \
         it has restored stays"
    )]
    BrokenRollback {
        /// The missing part: the row, the pin.
        detail: String,
    },
    /// Something is wrong in a clone.
    #[error("clone {number}: {issue}")]
    InClone {
        /// Number of the clone.
        number: u64,
        /// The fault in it.
        issue: Box<Issue>,
    },
    /// The directory that a clone lies at does not exist.
    #[error("clone {number} lies at no directory; a repair puts it into `lost+found`")]
    CloneAdrift {
        /// Number of the clone.
        number: u64,
    },
    /// The trees of a clone do not exist.
    #[error("clone {number} has no trees; a repair leaves an empty directory")]
    CloneWithoutTrees {
        /// Number of the clone.
        number: u64,
    },
    /// Numbers would be handed out a second time.
    #[error("the next inode number is {stored}, and must be at least {needed}")]
    NextIno {
        /// What is stored.
        stored: u64,
        /// The least that is right.
        needed: u64,
    },
    /// Rows are in a block that cannot be read. What is newer in this range can be.
    #[error("{}", lost_text(tree, first, end, owners.len()))]
    Lost {
        /// `meta`, `data`, `xattr` or `sys`.
        tree: &'static str,
        /// First key of the range.
        first: Vec<u8>,
        /// First key after it.
        end: Vec<u8>,
        /// Of `data`, files with contents in it; of `meta`, directories with entries in it; of
        /// `xattr`, what has attributes in it.
        owners: Vec<Owner>,
    },
    /// A block cannot be read, but all that was in it was deleted or written again since.
    #[error(
        "a block of the {tree} tree cannot be read; nothing in it is in use any more, and later \
         writes give its space back"
    )]
    LostUnused {
        /// `meta`, `data`, `xattr` or `sys`.
        tree: &'static str,
        /// First key of the range.
        first: Vec<u8>,
        /// First key after it.
        end: Vec<u8>,
    },
    /// Some of what looks wrong may be right: rows that would tell are lost.
    #[error(
        "{count} links, counts or owners cannot be checked, because rows that would tell are in \
         the blocks that cannot be read"
    )]
    Unchecked {
        /// How many issues are not listed for that reason.
        count: usize,
    },
    /// No row says which plain file has the contents of an external file.
    #[error(
        "the contents of inode {ino} were in a plain file beside the store, and no row says in \
         which; restore it from a copy; removing the file gives its contents up"
    )]
    NoPlainFile {
        /// The inode.
        ino: Ino,
    },
    /// A plain file is said to have the contents of an inode that is not there, or has them itself.
    #[error(
        "inode {ino} is said to have its contents beside the store, and does not exist or has them"
    )]
    LooseExternal {
        /// The inode.
        ino: Ino,
    },
    /// More of a plain file was synced, by its row, than the file has.
    #[error("inode {ino} has a plain file that was synced beyond its end")]
    SettledBeyondEnd {
        /// The inode.
        ino: Ino,
        /// Its size.
        size: u64,
    },
    /// There are external files, and the header does not say so.
    #[error("the header does not say that there are files beside the store")]
    Unmarked,
    /// The contents of a file are gone.
    #[error(
        "{path}: is missing, with the contents of inode {ino}: put it back from a copy. `find MNT \
         -inum {ino}` names the file; removing it gives its contents up"
    )]
    MissingPlainFile {
        /// The inode.
        ino: Ino,
        /// Where it should be.
        path: String,
    },
    /// A plain file was cut behind the store's back.
    #[error(
        "{path}: has {len} of the {settled} bytes that inode {ino} had: put it back from a copy; a \
         repair takes it as it is, and what it lacks reads as zeros"
    )]
    ShortPlainFile {
        /// The inode.
        ino: Ino,
        /// Where it is.
        path: String,
        /// Bytes that it had at least.
        settled: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// A plain file that no file needs.
    #[error(
        "{path}: belongs to no file; a crash may have left it, and a mount removes it then. A \
         repair moves it to `lost+found` in its folder"
    )]
    ExtraPlainFile {
        /// Which it is.
        name: ExternalName,
        /// Where it is.
        path: String,
    },
    /// Allocated extents of an inode that does not exist, or has none by its row.
    #[error("inode {ino} has allocated extents that its row does not know of, or does not exist")]
    LooseAllocated {
        /// The inode.
        ino: Ino,
    },
    /// Allocated extents of an inode are empty or overlap.
    #[error(
        "the allocated extents of inode {ino} are empty or overlap; a repair takes what is \
         allocated and not written from it, and leaves its contents"
    )]
    BadAllocated {
        /// The inode.
        ino: Ino,
        /// Key of its row.
        key: Vec<u8>,
    },
    /// The number of chunks that are allocated and not written is wrong.
    #[error("the number of unwritten chunks is stored as {stored} and is {counted}")]
    UnwrittenCount {
        /// What is stored.
        stored: u64,
        /// What is right.
        counted: u64,
    },
    /// There are allocated extents, and the header does not say so.
    #[error("the header does not say that there are allocated extents")]
    UnmarkedAllocated,
    /// An inode shares contents by its row, and no row says which.
    #[error(
        "inode {ino} shares contents, and no row says which; a repair takes those that it is \
         listed as a user of, without what it has written since it was copied"
    )]
    NoSharedRow {
        /// The inode.
        ino: Ino,
        /// Key of its row.
        key: Vec<u8>,
    },
    /// A row says which contents an inode shares that does not exist, or shares none by its row.
    #[error("inode {ino} shares no contents or does not exist, and a row says which it shares")]
    LooseSharedRow {
        /// The inode.
        ino: Ino,
    },
    /// An inode uses shared contents and is not listed as a user: they might be deleted.
    #[error("inode {ino} uses the shared contents {number}, and is not listed as a user of them")]
    MissingUser {
        /// The contents.
        number: Ino,
        /// The inode.
        ino: Ino,
    },
    /// An inode is listed as a user of shared contents and uses none: they would never be deleted.
    #[error("inode {ino} is listed as a user of the shared contents {number} and is none")]
    FalseUser {
        /// The contents.
        number: Ino,
        /// The inode.
        ino: Ino,
    },
    /// A file shares chunks beyond its end: growing again would show them.
    #[error("inode {ino} shares contents beyond its end")]
    SharedBeyondEnd {
        /// The inode.
        ino: Ino,
        /// Its size.
        size: u64,
    },
    /// There are rows of shared contents, and the header does not say so.
    #[error("the header does not say that files share contents")]
    UnmarkedShared,
    /// The back row of an inode is missing, leads elsewhere, or is that of an inode without a row
    /// under a name.
    #[error("inode {ino} cannot be found by its number: {}", back_text(place))]
    BackRow {
        /// The inode.
        ino: Ino,
        /// Directory and hash of the name that its row is under; `None` if it has no such row.
        place: Option<(Ino, u64)>,
    },
    /// The count of inodes, which `df -i` shows, is wrong.
    #[error("the number of inodes is stored as {stored} and is {counted}")]
    InodeCount {
        /// What is stored.
        stored: u64,
        /// What is right.
        counted: u64,
    },
}

impl Issue {
    /// Returns the inodes that have rows among what is lost, or the directory that is restored in
    /// part.
    #[must_use]
    pub fn owners(&self) -> &[Owner] {
        match self {
            Self::Lost { owners, .. } => owners,
            Self::InterruptedRollback { dir, .. } => std::slice::from_ref(dir),
            Self::InClone { issue, .. } => issue.owners(),
            _ => &[],
        }
    }

    /// False for what no repair can bring back.
    #[must_use]
    pub fn is_repairable(&self) -> bool {
        if let Self::InClone { issue, .. } = self {
            return issue.is_repairable();
        }
        !matches!(
            self,
            Self::NoHeader { .. }
                | Self::Lost { .. }
                | Self::LostUnused { .. }
                | Self::Unchecked { .. }
                | Self::NoPlainFile { .. }
                | Self::MissingPlainFile { .. }
        )
    }
}
