//! The rows of one tree of the model engine: keys with all their versions that may be seen. A
//! branch tree has those keys that were written to it, and reads the others in its parent.

use super::branches::Base;
use super::holds::TreeMoments;
use crate::{
    Direction, Folded, Guarded, KeyRange, KeyRanges, Message, SpaceShare, UpsertRegistry, Violation,
};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Of a branch tree: where it begins.
    base: Option<Base>,
}

/// Bounds of keys.
pub(super) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

fn version_bytes(key: &[u8], version: &Version) -> u64 {
    let value_bytes = version.value.as_ref().map_or(0, Bytes::len);
    ROW_BYTES + u64::try_from(key.len() + value_bytes).expect("lengths fit in 64 bits")
}

impl Rows {
    /// What the rows take, in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Rows of a branch tree to which nothing was written.
    pub(super) fn of_branch(base: Base) -> Self {
        Self {
            base: Some(base),
            ..Self::default()
        }
    }

    /// Where they begin, if they are of a branch tree.
    pub(super) const fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    /// Of a branch tree that begins with ranges of its parent's keys: these.
    pub(super) fn branch_ranges(&self) -> Option<KeyRanges> {
        self.base.as_ref().and_then(Base::ranges).cloned()
    }

    /// The same rows over another base.
    pub(super) fn moved_to(&self, base: Option<Base>) -> Self {
        debug_assert_eq!(base.is_some(), self.base.is_some(), "a branch stays one");
        Self {
            base,
            ..self.clone()
        }
    }

    /// Every key that was written, and of the deleted ranges the keys that the parent held.
    pub(super) fn written(&self, bounds: Bounds<'_>, count_max: usize) -> Vec<Vec<u8>> {
        if is_empty(bounds) {
            return Vec::new();
        }
        let range = self.map.range::<[u8], _>(bounds);
        range.map(|(key, _)| key.clone()).take(count_max).collect()
    }

    /// The value that a reader at `seqno` sees.
    pub(super) fn get(&self, key: &[u8], seqno: Seqno) -> Option<Bytes> {
        match self.map.get(key).and_then(|own| newest(own, seqno)) {
            Some(version) => version.value.clone(),
            None => self.base.as_ref()?.get(key, seqno),
        }
    }

