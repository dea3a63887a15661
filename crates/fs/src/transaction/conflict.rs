//! What a transaction and mainline have both changed.

use super::records::RecordKey;
use std::fmt;
use stitch_base::Ino;

/// What was changed on both sides, or read on one and changed on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConflictKind {
    /// What the name stands for: it was made, removed or moved.
    Name,
    /// Attributes or contents of an inode.
    Inode,
    /// Extended attributes.
    Xattr,
    /// A record of a tree beside the file system.
    Record,
    /// Something that a serializable transaction has read, and mainline has changed.
    Read(ReadKind),
}

/// What a transaction has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadKind {
    /// Which inode the name stands for, or that there is none.
    Name,
    /// Attributes or contents of an inode.
    Inode,
    /// Extended attributes.
    Xattr,
    /// The list of names of a directory.
    List,
    /// A record of a tree beside the file system.
    Record,
    /// Perhaps anything: what was read before the last crash is not known.
    Unknown,
}

impl fmt::Display for ReadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "read name",
            Self::Inode => "read attributes or contents",
            Self::Xattr => "read extended attributes",
            Self::List => "read list of names",
            Self::Record => "read record",
            Self::Unknown => "perhaps read: reads before a crash are not known",
        })
    }
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Inode => "attributes or contents",
            Self::Xattr => "extended attributes",
            Self::Record => "record",
            Self::Read(kind) => return kind.fmt(f),
        })
    }
}

/// One conflict of a transaction with mainline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conflict {
    /// Path from the root, without a slash at either end, as the transaction has it, or had it.
    /// Empty for a record.
    pub path: Vec<u8>,
    /// What was changed on both sides, or read and changed.
    pub kind: ConflictKind,
    /// The inode, of a name that of the transaction if it has one. 0 for a record.
    pub ino: Ino,
    /// The record, if it is about one.
    pub record: Option<RecordKey>,
}

impl Conflict {
    /// A conflict about a record.
    pub(super) const fn of_record(record: RecordKey) -> Self {
        Self {
            path: Vec::new(),
            kind: ConflictKind::Record,
            ino: Ino(0),
            record: Some(record),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.record {
            Some(record) => write!(f, "{record}: {}", self.kind),
            None => write!(f, "{}: {}", self.path.escape_ascii(), self.kind),
        }
    }
}
