//! Versions that a table holds beside newer ones of the same key, because snapshots see them. Once
//! those snapshots are dropped, the table is worth rewriting, though nothing in it is deleted and
//! nothing overlaps it.
//!
//! What is counted is in memory only. Of the snapshots only pins outlive the store, and they are
//! known before anything else. So of a table from before it was opened one question is left, how
//! many such versions it holds and which pins see them, and its index answers that.
//!
//! - A version is counted with the snapshots that see it and not the next newer one. Only those can
//!   hold it: a snapshot that is taken later sees the newer one too.
//! - So a table that was just written holds none that could go, and no compaction rewrites it in
//!   vain.

use crate::held::HeldSeqnos;
use crate::key_moments::KeyMoments;
use crate::version::TableHandle;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use stitch_base::sync::Mutex;
use stitch_base::{Seqno, TableId, TreeId};
use stitch_filter::QuotientFilterRef;
use stitch_format::vt_index::IndexEntry;
use stitch_format::vt_manifest::TableMeta;

/// Most different sets of holders that are told apart in one table.
const HOLDERS_MAX: usize = 32;

/// Most keys of a table that are remembered with what holds their old versions.
const SAMPLES_MAX: usize = 32;

/// Snapshots that follow each other: from the first to the last, both included.
pub(crate) type Holders = (Seqno, Seqno);

/// The superseded versions of one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Superseded {
    /// The moments that were held when the table was begun.
    moments: KeyMoments,
    /// How many there are, by the snapshots that hold them.
    held: BTreeMap<Holders, u64>,
    /// How many were held by none already.
    unheld: u64,
    /// The first and the last key of those that are held, or of blocks that have some.
    keys: Option<(Vec<u8>, Vec<u8>)>,
    samples: Samples,
}

/// Some of the keys that have superseded versions, evenly. Where moments are held of ranges of
/// keys alone, they tell how many versions in the table are held by none, though others are.
#[derive(Clone, Debug, Default)]
struct Samples {
    keys: Vec<(Vec<u8>, Holders)>,
    /// How many versions each stands for, as a power of two.
    shift: u32,
    /// Versions since the last one.
    since: u64,
}

impl Samples {
    fn add(&mut self, key: &[u8], holders: Holders, versions: u64) {
        debug_assert!(versions > 0, "versions are sampled");
        debug_assert!(holders.0 <= holders.1, "moments are in order");
        self.since += versions;
        if self.since < 1 << self.shift {
            return;
        }
        self.since = 0;
        self.keys.push((key.to_vec(), holders));
        if self.keys.len() > SAMPLES_MAX {
            let mut index = 0;
            self.keys.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.shift += 1;
        }
        debug_assert!(self.keys.len() <= SAMPLES_MAX, "they are bounded");
    }

    /// About how many versions nothing holds, by the moments of their keys.
    fn released_count(&self, of_tree: &KeyMoments) -> u64 {
        if of_tree.is_even() {
            return 0;
        }
        let is_released =
            |(key, holders): &&(Vec<u8>, Holders)| !is_any_of(&of_tree.of(key), *holders);
        let count = self.keys.iter().filter(is_released).count() as u64;
        debug_assert!(count <= SAMPLES_MAX as u64, "they are bounded");
        count << self.shift
    }
}

/// Those of all tables.
#[derive(Debug, Default)]
pub(crate) struct SupersededVersions {
    state: Mutex<SupersededState>,
}

#[derive(Debug, Default)]
struct SupersededState {
    /// Of tables that hold some.
    known: BTreeMap<TableId, OfTable>,
    /// Tables from before the store was opened whose indexes were not scanned yet.
    unknown: BTreeMap<TableId, Weak<TableHandle>>,
    /// Of these, tables whose indexes are being scanned.
    looked_at: BTreeSet<TableId>,
    /// Released versions of each table while these moments are held, until a table comes or goes.
    released: Option<(HeldSeqnos, Arc<BTreeMap<TableId, u64>>)>,
}

/// The superseded versions of a table, with its tree and its keys.
#[derive(Debug)]
struct OfTable {
    tree: TreeId,
    superseded: Superseded,
}

impl OfTable {
    fn new(table: &TableMeta, superseded: Superseded) -> Self {
        debug_assert!(table.smallest <= table.largest, "a table has keys");
        debug_assert!(
            superseded
                .keys
                .as_ref()
                .is_none_or(|(first, last)| { table.smallest <= *first && *last <= table.largest }),
            "they are in the table"
        );
        Self {
            tree: table.tree,
            superseded,
        }
    }

