//! What one program sees of a file that another has just changed, whichever way each goes: through the
//! kernel's pages, past them, or through a mapping. The expected values are those of ext4.

mod changes;
mod direct;
mod sparse;
mod tails;

use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "direct-writes",
        run: direct::readers_see_direct_writes,
    },
    Case {
        name: "changes",
        run: changes::all_ways_to_look_show_each_change,
    },
    Case {
        name: "holes",
        run: sparse::a_search_for_holes_sees_mapped_bytes,
    },
    Case {
        name: "tails",
        run: tails::what_is_behind_the_end_stays_there,
    },
];
