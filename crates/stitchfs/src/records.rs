//! What commits of transactions of files have to know of the records beside them: those of the
//! Redis protocol.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Weak;
use stitch_base::ErrorKind;
use stitch_base::sync::{Arc, Mutex};
use stitch_db::{BranchMerge, DbError};
use stitch_fs::{PausedRecords, RecordRules, RecordSides};
use stitch_kv::{DeletedRange, KvError};
use stitch_serve::{RoundGate, RoundPause, ServeError};

/// Name of the tree with the keys that Redis clients see.
pub const KEYS_TREE: &str = stitch_serve::ROWS_TREE;

/// What holds the servers of keys back while a transaction is committed: mainline's, and those of
/// transactions that others are committed to.
#[derive(Debug, Default)]
pub struct RoundGates {
    mainline: Arc<RoundGate>,
    /// By the numbers of transactions.
    transactions: Mutex<BTreeMap<u64, Weak<RoundGate>>>,
}

impl RoundGates {
    /// Returns that of the server of mainline's keys.
    #[must_use]
    pub const fn mainline(&self) -> &Arc<RoundGate> {
        &self.mainline
    }

    /// Returns that of the server of a transaction's keys, whether or not there is one yet.
    #[must_use]
    pub fn of_transaction(&self, number: u64) -> Arc<RoundGate> {
        let mut gates = self.transactions.lock();
        if let Some(gate) = gates.get(&number).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(RoundGate::default());
        gates.insert(number, Arc::downgrade(&gate));
        gate
    }
}

/// The rules of a store's records.
#[derive(Debug)]
pub(crate) struct StoreRecords {
    gates: Arc<RoundGates>,
}

impl StoreRecords {
    pub(crate) const fn new(gates: Arc<RoundGates>) -> Self {
        Self { gates }
    }
}

impl RecordRules for StoreRecords {
    fn is_joined(&self, tree: &str, key: &[u8]) -> bool {
        stitch_serve::is_totals(tree, key)
    }

    fn join(&self, _: &str, _: &[u8], sides: &RecordSides) -> Result<Option<Bytes>, KvError> {
        let RecordSides { base, ours, theirs } = sides;
        let joined = stitch_serve::join_totals([base, ours, theirs].map(Option::as_deref));
        joined.map_err(|error| corrupt("the totals of the keys", &error))
    }

    fn shown(&self, tree: &str, key: &[u8]) -> Option<(String, Vec<u8>)> {
        let key = match tree == KEYS_TREE {
            true => stitch_serve::key_of_row(tree, key)?,
            false => key,
        };
        Some((tree.to_owned(), key.to_vec()))
    }

    fn further_rows(
        &self,
        tree: &str,
        key: &[u8],
        row: &[u8],
    ) -> Result<Option<DeletedRange>, KvError> {
        let rows = stitch_serve::rows_of_key(tree, key, row);
        rows.map_err(|error| corrupt("the row of a key", &error))
    }

    fn is_merged(&self, tree: &str) -> bool {
        tree == KEYS_TREE
    }

    fn merge(&self, tree: &str, merge: &mut BranchMerge<'_>) -> Result<(), KvError> {
        debug_assert!(self.is_merged(tree), "others are put row by row");
        let merged = stitch_serve::merge_keys(merge);
        merged.map_err(|error| match error {
            ServeError::Db(DbError::Kv(error)) => error,
            error => corrupt("the rows of the keys", &error),
        })
    }

    fn pause(&self, outer: Option<u64>, trees: &[&str]) -> Box<dyn PausedRecords + '_> {
        let is_served = trees.contains(&KEYS_TREE);
        let pause = || match outer {
            Some(number) => self.gates.of_transaction(number).pause(),
            None => self.gates.mainline.pause(),
        };
        Box::new(PausedKeys(is_served.then(pause)))
    }
}

fn corrupt(what: &str, error: &ServeError) -> KvError {
    KvError::Storage {
        kind: ErrorKind::Corrupt,
        message: format!("{what}: {error}"),
        source: None,
    }
}

/// A server of keys that waits, if the commit writes to them.
struct PausedKeys(Option<RoundPause>);

impl PausedRecords for PausedKeys {
    fn changed(&mut self, tree: &str, keys: &[Vec<u8>]) {
        if let Some(pause) = self.0.as_mut().filter(|_| tree == KEYS_TREE) {
            pause.changed(keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_users_know_them_and_other_records_as_they_are() {
        let rules = StoreRecords::new(Arc::default());
        let shown = |tree: &str, key: &[u8]| rules.shown(tree, key);
        let key = |tree: &str, key: &[u8]| Some((tree.to_owned(), key.to_vec()));
        assert_eq!(shown(KEYS_TREE, b"k\0a"), key(KEYS_TREE, b"a"));
        assert_eq!(shown(KEYS_TREE, b"m\0a"), None);
        assert_eq!(shown("stock", b"m\0a"), key("stock", b"m\0a"));
        assert!(rules.is_joined(KEYS_TREE, b"c\0") && !rules.is_joined("stock", b"c\0"));
        let wrong = RecordSides {
            base: None,
            ours: Some(Bytes::from_static(b"x")),
            theirs: None,
        };
        let error = rules.join(KEYS_TREE, b"c\0", &wrong).unwrap_err();
        assert!(error.to_string().contains("totals"), "{error}");
    }

    #[test]
    fn a_commit_of_other_records_does_not_wait_for_a_round() {
        let rules = StoreRecords::new(Arc::default());
        let outer = rules.pause(None, &[KEYS_TREE]);
        drop(rules.pause(None, &["stock"]));
        drop(outer);
    }

    #[test]
    fn transactions_have_gates_of_their_own_as_long_as_they_are_used() {
        let gates = RoundGates::default();
        let (one, two) = (gates.of_transaction(1), gates.of_transaction(2));
        assert!(!Arc::ptr_eq(&one, &two) && !Arc::ptr_eq(&one, gates.mainline()));
        assert!(Arc::ptr_eq(&one, &gates.of_transaction(1)));
        drop(one);
        drop(gates.of_transaction(3));
        drop(gates.of_transaction(4));
        assert_eq!(gates.transactions.lock().len(), 2, "2 is used, 4 was last");
    }
}
