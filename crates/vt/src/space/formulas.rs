//! The formulas of the space ledger, as pure functions; see the table in the head of [`super`].

use stitch_kv::{SpaceClass, kept_from_uncommitted};

/// Below this share of the zones, space is low: one part in this many.
pub(super) const LOW_PART: u64 = 10;
/// What may be rewritten to give space back where no commit waits for it, in multiples of what
/// hides it, as soon as space is low; twice as much where half of that is left, and so on.
pub(super) const LOW_COST: u64 = 4;
/// The most of the zones that all stores together keep for compactions: one part in this many.
const RESERVES_PART: u64 = 4;
/// What a block takes beyond its longest entry.
const BLOCK_MARGIN_BYTES: u64 = 16 << 10;
/// Keys that an index block or a root may have at least.
const INDEX_KEYS: u64 = 64;

/// Bytes kept for compactions: all free bytes, or those in long runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    /// Kept while no compaction runs.
    pub(super) reserve: u64,
    /// What compactions under way may write in all.
    pub(super) planned: u64,
    /// What they have written of it.
    pub(super) written: u64,
}

/// Bytes that stores left to commits of [`SpaceClass::Allocated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Aside {
    /// By all stores of the volume.
    pub(super) all: u64,
    /// By this store.
    pub(super) own: u64,
}

/// Bytes promised to memtables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Promised {
    pub(super) all: u64,
    /// Of these, for value blocks of whole pages, which need no run longer than themselves.
    pub(super) pages: u64,
}

/// Returns how much of a reserve a class leaves alone.
pub(super) const fn share(reserve: u64, class: SpaceClass) -> u64 {
    let share = match class {
        SpaceClass::Normal | SpaceClass::Uncommitted => reserve,
        // Deletes leave compactions half of the reserve to work with.
        SpaceClass::Reserve => reserve / 2,
        // Room to put values again before compactions have given back the old ones.
        SpaceClass::Allocated => reserve - reserve / 4,
    };
    debug_assert!(share <= reserve, "no class keeps more than the reserve");
    debug_assert!(share >= reserve / 2, "each leaves compactions half of it");
    share
}

/// Returns the bytes that a class leaves to compactions: their share of the reserve, or what they
/// have planned if that is more; what they have written is theirs already.
pub(super) fn kept(kept: Reserved, class: SpaceClass) -> u64 {
    let share = share(kept.reserve, class);
    let wanted = share.max(kept.planned);
    debug_assert!(
        wanted <= kept.reserve.max(kept.planned),
        "no more is kept than is reserved or planned"
    );
    wanted.saturating_sub(kept.written)
}

/// Returns how much of `all` kept bytes must be in long runs. A compaction carries value blocks
/// over, so its plan asks for no more runs than are in reserve.
pub(super) fn kept_in_runs(runs: Reserved, all: Reserved, class: SpaceClass) -> u64 {
    let runs = Reserved {
        planned: runs.planned.min(runs.reserve),
        ..runs
    };
    let in_runs = kept(runs, class).min(kept(all, class));
    debug_assert!(
        in_runs <= runs.reserve,
        "runs are kept for no more than is in reserve"
    );
    in_runs
}

/// Returns the bytes that a class may have promised to it, of those that compactions leave and of a
/// store with so many in all.
pub(super) fn free(unpromised: u64, total: u64, aside: Aside, class: SpaceClass) -> u64 {
    debug_assert!(aside.own <= aside.all, "a store is one of all");
    let others = match class {
        SpaceClass::Normal | SpaceClass::Reserve => aside.all,
        SpaceClass::Allocated => aside.all.saturating_sub(aside.own),
        SpaceClass::Uncommitted => aside.all.saturating_add(kept_from_uncommitted(total)),
    };
    debug_assert!(
        others <= aside.all || matches!(class, SpaceClass::Uncommitted),
        "only uncommitted data leaves more than is set aside"
    );
    unpromised.saturating_sub(others)
}

/// Returns the bytes in long runs that a class may have promised to it. Promises for value blocks
/// of whole pages take none of them.
pub(super) fn roomy(in_runs: u64, promised: Promised, kept_in_runs: u64) -> u64 {
    let promised = promised.all.saturating_sub(promised.pages);
    in_runs.saturating_sub(promised.saturating_add(kept_in_runs))
}

/// Returns the bytes in runs of some whole pages that a class may have promised to it.
pub(super) fn pages_room(in_runs: u64, promised: Promised, kept_in_runs: u64) -> u64 {
    in_runs.saturating_sub(promised.all.saturating_add(kept_in_runs))
}

/// Returns what stores that need `sum` together, and one of them `own`, keep on so many bytes of
/// zones. Of many stores it is no more than a quarter: a compaction that finds no space is tried
/// again.
pub(super) fn reserves(sum: u64, own: u64, zones_bytes: u64) -> u64 {
    let kept = sum.min(zones_bytes / RESERVES_PART).max(own);
    debug_assert!(
        kept <= own || kept <= sum,
        "no more is kept than stores need"
    );
    debug_assert!(
        kept <= own || kept <= zones_bytes / RESERVES_PART,
        "stores together keep a part of the zones"
    );
    kept
}

/// Returns the bytes that are left when space begins to be low.
pub(super) const fn low(zones_bytes: u64) -> u64 {
    const {
        assert!(
            RESERVES_PART <= LOW_PART,
            "space that is low is no more than compactions may keep"
        );
    }
    zones_bytes / LOW_PART
}

/// Returns what may be rewritten to give space back, in multiples of what hides it.
pub(super) fn cost_max(zones_bytes: u64, left: u64) -> u64 {
    const { assert!(LOW_COST <= LOW_PART, "a product is within the zones") };
    let cost = LOW_COST * low(zones_bytes) / left.max(1);
    debug_assert!(
        left < low(zones_bytes) || cost <= LOW_COST,
        "more is rewritten only where space is low"
    );
    debug_assert!(
        left >= low(zones_bytes) || cost >= LOW_COST,
        "where space is low, something is rewritten to give space back"
    );
    cost
}

/// Returns the length of a run that holds any block with entries of these lengths. The keys of an
/// index block, or of a root, may be as long as those of its table.
pub(super) fn entry_run(key_bytes: u64, value_bytes: u64) -> u64 {
    let data = key_bytes + value_bytes + BLOCK_MARGIN_BYTES;
    let run = (INDEX_KEYS * key_bytes).max(data);
    debug_assert!(run > key_bytes + value_bytes, "a run holds the entry");
    run
}

/// Returns the length of a run that holds any block of a tree with blocks of this length.
pub(super) fn block_run(block_bytes: u64) -> u64 {
    let run = 4 * block_bytes + BLOCK_MARGIN_BYTES;
    debug_assert!(run > block_bytes, "a run holds the block");
    run
}

#[cfg(test)]
mod tests;
