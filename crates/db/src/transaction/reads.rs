//! What a transaction has read of the store, to be checked at its commit.

use crate::DbError;
use std::collections::BTreeSet;
use stitch_base::TreeId;
use stitch_kv::{Guards, KeyRange, Snapshot};

/// Keys and ranges that were read, each with the moment at which it was.
#[derive(Debug)]
pub(super) struct Reads {
    /// `None` if reads are not checked.
    guards: Option<Guards>,
    keys: BTreeSet<(TreeId, Vec<u8>)>,
    bytes_max: usize,
    is_too_large: bool,
}

impl Reads {
    /// Reads that are not checked.
    pub(super) const fn unchecked() -> Self {
        Self {
            guards: None,
            keys: BTreeSet::new(),
            bytes_max: 0,
            is_too_large: false,
        }
    }

    /// Reads at `moment` or later, at most so many bytes of guards.
    pub(super) fn checked(moment: &Snapshot, bytes_max: usize) -> Self {
        Self {
            guards: Some(Guards::since(moment)),
            bytes_max,
            ..Self::unchecked()
        }
    }

    /// Notes that a key was read at `moment`, present or not.
    pub(super) fn key(&mut self, moment: &Snapshot, tree: TreeId, key: &[u8]) {
        let Some(guards) = self.guards.as_mut().filter(|_| !self.is_too_large) else {
            return;
        };
        // The first read counts: what has changed after it is a conflict.
        if self.keys.insert((tree, key.to_vec())) {
            guards.move_to(moment);
            guards.key(tree, key);
            self.check_size();
        }
    }

    /// Notes that a range was read at `moment`.
    pub(super) fn range(&mut self, moment: &Snapshot, tree: TreeId, range: KeyRange<'_>) {
        let Some(guards) = self.guards.as_mut().filter(|_| !self.is_too_large) else {
            return;
        };
        guards.move_to(moment);
        guards.range(tree, range);
        self.check_size();
    }

    fn check_size(&mut self) {
        let len_bytes = self.guards.as_ref().map_or(0, Guards::len_bytes);
        self.is_too_large = len_bytes > self.bytes_max;
    }

    /// Refuses reads whose guards are longer than a commit takes. Some are not noted then.
    ///
    /// # Errors
    /// [`DbError::TooLarge`].
    pub(super) fn check(&self) -> Result<(), DbError> {
        if !self.is_too_large {
            return Ok(());
        }
        let len_bytes = self.guards.as_ref().map_or(0, Guards::len_bytes);
        Err(DbError::too_large(
            "reads of a transaction",
            len_bytes,
            self.bytes_max,
        ))
    }

    /// The guards; `None` if there are none to check.
    pub(super) fn guards(&self) -> Option<&Guards> {
        self.guards.as_ref().filter(|guards| !guards.is_empty())
    }
}
