//! Where the contents of a file are. The row flags that say so are read and set here only.
//!
//! | contents | row flag | stored as |
//! |---|---|---|
//! | inline | `INLINE` | bytes behind the head of the inode row, up to 4 KiB |
//! | chunked | none | chunks of 4 KiB in the `data` tree |
//! | external | `EXTERNAL` | a plain file beside the store, named by a row of the `sys` tree |
//! | shared | both | chunks in the `data` tree; a row of the `sys` tree tells under which numbers |
//!
//! ```text
//!   inline ---outgrows its row---> chunked ---grows past the threshold---> external
//!      ^                            ^ |                                        |
//!      +------- is cut to nothing --|-+------ is cut to nothing (not lent) ----+
//!                                   v
//!                                 shared      is copied whole, or is the copy; see `shared`
//! ```
//!
//! A file that grows past the threshold in one step leaves its row for a plain file directly. A
//! shared one stays in the store.

use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};

/// The flags that tell contents apart.
const FLAGS: u8 = row_flag::SHARED;
const _: () = assert!(
    FLAGS == row_flag::INLINE | row_flag::EXTERNAL,
    "shared contents have both flags"
);

/// Where the contents of a regular file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// In the inode row.
    Inline,
    /// In the `data` tree.
    Chunked,
    /// In a plain file.
    External,
    /// In the `data` tree, some chunks under a number that other files use as well.
    Shared,
}

impl Contents {
    /// Returns where the contents of a regular file with these row flags are.
    pub(crate) const fn of_flags(flags: u8) -> Self {
        match flags & FLAGS {
            row_flag::INLINE => Self::Inline,
            row_flag::EXTERNAL => Self::External,
            row_flag::SHARED => Self::Shared,
            _ => Self::Chunked,
        }
    }

    /// Returns where the contents of an inode are; `None` for what is no regular file.
    pub(crate) const fn of_inode(head: &InodeHead) -> Option<Self> {
        match head.kind {
            FileKind::Regular => Some(Self::of_flags(head.flags)),
            _ => None,
        }
    }

    /// Returns where the contents of a regular file are.
    pub(crate) fn of(head: &InodeHead) -> Self {
        debug_assert_eq!(head.kind, FileKind::Regular, "only files have contents");
        Self::of_flags(head.flags)
    }

    /// Reports whether an inode is a file whose contents are a plain file.
    pub(crate) const fn are_external(head: &InodeHead) -> bool {
        matches!(Self::of_inode(head), Some(Self::External))
    }

    /// Returns row flags of a file whose contents are here, and which is otherwise as these flags
    /// say.
    pub(crate) const fn mark(self, flags: u8) -> u8 {
        let own = match self {
            Self::Inline => row_flag::INLINE,
            Self::Chunked => 0,
            Self::External => row_flag::EXTERNAL,
            Self::Shared => row_flag::SHARED,
        };
        let marked = flags & !FLAGS | own;
        debug_assert!(
            Self::of_flags(marked) as u8 == self as u8,
            "the mark is read back"
        );
        marked
    }

    /// Reports whether they are in the `data` tree.
    pub(crate) const fn are_chunks(self) -> bool {
        matches!(self, Self::Chunked | Self::Shared)
    }

    /// Returns row flags that do not tell whether chunks are shared: that changes while the
    /// contents do not.
    pub(crate) const fn unshared(flags: u8) -> u8 {
        let unshared = match Self::of_flags(flags) {
            Self::Shared => Self::Chunked.mark(flags),
            Self::Inline | Self::Chunked | Self::External => flags,
        };
        debug_assert!(unshared & !FLAGS == flags & !FLAGS, "other flags stay");
        unshared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Contents; 4] = [
        Contents::Inline,
        Contents::Chunked,
        Contents::External,
        Contents::Shared,
    ];

    #[test]
    fn marks_are_read_back_and_change_no_other_flag() {
        for before in 0..=u8::MAX {
            for contents in ALL {
                let flags = contents.mark(before);
                assert_eq!(Contents::of_flags(flags), contents);
                assert_eq!(flags & !FLAGS, before & !FLAGS);
            }
        }
    }

    #[test]
    fn flags_without_sharing_change_for_shared_chunks_alone() {
        for contents in ALL {
            let flags = contents.mark(row_flag::HOLES);
            let expected = match contents {
                Contents::Shared => Contents::Chunked,
                other => other,
            };
            assert_eq!(Contents::unshared(flags), expected.mark(row_flag::HOLES));
            assert_eq!(contents.are_chunks(), expected == Contents::Chunked);
        }
    }
}
