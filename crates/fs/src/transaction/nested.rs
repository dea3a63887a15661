//! Nested transactions: one that begins in another, its outer transaction.
//!
//! ```text
//! mainline     f ---------------------------------> f2   commit of "outer"
//!   outer        f --------------> f1 -> f2 --------^
//!     inner         f --> f1 ------^                      commit of "inner"
//! ```
//!
//! The trees of the inner one are branches of those of the outer one. Its commit is that of any
//! transaction, with the file system of the outer one instead of mainline. The records of all are
//! in mainline's `sys` tree.
//!
//! Invariants:
//! - a transaction that has ended has no record of one that began in it: both go in one step;
//! - a transaction with an open one in it is not committed and not rebased. It can be aborted:
//!   then all in it end.

use super::catalog::RecordsByNumber;
use super::target::CommitTarget;
use super::{TransactionIsolation, TransactionView, Transactions};
use crate::{FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_transaction::{TransactionLife, TransactionRecord};

/// Most transactions that are in each other, the outermost one included. A read that finds nothing
/// looks at the trees of all of them, and at mainline's.
pub const NESTED_DEPTH_MAX: usize = 8;

/// Returns those of all records that are of transactions in the one of a number, at any depth. They
/// are in the order of numbers, and an inner one has a larger number than its outer one.
pub(super) fn records_within(records: RecordsByNumber, number: Ino) -> RecordsByNumber {
    let mut numbers = BTreeSet::from([number]);
    let mut within = records;
    debug_assert!(within.is_sorted_by_key(|(number, _)| *number), "as scanned");
    within.retain(|(inner, record)| {
        let outer = record.outer.map(Ino);
        outer.is_some_and(|outer| numbers.contains(&outer)) && numbers.insert(*inner)
    });
    debug_assert!(
        within.iter().all(|(inner, _)| *inner != number),
        "none is in itself"
    );
    within
}

/// Returns how long a transaction lives that began in `outer`: in a run it ends with that one.
pub(super) fn life_within(
    record: &TransactionRecord,
    outer: Option<&TransactionView>,
) -> TransactionLife {
    debug_assert_eq!(record.outer, outer.map(|outer| outer.number.0), "its own");
    match outer.is_none_or(|outer| outer.fs.syncs()) {
        true => record.life,
        false => TransactionLife::Run,
    }
}

/// Returns what the commit of a transaction checks that begins in `outer`. In a serializable one
/// all are: what they read counts as read by the outer one.
pub(super) fn isolation_within(
    asked: TransactionIsolation,
    outer: Option<&TransactionView>,
) -> TransactionIsolation {
    let isolation = match outer.is_some_and(|outer| outer.fs.reads.is_some()) {
        true => TransactionIsolation::Serializable,
        false => asked,
    };
    debug_assert!(
        asked != TransactionIsolation::Serializable || isolation == asked,
        "no check is dropped"
    );
    isolation
}

impl TransactionView {
    /// Returns the transaction that it began in; `None` if that was mainline.
    #[must_use]
    pub const fn outer(&self) -> Option<&Arc<Self>> {
        self.outer.as_ref()
    }

    /// Returns its name after those of the transactions that it is in: `outer/inner`.
    pub(super) fn full_name(&self) -> String {
        debug_assert!(!self.info.name.is_empty(), "a name was checked");
        let outer = self.outer.as_ref().map(|outer| outer.full_name());
        match outer {
            Some(outer) => format!("{outer}/{}", self.info.name),
            None => self.info.name.clone(),
        }
    }

    /// Returns the number of the outermost one that it is in, or its own.
    pub(super) fn outermost(&self) -> Ino {
        let mut view = self;
        while let Some(outer) = view.outer.as_deref() {
            debug_assert!(outer.number < view.number, "an outer one began before");
            view = outer;
        }
        view.number
    }

    /// Number of transactions that are in each other down to this one, itself included.
    fn depth(&self) -> usize {
        let above = std::iter::successors(Some(self), |view| view.outer.as_deref());
        above.count()
    }
}

impl<'fs> Transactions<'fs> {
    /// Returns the transaction of a number for another one to begin in. One transaction is changed
    /// at a time.
    ///
    /// # Errors
    /// [`FsError::NestedTooDeep`]; [`FsError::Ended`].
    pub(super) fn outer_view(&self, number: Ino) -> FsResult<Arc<TransactionView>> {
        let view = self.view_of(number)?;
        debug_assert_eq!(view.number, number, "the transaction of the number");
        debug_assert!(
            view.outer
                .as_ref()
                .is_none_or(|outer| outer.number < number),
            "an outer one began before"
        );
        match view.depth() < NESTED_DEPTH_MAX {
            true => Ok(view),
            false => Err(FsError::NestedTooDeep(NESTED_DEPTH_MAX)),
        }
    }

    /// Returns what a transaction is committed to: the file system of its outer one, or mainline.
    pub(super) fn target_of<'a>(&self, view: &'a TransactionView) -> CommitTarget<'a>
    where
        'fs: 'a,
    {
        debug_assert!(self.is_mainline, "mainline is asked");
        let outer = view.outer.as_ref();
        outer.map_or(self.target, |outer| CommitTarget::of(&outer.fs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_format::fs_transaction::TransactionState;

    fn record(number: u64, outer: Option<u64>) -> (Ino, TransactionRecord) {
        let record = TransactionRecord {
            state: TransactionState::Open,
            life: TransactionLife::Named,
            isolation: TransactionIsolation::Snapshot,
            has_reads: false,
            owner: 0,
            created_ns: 0,
            expires_ns: i64::MAX,
            first_ino: number,
            outer,
            name: format!("t{number}"),
            resolutions: Vec::new(),
        };
        (Ino(number), record)
    }

    #[test]
    fn all_within_one_are_found_at_any_depth() {
        let all = || {
            vec![
                record(20, None),
                record(21, Some(20)),
                record(22, None),
                record(23, Some(21)),
                record(24, Some(22)),
                record(25, Some(7)),
                record(26, Some(20)),
            ]
        };
        let within = |number| {
            let found = records_within(all(), Ino(number)).into_iter();
            found.map(|(number, _)| number.0).collect::<Vec<_>>()
        };
        assert_eq!(within(20), [21, 23, 26]);
        assert_eq!(within(21), [23]);
        assert_eq!(within(22), [24]);
        assert_eq!(within(26), [0; 0]);
    }
}
