//! Making branch trees, and what was written to them.

use crate::VtError;
use crate::entry::EntryIter;
use crate::gaps::successor;
use crate::iter::MergeIter;
use crate::pins::Sight;
use crate::read::VtScan;
use crate::snapshots::Hold;
use crate::store::Store;
use crate::table::Bounds;
use crate::version::{TreeVersion, Version, tree_record};
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_kv::{
    BranchPoint, DeletedRange, Direction, Guarded, KeyRange, KvError, NewBranch, Scan, Snapshot,
    TreeInfo, check_branch_depth, check_tree_name, join_ranges,
};

impl Store {
    pub(crate) fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        self.gate.check_writable()?;
        let mut installer = self.versions.lock();
        // First of all: from now on compactions keep what the branches see.
        let moment = self.branch_start(at)?;
        let version = self.version();
        let sight = at.and_then(|at| self.snapshots.own(at)?.sight());
        let sight = sight.filter(|sight| !sight.has_ended());
        let infos = new_branches(&version, branches, (&moment, sight))?;
        let Some(last) = infos.last() else {
            return Ok(Vec::new());
        };
        let mut edit = version.edit();
        edit.next_tree = last.id.next();
        edit.new_trees = infos.iter().map(tree_record).collect();
        let temporary = new_temporary(&version, branches, &infos);
        drop(version);
        if temporary.len() < infos.len() {
            self.versions.check_trees_fit(&edit)?;
        }
        infos
            .iter()
            .for_each(|info| self.space.note_tree(&info.options));
        let ids: Vec<TreeId> = infos.iter().map(|info| info.id).collect();
        let parents = branches.iter().map(|branch| branch.parent).zip(&infos);
        let hold = |(parent, info): (TreeId, &TreeInfo)| {
            let ranges = info.branch_ranges.clone();
            self.snapshots
                .take_for_branch(moment.seqno(), parent, ranges)
        };
        let holds: Vec<_> = parents.map(hold).collect();
        // Syncs the log: every write that the branches see is in it.
        self.trees.install_with(&mut installer, edit, temporary)?;
        self.branches.add(ids.iter().copied().zip(holds));
        self.committer.lock().trees.extend(ids.iter().copied());
        debug_assert_eq!(ids.len(), branches.len(), "each branch has a tree");
        Ok(ids)
    }

    /// Holds the moment at which new branches begin: now, or that of a snapshot.
    fn branch_start(&self, at: Option<&Snapshot>) -> Result<Arc<Hold>, KvError> {
        let Some(at) = at else {
            return Ok(self.snapshots.take(&self.visible));
        };
        let hold = self.snapshots.own(at);
        let hold =
            hold.ok_or_else(|| KvError::Invalid("a snapshot of another store".to_owned()))?;
        let taken = self.snapshots.take_as(hold);
        debug_assert_eq!(taken.seqno(), at.seqno(), "the snapshot's moment is held");
        Ok(taken)
    }

    /// Holds the moment at which a living branch begins, of all that it began with.
    pub(crate) fn branch_hold(&self, branch: TreeId) -> Result<Arc<Hold>, KvError> {
        let version = self.version();
        if !version.is_living(branch) {
            return Err(KvError::NoTree(branch));
        }
        let hold = self.branches.find(branch)?;
        let info = &version.trees[&branch].info;
        if hold.ranges_of(hold.parent().expect("of a branch")) == info.branch_ranges.as_ref() {
            return Ok(hold);
        }
        // The branch holds less, since it has replaced the rest.
        let point = info.branch.expect("a branch has a parent");
        debug_assert_eq!(point.seqno, hold.seqno(), "its moment is held");
        debug_assert_eq!(
            hold.parent(),
            Some(point.parent),
            "of the tree in which it begins"
        );
        let ranges = info.branch_ranges.clone();
        Ok(self
            .snapshots
            .take_for_branch(point.seqno, point.parent, ranges))
    }

    pub(crate) fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        // Taken after `visible` was read: it has all that is visible then.
        let seqno = self.reads.visible();
        let view = self.views.get();
        let (tree, point) = branch_in(&view, branch)?;
        let start = after.map(successor).unwrap_or_default();
        let mut keys = self.own_keys(&view, tree, &start, (seqno, count_max))?;
        let ranges = self.deleted_ranges(&view, tree, &start, seqno)?;
        let below = self.parent_keys(&view, point, &ranges, (seqno, count_max))?;
        if !below.is_empty() {
            keys.extend(below);
            keys.sort_unstable();
            keys.dedup();
            keys.truncate(count_max);
        }
        debug_assert!(keys.len() <= count_max, "no more than asked for");
        Ok(keys)
    }

    pub(crate) fn branch_deleted_ranges(
        &self,
        branch: TreeId,
    ) -> Result<Vec<DeletedRange>, KvError> {
        let seqno = self.reads.visible();
        let view = self.views.get();
        let (tree, _) = branch_in(&view, branch)?;
        Ok(self.deleted_ranges(&view, tree, b"", seqno)?)
    }

    /// The first keys from `start` on of which a tree holds any version that a reader of `seqno`
    /// sees, in order. Values with a block of their own stay unread.
    fn own_keys(
        &self,
        view: &View,
        tree: &TreeVersion,
        start: &[u8],
        (seqno, count_max): (Seqno, usize),
    ) -> Result<Vec<Vec<u8>>, VtError> {
        let bounds = Arc::new(Bounds::of_keys(KeyRange::from(start)));
        let sources = self.reads.own_sources(view, tree, &bounds, seqno)?;
        let entries = sources.into_iter().map(|source| source.entries);
        let mut entries = MergeIter::new(entries.collect());
        entries.seek(start, Seqno(u64::MAX))?;
        let mut keys: Vec<Vec<u8>> = Vec::new();
        while keys.len() < count_max
            && let Some(entry) = entries.current()
        {
            let is_new = keys.last().is_none_or(|last| last.as_slice() != entry.key);
            if is_new && entry.seqno <= seqno {
                keys.push(entry.key.to_vec());
            }
            entries.next()?;
        }
        debug_assert!(keys.len() <= count_max, "no more than asked for");
        debug_assert!(keys.is_sorted(), "sources are merged in order");
        Ok(keys)
    }

    /// The ranges from `start` on that were deleted in a tree, in order and apart.
    fn deleted_ranges(
        &self,
        view: &View,
        tree: &TreeVersion,
        start: &[u8],
        seqno: Seqno,
    ) -> Result<Vec<DeletedRange>, VtError> {
        let mut sets = Vec::new();
        for buffer in &view.buffers {
            sets.push(buffer.memtable.range_deletes(tree.info.id));
        }
        for (_, handle) in tree.tables() {
            if handle.meta().range_delete_count > 0 {
                sets.push(self.tables.reader(handle).range_deletes()?);
            }
        }
        let all = sets.iter().flat_map(|set| set.iter());
        let seen = all.filter(|delete| delete.seqno <= seqno && delete.end.as_slice() > start);
        let clipped = |start_of: &[u8]| start_of.max(start).to_vec();
        let ranges = seen.map(|d| (clipped(&d.start), d.end.clone())).collect();
        let joined = join_ranges(ranges);
        debug_assert!(
            joined
                .first()
                .is_none_or(|(first, _)| first.as_slice() >= start),
            "ranges are clipped"
        );
        debug_assert!(
            joined.is_sorted_by(|range, next| range.1 < next.0),
            "ranges are in order and apart"
        );
        Ok(joined)
    }

    /// The first keys in these ranges that the parent held where a branch begins.
    fn parent_keys(
        &self,
        view: &Arc<View>,
        point: BranchPoint,
        ranges: &[DeletedRange],
        (complete, count_max): (Seqno, usize),
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let mut keys = Vec::new();
        for (start, end) in ranges {
            let range = KeyRange::new(start, end);
            let (way, seqnos) = ((Direction::Forward, false), (point.seqno, complete));
            let view = Arc::clone(view);
            let mut scan = VtScan::new(&self.reads, view, point.parent, range, way, seqnos)?;
            while keys.len() < count_max
                && let Some((key, _)) = scan.next()?
            {
                keys.push(key.to_vec());
            }
        }
        debug_assert!(keys.len() <= count_max, "no more than asked for");
        Ok(keys)
    }
}

