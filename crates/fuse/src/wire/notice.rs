//! Notices: messages to the kernel that are not replies.

use stitch_base::Ino;

use super::codec::Fields;
use super::flags;

/// Inodes in one [`Notice::Prune`].
pub const PRUNE_COUNT_MAX: usize = 512;

/// A notice. The result of the write tells whether the kernel accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// Attributes of `ino` changed; its cached bytes `[offset, offset + length)` too. A negative
    /// offset drops attributes only; a length of 0 means to the end.
    InvalidateInode {
        /// The inode.
        ino: Ino,
        /// First byte.
        offset: i64,
        /// Bytes.
        length: i64,
    },
    /// The entry `name` in `parent` changed.
    InvalidateEntry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: &'a [u8],
        /// Look it up again at the next use, instead of dropping it now.
        expire_only: bool,
    },
    /// `name` in `parent`, which was `child`, was removed.
    Delete {
        /// The directory.
        parent: Ino,
        /// The inode that it named.
        child: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// Stores these bytes from `offset` on in the kernel's page of `ino`, which stays clean or
    /// dirty. If the kernel's file ends before them, it is extended to their end.
    Store {
        /// The inode.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Resend the requests in flight (7.40).
    Resend,
    /// Look up every cached entry again (7.44).
    IncrementEpoch,
    /// Drop the unused ones of these inodes, with their names (7.45).
    Prune {
        /// The inodes; at most [`PRUNE_COUNT_MAX`].
        inos: &'a [Ino],
    },
}

impl Notice<'_> {
    /// Number of the notice.
    #[must_use]
    pub const fn code(&self) -> i32 {
        match self {
            Self::InvalidateInode { .. } => 2,
            Self::InvalidateEntry { .. } => 3,
            Self::Store { .. } => 4,
            Self::Delete { .. } => 6,
            Self::Resend => 7,
            Self::IncrementEpoch => 8,
            Self::Prune { .. } => 9,
        }
    }

    /// The message, header included.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 16];
        match *self {
            Self::InvalidateInode {
                ino,
                offset,
                length,
            } => out.extend(
                Fields::<24>::default()
                    .u64(ino.0)
                    .i64(offset)
                    .i64(length)
                    .done(),
            ),
            Self::InvalidateEntry {
                parent,
                name,
                expire_only,
            } => {
                let flags = if expire_only { flags::EXPIRE_ONLY } else { 0 };
                out.extend(
                    Fields::<16>::default()
                        .u64(parent.0)
                        .u32(name_len(name))
                        .u32(flags)
                        .done(),
                );
                put_name(&mut out, name);
            }
            Self::Delete {
                parent,
                child,
                name,
            } => {
                out.extend(
                    Fields::<24>::default()
                        .u64(parent.0)
                        .u64(child.0)
                        .u32(name_len(name))
                        .u32(0)
                        .done(),
                );
                put_name(&mut out, name);
            }
            Self::Store { ino, offset, bytes } => {
                let len_bytes = u32::try_from(bytes.len()).expect("a notice is short");
                let head = Fields::<24>::default().u64(ino.0).u64(offset);
                out.extend(head.u32(len_bytes).u32(0).done());
                out.extend_from_slice(bytes);
            }
            Self::Resend | Self::IncrementEpoch => {}
            Self::Prune { inos } => {
                debug_assert!(inos.len() <= PRUNE_COUNT_MAX, "one step of the kernel's");
                let count = u32::try_from(inos.len()).expect("a notice is short");
                let head = Fields::<16>::default().u32(count).u32(0).u64(0);
                out.extend(head.done());
                let inos = inos.iter().map(|ino| Fields::<8>::default().u64(ino.0));
                out.extend(inos.flat_map(Fields::done));
            }
        }
        let len_bytes = u32::try_from(out.len()).expect("a notice is short");
        let header = Fields::<16>::default()
            .u32(len_bytes)
            .i32(self.code())
            .u64(0)
            .done();
        out[..16].copy_from_slice(&header);
        out
    }
}

fn name_len(name: &[u8]) -> u32 {
    u32::try_from(name.len()).expect("a name is short")
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    debug_assert!(
        !name.is_empty() && !name.contains(&0),
        "the kernel counts bytes up to the zero"
    );
    out.extend_from_slice(name);
    out.push(0);
}
