//! A checker of histories that knows nothing of the store's own numbers: keys hold lists, and
//! transactions append to them and read them.
//!
//! Each appended element is unique. So a list that was read tells which transactions wrote the key,
//! and in which order; what transactions saw of each other follows from reads alone:
//!
//! ```text
//! write -> write   x appended to a key right after y
//! write -> read    a read ends with the element of the writer
//! read  -> write   a read ends right before the element of the writer
//! before           a commit returned before the other transaction began
//! ```
//!
//! - Serializable in the order of real time: these edges have no cycle.
//! - Snapshot isolation: a cycle has two reads-before-writes that follow each other. So there is
//!   none in the graph whose steps are one edge of another kind, and then at most one
//!   read-before-write.
//!
//! Papers: Kingsbury, Alvaro, Elle: inferring isolation anomalies from experimental observations,
//! VLDB 2020; Cerone, Gotsman, Analysing snapshot isolation, PODC 2016.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a transaction.
pub(crate) type Number = usize;
/// What was appended; no other append has it.
pub(crate) type Element = u32;
pub(crate) type Key = u8;

/// What one transaction did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// When it began and ended, by a clock that all share.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) is_committed: bool,
    /// The lists that it read, without what it had appended itself.
    pub(crate) reads: Vec<(Key, Vec<Element>)>,
    pub(crate) appends: Vec<(Key, Element)>,
}

/// A fault of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Anomaly {
    /// Two reads of a key disagree about its order: an update was lost.
    Order(Key),
    /// A read saw what was never committed.
    Aborted(Element),
    /// A read saw a part of what a transaction appended to a key.
    Intermediate(Element),
    /// A read that began after a commit did not see what that had appended.
    Lost(Element),
    /// Transactions that cannot be put in an order.
    Cycle(Vec<Number>),
}

type Graph = BTreeMap<Number, BTreeSet<Number>>;

/// A history that is being checked.
struct Check<'h> {
    records: &'h [Record],
    writers: BTreeMap<Element, Number>,
    /// The elements of each key in their order.
    orders: BTreeMap<Key, Vec<Element>>,
    /// Reads that count: of all transactions, or of committed ones.
    readers: Vec<Number>,
}

/// Returns what breaks snapshot isolation. Transactions that did not commit read a snapshot too.
pub(crate) fn snapshot_isolation(records: &[Record]) -> Option<Anomaly> {
    let check = match Check::new(records, |_| true) {
        Ok(check) => check,
        Err(anomaly) => return Some(anomaly),
    };
    let (depends, precedes) = check.edges();
    let mut steps = depends.clone();
    for (from, middles) in &depends {
        let beyond = middles.iter().filter_map(|middle| precedes.get(middle));
        let beyond: BTreeSet<Number> = beyond.flatten().copied().collect();
        steps.entry(*from).or_default().extend(beyond);
    }
    cycle(&steps).map(Anomaly::Cycle)
}

/// Returns what breaks serializability in the order of real time.
pub(crate) fn serializability(records: &[Record]) -> Option<Anomaly> {
    let check = match Check::new(records, |record| record.is_committed) {
        Ok(check) => check,
        Err(anomaly) => return Some(anomaly),
    };
    let (mut edges, precedes) = check.edges();
    for (from, to) in precedes {
        edges.entry(from).or_default().extend(to);
    }
    cycle(&edges).map(Anomaly::Cycle)
}

impl<'h> Check<'h> {
    fn new(records: &'h [Record], counts: impl Fn(&Record) -> bool) -> Result<Self, Anomaly> {
        let mut writers = BTreeMap::new();
        for (number, record) in records.iter().enumerate() {
            for (_, element) in &record.appends {
                let before = writers.insert(*element, number);
                assert!(before.is_none(), "elements are unique");
            }
        }
        let readers = (0..records.len()).filter(|number| counts(&records[*number]));
        let mut check = Self {
            records,
            writers,
            orders: BTreeMap::new(),
            readers: readers.collect(),
        };
        check.find_orders()?;
        check.check_elements()?;
        check.check_lost()?;
        Ok(check)
    }

