use super::formulas::LOW_COST;
use super::*;
use crate::testing::Small;
use stitch_kv::Engine as _;

const CLASSES: [SpaceClass; 2] = [SpaceClass::Normal, SpaceClass::Reserve];

#[test]
fn what_a_compaction_has_written_is_kept_for_it_no_more() {
    let small = Small::new(64 << 20);
    let space = &small.engine.store.space;
    let kept = |class| formulas::kept(space.kept(), class);
    let reserve = space.reserve_bytes();
    assert_eq!(CLASSES.map(kept), [reserve, reserve / 2]);
    let one = space.begin_compaction(reserve / 4 * 3);
    assert_eq!(CLASSES.map(kept), [reserve, reserve / 4 * 3]);
    one.wrote(reserve / 4, false);
    // What it has yet to write is kept from both.
    assert_eq!(CLASSES.map(kept), [reserve - reserve / 4, reserve / 2]);
    let long = space.begin_compaction(reserve);
    let planned = reserve / 4 * 3 + reserve;
    assert_eq!(CLASSES.map(kept), [planned - reserve / 4; 2]);
    long.end();
    one.end();
    assert_eq!(CLASSES.map(kept), [reserve, reserve / 2]);
}

#[test]
fn only_what_is_not_carried_has_to_be_in_runs() {
    let mut small = Small::new(64 << 20);
    let in_runs = |small: &Small| small.engine.store.space.kept_in_runs(SpaceClass::Normal);
    small.put(0, 4000, 4096);
    small.engine.quiesce().expect("it is written out");
    let store = &small.engine.store;
    let least = store.sizing.now().pick.table_bytes;
    let (kept, runs) = (
        formulas::kept(store.space.kept(), SpaceClass::Normal),
        in_runs(&small),
    );
    assert!(runs >= least && runs < kept, "{least}, {runs} of {kept}");
    assert!(runs < least + 4000 * 4096 / 16, "{runs} for the indexes");
    let version = store.version();
    let values = version.tables().map(|(_, t)| t.meta().value_bytes);
    let values: u64 = values.sum();
    assert!(values >= 4000 * 4096, "{values} bytes are carried");
    drop(version);
    // What is put among others takes runs, until all that is kept has to be in them.
    small.put(10_000, 60_000, 100);
    small.engine.quiesce().expect("it is written out");
    let store = &small.engine.store;
    assert_eq!(
        in_runs(&small),
        formulas::kept(store.space.kept(), SpaceClass::Normal)
    );
}

#[test]
fn the_less_is_left_the_more_it_may_cost() {
    let small = Small::new(64 << 20);
    let store = &small.engine.store;
    let ledger = &store.space;
    assert!(!ledger.is_low());
    assert_eq!(ledger.cost_max(), 0, "nothing is worth anything");
    let mut costs = Vec::new();
    let space = store.volume.space();
    let mut taken = Vec::new();
    while ledger.left_bytes() > 1 << 20 {
        taken.push(
            space
                .reserve(1 << 20, Class::Internal)
                .expect("it is there"),
        );
        costs.push(ledger.cost_max());
    }
    assert!(costs.is_sorted(), "{costs:?}");
    assert!(costs.contains(&LOW_COST), "{costs:?}");
    assert!(costs[costs.len() - 1] > 4 * LOW_COST, "{costs:?}");
}
