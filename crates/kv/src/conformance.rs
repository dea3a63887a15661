//! The conformance suite: the same checks for every engine.
//!
//! An engine's tests implement [`Factory`] and [`Subject`] and call [`run`]. Each check makes its
//! own fresh store, and ends with [`crate::Engine::check`]. The suite knows nothing of how an
//! engine works, and compares with [`crate::ModelEngine`] where a sequence of operations is random.
//!
//! Compiled only for tests of this crate and under the feature `conformance`, which is for
//! dev-dependencies.

mod branch_ranges;
mod branches;
pub mod functions;
mod guards;
mod keys_between;
mod limits;
mod many_keys;
mod messages;
mod pin_ranges;
mod pin_scopes;
mod pins;
pub mod random;
mod reopen;
mod scans;
mod snapshots;
mod space;
mod space_shares;
mod threads;
mod trees;

use crate::{
    Batch, CommitOptions, Direction, Dump, Engine, KeyRange, KvError, Scan, Snapshot, SpaceClass,
    TreeInfo, TreeOptions, UpsertRegistry,
};
use stitch_base::TreeId;
use stitch_base::sync::Arc;

/// How a store's life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `close`.
    Closed,
    /// The process was killed: no destructor of the engine has an effect on the medium, and what
    /// was written to the device before stays.
    Killed,
    /// The power went: what was not synced is lost.
    PowerCut,
}

/// Makes fresh stores.
pub trait Factory {
    /// A fresh, empty store, at least 64 MiB large.
    fn create(&self, registry: UpsertRegistry) -> Box<dyn Subject>;

    /// A fresh, empty store of about this many bytes, if the engine's stores have a size.
    fn create_small(&self, _registry: UpsertRegistry, _len_bytes: u64) -> Option<Box<dyn Subject>> {
        None
    }
}

/// A store under test: an open engine and what it lives on.
pub trait Subject {
    /// Returns the open engine. The caller of `reopen` drops its clones and snapshots before.
    fn engine(&self) -> Arc<dyn Engine>;

    /// Ends the engine's life and opens the store anew, with the same registry. False if this
    /// ending cannot be had; the store is then still open.
    fn reopen(&mut self, ending: Ending) -> bool;
}

/// One check of the suite.
pub type Check = fn(&dyn Factory);

