//! Keeps of each key what some reader can still see.
//!
//! Snapshots divide sequence numbers into stripes: no reader can tell apart two states within one.
//! Of each stripe only its last state is kept:
//!
//! 1. Walk a key's versions from the oldest stripe to the newest, and know (where possible) the
//!    value that the key has at the end of each.
//! 2. In a stripe, the newest put, delete or range delete is the base; what is older goes.
//!    Upserts over a base are folded into one put.
//! 3. Upserts without a base stay, joined where their function can; where the base is known from
//!    an older stripe they are folded too if there are many.
//!    Where a function is unknown, base and upserts both stay.
//! 4. A delete with nothing below it, in the output or deeper, goes.
//!
//! Puts whose value blocks the source carries stay where they are; one is read only to fold upserts
//! over it.

use super::fragments::Fragments;
use crate::entry::{EntryIter, EntryRef, Op};
use crate::key_moments::{KeyMoments, MomentCursor};
use crate::{VtError, fold};
use bytes::Bytes;
use stitch_base::Seqno;
use stitch_format::vt_index::IndexEntry;
use stitch_kv::UpsertRegistry;

/// Most upserts of a stripe that stay as they are where their base is known.
const CHAIN_COUNT_MAX: usize = 8;

/// What distilling goes by.
pub(crate) struct DistillRules<'a> {
    /// Moments held open.
    pub(crate) moments: &'a KeyMoments,
    /// Range deletes of all inputs, cut for these moments.
    pub(crate) range_deletes: &'a Fragments,
    /// True if nothing below the output holds this key.
    pub(crate) is_bottom: &'a dyn Fn(&[u8]) -> bool,
    /// Upsert functions.
    pub(crate) upserts: &'a UpsertRegistry,
    /// Reads a value block that the source carries, where upserts are folded over it. With `None`,
    /// block and upserts stay.
    pub(crate) load: &'a dyn Fn(&IndexEntry) -> Result<Option<Bytes>, VtError>,
}

