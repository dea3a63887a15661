//! Keys of policies of snapshots.

use super::{Locator, RowKey, RowRange, SysRow, Tree, sys_key, sys_rows};
use stitch_base::Ino;
use stitch_format::fs_key;

impl Locator {
    /// The policy of snapshots of a directory of a view, 0 for mainline.
    pub(crate) fn policy(&self, view: u64, dir: Ino) -> RowKey {
        let key = match view {
            0 => fs_key::policy(dir),
            view => fs_key::clone_policy(view, dir),
        };
        let key = sys_key(SysRow::Policy(view, dir), key);
        debug_assert!(self.policies().contains(&key), "a listing finds it");
        key
    }

    pub(crate) fn policies(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_POLICY);
        debug_assert!(
            rows.contains(&fs_key::clone_policy(u64::MAX, Ino(u64::MAX))),
            "those in clones too"
        );
        rows
    }

    /// All policies of directories in a clone.
    pub(crate) fn policies_in(&self, view: u64) -> RowRange {
        debug_assert!(view > 0, "a clone has a number");
        let start = fs_key::clone_policy(view, Ino(0));
        // The shorter key sorts before all of the next clone.
        let end = fs_key::policy(Ino(view + 1));
        debug_assert!(
            fs_key::clone_policy(view, Ino(u64::MAX)) < end,
            "policies of all directories of the clone"
        );
        RowRange::new(Tree::Sys, start, end)
    }
}
