//! Writable views: each is a file system of its own, and lies at a directory of another one.

use super::issue::Owner;
use super::lost::Paths;
use super::scan::Found;
use super::{Issue, Trees};
use crate::FsResult;
use crate::back::BeginRanges;
use crate::locator::RowKey;
use crate::schema::view_schema;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::FileKind;
use stitch_format::fs_view::{ViewRecord, ViewState};
use stitch_kv::{Engine, KeyRanges, LostKeys, TreeInfo};

/// Views in use, by number.
pub(super) type Views = BTreeMap<u64, ViewRecord>;

/// Takes the views in use out of what was found in mainline.
pub(super) fn take(found: &mut Found) -> Views {
    let mut views = std::mem::take(&mut found.views);
    views.retain(|_, record| record.state == ViewState::Live);
    debug_assert!(!views.contains_key(&0), "mainline has no record");
    views
}

/// Lists the policies of directories in views that have no record. Those of a removed view go with
/// its record.
pub(super) fn policies_of_none(mainline: &Found) -> Vec<Issue> {
    let of_views = mainline.policies.iter().filter(|(view, _)| *view > 0);
    of_views
        .filter(|(view, _)| !mainline.views.contains_key(view))
        .map(|&(number, ino)| Issue::FalseClonePolicy { number, ino })
        .collect()
}

/// Returns the key of the policy that an issue is about.
pub(super) fn policy_row(mainline: &Trees, issue: &Issue) -> RowKey {
    let (view, dir) = match issue {
        Issue::FalseClonePolicy { number, ino } => (*number, *ino),
        Issue::FalsePolicy { ino } => (0, *ino),
        other => unreachable!("{other} is about no policy"),
    };
    mainline.keys.policy(view, dir)
}

/// Lists the views that should lie at a directory of this file system, and lie nowhere. One with
/// lost names says nothing.
pub(super) fn adrift(found: &Found, issues: &[Issue], home: u64, views: &Views) -> Vec<Issue> {
    let is_lost = |issue: &Issue| matches!(issue, Issue::Lost { tree: "meta", .. });
    if !found.is_readable || issues.iter().any(is_lost) {
        return Vec::new();
    }
    let is_there = |graft: &Ino| {
        let inode = found.inodes.get(graft);
        inode.is_some_and(|inode| inode.kind == FileKind::Directory)
    };
    let own = views
        .iter()
        .filter(|(number, record)| record.home == home && **number > home);
    own.filter(|(_, record)| !is_there(&record.graft))
        .map(|(&number, _)| Issue::CloneAdrift { number })
        .collect()
}

/// Opens the trees of a view; `None` if some are missing.
pub(super) fn open(engine: &Arc<dyn Engine>, number: u64) -> Option<Trees> {
    Trees::open(engine, &view_schema(number)).ok()
}

/// Returns the keys lost to a view, those of the parents of its branch trees included.
pub(super) fn lost_in(engine: &dyn Engine, trees: &Trees, lost: &[LostKeys]) -> Vec<LostKeys> {
    let infos: BTreeMap<_, TreeInfo> = engine
        .trees()
        .into_iter()
        .map(|info| (info.id, info))
        .collect();
    let mut all = Vec::new();
    for (_, dictionary) in trees.schema.dictionaries() {
        let mut at = Some(dictionary.tree());
        while let Some(tree) = at {
            let of_tree = lost.iter().filter(|lost| lost.tree == tree);
            all.extend(of_tree.map(|lost| LostKeys {
                tree: dictionary.tree(),
                ..lost.clone()
            }));
            let point = infos.get(&tree).and_then(|info| info.branch);
            at = point.map(|point| point.parent);
        }
    }
    all
}

/// The paths at which views are shown, from the root of mainline.
#[derive(Default)]
pub(super) struct Shown(BTreeMap<u64, PathBuf>);