/// The checks, by name.
pub const CHECKS: &[(&str, Check)] = &[
    ("messages", messages::every_kind),
    ("messages_in_order", messages::order_within_a_batch),
    ("messages_over_trees", messages::batches_over_trees),
    ("messages_refused_whole", messages::refused_whole),
    ("messages_upserts", messages::upserts),
    ("messages_range_deletes", messages::range_deletes),
    ("messages_edges", messages::empty_keys_and_values),
    ("messages_big_values", messages::big_values),
    ("snapshots", snapshots::isolation),
    ("snapshots_settled", snapshots::survive_compaction),
    ("snapshots_released", snapshots::released_in_any_order),
    ("guards_unsupported", guards::unsupported),
    ("guards_keys", guards::keys),
    ("guards_ranges", guards::ranges),
    ("guards_moments", guards::moments),
    ("guards_edges", guards::edges),
    ("guards_random", guards::random),
    ("guards_threads", guards::threads),
    ("keys_between_unsupported", keys_between::unsupported),
    ("keys_between", keys_between::messages),
    ("keys_between_moments", keys_between::moments),
    ("keys_between_pages", keys_between::pages),
    ("keys_between_edges", keys_between::edges),
    ("keys_between_branches", keys_between::branches),
    ("keys_between_random", keys_between::random),
    ("pins_unsupported", pins::unsupported),
    ("pins", pins::listed),
    ("pins_survive", pins::survive),
    ("pins_opened", pins::opened),
    ("pins_hidden_trees", pins::hidden_trees),
    ("pins_space", pins::space),
    ("pins_full", pins::full_of_pins),
    ("pins_beside_commits", pins::beside_commits),
    ("pins_of_trees", pin_scopes::listed),
    ("pins_of_trees_dropped", pin_scopes::hidden_trees),
    ("pins_of_trees_branched", pin_scopes::branches),
    ("pins_of_trees_space", pin_scopes::space),
    ("pins_of_trees_shares", pin_scopes::shares),
    ("pins_of_ranges", pin_ranges::listed),
    ("pins_of_ranges_refused", pin_ranges::refused),
    ("pins_of_ranges_messages", pin_ranges::messages),
    ("pins_of_ranges_dropped", pin_ranges::hidden_trees),
    ("pins_of_ranges_branched", pin_ranges::branches),
    ("branches_of_ranges", branch_ranges::reads),
    ("branches_of_ranges_written", branch_ranges::writes),
    ("branches_of_ranges_space", branch_ranges::space),
    ("pins_of_ranges_space", pin_ranges::space),
    ("pins_of_ranges_shares", pin_ranges::shares),
    ("branches_unsupported", branches::unsupported),
    ("branches", branches::isolation),
    ("branches_deletes", branches::deletes),
    ("branches_upserts", branches::upserts),
    ("branches_scans", branches::scans),
    ("branches_moments", branches::moments),
    ("branches_together", branches::together),
    ("branches_chains", branches::chains),
    ("branches_dropped_parents", branches::dropped_parents),
    ("branches_of_dropped_trees", branches::of_dropped_trees),
    ("branches_released", branches::released),
    ("branches_keys", branches::keys_written),
    ("branches_guards", branches::own_guards),
    ("branches_space", branches::space),
    ("branches_beside_commits", branches::beside_commits),
    ("absorb", branches::messages),
    ("absorb_large", branches::large),
    ("absorb_guarded", branches::guarded),
    ("absorb_guards", branches::written_guards),
    ("absorb_guards_random", branches::random_written_guards),
    ("absorb_refused", branches::absorb_refused),
    ("absorb_nested", branches::nested),
    ("absorb_survives", branches::absorb_survives),
    ("scans", scans::both_ways),
    ("scans_ranges", scans::random_ranges),
    ("scans_consistent", scans::unmoved_by_writes),
    ("scans_range_deletes", scans::over_range_deletes),
    ("trees", trees::create_list_drop),
    ("trees_names_again", trees::name_used_again),
    ("trees_apart", trees::apart),
    ("trees_altered", trees::altered),
    ("many_keys", many_keys::read),
    ("many_keys_random", many_keys::random),
    ("limits", limits::refused),
    ("limits_met", limits::met),
    ("counters", limits::counters_grow),
    ("space", space::full_store_recovers),
    ("space_set_aside", space::what_is_set_aside_is_left),
    ("shares_unsupported", space_shares::unsupported),
    ("shares_of_pins", space_shares::pins),
    ("shares_of_deleted_rows", space_shares::deleted),
    ("shares_of_branches", space_shares::branches),
    ("shares_of_ranges", space_shares::ranges),
    ("threads", threads::read_after_commit),
    ("threads_whole_batches", threads::readers_see_whole_batches),
    ("reopen_closed", reopen::closed),
    ("reopen_killed", reopen::killed),
    ("reopen_power_cut", reopen::power_cut_leaves_a_prefix),
    ("reopen_trees", reopen::tree_numbers_are_not_reused),
    ("random", random::short),
];

/// Runs every check.
///
/// # Panics
/// At the first rule that the engine breaks.
pub fn run(factory: &dyn Factory) {
    for (_, check) in CHECKS {
        check(factory);
    }
}

/// Runs the check of this name, to have one test for each.
///
/// # Panics
/// If the engine breaks the rule, or there is no such check.
pub fn run_one(factory: &dyn Factory, name: &str) {
    let found = CHECKS.iter().find(|(n, _)| *n == name);
    let (_, check) = found.expect("the check exists");
    check(factory);
}

/// Everything that a store holds, read by scans.
///
/// # Panics
/// If a scan fails.
#[must_use]
pub fn dump(engine: &dyn Engine) -> Dump {
    let of = |tree: TreeInfo| {
        let rows = read_all(engine, tree.id, None).into_iter().collect();
        (tree.name, rows)
    };
    engine.trees().into_iter().map(of).collect()
}