    fn reads(&self) -> impl Iterator<Item = (Number, Key, &'h [Element])> {
        let records = self.records;
        let of = move |number: &Number| {
            let number = *number;
            let reads = records[number].reads.iter();
            reads.map(move |(key, list)| (number, *key, list.as_slice()))
        };
        self.readers.iter().flat_map(of)
    }

    /// The longest list of each key has its order; every other one is a beginning of it.
    fn find_orders(&mut self) -> Result<(), Anomaly> {
        let mut orders: BTreeMap<Key, Vec<Element>> = BTreeMap::new();
        for (_, key, list) in self.reads() {
            let order = orders.entry(key).or_default();
            let common = order.len().min(list.len());
            if order[..common] != list[..common] {
                return Err(Anomaly::Order(key));
            }
            if list.len() > order.len() {
                *order = list.to_vec();
            }
        }
        self.orders = orders;
        Ok(())
    }

    fn check_elements(&self) -> Result<(), Anomaly> {
        for (_, key, list) in self.reads() {
            for element in list {
                let writer = self.writers.get(element);
                if !writer.is_some_and(|writer| self.records[*writer].is_committed) {
                    return Err(Anomaly::Aborted(*element));
                }
            }
            let Some(last) = list.last() else {
                continue;
            };
            let appends = self.records[self.writers[last]].appends.iter();
            let newest = appends.rev().find(|(of, _)| *of == key);
            if newest.is_none_or(|(_, element)| element != last) {
                return Err(Anomaly::Intermediate(*last));
            }
        }
        Ok(())
    }

    fn check_lost(&self) -> Result<(), Anomaly> {
        for (number, key, list) in self.reads() {
            let from = self.records[number].from;
            let before = |record: &&Record| record.is_committed && record.to < from;
            let appends = self
                .records
                .iter()
                .filter(before)
                .flat_map(|record| &record.appends);
            let mut elements = appends
                .filter(|(of, _)| *of == key)
                .map(|(_, element)| element);
            if let Some(lost) = elements.find(|element| !list.contains(element)) {
                return Err(Anomaly::Lost(*lost));
            }
        }
        Ok(())
    }

    /// The edges by which one transaction depends on another, and those by which one reads what
    /// another replaces.
    fn edges(&self) -> (Graph, Graph) {
        let (mut depends, mut precedes) = (Graph::new(), Graph::new());
        let add = |graph: &mut Graph, from: Number, to: Number| {
            if from != to {
                graph.entry(from).or_default().insert(to);
            }
        };
        for order in self.orders.values() {
            for pair in order.windows(2) {
                add(&mut depends, self.writers[&pair[0]], self.writers[&pair[1]]);
            }
        }
        for (number, key, list) in self.reads() {
            if let Some(last) = list.last() {
                add(&mut depends, self.writers[last], number);
            }
            // What the reader appended itself comes right after what it read.
            let rest = self.orders[&key][list.len()..].iter();
            let next = rest
                .map(|element| self.writers[element])
                .find(|w| *w != number);
            if let Some(next) = next {
                add(&mut precedes, number, next);
            }
        }
        for (from, record) in self.records.iter().enumerate() {
            for to in self.readers.iter().filter(|_| record.is_committed) {
                if record.to < self.records[*to].from {
                    add(&mut depends, from, *to);
                }
            }
        }
        (depends, precedes)
    }
}

