//! Commits of the model engine that fail because they are told to.

use super::ModelEngine;
use crate::KvError;
use stitch_base::{ErrorKind, TreeId};

/// How a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// An error of the device, before anything was done.
    Refused,
    /// There is no space; nothing was done.
    Full,
    /// An error of the device, after all of it was done.
    Done,
    /// Another writer was first; nothing was done.
    Conflict,
    /// The outcome is unknown; nothing was done.
    Unknown,
    /// The outcome is unknown; all of it was done.
    UnknownDone,
}

impl CommitFault {
    /// Reports whether the batch is applied all the same.
    pub(super) const fn is_applied(self) -> bool {
        matches!(self, Self::Done | Self::UnknownDone)
    }

    pub(super) fn error(self) -> KvError {
        match self {
            Self::Full => KvError::NoSpace {
                needed_bytes: 1,
                free_bytes: 0,
            },
            Self::Conflict => KvError::Conflict {
                tree: TreeId(1),
                key: Vec::new(),
            },
            Self::Unknown | Self::UnknownDone => KvError::Unknown,
            Self::Refused | Self::Done => {
                KvError::storage(ErrorKind::Io, std::io::Error::other("told to fail"))
            }
        }
    }
}

/// What the next commits meet.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextCommits {
    fault: CommitFault,
    /// Commits that succeed before.
    well: u32,
    left: u32,
}

impl NextCommits {
    pub(super) fn take(next: &mut Option<Self>) -> Option<CommitFault> {
        let this = next.as_mut()?;
        if this.well > 0 {
            this.well -= 1;
            return None;
        }
        let fault = this.fault;
        this.left = this.left.saturating_sub(1);
        if this.left == 0 {
            *next = None;
        }
        Some(fault)
    }
}

impl ModelEngine {
    /// Lets the next `count` commits fail; `u32::MAX` for all of them. An engine that is opened
    /// again with what this one holds is well.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn fail_commits(&self, fault: CommitFault, count: u32) {
        self.fail_commits_after(0, fault, count);
    }

    /// Does the same after `well` commits that succeed.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn fail_commits_after(&self, well: u32, fault: CommitFault, count: u32) {
        assert!(count > 0, "at least one fails");
        let left = count;
        self.state.write().next_commits = Some(NextCommits { fault, well, left });
    }

    /// From now on no commit is made to fail.
    pub fn mend_commits(&self) {
        self.state.write().next_commits = None;
    }
}
