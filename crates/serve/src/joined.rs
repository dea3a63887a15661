//! What a transaction of files and records does with the rows of the protocol at its commit.
//!
//! Each command on a key writes the key's row, so two writers of a key are in conflict there. The
//! totals are the one row that all writers share: they are joined.

use crate::ServeError;
use bytes::Bytes;
use stitch_format::redis::{self, Totals};

/// Values of a row: before a transaction, in it, and in mainline.
pub type RowSides<'r> = [Option<&'r [u8]>; 3];

/// Reports whether a row of a tree is joined by [`join_totals`].
#[must_use]
pub fn is_totals(tree: &str, row: &[u8]) -> bool {
    tree == redis::TREE && row == redis::totals_key()
}

/// Joins the totals: what the transaction has added to those of mainline. Collections of a
/// transaction have numbers of their own, so mainline goes on with its own number.
///
/// # Errors
/// [`ServeError::Format`] for a row that holds no totals.
pub fn join_totals(sides: RowSides<'_>) -> Result<Option<Bytes>, ServeError> {
    let totals = |side: Option<&[u8]>| side.map_or(Ok(Totals::EMPTY), Totals::decode);
    let [base, ours, theirs] = sides;
    let (base, ours, theirs) = (totals(base)?, totals(ours)?, totals(theirs)?);
    // Less than none is left only where both sides removed a key, which is a conflict.
    let joined = |of: fn(&Totals) -> u64| {
        of(&theirs)
            .saturating_add(of(&ours))
            .saturating_sub(of(&base))
    };
    let keys = joined(|totals| totals.keys);
    let sum = Totals {
        keys,
        expiries: joined(|totals| totals.expiries).min(keys),
        next_collection: theirs.next_collection,
    };
    let row = (sum != Totals::EMPTY).then(|| Bytes::copy_from_slice(&sum.encode()));
    Ok(row)
}

/// Returns the key of the user that a row of a tree is of; `None` for rows that follow from others
/// and those of other trees.
#[must_use]
pub fn key_of_row<'r>(tree: &str, row: &'r [u8]) -> Option<&'r [u8]> {
    match tree == redis::TREE {
        true => redis::user_key(row),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(keys: u64, expiries: u64, next_collection: u64) -> [u8; 24] {
        let totals = Totals {
            keys,
            expiries,
            next_collection,
        };
        totals.encode()
    }

    #[test]
    fn totals_add_up_and_mainline_keeps_its_number() {
        let (base, ours) = (totals(10, 4, 7), totals(12, 1, 1 << 63));
        let theirs = totals(9, 5, 8);
        let joined = join_totals([Some(&base), Some(&ours), Some(&theirs)]).unwrap();
        assert_eq!(joined.as_deref(), Some(&totals(11, 2, 8)[..]));
        let first = join_totals([None, Some(&totals(1, 0, 1 << 63)), None]).unwrap();
        assert_eq!(first.as_deref(), Some(&totals(1, 0, 1)[..]));
        let none = join_totals([Some(&totals(1, 1, 1)), None, Some(&totals(1, 1, 1))]).unwrap();
        assert_eq!(none, None);
        assert!(join_totals([None, Some(b"x"), None]).is_err());
    }

    #[test]
    fn rows_are_known_by_their_tree() {
        assert!(is_totals("redis/rows", b"c\0") && !is_totals("rows", b"c\0"));
        assert!(!is_totals("redis/rows", b"k\0c"));
        assert_eq!(key_of_row("redis/rows", b"k\0a"), Some(&b"a"[..]));
        assert_eq!(key_of_row("redis/rows", b"m\0a"), None);
        assert_eq!(key_of_row("rows", b"k\0a"), None);
    }
}
