//! Schemas of branch trees: each dictionary begins with what that of another schema held.

use super::{Dictionary, Schema, check_name, list};
use crate::{Changes, DbError, View};
use stitch_base::Seqno;
use stitch_base::sync::Arc;
use stitch_kv::{
    BranchPoint, ChangedKey, CommitOptions, Guards, KeyRange, KvError, NewBranch, Snapshot,
};

/// How many keys of a branch are asked for at a time.
const PAGE_KEYS: usize = 1000;

/// Where a dictionary of a branch begins.
#[derive(Clone, Debug)]
pub struct DictionaryBranch {
    parent: Dictionary,
    moment: View,
}

impl DictionaryBranch {
    /// The dictionary whose rows it begins with. It may be dropped by now: [`Self::moment`] reads
    /// it all the same.
    #[must_use]
    pub const fn parent(&self) -> Dictionary {
        self.parent
    }

    /// The parent as it was where the branch begins. It shows no other dictionary for certain.
    #[must_use]
    pub const fn moment(&self) -> &View {
        &self.moment
    }
}

impl Schema {
    /// Makes a schema `name` with the same dictionaries, which begin with what these hold now, or
    /// held at `at`. It copies nothing. Both go their own way from there: neither sees what is
    /// written to the other one. The new schema is opened, listed and removed as any other.
    ///
    /// # Errors
    /// [`DbError::SchemaExists`], [`DbError::BadName`], and [`DbError::Kv`] as of
    /// [`Engine::branch_trees`](stitch_kv::Engine::branch_trees): nothing is made.
    ///
    /// # Durability
    /// All dictionaries are on the medium when this returns, or none.
    pub fn branch(&self, name: &str, at: Option<&Snapshot>) -> Result<Self, DbError> {
        check_name(name)?;
        let engine = self.engine();
        if !list(engine.as_ref(), name).is_empty() {
            return Err(DbError::SchemaExists(name.to_owned()));
        }
        let dictionaries = self.dictionaries.iter();
        let names: Vec<String> = dictionaries
            .map(|(own, _)| format!("{name}/{own}"))
            .collect();
        let parents = self.dictionaries.iter().map(|(_, found)| found.tree());
        let new = parents
            .zip(&names)
            .map(|(parent, name)| NewBranch::new(parent, name));
        let new: Vec<NewBranch<'_>> = new.collect();
        let made = engine.branch_trees(&new, at)?;
        debug_assert_eq!(made.len(), names.len(), "one tree for each dictionary");
        Self::open(Arc::clone(engine), name)
    }

    /// Returns where a dictionary of this schema begins, if the schema is a branch.
    ///
    /// # Errors
    /// [`DbError::NoBranch`] for a dictionary that is not of this schema, or of no branch;
    /// [`DbError::Kv`].
    pub fn branch_point(&self, dictionary: Dictionary) -> Result<DictionaryBranch, DbError> {
        let BranchPoint { parent, seqno } = self.point(dictionary)?;
        let moment = self.engine().branch_moment(dictionary.tree())?;
        debug_assert_eq!(moment.seqno(), seqno, "a branch has one moment");
        Ok(DictionaryBranch {
            parent: Dictionary { tree: parent },
            moment: View::new(Arc::clone(self.engine()), Some(moment)),
        })
    }

    fn point(&self, dictionary: Dictionary) -> Result<BranchPoint, DbError> {
        let no_branch = || DbError::NoBranch {
            schema: self.name.to_string(),
        };
        self.name_of(dictionary).ok_or_else(no_branch)?;
        let mut trees = self.engine().trees().into_iter();
        let info = trees.find(|info| info.id == dictionary.tree());
        let info = info.ok_or(KvError::NoTree(dictionary.tree()))?;
        info.branch.ok_or_else(no_branch)
    }

    /// Returns the keys that may differ between a dictionary of a branch and its parent where the
    /// branch begins, in order, at most `count_max` after `after`. Fewer are the last ones.
    ///
    /// # Errors
    /// As [`Self::branch_point`].
    pub fn written_keys(
        &self,
        dictionary: Dictionary,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, DbError> {
        self.point(dictionary)?;
        let tree = dictionary.tree();
        Ok(self.engine().branch_keys(tree, after, count_max)?)
    }

    /// Returns guards on the parents' keys that were written in this branch, and on the ranges that
    /// were deleted in it, as of its moment: [`Self::absorb`] with them is refused if others
    /// changed one of these keys since, or put one into these ranges. A few keys are listed as they
    /// are now. A guard on more covers all that is in the branch when it is checked.
    ///
    /// # Errors
    /// As [`Self::branch_point`].
    pub fn guards_on_written(&self) -> Result<Guards, DbError> {
        let mut guards: Option<Guards> = None;
        for (_, dictionary) in self.dictionaries.iter() {
            let point = self.branch_point(*dictionary)?;
            let moment = point.moment.held().expect("the moment of a branch is held");
            let guards = guards.get_or_insert_with(|| Guards::since(moment));
            guards.move_to(moment);
            let keys = self.written_keys(*dictionary, None, PAGE_KEYS)?;
            debug_assert!(keys.len() <= PAGE_KEYS, "no more than asked for");
            if keys.len() == PAGE_KEYS {
                guards.written(point.parent, dictionary.tree());
                continue;
            }
            keys.iter().for_each(|key| guards.key(point.parent, key));
            let deleted = self.engine().branch_deleted_ranges(dictionary.tree())?;
            for (start, end) in &deleted {
                guards.range(point.parent, KeyRange::new(start, end));
            }
        }
        Ok(guards.expect("a schema has a dictionary"))
    }

    /// Gives what was written to this branch to the dictionaries that it begins with, applies
    /// `changes`, and removes the branch: one commit, whole or not at all, if nothing that `guards`
    /// name has changed. See [`Engine::absorb`](stitch_kv::Engine::absorb).
    ///
    /// # Errors
    /// [`DbError::Conflict`] with the keys that others have changed, [`DbError::Kv`]: the branch
    /// and its parents are as they were.
    ///
    /// # Durability
    /// As of [`Engine::commit`](stitch_kv::Engine::commit).
    pub fn absorb(
        &self,
        changes: &Changes<'_>,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, DbError> {
        let (engine, trees) = (self.engine(), self.trees());
        match engine.absorb(&trees, changes.batch(), guards, options) {
            Err(KvError::Conflict { tree, key }) => {
                let first = ChangedKey { tree, key };
                Err(DbError::conflict(engine.as_ref(), guards, first))
            }
            other => Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests;