/// Finds a cycle by removing all that nothing leads to, as long as there is such.
fn cycle(edges: &Graph) -> Option<Vec<Number>> {
    let mut counts: BTreeMap<Number, usize> = BTreeMap::new();
    for (from, targets) in edges {
        counts.entry(*from).or_default();
        for to in targets {
            *counts.entry(*to).or_default() += 1;
        }
    }
    let mut free: Vec<Number> = counts
        .iter()
        .filter(|(_, n)| **n == 0)
        .map(|(t, _)| *t)
        .collect();
    while let Some(from) = free.pop() {
        counts.remove(&from);
        for to in edges.get(&from).into_iter().flatten() {
            let count = counts.get_mut(to).expect("it has an edge that leads to it");
            *count -= 1;
            if *count == 0 {
                free.push(*to);
            }
        }
    }
    // Whatever is left has an edge that leads to it: going back meets a cycle.
    let mut path = vec![*counts.keys().next()?];
    loop {
        let last = path[path.len() - 1];
        let leads = |from: &&Number| edges.get(from).is_some_and(|to| to.contains(&last));
        let from = *counts.keys().find(leads).expect("something leads to it");
        if let Some(at) = path.iter().position(|number| *number == from) {
            let mut cycle = path.split_off(at);
            cycle.reverse();
            return Some(cycle);
        }
        path.push(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: (u64, u64), reads: &[(Key, &[Element])], appends: &[(Key, Element)]) -> Record {
        Record {
            from: at.0,
            to: at.1,
            is_committed: true,
            reads: reads
                .iter()
                .map(|(key, list)| (*key, list.to_vec()))
                .collect(),
            appends: appends.to_vec(),
        }
    }

    fn both(records: &[Record]) -> (Option<Anomaly>, Option<Anomaly>) {
        (snapshot_isolation(records), serializability(records))
    }

    #[test]
    fn a_serial_history_is_in_order() {
        let serial = [
            record((0, 1), &[(1, &[])], &[(1, 10), (1, 11), (2, 12)]),
            record((2, 3), &[(1, &[10, 11]), (2, &[12])], &[(1, 20)]),
            record((4, 5), &[(1, &[10, 11, 20]), (3, &[])], &[]),
        ];
        assert_eq!(both(&serial), (None, None));
    }

    #[test]
    fn lost_updates_and_reads_of_what_is_not_committed_break_both() {
        let lost = [
            record((0, 5), &[(1, &[])], &[(1, 10)]),
            record((0, 5), &[(1, &[])], &[(1, 20)]),
            record((0, 9), &[(1, &[10])], &[]),
            record((0, 9), &[(1, &[20])], &[]),
        ];
        assert_eq!(
            both(&lost),
            (Some(Anomaly::Order(1)), Some(Anomaly::Order(1)))
        );
        let overwritten = [
            record((0, 5), &[(1, &[])], &[(1, 10)]),
            record((0, 5), &[(1, &[])], &[(1, 20)]),
            record((6, 9), &[(1, &[20])], &[]),
        ];
        assert_eq!(
            both(&overwritten),
            (Some(Anomaly::Lost(10)), Some(Anomaly::Lost(10)))
        );
        let mut aborted = record((0, 5), &[], &[(1, 10)]);
        aborted.is_committed = false;
        let dirty = [aborted, record((0, 9), &[(1, &[10])], &[])];
        assert_eq!(both(&dirty).0, Some(Anomaly::Aborted(10)));
        let half = [
            record((0, 5), &[], &[(1, 10), (1, 11)]),
            record((0, 9), &[(1, &[10])], &[]),
        ];
        assert_eq!(both(&half).1, Some(Anomaly::Intermediate(10)));
    }

    #[test]
    fn write_skew_breaks_serializability_alone() {
        let skew = [
            record((0, 5), &[(1, &[]), (2, &[])], &[(1, 10)]),
            record((0, 5), &[(1, &[]), (2, &[])], &[(2, 20)]),
            record((6, 9), &[(1, &[10]), (2, &[20])], &[]),
        ];
        let (snapshot, serial) = both(&skew);
        assert_eq!(snapshot, None);
        assert!(matches!(serial, Some(Anomaly::Cycle(of)) if of.len() == 2));
    }

    #[test]
    fn a_torn_read_and_a_stale_one_break_both() {
        let torn = [
            record((0, 5), &[], &[(1, 10), (2, 11)]),
            record((0, 9), &[(1, &[10]), (2, &[])], &[]),
            record((6, 9), &[(1, &[10]), (2, &[11])], &[]),
        ];
        let (snapshot, serial) = both(&torn);
        assert!(snapshot.is_some() && serial.is_some());
        let stale = [
            record((0, 1), &[], &[(1, 10)]),
            record((2, 3), &[(1, &[])], &[]),
            record((2, 3), &[(1, &[10])], &[]),
        ];
        let (snapshot, serial) = both(&stale);
        assert!(snapshot.is_some() && serial.is_some());
    }
}
