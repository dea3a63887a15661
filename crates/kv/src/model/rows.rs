//! The rows of one tree of the model engine: keys with all their versions that may be seen.

use crate::{Direction, Folded, Guarded, Message, UpsertRegistry, Violation};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use stitch_base::Seqno;

/// What a row is taken to need beside its key and value.
pub(super) const ROW_BYTES: u64 = 32;

#[derive(Clone, Debug)]
struct Version {
    seqno: Seqno,
    value: Option<Bytes>,
}

/// Keys and their versions, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    map: BTreeMap<Vec<u8>, Vec<Version>>,
    bytes: u64,
}

fn version_bytes(key: &[u8], version: &Version) -> u64 {
    let value_bytes = version.value.as_ref().map_or(0, Bytes::len);
    ROW_BYTES + u64::try_from(key.len() + value_bytes).expect("lengths fit in 64 bits")
}

impl Rows {
    /// What the rows take, in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The value that a reader at `seqno` sees.
    pub(super) fn get(&self, key: &[u8], seqno: Seqno) -> Option<Bytes> {
        visible(self.map.get(key)?, seqno)
    }

    /// Everything that a reader at `seqno` sees.
    pub(super) fn dump(&self, seqno: Seqno) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let seen = |(key, versions): (&Vec<u8>, &Vec<Version>)| {
            visible(versions, seqno).map(|value| (key.clone(), value.to_vec()))
        };
        self.map.iter().filter_map(seen).collect()
    }

    /// The first entry of the bounds in the direction that a reader at `seqno` sees.
    pub(super) fn first(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        seqno: Seqno,
    ) -> Option<(Vec<u8>, Bytes)> {
        if is_empty(bounds) {
            return None;
        }
        let mut range = self.map.range::<[u8], _>(bounds);
        loop {
            let (key, versions) = match direction {
                Direction::Forward => range.next()?,
                Direction::Backward => range.next_back()?,
            };
            if let Some(value) = visible(versions, seqno) {
                return Some((key.clone(), value));
            }
        }
    }

    /// The guarded keys with a version newer than `since`, in order, at most `count_max` of them.
    pub(super) fn changed(&self, on: Guarded<'_>, since: Seqno, count_max: usize) -> Vec<Vec<u8>> {
        let bounds = match on {
            Guarded::Key(key) => (Bound::Included(key), Bound::Included(key)),
            Guarded::Range(range) => {
                let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
                (Bound::Included(range.start), end)
            }
        };
        debug_assert!(!is_empty(bounds), "a list has no guard on an empty range");
        let is_newer = |versions: &[Version]| versions.last().is_some_and(|v| v.seqno > since);
        let range = self.map.range::<[u8], _>(bounds);
        let newer = range.filter(|(_, versions)| is_newer(versions));
        newer.take(count_max).map(|(key, _)| key.clone()).collect()
    }

    /// Applies one message; answers the bytes of its key and operand.
    pub(super) fn apply(
        &mut self,
        message: Message<'_>,
        seqno: Seqno,
        holds: &[Seqno],
        registry: &UpsertRegistry,
    ) -> u64 {
        match message {
            Message::Put { key, value } => {
                self.set(key, seqno, Some(Bytes::copy_from_slice(value)), holds);
            }
            Message::Delete { key } => self.set(key, seqno, None, holds),
            Message::DeleteRange { start, end } => {
                for key in self.keys(start, end) {
                    self.set(&key, seqno, None, holds);
                }
            }
            Message::Upsert {
                key,
                function,
                delta,
            } => {
                let old = self.get(key, seqno);
                let function = registry.get(function).expect("admitted before");
                let mut out = Vec::new();
                let new = match function.fold(key, old.as_deref(), delta, &mut out) {
                    Folded::Value => Some(Bytes::from(out)),
                    Folded::Absent => None,
                };
                self.set(key, seqno, new, holds);
            }
        }
        let bytes = message.key().len() + message.operand().len();
        u64::try_from(bytes).expect("lengths fit in 64 bits")
    }

    fn keys(&self, start: &[u8], end: &[u8]) -> Vec<Vec<u8>> {
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        if is_empty(bounds) {
            return Vec::new();
        }
        let range = self.map.range::<[u8], _>(bounds);
        range.map(|(key, _)| key.clone()).collect()
    }

    fn set(&mut self, key: &[u8], seqno: Seqno, value: Option<Bytes>, holds: &[Seqno]) {
        let mut versions = self.map.remove(key).unwrap_or_default();
        self.bytes -= versions.iter().map(|v| version_bytes(key, v)).sum::<u64>();
        debug_assert!(versions.last().is_none_or(|last| last.seqno < seqno));
        versions.push(Version { seqno, value });
        self.keep(key, versions, holds);
    }

    /// Puts back those versions of a key that somebody can see.
    fn keep(&mut self, key: &[u8], mut versions: Vec<Version>, holds: &[Seqno]) {
        let ends: Vec<Option<Seqno>> = (1..=versions.len())
            .map(|next| versions.get(next).map(|v| v.seqno))
            .collect();
        let mut end = ends.iter();
        // A version is seen by the snapshots from its own number up to before its successor's.
        versions.retain(|version| match end.next().expect("one for each") {
            None => true,
            Some(end) => holds
                .iter()
                .any(|hold| version.seqno <= *hold && hold < end),
        });
        // A deletion that hides nothing says nothing.
        while versions.first().is_some_and(|v| v.value.is_none()) {
            versions.remove(0);
        }
        if !versions.is_empty() {
            self.bytes += versions.iter().map(|v| version_bytes(key, v)).sum::<u64>();
            self.map.insert(key.to_vec(), versions);
        }
    }

    /// Drops every version that nobody can see.
    pub(super) fn prune(&mut self, holds: &[Seqno]) {
        self.bytes = 0;
        for (key, versions) in std::mem::take(&mut self.map) {
            self.keep(&key, versions, holds);
        }
    }

    /// What is wrong with the rows.
    pub(super) fn check(&self, tree: &str, newest: Seqno) -> Vec<Violation> {
        let mut found = Vec::new();
        for (key, versions) in &self.map {
            let is_rising = versions
                .windows(2)
                .all(|pair| pair[0].seqno < pair[1].seqno);
            let is_past = versions.last().is_some_and(|last| last.seqno <= newest);
            if !is_rising || !is_past {
                found.push(Violation {
                    rule: "model-order",
                    detail: format!("tree {tree:?}, key {key:?}: versions out of order"),
                    lost: None,
                });
            }
        }
        found
    }
}

fn visible(versions: &[Version], seqno: Seqno) -> Option<Bytes> {
    let newest = versions.iter().rev().find(|v| v.seqno <= seqno)?;
    newest.value.clone()
}

/// `BTreeMap::range` panics on these.
fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Included(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}
