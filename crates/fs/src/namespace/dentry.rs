//! What is found of a name.

use crate::FsResult;
use crate::inode::{Inode, Tick};
use bytes::Bytes;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// The row of a name.
#[derive(Clone, Debug)]
pub(crate) struct Dentry {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    /// The inode and what is behind its head, where this is its only name.
    pub(super) row: Option<(InodeHead, Bytes)>,
}

impl Dentry {
    pub(crate) fn decode(row: &Bytes) -> FsResult<Self> {
        Self::decode_with(row, |tail| row.slice_ref(tail))
    }

    /// Decodes a row without keeping what is behind the head of the inode.
    pub(crate) fn decode_head(row: &[u8]) -> FsResult<Self> {
        Self::decode_with(row, |_| Bytes::new())
    }

    fn decode_with(row: &[u8], keep: impl FnOnce(&[u8]) -> Bytes) -> FsResult<Self> {
        let dentry = match MetaRow::decode(row)? {
            MetaRow::Inode(head, tail) => Self {
                ino: head.ino,
                kind: head.kind,
                row: Some((head, keep(tail))),
            },
            MetaRow::Link { ino, kind } => Self {
                ino,
                kind,
                row: None,
            },
        };
        debug_assert!(dentry.ino.0 > 0, "a reader takes no other number");
        Ok(dentry)
    }

    /// The row of an inode that is known, with nothing behind its head.
    pub(super) fn of_known(inode: &Inode) -> Self {
        debug_assert!(!inode.has_tail(), "all of it is known");
        Self {
            ino: inode.head.ino,
            kind: inode.head.kind,
            row: Some((inode.head, Bytes::new())),
        }
    }

    /// What is behind the head of the inode in this row.
    pub(crate) fn tail(&self) -> Bytes {
        let tail = self.row.as_ref().map(|(_, tail)| tail.clone());
        tail.unwrap_or_default()
    }
}

/// What a name leads to, found while the inode was not locked.
pub(crate) struct Early {
    ino: Ino,
    kind: FileKind,
    /// The row, and the moment before it was read. `None` if all of it was known.
    pub(super) row: Option<(Dentry, Tick)>,
}

impl Early {
    /// The inode that it leads to, as long as the directory is locked.
    pub(crate) const fn ino(&self) -> Ino {
        self.ino
    }

    pub(crate) const fn is_dir(&self) -> bool {
        matches!(self.kind, FileKind::Directory)
    }

    pub(super) const fn read(dentry: Dentry, moment: Tick) -> Self {
        debug_assert!(dentry.ino.0 > 0, "0 is no inode");
        Self {
            ino: dentry.ino,
            kind: dentry.kind,
            row: Some((dentry, moment)),
        }
    }

    pub(super) const fn known(inode: &Inode) -> Self {
        debug_assert!(!inode.has_tail(), "all of its row is known");
        Self {
            ino: inode.head.ino,
            kind: inode.head.kind,
            row: None,
        }
    }
}
