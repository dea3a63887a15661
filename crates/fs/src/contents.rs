//! Where the contents of a file are. The row flags that say so are read and set here only.
//!
//! | contents | row flag | stored as |
//! |---|---|---|
//! | inline | `INLINE` | bytes behind the head of the inode row, up to 4 KiB |
//! | chunked | none | chunks of 4 KiB in the `data` tree |
//! | external | `EXTERNAL` | a plain file beside the store, named by a row of the `sys` tree |
//!
//! ```text
//!   inline ---outgrows its row---> chunked ---grows past the threshold---> external
//!      ^                              |                                        |
//!      +------- is cut to nothing ----+------ is cut to nothing (not lent) ----+
//! ```
//!
//! A file that grows past the threshold in one step leaves its row for a plain file directly.
//!
//! Invariant: a file has one of both flags at most. Of a damaged row with both the inline contents
//! count.

use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};

/// The flags that tell contents apart.
const FLAGS: u8 = row_flag::INLINE | row_flag::EXTERNAL;

/// Where the contents of a regular file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// In the inode row.
    Inline,
    /// In the `data` tree.
    Chunked,
    /// In a plain file.
    External,
}

impl Contents {
    /// Returns where the contents of a regular file with these row flags are.
    pub(crate) const fn of_flags(flags: u8) -> Self {
        if flags & row_flag::INLINE != 0 {
            Self::Inline
        } else if flags & row_flag::EXTERNAL != 0 {
            Self::External
        } else {
            Self::Chunked
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
        };
        flags & !FLAGS | own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Contents; 3] = [Contents::Inline, Contents::Chunked, Contents::External];

    #[test]
    fn marks_are_read_back_and_change_no_other_flag() {
        for before in 0..=u8::MAX {
            for contents in ALL {
                let flags = contents.mark(before);
                assert_eq!(Contents::of_flags(flags), contents);
                assert_eq!(flags & !FLAGS, before & !FLAGS);
                assert_ne!(flags & FLAGS, FLAGS, "one of both at most");
            }
        }
    }

    #[test]
    fn a_damaged_row_with_both_flags_is_inline() {
        assert_eq!(Contents::of_flags(FLAGS), Contents::Inline);
    }
}
