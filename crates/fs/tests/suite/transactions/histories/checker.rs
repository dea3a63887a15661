//! Decides whether what was committed is serializable.
//!
//! Nodes are commits. Edges say which one is before another one in every serial order:
//!
//! | edge | because |
//! |---|---|
//! | writer of a version -> reader of it | it was read |
//! | writer of a version -> writer of the next one | it was replaced |
//! | reader of a version -> writer of the next one | the reader has not seen it |
//!
//! A history is serializable if the graph has no cycle (Adya, Weak Consistency, 1999). Versions of
//! one value are the same to a reader: if it has read what there is at its commit, these versions
//! count, otherwise those that it began with.

use std::collections::{BTreeMap, BTreeSet};

/// A value; 0 for nothing.
pub(super) type Value = u64;

/// What is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    /// Which file a name in a directory stands for.
    Name(usize, usize),
    Data(Value),
    Owner(Value),
}

type State = BTreeMap<Object, Value>;

/// A commit.
#[derive(Clone, Debug)]
pub(super) struct Committed {
    /// Number of commits before it began.
    pub(super) begun: usize,
    pub(super) reads: State,
    pub(super) writes: State,
}

fn value(state: &State, object: &Object) -> Value {
    state.get(object).copied().unwrap_or_default()
}

/// Reads of transactions that have written something and whose value was another one at the commit.
pub(super) fn stale_reads(committed: &[Committed], before: &[State]) -> Vec<(usize, Object)> {
    let mut stale = Vec::new();
    for (index, commit) in committed.iter().enumerate() {
        let changed = commit.reads.iter();
        let changed = changed.filter(|(object, read)| value(&before[index], object) != **read);
        if !commit.writes.is_empty() {
            stale.extend(changed.map(|(object, _)| (index, *object)));
        }
    }
    stale
}

/// The commits that wrote each object, in order.
fn writers(committed: &[Committed]) -> BTreeMap<Object, Vec<usize>> {
    let mut writers: BTreeMap<Object, Vec<usize>> = BTreeMap::new();
    for (index, commit) in committed.iter().enumerate() {
        for object in commit.writes.keys() {
            writers.entry(*object).or_default().push(index);
        }
    }
    writers
}

fn edges(committed: &[Committed], before: &[State]) -> Vec<BTreeSet<usize>> {
    let writers = writers(committed);
    let mut edges = vec![BTreeSet::new(); committed.len()];
    for of in writers.values() {
        for pair in of.windows(2) {
            edges[pair[0]].insert(pair[1]);
        }
    }
    for (index, commit) in committed.iter().enumerate() {
        // The moment whose versions it has read: that of the commit, if all values are as then.
        let is_current = |(object, read): (&Object, &Value)| value(&before[index], object) == *read;
        let moment = match commit.reads.iter().all(is_current) {
            true => index,
            false => commit.begun,
        };
        for (object, read) in &commit.reads {
            assert_eq!(value(&before[moment], object), *read, "what it began with");
            let of = writers.get(object).map_or(&[][..], Vec::as_slice);
            let next = of.partition_point(|writer| *writer < moment);
            if next > 0 {
                edges[of[next - 1]].insert(index);
            }
            if let Some(writer) = of[next..].iter().find(|writer| **writer != index) {
                edges[index].insert(*writer);
            }
        }
    }
    edges
}

/// Returns commits that form a cycle.
pub(super) fn find_cycle(committed: &[Committed], before: &[State]) -> Option<Vec<usize>> {
    let edges = edges(committed, before);
    // What has no predecessor left is next in a serial order (Kahn).
    let mut waits = vec![0; edges.len()];
    for target in edges.iter().flatten() {
        waits[*target] += 1;
    }
    let mut ready: Vec<usize> = (0..edges.len())
        .filter(|index| waits[*index] == 0)
        .collect();
    let mut left: BTreeSet<usize> = (0..edges.len()).collect();
    while let Some(index) = ready.pop() {
        left.remove(&index);
        for target in &edges[index] {
            waits[*target] -= 1;
            if waits[*target] == 0 {
                ready.push(*target);
            }
        }
    }
    (!left.is_empty()).then(|| left.into_iter().collect())
}

/// The state before each commit, from nothing.
#[cfg(test)]
fn states(committed: &[Committed]) -> Vec<State> {
    let mut state = State::new();
    let before = committed.iter().map(|commit| {
        let before = state.clone();
        state.extend(&commit.writes);
        before
    });
    before.collect()
}

#[test]
fn write_skew_is_a_cycle_and_a_serial_history_is_none() {
    let commit = |begun, reads: &[(u64, u64)], writes: &[(u64, u64)]| {
        let of = |pairs: &[(u64, u64)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(id, value)| (Object::Data(*id), *value))
                .collect()
        };
        Committed {
            begun,
            reads: of(reads),
            writes: of(writes),
        }
    };
    let skew = [
        commit(0, &[(1, 0), (2, 0)], &[(1, 7)]),
        commit(0, &[(1, 0), (2, 0)], &[(2, 8)]),
    ];
    let before = states(&skew);
    assert_eq!(find_cycle(&skew, &before), Some(vec![0, 1]));
    assert_eq!(stale_reads(&skew, &before), [(1, Object::Data(1))]);
    let serial = [
        commit(0, &[(1, 0), (2, 0)], &[(1, 7)]),
        commit(1, &[(1, 7), (2, 0)], &[(2, 8)]),
        // One that reads only may be before a commit that it has not seen.
        commit(1, &[(1, 7), (2, 0)], &[]),
    ];
    let before = states(&serial);
    assert_eq!(find_cycle(&serial, &before), None);
    assert_eq!(stale_reads(&serial, &before), []);
    // The anomaly of Fekete, SIGMOD Record 2004, that one that reads only sees.
    let fekete = [
        commit(0, &[(2, 0)], &[(2, 20)]),
        commit(1, &[(1, 0), (2, 20)], &[]),
        commit(0, &[(1, 0), (2, 0)], &[(1, 11)]),
    ];
    assert!(find_cycle(&fekete, &states(&fekete)).is_some());
}