    /// Everything that a reader at `seqno` sees.
    pub(super) fn dump(&self, seqno: Seqno) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let base = self.base.as_ref();
        let mut seen = base.map_or_else(BTreeMap::new, |base| base.dump(seqno));
        for (key, versions) in &self.map {
            match newest(versions, seqno).map(|version| &version.value) {
                None => {}
                Some(None) => drop(seen.remove(key)),
                Some(Some(value)) => drop(seen.insert(key.clone(), value.to_vec())),
            }
        }
        seen
    }

    /// What the rows of the bounds take that a reader at `seqno` sees; of these, what was written
    /// here after the moment that `held` returns for their key.
    pub(super) fn share(
        &self,
        (start, end): (&[u8], Option<&[u8]>),
        seqno: Seqno,
        held: &dyn Fn(&[u8]) -> Option<Seqno>,
    ) -> SpaceShare {
        let mut sum = SpaceShare::default();
        for (key, value) in self.dump(seqno) {
            if *key < *start || end.is_some_and(|end| *key >= *end) {
                continue;
            }
            let own = self.map.get(&key).and_then(|own| newest(own, seqno));
            let held = held(&key);
            let is_exclusive = own.is_some_and(|own| held.is_none_or(|held| own.seqno > held));
            let bytes = ROW_BYTES + (key.len() + value.len()) as u64;
            sum.add(SpaceShare {
                referenced_bytes: bytes,
                exclusive_bytes: if is_exclusive { bytes } else { 0 },
            });
        }
        sum
    }

    /// The first entry of the bounds in the direction that a reader at `seqno` sees.
    pub(super) fn first(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        seqno: Seqno,
    ) -> Option<(Vec<u8>, Bytes)> {
        if is_empty(bounds) {
            return None;
        }
        let base = self.base.as_ref();
        let of_base = |bounds| base.and_then(|base| base.first(bounds, direction, seqno));
        let mut other = of_base(bounds);
        let mut range = self.map.range::<[u8], _>(bounds);
        loop {
            let own = match direction {
                Direction::Forward => range.next(),
                Direction::Backward => range.next_back(),
            };
            let Some((key, versions)) = own else {
                return other;
            };
            let order = other
                .as_ref()
                .map(|(other, _)| direction.compare(other, key));
            match (order, newest(versions, seqno)) {
                (Some(Ordering::Less), _) => return other,
                (_, None) => {}
                (_, Some(version)) if version.value.is_some() => {
                    return version.value.clone().map(|value| (key.clone(), value));
                }
                (Some(Ordering::Equal), _) => other = of_base(direction.after(bounds, key)),
                (_, Some(_)) => {}
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
            Guarded::Written(_) => (Bound::Unbounded, Bound::Unbounded),
        };
        debug_assert!(!is_empty(bounds), "a list has no guard on an empty range");
        let is_newer = |versions: &[Version]| versions.last().is_some_and(|v| v.seqno > since);
        let range = self.map.range::<[u8], _>(bounds);
        let newer = range.filter(|(_, versions)| is_newer(versions));
        newer.take(count_max).map(|(key, _)| key.clone()).collect()
    }

    /// The keys of a range that readers at the two moments see differently, in order, at most
    /// `count_max` of them.
    pub(super) fn changed_between(
        &self,
        range: KeyRange<'_>,
        (from, to): (Seqno, Seqno),
        count_max: usize,
    ) -> Vec<Vec<u8>> {
        debug_assert!(from <= to, "the first moment is not later");
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(range.start), end);
        if is_empty(bounds) {
            return Vec::new();
        }
        let keys = self.map.range::<[u8], _>(bounds).map(|(key, _)| key);
        let differs = |key: &&Vec<u8>| self.get(key, from) != self.get(key, to);
        keys.filter(differs).take(count_max).cloned().collect()
    }

    /// Applies one message; answers the bytes of its key and operand.
    pub(super) fn apply(
        &mut self,
        message: Message<'_>,
        seqno: Seqno,
        holds: &TreeMoments,
        registry: &UpsertRegistry,
    ) -> u64 {
        if let Some(base) = &mut self.base {
            base.note(message);
        }
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

    /// The keys of a range that were written, and those that are in the parent.
    fn keys(&self, start: &[u8], end: &[u8]) -> BTreeSet<Vec<u8>> {
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        let mut keys: BTreeSet<Vec<u8>> = self.written(bounds, usize::MAX).into_iter().collect();
        if let Some(base) = &self.base {
            keys.extend(base.keys(bounds));
        }
        keys
    }

    fn set(&mut self, key: &[u8], seqno: Seqno, value: Option<Bytes>, holds: &TreeMoments) {
        let mut versions = self.map.remove(key).unwrap_or_default();
        self.bytes -= versions.iter().map(|v| version_bytes(key, v)).sum::<u64>();
        debug_assert!(versions.last().is_none_or(|last| last.seqno < seqno));
        versions.push(Version { seqno, value });
        self.keep(key, versions, holds);
    }

    /// Puts back those versions of a key that a reader can see.
    fn keep(&mut self, key: &[u8], mut versions: Vec<Version>, holds: &TreeMoments) {
        let holds = holds.of(key);
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
        while self.base.is_none() && versions.first().is_some_and(|v| v.value.is_none()) {
            versions.remove(0);
        }
        if !versions.is_empty() {
            self.bytes += versions.iter().map(|v| version_bytes(key, v)).sum::<u64>();
            self.map.insert(key.to_vec(), versions);
        }
    }

    /// Drops every version that no reader can see.
    pub(super) fn prune(&mut self, holds: &TreeMoments) {
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

/// The version that a reader at `seqno` sees.
fn newest(versions: &[Version], seqno: Seqno) -> Option<&Version> {
    versions.iter().rev().find(|v| v.seqno <= seqno)
}

impl Direction {
    fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        match self {
            Self::Forward => one.cmp(other),
            Self::Backward => other.cmp(one),
        }
    }

    /// The part of the bounds that comes after a key.
    const fn after<'a>(self, bounds: Bounds<'a>, key: &'a [u8]) -> Bounds<'a> {
        match self {
            Self::Forward => (Bound::Excluded(key), bounds.1),
            Self::Backward => (bounds.0, Bound::Excluded(key)),
        }
    }
}

/// `BTreeMap::range` panics on these.
fn is_empty(bounds: Bounds<'_>) -> bool {
    match bounds {
        (Bound::Included(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}
