//! What a transaction and mainline have both changed.

use super::records::RecordKey;
use std::fmt;
use stitch_base::Ino;

/// What was changed on both sides.
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
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Inode => "attributes or contents",
            Self::Xattr => "extended attributes",
            Self::Record => "record",
        })
    }
}

/// One conflict of a transaction with mainline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conflict {
    /// Path from the root, without a slash at either end, as the transaction has it, or had it.
    /// Empty for a record.
    pub path: Vec<u8>,
    /// What was changed on both sides.
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
