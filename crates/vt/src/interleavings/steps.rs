//! How much a reader does that the model checker sees: locks taken and given up, atomics read and
//! written. Counts of references are not among it.

use super::engine::{put_both, store};
use super::explore;
use stitch_base::sync::shuttle::current::context_switches;
use stitch_kv::Engine;

/// One more than it takes: a lock would be two.
const STEPS_MAX: usize = 19;

#[test]
fn a_get_from_memory_takes_few_steps() {
    explore(2, || {
        let (_, engine, trees) = store();
        for n in 1..=4 {
            put_both(&engine, trees, 0, n, 300);
        }
        engine.quiesce().expect("background work succeeds");
        let get = || {
            let before = context_switches();
            let found = engine.get(trees[0], &[0, 2], None);
            let steps = context_switches() - before;
            let value = found.expect("the read works").expect("it is there");
            assert_eq!(*value, [2; 300]);
            steps
        };
        // Blocks are read, and have all their rounds.
        let first = (0..5).map(|_| get()).max().expect("some");
        let steps = get();
        assert!(steps < first, "{steps} when all is known, {first} before");
        assert!(steps <= STEPS_MAX, "{steps} steps");
    });
}
