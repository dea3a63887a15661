//! The trees of a transaction and its pin, by their names.
//!
//! ```text
//! trees   txn~N/meta, data, xattr, sys   branches of mainline's trees
//!         txn~N/tree~P                   a branch of the tree of records with the number P
//! pin     txn/N                          the moment at which it began, for the clones in it
//! ```
//!
//! The pin is there if the store had clones. It is created before the branches, which begin at its
//! moment, and dropped after them. So a pin without an open record is what a crash has left.

use super::SCHEMA_PREFIX;
use std::str::FromStr;
use stitch_base::TreeId;

/// What comes before the number of the parent in the name of a branch of a tree of records.
const RECORDS_PREFIX: &str = "tree~";

/// What comes before the number of the transaction in the name of its pin.
const PIN_PREFIX: &str = "txn/";

/// What a tree of a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionTree {
    /// A branch of one of the file system's trees.
    Files,
    /// A branch of this tree of records.
    Records(TreeId),
}

/// Returns the name of a transaction's branch of a tree of records.
#[must_use]
pub fn records_tree_name(number: u64, parent: TreeId) -> String {
    debug_assert!(parent.0 > 0, "tree 0 is never given out");
    format!("{SCHEMA_PREFIX}{number}/{RECORDS_PREFIX}{}", parent.0)
}

/// Returns the name of the pin of a transaction.
#[must_use]
pub fn transaction_pin(number: u64) -> String {
    debug_assert!(number > 0, "0 is no number");
    format!("{PIN_PREFIX}{number}")
}

/// Returns the transaction that a pin of this name is of; `None` for any other name.
#[must_use]
pub fn transaction_of_pin(name: &str) -> Option<u64> {
    written_number(name.strip_prefix(PIN_PREFIX)?)
}

/// Returns the transaction that a tree of this name is of, and what it is there; `None` for a tree
/// that is of none. Numbers are read as they are written: without zeros before them.
#[must_use]
pub fn transaction_tree(name: &str) -> Option<(u64, TransactionTree)> {
    let (number, part) = name.strip_prefix(SCHEMA_PREFIX)?.split_once('/')?;
    let number = written_number(number)?;
    let tree = match part {
        "meta" | "data" | "xattr" | "sys" => TransactionTree::Files,
        _ => {
            let parent = written_number(part.strip_prefix(RECORDS_PREFIX)?)?;
            TransactionTree::Records(TreeId(parent))
        }
    };
    Some((number, tree))
}

/// Returns the number of a transaction or a tree: `007` and `+7` are no names of 7.
fn written_number<N: FromStr + ToString>(text: &str) -> Option<N> {
    let number: N = text.parse().ok()?;
    let written = number.to_string();
    (written == text && written != "0").then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert_eq!(records_tree_name(7, TreeId(12)), "txn~7/tree~12");
        let of = |name: &str| transaction_tree(name);
        let records = TransactionTree::Records(TreeId(12));
        assert_eq!(of("txn~7/tree~12"), Some((7, records)));
        assert_eq!(of("txn~7/meta"), Some((7, TransactionTree::Files)));
        for name in [
            "txn~7/tree~x",
            "txn~x/meta",
            "txn~7",
            "fs/meta",
            "txn~7/other",
            "txn~07/meta",
            "txn~+7/meta",
            "txn~0/meta",
            "txn~7/tree~012",
            "txn~7/tree~0",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_pins_lead_back() {
        assert_eq!(transaction_pin(7), "txn/7");
        assert_eq!(transaction_of_pin("txn/7"), Some(7));
        for name in [
            "txn/0",
            "txn/07",
            "txn/x",
            "txn/",
            "txn~7/meta",
            "fs/7",
            "history/7",
        ] {
            assert_eq!(transaction_of_pin(name), None, "{name}");
        }
    }
}
