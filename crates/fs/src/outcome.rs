//! Commits that are neither done nor refused for good: conflicts and unknown outcomes (ADR 0176).
//!
//! ```text
//! engine's error    what the store holds       what follows
//! Conflict          nothing of the batch       commit again, at most TRIES times
//! Unknown           all of it or nothing       read the rows of the batch:
//!                                                all there: done
//!                                                one is not: commit again
//!                                                they do not tell: the error
//! any other         nothing of the batch       the error
//! ```
//!
//! An operation that is run again would stage the same batch: what it decides by is in memory and
//! under its locks, and no other writer changes the rows of a file system. So the commit alone is
//! run again, with the locks still held.

use crate::rows::RowBatch;
use crate::schema::Store;
use crate::{FsError, FsResult};
use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_db::{CommitOptions, DbError};
use stitch_format::fs_sys::{UPSERT_ATTR, UPSERT_CHUNK};
use stitch_format::{fs_chunk, fs_inode};
use stitch_kv::{KvError, Message};

/// Commits after the first one.
const TRIES: u32 = 8;

/// What the rows of a batch tell about its commit. It is whole or not at all: one row tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Every row that tells is as the batch leaves it.
    Applied,
    /// A row is not as the batch leaves it.
    NotApplied,
    /// No row tells.
    Open,
}

