//! Names, as a walk has them: in the order of directories, then of names.

use crate::locator::Locator;
use std::collections::BTreeSet;
use stitch_base::Ino;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) dir: Ino,
    pub(super) name: Box<[u8]>,
}

/// Names in order, each once.
pub(super) type NameSet = BTreeSet<Name>;

impl Name {
    /// The name that a key of the meta tree is of; `None` for an inode under its number.
    pub(super) fn of_key(key: &[u8]) -> Option<Self> {
        let (_, name) = Locator::name_of(key)?;
        let dir = Locator::ino_of(key)?;
        debug_assert!(!name.is_empty(), "a name is not empty");
        let name = name.into();
        Some(Self { dir, name })
    }
}
