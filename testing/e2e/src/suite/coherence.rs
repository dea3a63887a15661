//! What one program sees of a file that another has just changed, whichever way each goes: through the
//! kernel's pages, past them, or through a mapping. The expected values are those of ext4.

mod direct;

use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[Case {
    name: "direct-writes",
    run: direct::readers_see_direct_writes,
}];
