//! Guards of commits, by comparison: RocksDB's C interface does not tell when a key was written.
//!
//! A key changed if its value at the guard's moment is not its value now. The caller holds the
//! catalog for writing, so no commit changes what is compared.

use crate::catalog::Catalog;
use crate::database::{Moment, ReadOptions};
use crate::point::get;
use crate::scan::RocksScan;
use std::cmp::Ordering;
use std::sync::Arc;
use stitch_kv::{Direction, Guard, Guarded, KeyRange, KvError, Scan};

/// Returns the keys under a guard that changed since its moment, in order, at most `count_max`.
///
/// # Cost
/// Two reads of a key; of a range, two scans.
pub(crate) fn changed(
    catalog: &Catalog,
    guard: &Guard<'_>,
    moment: &Arc<Moment>,
    count_max: usize,
) -> Result<Vec<Vec<u8>>, KvError> {
    let tree = catalog.trees.get(&guard.tree);
    let family = &tree.ok_or(KvError::NoTree(guard.tree))?.family;
    match guard.on {
        Guarded::Key(key) => {
            let before = get(family, &ReadOptions::new(Some(moment)), key)?;
            let now = get(family, &ReadOptions::new(None), key)?;
            let is_changed = before != now && count_max > 0;
            Ok(is_changed.then(|| key.to_vec()).into_iter().collect())
        }
        Guarded::Range(range) => {
            let scan = |at: Option<&Arc<Moment>>, range: KeyRange<'_>| {
                let options = ReadOptions::new(at.map(|moment| &**moment));
                let reading = (options, at.cloned());
                RocksScan::new(Arc::clone(family), range, Direction::Forward, reading)
            };
            compare(scan(Some(moment), range), scan(None, range), count_max)
        }
        Guarded::Written(_) => Err(KvError::Unsupported("branch trees")),
    }
}

/// Returns the keys whose values differ between two scans.
fn compare(
    mut before: RocksScan,
    mut now: RocksScan,
    count_max: usize,
) -> Result<Vec<Vec<u8>>, KvError> {
    let mut found = Vec::new();
    let (mut old, mut new) = (next(&mut before)?, next(&mut now)?);
    while found.len() < count_max {
        let order = match (&old, &new) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.0.cmp(&new.0),
        };
        let is_same = order.is_eq() && old == new;
        let mut key = None;
        if order.is_le() {
            key = old.take().map(|(key, _)| key);
            old = next(&mut before)?;
        }
        if order.is_ge() {
            key = new.take().map(|(key, _)| key);
            new = next(&mut now)?;
        }
        if !is_same {
            found.extend(key);
        }
    }
    Ok(found)
}

type Row = (Vec<u8>, Vec<u8>);

fn next(scan: &mut RocksScan) -> Result<Option<Row>, KvError> {
    let entry = scan.next()?;
    Ok(entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
}
