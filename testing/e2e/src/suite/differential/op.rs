//! The operations, as data that prints.

use crate::harness::user::User;

/// An operation and the user who does it.
pub(super) struct Step {
    /// `None` is root.
    pub(super) user: Option<User>,
    pub(super) op: Op,
}

/// What becomes of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewTime {
    Now,
    Omit,
    At(i64, i64),
}

/// One operation. Paths are relative to the root of the tree; slots are open files.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Open {
        slot: usize,
        path: String,
        flags: u32,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    /// `kind` is the type bits of a mode.
    Mknod {
        path: String,
        kind: u32,
        mode: u32,
        minor: u32,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
        follow: bool,
    },
    LinkOpen {
        slot: usize,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: u32,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    ChmodOpen {
        slot: usize,
        mode: u32,
    },
    Chown {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    Utimens {
        path: String,
        atime: NewTime,
        mtime: NewTime,
        follow: bool,
    },
    Truncate {
        path: String,
        len: u64,
    },
    TruncateOpen {
        slot: usize,
        len: u64,
    },
    Write {
        slot: usize,
        at: u64,
        len: usize,
        fill: u64,
    },
    Read {
        slot: usize,
        at: u64,
        len: usize,
    },
    Allocate {
        slot: usize,
        mode: u32,
        at: u64,
        len: u64,
    },
    SeekData {
        slot: usize,
        at: u64,
    },
    SeekHole {
        slot: usize,
        at: u64,
    },
    CopyRange {
        from: usize,
        from_at: u64,
        to: usize,
        to_at: u64,
        len: usize,
    },
    Sync {
        slot: usize,
        data_only: bool,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
        flags: u32,
    },
    GetXattr {
        path: String,
        name: String,
    },
    ListXattr {
        path: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    ReadDir {
        path: String,
    },
    ReadLink {
        path: String,
    },
    Access {
        path: String,
        mode: u32,
    },
    Stat {
        path: String,
        follow: bool,
    },
    StatOpen {
        slot: usize,
    },
    StatFs {
        path: String,
    },
}

impl Op {
    /// Paths that the operation names.
    pub(super) fn paths(&self) -> Vec<&str> {
        match self {
            Self::Open { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Mknod { path, .. }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimens { path, .. }
            | Self::Truncate { path, .. }
            | Self::SetXattr { path, .. }
            | Self::GetXattr { path, .. }
            | Self::ListXattr { path }
            | Self::RemoveXattr { path, .. }
            | Self::ReadDir { path }
            | Self::ReadLink { path }
            | Self::Access { path, .. }
            | Self::Stat { path, .. }
            | Self::StatFs { path } => vec![path],
            Self::Link { from, to, .. } | Self::Rename { from, to, .. } => vec![from, to],
            Self::LinkOpen { to, .. } => vec![to],
            _ => Vec::new(),
        }
    }
}
