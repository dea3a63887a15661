//! Checkers of histories: what transactions have read and written, and in which order they
//! committed.
//!
//! Every write of a transaction leaves its number as the value, so a read tells whose version it
//! saw. The versions of a key are in the order of the commits of their writers.
//!
//! - [`snapshot_isolation`]: each read sees the last version that was committed when the reader
//!   began, and of two transactions that overlap and write the same key one is not committed.
//! - [`serializability`]: the serialization graph of the committed transactions has no cycle. Its
//!   edges: a writer before the next writer of the key, a writer before its readers, and a reader
//!   before the next writer of what it has read.
//!
//! Paper: Adya, Liskov, O'Neil, Generalized Isolation Level Definitions, ICDE 2000.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a transaction; 0 stands for the empty store.
pub(crate) type Number = u32;
pub(crate) type Key = u8;

/// What one transaction did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The last write of the store that it should see.
    pub(crate) begun: u64,
    /// The number of its commit; `None` if it did not commit.
    pub(crate) committed: Option<u64>,
    /// The versions that it read, by key and writer. Its own writes are left out.
    pub(crate) reads: BTreeSet<(Key, Number)>,
    pub(crate) writes: BTreeSet<Key>,
}

/// Transactions by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) transactions: BTreeMap<Number, Record>,
}

impl History {
    fn committed(&self) -> impl Iterator<Item = (Number, u64, &Record)> {
        let all = self.transactions.iter();
        all.filter_map(|(number, record)| Some((*number, record.committed?, record)))
    }

    /// The writers of each key in the order of their commits, which come with them.
    fn versions(&self) -> BTreeMap<Key, Vec<(u64, Number)>> {
        let mut versions: BTreeMap<Key, Vec<(u64, Number)>> = BTreeMap::new();
        for (number, at, record) in self.committed() {
            for key in &record.writes {
                versions.entry(*key).or_default().push((at, number));
            }
        }
        versions
            .values_mut()
            .for_each(|writers| writers.sort_unstable());
        versions
    }
}

/// Returns what breaks snapshot isolation; `None` if nothing does.
pub(crate) fn snapshot_isolation(history: &History) -> Option<String> {
    let versions = history.versions();
    for (number, record) in &history.transactions {
        for (key, seen) in &record.reads {
            let writers = versions.get(key).map_or(&[][..], Vec::as_slice);
            let before = writers.iter().rev().find(|(at, _)| *at <= record.begun);
            let expected = before.map_or(0, |(_, writer)| *writer);
            if *seen != expected {
                return Some(format!(
                    "{number} read {key} of {seen}, and {expected} was current"
                ));
            }
        }
    }
    for (key, writers) in &versions {
        for pair in writers.windows(2) {
            let [(at, first), (_, second)] = [pair[0], pair[1]];
            if history.transactions[&second].begun < at {
                return Some(format!("{second} lost the update of {key} by {first}"));
            }
        }
    }
    None
}

/// Returns a cycle of the serialization graph; `None` if there is none.
pub(crate) fn serializability(history: &History) -> Option<Vec<Number>> {
    let mut edges: BTreeMap<Number, BTreeSet<Number>> = BTreeMap::new();
    let versions = history.versions();
    for writers in versions.values() {
        for pair in writers.windows(2) {
            edges.entry(pair[0].1).or_default().insert(pair[1].1);
        }
    }
    for (number, _, record) in history.committed() {
        for (key, seen) in &record.reads {
            let writers = versions.get(key).map_or(&[][..], Vec::as_slice);
            let seen_at = writers.iter().position(|(_, writer)| writer == seen);
            let next = match seen_at {
                Some(at) => at + 1,
                None => 0,
            };
            if *seen != 0 {
                edges.entry(*seen).or_default().insert(number);
            }
            if let Some((_, writer)) = writers.get(next)
                && *writer != number
            {
                edges.entry(number).or_default().insert(*writer);
            }
        }
    }
    cycle(&edges)
}

/// Finds a cycle by removing all that nothing leads to, as long as there is such.
fn cycle(edges: &BTreeMap<Number, BTreeSet<Number>>) -> Option<Vec<Number>> {
    let mut edges = edges.clone();
    loop {
        let targets: BTreeSet<Number> = edges.values().flatten().copied().collect();
        let before = edges.len();
        edges.retain(|source, _| targets.contains(source));
        if edges.is_empty() {
            return None;
        }
        if edges.len() == before {
            break;
        }
    }
    // Whatever is left has an edge that leads to it: going back meets a cycle.
    let mut path = vec![*edges.keys().next().expect("some are left")];
    loop {
        let last = path[path.len() - 1];
        let (source, _) = edges.iter().find(|(_, to)| to.contains(&last))?;
        if let Some(at) = path.iter().position(|number| number == source) {
            let mut cycle = path.split_off(at);
            cycle.reverse();
            return Some(cycle);
        }
        path.push(*source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(begun: u64, committed: u64, reads: &[(Key, Number)], writes: &[Key]) -> Record {
        Record {
            begun,
            committed: (committed > 0).then_some(committed),
            reads: reads.iter().copied().collect(),
            writes: writes.iter().copied().collect(),
        }
    }

    fn history(records: Vec<Record>) -> History {
        let transactions = (1..).zip(records).collect();
        History { transactions }
    }

    #[test]
    fn a_serial_history_is_in_order() {
        let serial = history(vec![
            record(0, 1, &[], &[1, 2]),
            record(1, 2, &[(1, 1)], &[1]),
            record(2, 0, &[(1, 2), (2, 1)], &[2]),
            record(2, 3, &[(1, 2), (2, 1), (3, 0)], &[3]),
        ]);
        assert_eq!(snapshot_isolation(&serial), None);
        assert_eq!(serializability(&serial), None);
    }

    #[test]
    fn a_lost_update_breaks_both() {
        let lost = history(vec![
            record(0, 1, &[(1, 0)], &[1]),
            record(0, 2, &[(1, 0)], &[1]),
        ]);
        assert!(snapshot_isolation(&lost).is_some());
        assert_eq!(serializability(&lost).map(|cycle| cycle.len()), Some(2));
    }

    #[test]
    fn write_skew_breaks_serializability_alone() {
        let skew = history(vec![
            record(0, 1, &[(1, 0), (2, 0)], &[1]),
            record(0, 2, &[(1, 0), (2, 0)], &[2]),
        ]);
        assert_eq!(snapshot_isolation(&skew), None);
        assert!(serializability(&skew).is_some());
    }

    #[test]
    fn read_skew_breaks_both_and_counts_in_an_aborted_transaction_for_snapshots() {
        let skew = |committed| {
            history(vec![
                record(0, 1, &[], &[1, 2]),
                record(0, committed, &[(1, 0), (2, 1)], &[3]),
            ])
        };
        assert!(snapshot_isolation(&skew(2)).is_some());
        assert!(serializability(&skew(2)).is_some());
        assert!(snapshot_isolation(&skew(0)).is_some());
        assert!(serializability(&skew(0)).is_none());
    }

    #[test]
    fn a_cycle_is_found_behind_a_chain() {
        let edges = [(1, 2), (2, 3), (3, 4), (4, 2), (4, 5)];
        let mut graph: BTreeMap<Number, BTreeSet<Number>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry(from).or_default().insert(to);
        }
        let mut found = cycle(&graph).expect("there is one");
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4]);
        graph.remove(&3);
        assert_eq!(cycle(&graph), None);
    }
}