/// What is left of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distilled<'a> {
    /// An entry to be written.
    Entry(EntryRef<'a>),
    /// A put whose value stays in the block where it is.
    Carried(&'a IndexEntry),
}

/// One version, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyVersion {
    seqno: Seqno,
    op: DistilledOp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DistilledOp {
    Put(Vec<u8>),
    /// A put in a value block.
    Carried(Box<IndexEntry>),
    Delete,
    Upsert {
        function: u32,
        delta: Vec<u8>,
    },
}

impl KeyVersion {
    fn of(entry: &EntryRef<'_>, carried: Option<&IndexEntry>) -> Self {
        debug_assert!(
            carried.is_none_or(|block| block.is_value && block.last == entry.key),
            "a value block is carried as the entry that it is"
        );
        let op = match (carried, entry.op) {
            (Some(block), _) => DistilledOp::Carried(Box::new(block.clone())),
            (None, Op::Put(value)) => DistilledOp::Put(value.to_vec()),
            (None, Op::Delete) => DistilledOp::Delete,
            (None, Op::Upsert { function, delta }) => DistilledOp::Upsert {
                function,
                delta: delta.to_vec(),
            },
        };
        Self {
            seqno: entry.seqno,
            op,
        }
    }

    fn kept<'a>(&'a self, key: &'a [u8]) -> Distilled<'a> {
        let op = match &self.op {
            DistilledOp::Put(value) => Op::Put(value),
            DistilledOp::Carried(block) => {
                debug_assert_eq!(block.last, key, "a value block is of the key");
                return Distilled::Carried(block);
            }
            DistilledOp::Delete => Op::Delete,
            DistilledOp::Upsert { function, delta } => Op::Upsert {
                function: *function,
                delta,
            },
        };
        let seqno = self.seqno;
        Distilled::Entry(EntryRef { key, seqno, op })
    }
}

/// The state of a key at the end of a stripe.
#[derive(Clone, Debug)]
enum Known {
    No,
    Absent,
    Value(Vec<u8>),
    /// The value in a value block.
    Carried(Box<IndexEntry>),
}

impl Known {
    /// The value, read where it has to be; `None` if it is not known.
    fn value(&mut self, rules: &DistillRules<'_>) -> Result<Option<Option<&[u8]>>, VtError> {
        if let Self::Carried(block) = self
            && let Some(value) = (rules.load)(block)?
        {
            *self = Self::Value(value.into());
        }
        Ok(match self {
            Self::No | Self::Carried(_) => None,
            Self::Absent => Some(None),
            Self::Value(value) => Some(Some(value)),
        })
    }
}

/// What a stripe stands on.
#[derive(Clone, Copy, Debug)]
struct Below {
    /// Nothing at all is below it.
    is_clear: bool,
    /// A range delete of the stripe hides what is below it.
    is_deleted: bool,
}

/// Distills everything from where `source` stands on, and gives what is left to `sink`.
///
/// # Errors
/// Those of the source and the sink; [`VtError::UnknownUpsert`]; [`VtError::Version`] if entries of
/// a damaged block are out of order.
pub(crate) fn distill(
    source: &mut dyn EntryIter,
    rules: &DistillRules<'_>,
    sink: &mut dyn FnMut(Distilled<'_>) -> Result<(), VtError>,
) -> Result<(), VtError> {
    let mut group = Group::new(rules);
    let mut is_first = true;
    while let Some(entry) = source.current() {
        if !is_first && entry.key <= group.key.as_slice() {
            return Err(out_of_order());
        }
        is_first = false;
        group.begin(&entry, source.carried());
        source.next()?;
        while let Some(entry) = source.current()
            && entry.key == group.key
        {
            group.add(&entry, source.carried())?;
            source.next()?;
        }
        group.finish(sink)?;
    }
    Ok(())
}

#[cold]
fn out_of_order() -> VtError {
    let what = "a table has entries out of order".to_owned();
    VtError::Version { what }
}

/// The versions of one key.
struct Group<'a> {
    rules: &'a DistillRules<'a>,
    /// The moments of the key.
    moments: MomentCursor<'a>,
    key: Vec<u8>,
    /// Newest first; in each stripe, none older than its newest put or delete. Upserts that follow
    /// each other in a stripe are joined where their function can.
    versions: Vec<KeyVersion>,
}

impl<'a> Group<'a> {
    fn new(rules: &'a DistillRules<'a>) -> Self {
        Self {
            rules,
            moments: MomentCursor::new(rules.moments),
            key: Vec::new(),
            versions: Vec::new(),
        }
    }

    fn begin(&mut self, entry: &EntryRef<'_>, carried: Option<&IndexEntry>) {
        debug_assert!(
            self.key.is_empty() || self.key.as_slice() < entry.key,
            "keys come in order"
        );
        self.key.clear();
        self.key.extend_from_slice(entry.key);
        self.moments.seek(entry.key);
        self.versions.clear();
        self.versions.push(KeyVersion::of(entry, carried));
    }

    fn add(&mut self, entry: &EntryRef<'_>, carried: Option<&IndexEntry>) -> Result<(), VtError> {
        debug_assert_eq!(entry.key, self.key, "a group has the versions of one key");
        let newer = self.versions.last().expect("a group has a version");
        if entry.seqno >= newer.seqno {
            return Err(out_of_order());
        }
        let stripe = self.stripe(entry.seqno);
        let is_one_stripe = self.stripe(newer.seqno) == stripe;
        let is_based = !matches!(newer.op, DistilledOp::Upsert { .. });
        if is_one_stripe && (is_based || self.is_hidden(entry.seqno, stripe)) {
            return Ok(());
        }
        let version = KeyVersion::of(entry, carried);
        // At once, so that the upserts of a busy key do not all lie in memory.
        let joined = is_one_stripe.then(|| self.join(&version.op, &newer.op));
        match joined.flatten() {
            Some(op) => self.versions.last_mut().expect("a newer one").op = op,
            None => self.versions.push(version),
        }
        let oldest_first = self.versions.iter().rev();
        debug_assert!(
            oldest_first
                .take(2)
                .is_sorted_by(|older, newer| older.seqno < newer.seqno),
            "newest first"
        );
        Ok(())
    }

    /// True if a range delete of the stripe hides what is as old as this.
    fn is_hidden(&self, seqno: Seqno, stripe: usize) -> bool {
        debug_assert_eq!(self.stripe(seqno), stripe, "the number is in the stripe");
        !self.rules.range_deletes.is_empty()
            && self.range_delete(stripe).is_some_and(|by| by >= seqno)
    }

    /// Number of the stripe that holds a sequence number.
    fn stripe(&self, seqno: Seqno) -> usize {
        self.moments.seqnos().partition_point(|s| *s < seqno)
    }

    /// The newest range delete over the key in a stripe.
    fn range_delete(&self, stripe: usize) -> Option<Seqno> {
        let own = self.moments.seqnos();
        debug_assert!(stripe <= own.len(), "a stripe of the key");
        let newest = self.rules.range_deletes.newest(own, &self.key, stripe);
        debug_assert!(
            newest.is_none_or(|by| self.stripe(by) == stripe),
            "a range delete is in its stripe"
        );
        newest
    }

    fn finish(
        &mut self,
        sink: &mut dyn FnMut(Distilled<'_>) -> Result<(), VtError>,
    ) -> Result<(), VtError> {
        debug_assert!(!self.versions.is_empty(), "a group has a version");
        if let [only] = self.versions.as_slice()
            && matches!(only.op, DistilledOp::Put(_) | DistilledOp::Carried(_))
            && self.rules.range_deletes.is_empty()
        {
            return sink(only.kept(&self.key));
        }
        let kept = self.distilled()?;
        for version in kept.iter().rev() {
            sink(version.kept(&self.key))?;
        }
        Ok(())
    }

    /// What is left, oldest first.
    fn distilled(&mut self) -> Result<Vec<KeyVersion>, VtError> {
        let mut versions = std::mem::take(&mut self.versions);
        debug_assert!(
            versions.is_sorted_by(|newer, older| newer.seqno > older.seqno),
            "newest first"
        );
        let count = versions.len();
        let mut out: Vec<KeyVersion> = Vec::new();
        let mut known = if (self.rules.is_bottom)(&self.key) {
            Known::Absent
        } else {
            Known::No
        };
        let is_bottom = matches!(known, Known::Absent);
        let newest = self.stripe(versions[0].seqno);
        let mut after = 0;
        while let Some(stripe) = self.next_stripe(after, &versions, newest) {
            after = stripe + 1;
            let mut chain: Vec<KeyVersion> = Vec::new();
            while versions
                .last()
                .is_some_and(|v| self.stripe(v.seqno) == stripe)
            {
                chain.extend(versions.pop());
            }
            let hidden_by = self.range_delete(stripe);
            if let Some(by) = hidden_by {
                chain.retain(|v| v.seqno > by);
                known = Known::Absent;
            }
            let below = Below {
                is_clear: is_bottom && out.is_empty(),
                is_deleted: hidden_by.is_some(),
            };
            let oldest = chain.first().map(|version| version.seqno);
            debug_assert!(
                oldest.is_none_or(|oldest| out.last().is_none_or(|last| last.seqno < oldest)),
                "stripes come oldest first"
            );
            self.last_state(chain, &mut known, below, &mut out)?;
        }
        debug_assert!(versions.is_empty(), "each version is in a stripe");
        debug_assert!(
            out.is_sorted_by(|older, newer| older.seqno < newer.seqno),
            "oldest first"
        );
        debug_assert!(out.len() <= count, "no version is made");
        Ok(out)
    }

    /// The first stripe from `from` to `newest` that has any of these versions or a range delete.
    /// Those of range deletes alone matter to newer stripes. There may be thousands of others.
    fn next_stripe(&self, from: usize, versions: &[KeyVersion], newest: usize) -> Option<usize> {
        let of_version = versions.last().map(|oldest| self.stripe(oldest.seqno));
        debug_assert!(
            of_version.is_none_or(|stripe| stripe <= newest),
            "no version is newer than the newest"
        );
        let own = self.moments.seqnos();
        let of_delete = self.rules.range_deletes.next_filled(own, from);
        let next = of_version.into_iter().chain(of_delete).min();
        debug_assert!(next.is_none_or(|next| next >= from), "stripes rise");
        next.filter(|stripe| *stripe <= newest)
    }

    /// Adds the last state of a stripe to `out`. `chain` is oldest first.
    fn last_state(
        &self,
        chain: Vec<KeyVersion>,
        known: &mut Known,
        below: Below,
        out: &mut Vec<KeyVersion>,
    ) -> Result<(), VtError> {
        debug_assert!(
            chain.is_sorted_by(|older, newer| older.seqno < newer.seqno),
            "oldest first"
        );
        let mut upserts: Vec<KeyVersion> = Vec::new();
        let mut base: Option<Seqno> = None;
        for version in chain {
            match version.op {
                DistilledOp::Put(value) => {
                    upserts.clear();
                    base = Some(version.seqno);
                    *known = Known::Value(value);
                }
                DistilledOp::Carried(block) => {
                    upserts.clear();
                    base = Some(version.seqno);
                    *known = Known::Carried(block);
                }
                DistilledOp::Delete => {
                    upserts.clear();
                    base = Some(version.seqno);
                    *known = Known::Absent;
                }
                DistilledOp::Upsert { .. } => upserts.push(version),
            }
        }
        let newest = upserts.last().map(|v| v.seqno);
        debug_assert!(
            newest.is_none_or(|newest| base < Some(newest)),
            "upserts are over their base"
        );
        let has_base = base.is_some() || below.is_clear || below.is_deleted;
        let must_fold = has_base || upserts.len() > CHAIN_COUNT_MAX;
        let can_fold = must_fold && self.are_known(&upserts);
        if newest.is_some()
            && can_fold
            && let Some(old) = known.value(self.rules)?
        {
            let deltas = upserts.iter().map(|v| match &v.op {
                DistilledOp::Upsert { function, delta } => (*function, delta.as_slice()),
                _ => unreachable!("only upserts are in the chain"),
            });
            let folded = fold::fold(self.rules.upserts, &self.key, old, deltas)?;
            *known = folded.map_or(Known::Absent, Known::Value);
            upserts.clear();
            base = newest;
        }
        if let Some(seqno) = base {
            let op = match known {
                Known::Value(value) => DistilledOp::Put(value.clone()),
                Known::Carried(block) => DistilledOp::Carried(block.clone()),
                _ => DistilledOp::Delete,
            };
            if !(below.is_clear && op == DistilledOp::Delete) {
                out.push(KeyVersion { seqno, op });
            }
        }
        if !upserts.is_empty() {
            *known = Known::No;
            out.extend(self.joined(upserts));
        }
        Ok(())
    }

    /// True if the function of each is known. A program may open a store without those of another:
    /// then upserts stay as they are, over their base.
    fn are_known(&self, upserts: &[KeyVersion]) -> bool {
        debug_assert!(
            upserts
                .iter()
                .all(|v| matches!(v.op, DistilledOp::Upsert { .. })),
            "only upserts are folded"
        );
        let is_known = |version: &KeyVersion| match version.op {
            DistilledOp::Upsert { function, .. } => self.rules.upserts.get(function).is_some(),
            _ => true,
        };
        upserts.iter().all(is_known)
    }

    /// Upserts of one stripe, joined where their function can. Oldest first.
    fn joined(&self, upserts: Vec<KeyVersion>) -> Vec<KeyVersion> {
        let count = upserts.len();
        let mut out: Vec<KeyVersion> = Vec::new();
        for version in upserts {
            if let Some(older) = out.last_mut()
                && let Some(op) = self.join(&older.op, &version.op)
            {
                older.op = op;
                older.seqno = version.seqno;
            } else {
                out.push(version);
            }
        }
        debug_assert!(out.len() <= count, "upserts become fewer");
        debug_assert!(
            out.is_sorted_by(|older, newer| older.seqno < newer.seqno),
            "oldest first"
        );
        out
    }

    fn join(&self, older: &DistilledOp, newer: &DistilledOp) -> Option<DistilledOp> {
        let (
            DistilledOp::Upsert { function, delta },
            DistilledOp::Upsert {
                function: newer_function,
                delta: newer_delta,
            },
        ) = (older, newer)
        else {
            return None;
        };
        if function != newer_function {
            return None;
        }
        let mut joined = Vec::new();
        let is_joined = self
            .rules
            .upserts
            .get(*function)?
            .join(delta, newer_delta, &mut joined);
        is_joined.then_some(DistilledOp::Upsert {
            function: *function,
            delta: joined,
        })
    }
}

#[cfg(test)]
mod tests;
