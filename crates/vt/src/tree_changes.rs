//! Changes of the trees of a store: created, dropped, or given other options.
//!
//! ```text
//! create   installed, then writable
//! drop     no more writes, then installed; writable again if the edit was refused
//! ```

use crate::VtError;
use crate::commit_lock::CommitLock;
use crate::gate::Gate;
use crate::install::{Install, Installer, VersionLog};
use crate::kept::KeptViews;
use crate::pins::Pins;
use crate::read::ReadPath;
use crate::signals::{Signals, Worker};
use crate::space::SpaceLedger;
use crate::version::tree_record;
use crate::view::Views;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_format::superblock::{FEATURE_BRANCH_RANGES, FEATURE_BRANCHES};
use stitch_format::vt_manifest::VersionEdit;
use stitch_kv::{KvError, TreeInfo, TreeOptions, check_tree_name};
use stitch_volume::Volume;

/// The first format that has altered trees and Zstandard.
const FORMAT_OF_ALTERED_TREES: (u16, u16) = (2, 1);

/// Creates, drops and alters trees.
///
/// Invariants:
/// - a tree takes writes only while it is in the version on the medium;
/// - a number of a tree is given out once.
pub(crate) struct TreeChanges {
    pub(crate) volume: Arc<Volume>,
    pub(crate) views: Arc<Views>,
    /// Trees that take writes are listed there.
    pub(crate) commits: Arc<CommitLock>,
    pub(crate) versions: Arc<VersionLog>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) space: Arc<SpaceLedger>,
    /// To forget the gaps of dropped trees.
    pub(crate) reads: Arc<ReadPath>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) signals: Arc<Signals>,
}

impl TreeChanges {
    /// Creates an empty tree.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::create_tree`].
    pub(crate) fn create(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError> {
        self.gate.check_writable()?;
        let mut installer = self.versions.lock();
        let version = self.views.version();
        if version.living().any(|t| t.info.name == name) {
            return Err(KvError::TreeExists(name.to_owned()));
        }
        check_tree_name(name)?;
        let id = version.next_tree;
        debug_assert!(id.0 > 0, "tree 0 is never given out");
        let info = TreeInfo {
            id,
            name: name.to_owned(),
            options: options.clone(),
            branch: None,
            branch_ranges: None,
        };
        let mut edit = version.edit();
        edit.next_tree = id.next();
        debug_assert!(!version.trees.contains_key(&id), "the number is new");
        edit.new_trees.push(tree_record(&info));
        drop(version);
        self.versions.check_trees_fit(&edit)?;
        self.space.note_tree(options);
        self.install(&mut installer, edit)?;
        let is_new = self.commits.lock().trees.insert(id);
        assert!(is_new, "numbers of trees are never reused");
        debug_assert!(
            self.views.version().is_living(id),
            "a tree that takes writes is there"
        );
        Ok(id)
    }

    /// Drops trees with one edit.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::drop_trees`].
    pub(crate) fn drop_all(&self, trees: &[TreeId]) -> Result<(), KvError> {
        self.gate.check_writable()?;
        let trees: BTreeSet<TreeId> = trees.iter().copied().collect();
        let mut installer = self.versions.lock();
        {
            let mut commits = self.commits.lock();
            commits.check_trees(trees.iter().copied())?;
            commits.close_trees(&trees);
        }
        if trees.is_empty() {
            return Ok(());
        }
        let removed = self.remove(&mut installer, &trees);
        // They are still there, unless the outcome is unknown.
        if removed.is_err() && !self.gate.is_failed() {
            self.commits.lock().trees.extend(trees);
        }
        removed
    }

    /// Installs the edit that drops trees, which take no writes any more.
    pub(crate) fn remove(
        &self,
        installer: &mut Installer,
        trees: &BTreeSet<TreeId>,
    ) -> Result<(), KvError> {
        debug_assert!(!trees.is_empty(), "trees are dropped");
        let version = self.views.version();
        let mut edit = version.edit();
        version.note_dropped(&mut edit, trees, (&self.pins, &[]));
        debug_assert!(
            edit.dropped_trees.len() + edit.pins.hidden.len() >= trees.len(),
            "each tree goes or is hidden"
        );
        // With a branch, a hidden parent may go that a snapshot of a dropped pin reads.
        let kept = KeptViews::give(
            &self.views.get(),
            self.pins.lingering(),
            &edit.dropped_trees,
        );
        let installed = self.install(installer, edit);
        match installed {
            Ok(()) => {
                let after = self.views.version();
                debug_assert!(
                    trees.iter().all(|tree| !after.is_living(*tree)),
                    "dropped trees are gone or hidden"
                );
                trees.iter().for_each(|tree| self.reads.gaps.forget(*tree));
            }
            Err(_) => kept.take_back(),
        }
        drop((kept, version));
        // What only a branch saw can be compacted away now.
        self.signals.wake(Worker::Compaction);
        installed
    }

    /// Gives a tree other options.
    ///
    /// # Errors
    /// As [`stitch_kv::Engine::alter_tree`].
    pub(crate) fn alter(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError> {
        self.gate.check_writable()?;
        let mut installer = self.versions.lock();
        let version = self.views.version();
        let found = version.living().find(|t| t.info.id == tree);
        let found = found.ok_or(KvError::NoTree(tree))?;
        if found.info.options == *options {
            return Ok(());
        }
        let mut edit = version.edit();
        edit.altered_trees.push(tree_record(&TreeInfo {
            options: options.clone(),
            ..found.info.clone()
        }));
        drop(version);
        self.versions.check_trees_fit(&edit)?;
        self.space.note_tree(options);
        self.install(&mut installer, edit)?;
        let altered = self.views.version().trees.get(&tree).cloned();
        debug_assert!(
            altered.is_some_and(|altered| altered.info.options == *options),
            "the tree has its new options"
        );
        Ok(())
    }

    /// Installs an edit that changes trees and no tables. Installing syncs the log before: what is
    /// on the medium stays the state after some commit.
    pub(crate) fn install(
        &self,
        installer: &mut Installer,
        edit: VersionEdit,
    ) -> Result<(), KvError> {
        self.install_with(installer, edit, Vec::new())
    }

    /// Installs an edit as [`Self::install`] does. Some of its new trees are temporary.
    pub(crate) fn install_with(
        &self,
        installer: &mut Installer,
        edit: VersionEdit,
        temporary: Vec<TreeId>,
    ) -> Result<(), KvError> {
        debug_assert!(
            temporary
                .iter()
                .all(|tree| edit.new_trees.iter().any(|new| new.id == *tree)),
            "trees are temporary from the beginning"
        );
        if !edit.is_of_version_1() {
            let required = self.volume.require_format(FORMAT_OF_ALTERED_TREES);
            required.map_err(VtError::from)?;
        }
        if edit.has_branches() {
            let features = match edit.has_branch_ranges() {
                true => FEATURE_BRANCHES | FEATURE_BRANCH_RANGES,
                false => FEATURE_BRANCHES,
            };
            let required = self.volume.require_feature(features);
            required.map_err(VtError::from)?;
        }
        let install = Install {
            edit,
            temporary,
            ..Install::default()
        };
        self.versions.install(installer, install)?;
        Ok(())
    }
}
