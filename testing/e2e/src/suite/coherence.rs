//! What one program sees of a file that another has just changed, whichever way each goes: through
//! the kernel's pages, past them, or through a mapping. The expected values are those of ext4.

mod changes;
mod commits;
mod direct;
mod sparse;
mod tails;

use anyhow::Result;

use crate::harness::context::{Context, Target};
use crate::harness::mount::{Mount, Spec};
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
        name: "holes-views",
        run: sparse::a_search_in_a_view_sees_mapped_bytes,
    },
    Case {
        name: "commits",
        run: commits::each_commit_is_seen,
    },
    Case {
        name: "tails",
        run: tails::what_is_behind_the_end_stays_there,
    },
];

/// Runs a check in the store, and in a mount that has files from `large_from` on beside the store.
/// The check learns which it is.
fn in_store_and_beside(
    context: &Context,
    name: &str,
    large_from: &str,
    check: &mut dyn FnMut(&Mount, bool) -> Result<()>,
) -> Result<()> {
    for is_beside in [false, true] {
        let suffix = if is_beside { "-beside" } else { "" };
        let mut spec = Spec::new(&format!("{name}{suffix}"), "256M");
        if is_beside && context.target == Target::Stitch {
            spec = spec.option(&format!("large_files=external:{large_from}"));
        }
        let mut mount = Mount::create(context, &spec)?;
        check(&mount, is_beside)?;
        mount.unmount()?;
        mount.fsck()?;
    }
    Ok(())
}
