//! Clones that lie in the source of a clone that is made: they become clones in it.
//!
//! ```text
//! source, in mainline   dir/  dir/a = view 1   dir/a/b = view 2      other = view 3
//! the clone, view 4     dir/  dir/a = view 5   dir/a/b = view 6
//!                       branches of mainline,  of view 1, of view 2: all of one moment
//! ```
//!
//! 1. *Choose*: the records name the grafts of each file system, and back rows lead from a graft up
//!    to the directory. Without back rows the names below the directory are scanned, and the back
//!    rows are put in the background ([`crate::back::ViewBackRows`]).
//! 2. *Branch* all trees in one step, so of one moment.
//! 3. *Verify*: in the new trees, which do not change, the same grafts are below. If not, a
//!    directory was moved between 1 and 2: all is begun again.
//! 4. *Record* all views in one batch with the graft of the outermost one.

use super::make::CloneSource;
use super::{CloneInfo, Standing, ViewOpener};
use crate::back::{BackRowPass, NumberLookup};
use crate::inode::Holds;
use crate::namespace::Namespace;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{FsError, FsResult, LiveView};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{FileKind, MetaRow};

/// Clones that are made in one step: each has four trees.
pub const INNER_CLONES_MAX: usize = 1024;

/// A clone that lies in the source, and is cloned with it.
#[derive(Clone, Debug)]
pub(crate) struct InnerClone {
    pub(crate) info: CloneInfo,
    /// Index of the view that it lies in among those that are made; 0 is the outermost one.
    pub(super) above: usize,
}

/// The file system of a view of the source.
enum SourceView<'s> {
    Given(&'s FileSystem),
    Live(Arc<LiveView>),
    Past(Box<FileSystem>),
}

impl SourceView<'_> {
    fn fs(&self) -> &FileSystem {
        match self {
            Self::Given(fs) => fs,
            Self::Live(view) => view.fs(),
            Self::Past(fs) => fs,
        }
    }
}

/// Opens a clone that the source has.
fn open<'s>(source: &CloneSource<'s>, number: u64) -> FsResult<SourceView<'s>> {
    debug_assert!(number > 0, "mainline is no clone");
    match source.snapshot {
        None => ViewOpener::of(source.fs).open(number).map(SourceView::Live),
        Some(_) => {
            let past = ViewOpener::of(source.fs).open_past(number)?;
            Ok(SourceView::Past(Box::new(past)))
        }
    }
}

/// Returns the clones of `all` that lie in one view.
pub(super) fn in_view(all: &[CloneInfo], home: u64) -> Vec<CloneInfo> {
    let here = all.iter().filter(|info| info.home == home);
    here.cloned().collect()
}

impl CloneSource<'_> {
    /// Returns the clones below the directory, and those in them, each after the one that it lies
    /// in. `all` are those of the source's moment.
    pub(crate) fn inner_clones(&self, all: &[CloneInfo]) -> FsResult<Vec<InnerClone>> {
        let mut found: Vec<InnerClone> = Vec::new();
        let mut seen = BTreeSet::from([self.fs.view_number()]);
        for at in 0.. {
            let (home, top) = match at {
                0 => (self.fs.view_number(), self.dir),
                _ => match found.get(at - 1) {
                    Some(inner) => (inner.info.number, inner.info.root),
                    None => break,
                },
            };
            let mut here = in_view(all, home);
            if here.is_empty() {
                continue;
            }
            let view = match at {
                0 => SourceView::Given(self.fs),
                _ => open(self, home)?,
            };
            let finder = GraftFinder::of(view.fs());
            finder.want_back_rows();
            let grafts = finder.below(top, &here)?;
            here.retain(|info| grafts.contains(&info.graft) && seen.insert(info.number));
            let above = at;
            found.extend(here.into_iter().map(|info| InnerClone { info, above }));
            if found.len() > INNER_CLONES_MAX {
                return Err(FsError::TooManyClones(INNER_CLONES_MAX));
            }
        }
        debug_assert!(
            found.len() <= INNER_CLONES_MAX,
            "clones of one step have a bound"
        );
        debug_assert!(
            found
                .iter()
                .enumerate()
                .all(|(at, inner)| inner.above <= at)
        );
        Ok(found)
    }
}

