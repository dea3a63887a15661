//! Records in transactions of files: both are committed together.
//!
//! A transaction has a branch of every tree of records that the store had when it began, of the
//! same moment as those of the files. [`TransactionRecords`] is an engine with these trees under
//! their own names and numbers, so that any user of an engine works in a transaction.
//!
//! ```text
//! trees of records    engine of the transaction      the store
//! "stock", 7          get, commit on tree 7    --->  branch "txn~N/tree~7"
//! ```
//!
//! A record that the transaction has written, or that lies in a range that it has deleted, is in
//! conflict if mainline has written it since the transaction began, unless the owner of the records
//! joins the two ([`RecordRules`]).
//!
//! Locks: [`RecordGate`], after those of the transaction's files.

mod changes;
mod engine;

pub(super) use changes::{BranchRecords, ChangedRecords, RecordPlan, open_records};
pub use engine::TransactionRecords;

use bytes::Bytes;
use std::fmt;
use stitch_base::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use stitch_base::{Ino, TreeId};
use stitch_db::BranchMerge;
use stitch_format::fs_transaction::{TransactionTree, transaction_tree};
use stitch_kv::{DeletedRange, KvError, TreeInfo};

use crate::schema::view_of_tree;

/// Reports whether a tree of this name is kept for file systems: for mainline, clones or
/// transactions.
#[must_use]
pub fn is_file_system_tree(name: &str) -> bool {
    debug_assert!(
        view_of_tree(name).is_none() || transaction_tree(name).is_none(),
        "a tree is of a clone or of a transaction"
    );
    name.starts_with("fs/") || view_of_tree(name).is_some() || transaction_tree(name).is_some()
}

/// Returns the tree of records that a tree is the branch of in a transaction, by its name. In a
/// damaged store a tree may be named as a branch of itself: it is none.
fn tree_in(number: Ino, branch: &TreeInfo) -> Option<TreeId> {
    match transaction_tree(&branch.name)? {
        (of, TransactionTree::Records(tree)) if of == number.0 && tree != branch.id => Some(tree),
        _ => None,
    }
}

/// The values of a record when the transaction began, in the transaction, and in mainline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSides {
    /// When the transaction began.
    pub base: Option<Bytes>,
    /// In the transaction.
    pub ours: Option<Bytes>,
    /// In mainline, now.
    pub theirs: Option<Bytes>,
}

/// What the owner of records knows of them, for commits of transactions.
pub trait RecordRules: Send + Sync {
    /// Reports whether [`Self::join`] decides about a record, whether or not mainline has written
    /// it too.
    fn is_joined(&self, tree: &str, key: &[u8]) -> bool;

    /// Returns what a record becomes that a transaction has written and that [`Self::is_joined`]:
    /// a value, or `None` for no record.
    ///
    /// # Errors
    /// What the record holds makes no sense.
    fn join(&self, tree: &str, key: &[u8], sides: &RecordSides) -> Result<Option<Bytes>, KvError>;

    /// Returns what users call a record in conflict; `None` for one that follows from others.
    fn shown(&self, tree: &str, key: &[u8]) -> Option<(String, Vec<u8>)>;

    /// Returns `[start, end)` of the rows that belong to a record beside its own row, which holds
    /// `row`: a resolution of a conflict about it is for what these hold, too.
    ///
    /// # Errors
    /// What the record holds makes no sense.
    fn further_rows(
        &self,
        _tree: &str,
        _key: &[u8],
        _row: &[u8],
    ) -> Result<Option<DeletedRange>, KvError> {
        Ok(None)
    }

    /// Reports whether [`Self::merge`] puts the records of a tree in which conflicts were resolved:
    /// its records are more than one row each. Of other trees each row is put by itself.
    fn is_merged(&self, _tree: &str) -> bool {
        false
    }

    /// Puts what a transaction has written to a tree into a later branch of it, but for the records
    /// of which mainline's side was chosen: these are left, by the keys that [`Self::shown`] gives.
    /// Called if [`Self::is_merged`].
    ///
    /// # Errors
    /// What records hold makes no sense; those of the engine.
    fn merge(&self, _tree: &str, _merge: &mut BranchMerge<'_>) -> Result<(), KvError> {
        Err(KvError::Unsupported("a merge of the records of this tree"))
    }

    /// Holds back the writers that keep in memory what these trees hold, until the commit has an
    /// outcome: those of mainline, or of the open transaction `outer` that is committed to.
    fn pause(&self, outer: Option<u64>, trees: &[&str]) -> Box<dyn PausedRecords + '_>;
}

/// Writers that wait. Dropped, they go on.
pub trait PausedRecords {
    /// Tells them that these records of a tree may have changed.
    fn changed(&mut self, tree: &str, keys: &[Vec<u8>]);
}

/// Rules of records that no program keeps anything of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlainRecords;

/// A pause that holds back no writer.
struct NotPaused;

impl PausedRecords for NotPaused {
    fn changed(&mut self, _: &str, _: &[Vec<u8>]) {}
}

impl RecordRules for PlainRecords {
    fn is_joined(&self, _: &str, _: &[u8]) -> bool {
        false
    }

    fn join(&self, _: &str, _: &[u8], sides: &RecordSides) -> Result<Option<Bytes>, KvError> {
        Ok(sides.ours.clone())
    }

    fn shown(&self, tree: &str, key: &[u8]) -> Option<(String, Vec<u8>)> {
        Some((tree.to_owned(), key.to_vec()))
    }

    fn pause(&self, _: Option<u64>, _: &[&str]) -> Box<dyn PausedRecords + '_> {
        Box::new(NotPaused)
    }
}

/// A record that a transaction and mainline have both written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// Name of the tree.
    pub tree: String,
    /// Its key.
    pub key: Vec<u8>,
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tree, self.key.escape_ascii())
    }
}

/// Lets writers of a transaction's records in, but not during its commit or after its end.
#[derive(Debug, Default)]
pub(super) struct RecordGate {
    has_ended: RwLock<bool>,
}

impl RecordGate {
    /// Lets a writer in.
    ///
    /// # Errors
    /// [`KvError::Invalid`] if the transaction has ended.
    fn enter(&self) -> Result<RwLockReadGuard<'_, bool>, KvError> {
        let entered = self.has_ended.read();
        match *entered {
            true => Err(KvError::Invalid("the transaction has ended".to_owned())),
            false => Ok(entered),
        }
    }

    /// Holds writers back. Set to true, it keeps them out for good.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, bool> {
        self.has_ended.write()
    }
}

/// The living trees of records among all trees of a store.
pub(super) fn record_trees(trees: &[TreeInfo]) -> impl Iterator<Item = &TreeInfo> {
    trees.iter().filter(|tree| !is_file_system_tree(&tree.name))
}
