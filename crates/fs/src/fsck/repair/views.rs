//! Repairs of clones, of policies, and of rollbacks.

use super::Repair;
use crate::FsResult;
use crate::fsck::{Issue, views};
use crate::locator::Tree;
use crate::rows::is_readable;
use stitch_base::Ino;

impl Repair<'_> {
    pub(super) fn delete_policy(&mut self, issue: &Issue) {
        let row = views::policy_row(self.trees, issue);
        debug_assert_eq!(row.tree().name(), "sys", "where policies are");
        self.changes.delete(self.trees.sys, &row);
    }

    /// An issue of a clone's record.
    pub(super) fn view(&mut self, issue: &Issue) -> FsResult<()> {
        match issue {
            Issue::CloneAdrift { number } => self.land(*number)?,
            Issue::CloneWithoutTrees { number } => {
                let trees = self.trees;
                self.changes.delete(trees.sys, &trees.keys.view(*number));
            }
            _ => debug_assert!(false, "it is no issue of a record"),
        }
        Ok(())
    }

    /// Lays a clone at a new directory in `lost+found`.
    fn land(&mut self, number: u64) -> FsResult<()> {
        let (sys, keys) = (self.trees.sys, self.trees.keys);
        let Some(mut record) = views::record(self.trees, number)? else {
            return Ok(());
        };
        let graft = self.new_number()?;
        // `lost+found` may need one, too.
        self.commit()?;
        debug_assert!(self.changes.is_empty(), "the number is taken for good");
        let name = self.lost_name(graft)?;
        self.put_directory(&name, graft, 0o700);
        record.home = 0;
        record.graft = graft;
        debug_assert_ne!(record.graft, Ino::ROOT, "it lies at a directory of its own");
        let (key, row) = (keys.view(number), record.encode());
        debug_assert!(
            is_readable(Tree::Sys, &key, &row),
            "a repaired row is read again"
        );
        self.changes.put(sys, &key, &row);
        Ok(())
    }

    /// Ends a rollback that cannot be finished.
    pub(super) fn end_rollback(&mut self) -> FsResult<()> {
        debug_assert!(self.changes.is_empty(), "both changes are one batch");
        let trees = self.trees;
        self.mark_header(|header| header.rolls_back = false)?;
        self.changes.delete(trees.sys, &trees.keys.rollback());
        Ok(())
    }
}