/// Rows of a scan, in its order.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const NOW: Option<&Snapshot> = None;

fn drain(mut scan: Box<dyn Scan + '_>) -> Rows {
    let mut rows = Rows::new();
    while let Some((key, value)) = scan.next().expect("the scan reads") {
        rows.push((key.to_vec(), value.to_vec()));
    }
    rows
}

#[track_caller]
fn read_all(engine: &dyn Engine, tree: TreeId, at: Option<&Snapshot>) -> Rows {
    let scan = engine.scan(tree, KeyRange::all(), Direction::Forward, at);
    drain(scan.expect("the scan begins"))
}

/// An open engine with trees, and short words for what checks do.
struct Store {
    subject: Box<dyn Subject>,
    engine: Option<Arc<dyn Engine>>,
}

impl Store {
    fn new(factory: &dyn Factory) -> Self {
        Self::of(factory.create(functions::registry()))
    }

    fn of(subject: Box<dyn Subject>) -> Self {
        let engine = Some(subject.engine());
        Self { subject, engine }
    }

    fn with_tree(factory: &dyn Factory) -> (Self, TreeId) {
        let store = Self::new(factory);
        let tree = store.tree("tree");
        (store, tree)
    }

    fn engine(&self) -> &dyn Engine {
        self.engine.as_deref().expect("open between calls")
    }

    fn shared(&self) -> Arc<dyn Engine> {
        Arc::clone(self.engine.as_ref().expect("open between calls"))
    }

    #[track_caller]
    fn tree(&self, name: &str) -> TreeId {
        let made = self.engine().create_tree(name, &TreeOptions::default());
        made.expect("the tree is made")
    }

    #[track_caller]
    fn commit(&self, build: impl FnOnce(&mut Batch)) {
        self.try_commit(build).expect("the batch is committed");
    }

    fn try_commit(&self, build: impl FnOnce(&mut Batch)) -> Result<(), KvError> {
        self.try_commit_from(SpaceClass::Normal, build)
    }

    fn try_commit_from(
        &self,
        space: SpaceClass,
        build: impl FnOnce(&mut Batch),
    ) -> Result<(), KvError> {
        let mut batch = Batch::new();
        build(&mut batch);
        let options = CommitOptions { sync: false, space };
        self.engine().commit(&batch, options).map(drop)
    }

    #[track_caller]
    fn get(&self, tree: TreeId, key: &[u8]) -> Option<Vec<u8>> {
        self.get_at(tree, key, None)
    }

    #[track_caller]
    fn get_at(&self, tree: TreeId, key: &[u8], at: Option<&Snapshot>) -> Option<Vec<u8>> {
        let value = self.engine().get(tree, key, at).expect("the read works");
        value.map(|value| value.to_vec())
    }

    #[track_caller]
    fn assert_value(&self, tree: TreeId, key: &[u8], value: Option<&[u8]>) {
        assert_eq!(self.get(tree, key).as_deref(), value, "key {key:?}");
    }

    #[track_caller]
    fn keys(&self, tree: TreeId, at: Option<&Snapshot>) -> Vec<Vec<u8>> {
        let rows = read_all(self.engine(), tree, at);
        rows.into_iter().map(|(key, _)| key).collect()
    }

    #[track_caller]
    fn assert_keys(&self, tree: TreeId, keys: &[&[u8]]) {
        assert_eq!(self.keys(tree, None), keys);
    }

    #[track_caller]
    fn quiesce(&self) {
        self.engine().quiesce().expect("background work succeeds");
    }

    fn reopen(&mut self, ending: Ending) -> bool {
        self.engine = None;
        let is_done = self.subject.reopen(ending);
        self.engine = Some(self.subject.engine());
        is_done
    }

    /// Every check ends with this.
    #[track_caller]
    fn finish(self) {
        let mut last = 0;
        let found = self.engine().check(&mut |done, total| {
            assert!(done >= last, "progress goes forward");
            assert!(done <= total, "progress ends at the total");
            last = done;
        });
        assert_eq!(found.expect("the check runs"), []);
    }
}

#[cfg(test)]
mod tests;