/// Finds the directories of one file system at which clones lie, below another one.
///
/// Invariant: what is found is the same by back rows and by a scan.
#[derive(Clone, Copy)]
pub(super) struct GraftFinder<'fs> {
    store: &'fs Store,
    names: Namespace<'fs>,
    numbers: NumberLookup<'fs>,
    holds: Holds<'fs>,
    pass: BackRowPass<'fs>,
    standing: &'fs Standing,
    is_read_only: bool,
}

impl<'fs> GraftFinder<'fs> {
    pub(super) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            names: Namespace::of(fs),
            numbers: NumberLookup::of(fs),
            holds: Holds::of(fs),
            pass: BackRowPass::of(fs),
            standing: &fs.standing,
            is_read_only: fs.is_read_only(),
        }
    }

    /// Asks for the back rows of the file system, unless they are there or cannot be put. They are
    /// put in the background ([`ViewBackRows::put_asked`](crate::back::ViewBackRows::put_asked)).
    fn want_back_rows(&self) {
        if !self.is_read_only && !self.pass.is_complete() {
            self.standing.views.want_back_rows(self.standing.number);
        }
    }

    /// Reports whether the clones that were chosen for a view lie below its directory, and no other
    /// ones of `candidates`, which lie in the view that it is a branch of.
    pub(super) fn has_grafts(
        &self,
        top: Ino,
        candidates: &[CloneInfo],
        chosen: &BTreeSet<Ino>,
    ) -> FsResult<bool> {
        debug_assert!(
            chosen
                .iter()
                .all(|graft| candidates.iter().any(|info| info.graft == *graft)),
            "they were chosen of these"
        );
        debug_assert!(
            chosen.len() <= candidates.len(),
            "they were chosen of these"
        );
        if candidates.is_empty() {
            return Ok(chosen.is_empty());
        }
        Ok(self.below(top, candidates)? == *chosen)
    }

    /// Returns the grafts of some clones that lie below a directory, without those below another
    /// one of them, which hides what its directory holds.
    fn below(&self, top: Ino, clones: &[CloneInfo]) -> FsResult<BTreeSet<Ino>> {
        let grafts: BTreeSet<Ino> = clones.iter().map(|info| info.graft).collect();
        if !self.pass.is_complete() {
            debug_assert!(
                grafts.len() <= clones.len(),
                "a clone lies at one directory"
            );
            return self.below_by_scan(top, &grafts);
        }
        let mut found = BTreeSet::new();
        for &graft in &grafts {
            if self.lies_below(graft, top, &grafts)? {
                found.insert(graft);
            }
        }
        debug_assert!(found.is_subset(&grafts), "of those that were asked for");
        Ok(found)
    }

    /// Reports whether a graft lies below a directory, and none of the others between, by back
    /// rows.
    fn lies_below(&self, dir: Ino, top: Ino, grafts: &BTreeSet<Ino>) -> FsResult<bool> {
        debug_assert!(grafts.contains(&dir), "a clone lies at it");
        match self.numbers.look_up(dir) {
            // It was removed, or is below a tree that was.
            Err(FsError::Stale(_)) => return Ok(false),
            known => known?,
        };
        let is_shown = |at: Ino| !grafts.contains(&at);
        let is_below = dir != top && self.names.is_below_through(dir, top, is_shown);
        self.holds.forget(dir);
        Ok(is_below)
    }

    /// Returns which of some directories lie below another one, and not below each other, by a scan
    /// of all names below it up to the last of them.
    fn below_by_scan(&self, top: Ino, wanted: &BTreeSet<Ino>) -> FsResult<BTreeSet<Ino>> {
        debug_assert!(!wanted.is_empty(), "some clone lies in the view");
        let mut found = BTreeSet::new();
        // Damaged rows may form a ring.
        let (mut waiting, mut seen) = (vec![top], BTreeSet::from([top]));
        while let Some(dir) = waiting.pop() {
            debug_assert!(
                seen.contains(&dir),
                "each directory is seen before its names are"
            );
            let mut rows = self.store.scan(&self.store.keys.dentries(dir))?;
            while let Some((_, row)) = rows.next()? {
                let MetaRow::Inode(head, _) = MetaRow::decode(row)? else {
                    continue;
                };
                if wanted.contains(&head.ino) {
                    found.insert(head.ino);
                } else if head.kind == FileKind::Directory && seen.insert(head.ino) {
                    waiting.push(head.ino);
                }
            }
            debug_assert!(found.len() <= wanted.len(), "each is found once");
            if found.len() == wanted.len() {
                break;
            }
        }
        debug_assert!(found.is_subset(wanted), "of those that were asked for");
        Ok(found)
    }
}