    /// Returns those of the tree's moments that a key with a superseded version may have.
    fn moments<'a>(&self, of_tree: &'a KeyMoments) -> Cow<'a, [Seqno]> {
        match &self.superseded.keys {
            Some((first, last)) => of_tree.of_keys(first, last),
            None => Cow::Borrowed(&[]),
        }
    }
}

/// True if one of `snapshots` is among these.
fn is_any_of(snapshots: &[Seqno], (first, last): Holders) -> bool {
    debug_assert!(first <= last, "moments are in order");
    let next = snapshots.partition_point(|s| *s < first);
    snapshots.get(next).is_some_and(|s| *s <= last)
}

/// Returns the first and the last of some moments that see `older` and not `newer`.
fn holders(moments: &[Seqno], older: Seqno, newer: Seqno) -> Option<Holders> {
    debug_assert!(older <= newer, "a newer version has a larger number");
    let first = moments.partition_point(|s| *s < older);
    let end = moments.partition_point(|s| *s < newer);
    let among = moments.get(first..end)?;
    let (oldest, newest) = (*among.first()?, *among.last()?);
    debug_assert!(older <= oldest, "they see the older version");
    debug_assert!(newest < newer, "they do not see the newer one");
    Some((oldest, newest))
}

impl Superseded {
    /// None yet, of a table that is written while these moments are held.
    pub(crate) fn new(moments: KeyMoments) -> Self {
        Self {
            moments,
            ..Self::default()
        }
    }

    /// Notes a version of a key that is written, and the next newer one. Where no moment of the
    /// key comes between them, it is there for another reason: an upsert stands on it.
    pub(crate) fn add(&mut self, key: &[u8], older: Seqno, newer: Seqno) {
        debug_assert!(older < newer, "versions come newest first");
        let held_by = holders(&self.moments.of(key), older, newer);
        if let Some(held_by) = held_by {
            self.hold(held_by, 1, (key, key));
        }
    }

    /// Notes a block that is taken over as it is.
    pub(crate) fn add_block(&mut self, block: &IndexEntry) {
        if !block.has_versions {
            return;
        }
        let keys = match block.is_value {
            // It may be the newest version. The others are counted.
            true => 0,
            false => QuotientFilterRef::of_checked(&block.filter).key_count() as u64,
        };
        let versions = u64::from(block.entry_count).saturating_sub(keys);
        debug_assert!(
            block.min_seqno <= block.max_seqno,
            "its numbers are in order"
        );
        let held_by = {
            let own = self.moments.of_keys(&block.first, &block.last);
            holders(&own, block.min_seqno, block.max_seqno)
        };
        match held_by {
            Some(held_by) => self.hold(held_by, versions, (&block.first, &block.last)),
            None => self.unheld += versions,
        }
    }

    fn hold(&mut self, holders: Holders, versions: u64, (first, last): (&[u8], &[u8])) {
        debug_assert!(holders.0 <= holders.1, "moments are in order");
        debug_assert!(self.held.len() <= HOLDERS_MAX, "holders are bounded");
        if versions == 0 {
            return;
        }
        self.samples.add(first, holders, versions);
        match &mut self.keys {
            None => self.keys = Some((first.to_vec(), last.to_vec())),
            Some((_, end)) => {
                debug_assert!(end.as_slice() <= last, "keys come in order");
                end.clear();
                end.extend_from_slice(last);
            }
        }
        if self.held.len() < HOLDERS_MAX || self.held.contains_key(&holders) {
            *self.held.entry(holders).or_default() += versions;
            return;
        }
        // Too many: they are taken together with their neighbours, and wait for these snapshots
        // too.
        let next = self.held.range(holders..).next().map(|(near, _)| *near);
        let near = next.or_else(|| self.held.keys().next_back().copied());
        let near = near.expect("there are many");
        let sum = self.held.remove(&near).unwrap_or_default() + versions;
        let both = (near.0.min(holders.0), near.1.max(holders.1));
        *self.held.entry(both).or_default() += sum;
        debug_assert!(self.held.len() <= HOLDERS_MAX, "holders are bounded");
    }

    pub(crate) fn is_empty(&self) -> bool {
        debug_assert_eq!(
            self.held.is_empty(),
            self.keys.is_none(),
            "the keys are those of held versions"
        );
        self.held.is_empty() && self.unheld == 0
    }

    /// Holders that are all gone: none of `snapshots` is among them.
    fn released(&self, snapshots: &[Seqno]) -> impl Iterator<Item = (Holders, u64)> {
        let held = self
            .held
            .iter()
            .map(|(holders, versions)| (*holders, *versions));
        held.filter(|(holders, _)| !is_any_of(snapshots, *holders))
    }

    /// How many no reader needs any more.
    fn released_count(&self, snapshots: &[Seqno]) -> u64 {
        let released = self.released(snapshots).map(|(_, versions)| versions);
        debug_assert!(self.held.len() <= HOLDERS_MAX, "holders are bounded");
        self.unheld + released.sum::<u64>()
    }
}

