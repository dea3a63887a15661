//! What a rollback may change, and what it says when it would destroy more.

use super::tree::DirTree;
use std::collections::BTreeSet;
use std::fmt;
use stitch_base::Ino;

/// Clones that an error names.
const NAMED_MAX: usize = 16;

/// What becomes of clones in a directory that is rolled back, which were made later than the
/// snapshot or were moved in later. One that is destroyed is brought back by a rollback to a
/// snapshot that shows it, and by nothing if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaterClones {
    /// The rollback is refused if there are any: [`crate::FsError::LaterClones`].
    #[default]
    Keep,
    /// They are destroyed, with all that is in them.
    Destroy,
}

/// What a rollback may change. By default: files of any owner, and no clone is destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollbackRights {
    /// Every inode that changes, and every clone that is destroyed or made again, must belong to
    /// this user; to any for `None`.
    pub owner: Option<u32>,
    /// What becomes of later clones.
    pub later_clones: LaterClones,
}

impl RollbackRights {
    /// All rights: files of any owner change, and later clones are destroyed.
    pub const ALL: Self = Self {
        owner: None,
        later_clones: LaterClones::Destroy,
    };

    /// Reports whether the rights do not reach what belongs to a user.
    pub(super) fn excludes(&self, user: u32) -> bool {
        self.owner.is_some_and(|owner| owner != user)
    }
}

/// The clones because of which a rollback was refused. They are as before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptClones {
    /// Paths of the first ones, from the directory on, without a slash at either end, in order.
    pub paths: Vec<Vec<u8>>,
    /// Number of all of them.
    pub count: usize,
}

impl KeptClones {
    /// Names clones by the directories of a tree at which they lie.
    pub(super) fn new(tree: &DirTree, grafts: &BTreeSet<Ino>) -> Self {
        debug_assert!(!grafts.is_empty(), "a clone is in the way");
        let named = grafts.iter().take(NAMED_MAX).copied().collect();
        let mut paths = tree.paths_of(&named);
        paths.sort();
        // The record of a damaged clone may name a file.
        debug_assert!(paths.len() <= named.len(), "a directory has one path");
        Self {
            paths,
            count: grafts.len(),
        }
    }
}

impl fmt::Display for KeptClones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.paths.iter().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{}", path.escape_ascii())?;
        }
        match self.count.saturating_sub(self.paths.len()) {
            0 => Ok(()),
            others => write!(f, ", and {others} more"),
        }
    }
}