impl Shown {
    /// Adds the views that lie in one that was scanned. A view has a larger number than the one
    /// that it lies in.
    pub(super) fn add(&mut self, home: u64, found: &Found, views: &Views) {
        let paths = Paths::new(found);
        let own = views.iter().filter(|(_, record)| record.home == home);
        // A damaged record may say otherwise.
        for (&number, record) in own.filter(|(number, _)| **number > home) {
            let own = paths.of(record.graft);
            debug_assert!(
                own.as_ref().is_none_or(|own| own.is_absolute()),
                "a path from the root"
            );
            let shown = match home {
                0 => own,
                _ => own.and_then(|own| self.path(home, &views[&home], &own)),
            };
            self.0.extend(shown.map(|shown| (number, shown)));
        }
    }

    /// Returns the path from the root of mainline of a path in the trees of a view; `None` if it is
    /// not shown.
    fn path(&self, number: u64, record: &ViewRecord, own: &Path) -> Option<PathBuf> {
        debug_assert!(number > 0, "paths of mainline are shown as they are");
        debug_assert!(own.is_absolute(), "a path from the root of the view");
        let below = own.strip_prefix("/").ok()?;
        let root = Path::new(OsStr::from_bytes(&record.path));
        let below = below.strip_prefix(root).ok()?;
        let shown = self.0.get(&number)?;
        Some(shown.components().chain(below.components()).collect())
    }

    /// Gives the inodes that the issues of a view are about the paths at which they are shown, and
    /// leaves those out that are not shown.
    pub(super) fn paths(&self, number: u64, record: &ViewRecord, own: Vec<Issue>) -> Vec<Issue> {
        debug_assert!(number > 0, "paths of mainline are shown as they are");
        let shown = |owner: Owner| match owner.path {
            None => Some(owner),
            Some(path) => self.path(number, record, &path).map(|path| Owner {
                path: Some(path),
                ..owner
            }),
        };
        let with_paths = |mut issue: Issue| {
            if let Issue::Lost { owners, .. } = &mut issue {
                *owners = std::mem::take(owners)
                    .into_iter()
                    .filter_map(shown)
                    .collect();
            } else if let Issue::InterruptedRollback { dir, .. } = &mut issue {
                dir.path = dir
                    .path
                    .take()
                    .and_then(|path| self.path(number, record, &path));
            }
            issue
        };
        own.into_iter().map(with_paths).collect()
    }
}

/// Returns the ranges of contents that a view and its sources begin with, where not all. Of a
/// source that was removed that is not known: none.
pub(super) fn contents_of(trees: &Trees) -> Vec<KeyRanges> {
    let begin = BeginRanges::of(&**trees.schema.engine(), trees.data.tree());
    let mut ranges = begin.ranges;
    if begin.lacks_parent {
        ranges.push(KeyRanges::default());
    }
    ranges
}

/// The issues of a view, told apart from those of mainline.
pub(super) fn within(number: u64, issues: Vec<Issue>) -> impl Iterator<Item = Issue> {
    debug_assert!(number > 0, "mainline is told apart");
    debug_assert!(
        !issues
            .iter()
            .any(|issue| matches!(issue, Issue::InClone { .. })),
        "each clone is checked by its own number"
    );
    issues.into_iter().map(move |issue| Issue::InClone {
        number,
        issue: Box::new(issue),
    })
}

/// The issues of views, by view.
pub(super) fn by_number(issues: &[Issue]) -> BTreeMap<u64, Vec<Issue>> {
    let mut all: BTreeMap<u64, Vec<Issue>> = BTreeMap::new();
    for issue in issues {
        if let Issue::InClone { number, issue } = issue {
            all.entry(*number).or_default().push((**issue).clone());
        }
    }
    debug_assert!(
        all.values().all(|own| !own.is_empty()),
        "a view with issues"
    );
    all
}

/// Reads the record of a view.
pub(super) fn record(mainline: &Trees, number: u64) -> FsResult<Option<ViewRecord>> {
    debug_assert!(number > 0, "mainline has no record");
    let key = mainline.keys.view(number);
    let row = mainline.schema.now().get(mainline.sys, &key)?;
    Ok(row.map(|row| ViewRecord::decode(&row)).transpose()?)
}
