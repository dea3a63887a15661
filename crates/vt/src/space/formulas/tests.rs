use super::*;
use proptest::prelude::*;

const CLASSES: [SpaceClass; 3] = [
    SpaceClass::Reserve,
    SpaceClass::Allocated,
    SpaceClass::Normal,
];
/// Longer than any volume that tests have, and short enough that no sum overflows.
const BYTES_MAX: u64 = 1 << 50;

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..64u64, 0..BYTES_MAX]
}

fn any_kept() -> impl Strategy<Value = Reserved> {
    (bytes(), bytes(), bytes()).prop_map(|(reserve, planned, written)| Reserved {
        reserve,
        planned,
        // A compaction writes no more than it has planned.
        written: written.min(planned),
    })
}

fn any_class() -> impl Strategy<Value = SpaceClass> {
    prop::sample::select(CLASSES.to_vec())
}

proptest! {
    #[test]
    fn no_class_takes_what_compactions_under_way_have_yet_to_write(
        kept_bytes in any_kept(),
        class in any_class(),
    ) {
        let left = kept_bytes.planned - kept_bytes.written;
        prop_assert!(kept(kept_bytes, class) >= left);
    }

    #[test]
    fn deletes_may_take_most_then_allocated_space_then_the_rest(
        all in any_kept(),
        runs in any_kept(),
    ) {
        prop_assert!(CLASSES.map(|class| kept(all, class)).is_sorted());
        prop_assert!(CLASSES.map(|class| kept_in_runs(runs, all, class)).is_sorted());
    }

    #[test]
    fn what_a_compaction_writes_is_kept_for_it_no_more(
        before in any_kept(),
        more in bytes(),
        class in any_class(),
    ) {
        let more = more.min(before.planned - before.written);
        let after = Reserved { written: before.written + more, ..before };
        let (before, after) = (kept(before, class), kept(after, class));
        prop_assert_eq!(after, before.saturating_sub(more));
    }

    #[test]
    fn a_plan_never_lowers_what_is_kept(
        before in any_kept(),
        more in bytes(),
        class in any_class(),
    ) {
        let after = Reserved { planned: before.planned + more, ..before };
        prop_assert!(kept(after, class) >= kept(before, class));
    }

    #[test]
    fn runs_are_kept_for_no_more_than_is_kept_at_all(
        runs in any_kept(),
        all in any_kept(),
        class in any_class(),
    ) {
        let in_runs = kept_in_runs(runs, all, class);
        prop_assert!(in_runs <= kept(all, class));
        prop_assert!(in_runs <= runs.reserve);
    }

    /// Available bytes go down with a promise; what is kept and set aside must still be there.
    #[test]
    fn a_promise_of_all_free_bytes_leaves_what_is_kept_and_set_aside(
        available in bytes(),
        all in any_kept(),
        aside in (bytes(), bytes()).prop_map(|(own, others)| Aside { all: own + others, own }),
        total in bytes(),
        class in any_class(),
    ) {
        let kept = kept(all, class);
        let promise = free(available.saturating_sub(kept), total, aside, class);
        let others = match class {
            SpaceClass::Allocated => aside.all - aside.own,
            SpaceClass::Normal | SpaceClass::Reserve => aside.all,
            SpaceClass::Uncommitted => aside.all + kept_from_uncommitted(total),
        };
        if promise > 0 {
            prop_assert_eq!(available - promise, kept + others);
        } else {
            prop_assert!(available <= kept + others);
        }
    }

    #[test]
    fn only_the_store_that_set_space_aside_may_use_it(
        unpromised in bytes(),
        own in bytes(),
        others in bytes(),
    ) {
        let aside = Aside { all: own + others, own };
        let classes = [SpaceClass::Normal, SpaceClass::Reserve, SpaceClass::Allocated];
        let free = |class| free(unpromised, 1 << 40, aside, class);
        let [normal, reserve, allocated] = classes.map(free);
        prop_assert_eq!(free(SpaceClass::Uncommitted), normal.saturating_sub(1 << 30));
        prop_assert_eq!(normal, reserve);
        prop_assert!(allocated >= normal);
        prop_assert!(allocated - normal <= own);
        prop_assert!(allocated + others <= unpromised || allocated == 0);
    }

    #[test]
    fn promised_pages_take_no_long_run(
        in_runs in bytes(),
        all in bytes(),
        pages in bytes(),
        kept in bytes(),
    ) {
        let promised = Promised { all, pages: pages.min(all) };
        let roomy_bytes = roomy(in_runs, promised, kept);
        let pages_bytes = pages_room(in_runs, promised, kept);
        prop_assert!(roomy_bytes >= pages_bytes);
        prop_assert!(roomy_bytes - pages_bytes <= promised.pages);
        prop_assert!(roomy_bytes <= in_runs.saturating_sub(kept));
    }

    #[test]
    fn stores_keep_what_one_needs_and_not_much_more_than_a_quarter(
        own in bytes(),
        others in bytes(),
        zones_bytes in bytes(),
    ) {
        let kept = reserves(own + others, own, zones_bytes);
        prop_assert!(kept >= own);
        prop_assert!(kept <= own + others);
        prop_assert!(kept <= (zones_bytes / RESERVES_PART).max(own));
    }

    #[test]
    fn the_less_is_left_the_more_may_be_rewritten(
        zones_bytes in bytes(),
        left in bytes(),
        less in bytes(),
    ) {
        let less = less.min(left);
        prop_assert!(cost_max(zones_bytes, less) >= cost_max(zones_bytes, left));
        if left < low(zones_bytes) {
            prop_assert!(cost_max(zones_bytes, left) >= LOW_COST);
        }
    }

    #[test]
    fn a_run_holds_an_entry_and_the_keys_of_its_index(
        key_bytes in 0..4096u64,
        value_bytes in 0..(1u64 << 20),
    ) {
        let run = entry_run(key_bytes, value_bytes);
        prop_assert!(run > key_bytes + value_bytes);
        prop_assert!(run >= INDEX_KEYS * key_bytes);
    }
}