impl Store {
    /// Goes on after a commit has failed with `error`.
    ///
    /// # Errors
    /// Those of the engine. After [`KvError::Conflict`] nothing is committed. After
    /// [`KvError::Unknown`] nothing is, unless the rows of the batch do not tell.
    #[cold]
    pub(crate) fn commit_again(
        &self,
        batch: &RowBatch<'_>,
        options: CommitOptions,
        mut error: DbError,
    ) -> FsResult<()> {
        debug_assert!(!batch.is_empty(), "an empty batch has no outcome");
        const { assert!(TRIES > 0, "it is tried again") };
        for _ in 0..TRIES {
            if self.has_outcome(batch, &error)? {
                return Ok(());
            }
            match self.view.commit(batch.changes(), options) {
                Ok(_) => return Ok(()),
                Err(next) => error = next,
            }
        }
        match self.has_outcome(batch, &error)? {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    /// Reports whether the batch is applied, after a commit of it failed. If not, it may be
    /// committed again.
    ///
    /// # Errors
    /// `error` itself, if it is final.
    fn has_outcome(&self, batch: &RowBatch<'_>, error: &DbError) -> FsResult<bool> {
        debug_assert!(!batch.is_empty(), "an empty batch has no outcome");
        match error {
            DbError::Kv(KvError::Conflict { .. }) => Ok(false),
            DbError::Kv(KvError::Unknown) => match self.outcome(batch)? {
                Outcome::Applied => Ok(true),
                Outcome::NotApplied => Ok(false),
                Outcome::Open => Err(error.clone().into()),
            },
            _ => Err(error.clone().into()),
        }
    }

    /// Reads what the rows of a batch tell.
    ///
    /// Rows that are put or deleted tell, and changes of attributes and contents, which leave a row
    /// as it is when they are folded in twice. Sums do not. They come in one batch with rows that
    /// do, and that change: a sum is right when these are.
    fn outcome(&self, batch: &RowBatch<'_>) -> FsResult<Outcome> {
        let mut outcome = Outcome::Open;
        for (tree, message) in telling(batch) {
            debug_assert!(
                !matches!(message, Message::DeleteRange { .. }),
                "a range tells of no row"
            );
            match self.is_as_left(batch, tree, &message)? {
                None => {}
                Some(true) => outcome = Outcome::Applied,
                Some(false) => return Ok(Outcome::NotApplied),
            }
        }
        Ok(outcome)
    }

    /// Reports whether a row is as a message leaves it, if that can be told.
    fn is_as_left(
        &self,
        batch: &RowBatch<'_>,
        tree: TreeId,
        message: &Message<'_>,
    ) -> FsResult<Option<bool>> {
        debug_assert!(!message.key().is_empty(), "no row has an empty key");
        let Some(dictionary) = batch.dictionary(tree) else {
            return Err(FsError::Corrupt(format!("tree {tree} is none of these")));
        };
        let row = || -> FsResult<_> { Ok(self.view.get(dictionary, message.key())?) };
        Ok(match message {
            Message::Put { value, .. } => Some(row()?.as_deref() == Some(*value)),
            Message::Delete { .. } => Some(row()?.is_none()),
            Message::Upsert {
                function, delta, ..
            } => leaves(*function, row()?.as_deref(), delta),
            Message::DeleteRange { .. } => None,
        })
    }
}

/// Returns the messages after which a row is known: those that are alone with their key, in a tree
/// of which the batch deletes no range.
fn telling<'a>(batch: &'a RowBatch<'_>) -> Vec<(TreeId, Message<'a>)> {
    let mut counts: BTreeMap<(TreeId, &[u8]), u32> = BTreeMap::new();
    let mut ranges = Vec::new();
    for (tree, message) in batch.changes().messages() {
        match message {
            Message::DeleteRange { .. } => ranges.push(tree),
            _ => *counts.entry((tree, message.key())).or_default() += 1,
        }
    }
    let messages = batch.changes().messages();
    messages
        .filter(|(tree, message)| {
            !ranges.contains(tree) && counts.get(&(*tree, message.key())) == Some(&1)
        })
        .collect()
}

/// Reports whether an upsert leaves a row as it is, so that it has been folded in, or changes
/// nothing. `None` for functions that change it each time.
fn leaves(function: u32, row: Option<&[u8]>, delta: &[u8]) -> Option<bool> {
    let mut out = Vec::new();
    let is_left = match function {
        UPSERT_ATTR => fs_inode::fold(row, delta, &mut out),
        UPSERT_CHUNK => fs_chunk::fold(row, delta, &mut out),
        _ => return None,
    };
    let after = is_left.then_some(out.as_slice());
    Some(after == row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FsOptions;
    use crate::schema::SCHEMA;
    use crate::testing::formatted;
    use stitch_base::sync::Arc;
    use stitch_db::SpaceClass;
    use stitch_format::fs_sys::{UPSERT_ADD, encode_number};
    use stitch_kv::{CommitFault, Engine};

    #[test]
    fn a_batch_that_does_not_tell_is_not_committed_twice() {
        let engine = formatted(&FsOptions::default());
        let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
        let store = Store::open(&shared, SCHEMA).unwrap();
        let key = store.keys.inode_count();
        let mut batch = store.batch();
        batch.upsert(&key, UPSERT_ADD, &5i64.to_le_bytes());
        engine.fail_commits(CommitFault::UnknownDone, 1);
        let refused = store.commit(&batch, SpaceClass::Normal);
        assert!(matches!(refused, Err(FsError::Storage(KvError::Unknown))));
        assert_eq!(store.number(&key).unwrap(), 6, "added once");
    }

    #[test]
    fn rows_that_are_written_twice_or_deleted_as_a_range_do_not_tell() {
        let engine = formatted(&FsOptions::default());
        let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
        let store = Store::open(&shared, SCHEMA).unwrap();
        let keys = store.keys;
        let mut batch = store.batch();
        batch.put(&keys.next_ino(), &encode_number(1));
        batch.put(&keys.next_ino(), &encode_number(2));
        batch.put(&keys.unwritten(), &encode_number(3));
        batch.delete_range(&keys.xattrs(stitch_base::Ino::ROOT));
        batch.delete(&keys.own(stitch_base::Ino::ROOT));
        let told: Vec<usize> = telling(&batch)
            .iter()
            .map(|(_, message)| message.key().len())
            .collect();
        let expected = [
            keys.unwritten().len(),
            keys.own(stitch_base::Ino::ROOT).len(),
        ];
        assert_eq!(told, expected);
    }
}