/// Returns a living branch tree and where it begins.
pub(crate) fn branch_in(
    view: &View,
    branch: TreeId,
) -> Result<(&TreeVersion, BranchPoint), KvError> {
    let tree = view.version.trees.get(&branch);
    let tree = tree.filter(|tree| tree.hidden.is_none());
    let tree = tree.ok_or(KvError::NoTree(branch))?;
    let no_branch = || KvError::Invalid(format!("tree {branch} is no branch"));
    Ok((tree, tree.info.branch.ok_or_else(no_branch)?))
}

/// Returns the new branches that are temporary: as asked for, or because their parent is.
fn new_temporary(version: &Version, branches: &[NewBranch<'_>], infos: &[TreeInfo]) -> Vec<TreeId> {
    debug_assert_eq!(branches.len(), infos.len(), "each has a number");
    let new = branches.iter().zip(infos);
    let is_temporary = |new: &NewBranch<'_>| new.is_temporary || version.is_temporary(new.parent);
    let temporary = new.filter(|(new, _)| is_temporary(new));
    temporary.map(|(_, info)| info.id).collect()
}

/// Describes new branches that begin at a moment, of living trees, or of dropped ones that the pin
/// of the moment sees.
fn new_branches(
    version: &Version,
    branches: &[NewBranch<'_>],
    (moment, sight): (&Hold, Option<&Sight>),
) -> Result<Vec<TreeInfo>, KvError> {
    let mut names: BTreeSet<&str> = version.living().map(|t| t.info.name.as_str()).collect();
    let mut infos: Vec<TreeInfo> = Vec::new();
    let mut id = version.next_tree;
    for NewBranch { parent, name, .. } in branches {
        if version.is_living(*parent) && moment.saw(*parent) {
            let none = Guarded::Range(KeyRange::new(&[], &[]));
            moment.check_held(version, (*parent, none))?;
        }
        let was_there = version.is_living(*parent) && moment.has(*parent);
        let is_seen = || sight.is_some_and(|sight| sight.sees_in(version, *parent));
        if !was_there && !is_seen() {
            return Err(KvError::NoTree(*parent));
        }
        check_tree_name(name)?;
        if !names.insert(name) {
            return Err(KvError::TreeExists((*name).to_owned()));
        }
        check_branch_depth(version.branch_depth(*parent) + 1)?;
        debug_assert!(*parent < id, "a parent is older");
        infos.push(TreeInfo {
            id,
            name: (*name).to_owned(),
            options: version.trees[parent].info.options.clone(),
            branch: Some(BranchPoint {
                parent: *parent,
                seqno: moment.seqno(),
            }),
            branch_ranges: moment.ranges_of(*parent).cloned(),
        });
        id = id.next();
    }
    debug_assert_eq!(infos.len(), branches.len(), "each branch is described");
    Ok(infos)
}