impl SupersededVersions {
    /// Of a store with these tables, of which nothing is known.
    pub(crate) fn of_unknown<'a>(tables: impl Iterator<Item = &'a Arc<TableHandle>>) -> Self {
        let state = SupersededState {
            unknown: tables.map(|t| (t.meta().id, Arc::downgrade(t))).collect(),
            ..SupersededState::default()
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Notes those of a table.
    pub(crate) fn note(&self, table: &TableMeta, superseded: Superseded) {
        if !superseded.is_empty() {
            let mut state = self.state.lock();
            debug_assert!(
                !state.unknown.contains_key(&table.id),
                "a table that is written need not be scanned"
            );
            let known = OfTable::new(table, superseded);
            state.released = None;
            let before = state.known.insert(table.id, known);
            debug_assert!(before.is_none(), "a table is noted once");
        }
    }

    /// Nothing is known any more of tables: sequence numbers in them count more than they did.
    pub(crate) fn look_again<'a>(&self, tables: impl Iterator<Item = &'a Arc<TableHandle>>) {
        let mut state = self.state.lock();
        state.released = None;
        for table in tables {
            let id = table.meta().id;
            debug_assert!(
                !state.looked_at.contains(&id),
                "a look at what it was before counts no more"
            );
            state.known.remove(&id);
            state.unknown.insert(id, Arc::downgrade(table));
        }
    }

    /// A table is gone.
    pub(crate) fn forget(&self, table: TableId) {
        let mut state = self.state.lock();
        state.released = None;
        state.known.remove(&table);
        state.unknown.remove(&table);
        state.looked_at.remove(&table);
    }

    /// How many of each table no reader needs any more, where there are any, while these are held.
    pub(crate) fn released(&self, held: &HeldSeqnos) -> Arc<BTreeMap<TableId, u64>> {
        let mut state = self.state.lock();
        let before = state.released.as_ref().filter(|(of, _)| of == held);
        if let Some((_, released)) = before {
            return Arc::clone(released);
        }
        let mut of_trees: BTreeMap<TreeId, KeyMoments> = BTreeMap::new();
        let counts = state.known.iter().map(|(table, known)| {
            let of_tree = of_trees.entry(known.tree);
            let of_tree = of_tree.or_insert_with(|| held.of(known.tree));
            let known_count = known.superseded.released_count(&known.moments(of_tree));
            let sampled_count = known.superseded.samples.released_count(of_tree);
            (*table, known_count.max(sampled_count))
        });
        let released = Arc::new(counts.filter(|(_, count)| *count > 0).collect());
        state.released = Some((held.clone(), Arc::clone(&released)));
        released
    }

    /// The holders that are gone, of any of these tables.
    pub(crate) fn released_of(
        &self,
        tables: impl Iterator<Item = TableId>,
        moments: &KeyMoments,
    ) -> BTreeSet<Holders> {
        let state = self.state.lock();
        let mut all = BTreeSet::new();
        for known in tables.filter_map(|table| state.known.get(&table)) {
            let own = known.moments(moments);
            let released = known.superseded.released(&own);
            all.extend(released.map(|(holders, _)| holders));
        }
        all
    }

    /// A table to look at. What it holds is to be told by [`Self::found`].
    pub(crate) fn take_unknown(&self) -> Option<Arc<TableHandle>> {
        let mut state = self.state.lock();
        loop {
            let (id, table) = state.unknown.pop_first()?;
            debug_assert!(
                !state.known.contains_key(&id),
                "a known table is not scanned"
            );
            if let Some(table) = table.upgrade() {
                state.looked_at.insert(id);
                return Some(table);
            }
        }
    }

    /// Notes what a look at a table found, unless the table has gone meanwhile.
    pub(crate) fn found(&self, table: &TableMeta, superseded: Superseded) {
        let mut state = self.state.lock();
        if state.looked_at.remove(&table.id) && !superseded.is_empty() {
            let known = OfTable::new(table, superseded);
            state.released = None;
            let before = state.known.insert(table.id, known);
            debug_assert!(before.is_none(), "nothing was known of it");
        }
    }
}

/// True if a block has versions that only snapshots of these held, as far as can be told from
/// outside.
pub(crate) fn has_released(block: &IndexEntry, released: &BTreeSet<Holders>) -> bool {
    debug_assert!(
        block.min_seqno <= block.max_seqno,
        "its numbers are in order"
    );
    let is_within = |holders: &Holders| block.min_seqno <= holders.0 && holders.1 < block.max_seqno;
    block.has_versions && released.iter().any(is_within)
}

#[cfg(test)]
mod tests;
