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
//!    rows are put in the background ([`super::ahead`]).
//! 2. *Branch* all trees in one step, so of one moment.
//! 3. *Verify*: in the new trees, which do not change, the same grafts are below. If not, a
//!    directory was moved between 1 and 2: all is begun again.
//! 4. *Record* all views in one batch with the graft of the outermost one.

use super::CloneInfo;
use super::make::CloneSource;
use crate::back::BackRowPass;
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
    match source.snapshot {
        None => source.fs.open_clone(number).map(SourceView::Live),
        Some(_) => {
            let past = source.fs.open_past_clone(number)?;
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
            view.fs().want_back_rows();
            let grafts = view.fs().grafts_below(top, &here)?;
            here.retain(|info| grafts.contains(&info.graft) && seen.insert(info.number));
            let above = at;
            found.extend(here.into_iter().map(|info| InnerClone { info, above }));
            if found.len() > INNER_CLONES_MAX {
                return Err(FsError::TooManyClones(INNER_CLONES_MAX));
            }
        }
        debug_assert!(
            found
                .iter()
                .enumerate()
                .all(|(at, inner)| inner.above <= at)
        );
        Ok(found)
    }
}

impl FileSystem {
    /// Reports whether the clones that were chosen for a view lie below its directory, and no other
    /// ones of `candidates`, which lie in the view that it is a branch of.
    pub(super) fn has_grafts(
        &self,
        top: Ino,
        candidates: &[CloneInfo],
        chosen: &BTreeSet<Ino>,
    ) -> FsResult<bool> {
        if candidates.is_empty() {
            return Ok(chosen.is_empty());
        }
        Ok(self.grafts_below(top, candidates)? == *chosen)
    }

    /// Returns the grafts of some clones that lie below a directory, without those below another
    /// one of them, which hides what its directory holds.
    fn grafts_below(&self, top: Ino, clones: &[CloneInfo]) -> FsResult<BTreeSet<Ino>> {
        let grafts: BTreeSet<Ino> = clones.iter().map(|info| info.graft).collect();
        if !BackRowPass::of(self).is_complete() {
            return self.grafts_by_scan(top, &grafts);
        }
        let mut found = BTreeSet::new();
        for &graft in &grafts {
            if self.lies_below(graft, top, &grafts)? {
                found.insert(graft);
            }
        }
        Ok(found)
    }

    /// Reports whether a graft lies below a directory, and none of the others between, by back
    /// rows.
    fn lies_below(&self, dir: Ino, top: Ino, grafts: &BTreeSet<Ino>) -> FsResult<bool> {
        match self.look_up_number(dir) {
            // It was removed, or is below a tree that was.
            Err(FsError::Stale(_)) => return Ok(false),
            known => known?,
        };
        let names = self.namespace();
        let is_shown = |at: Ino| !grafts.contains(&at);
        let is_below = dir != top && names.is_below_through(dir, top, is_shown);
        self.forget(dir, 1);
        Ok(is_below)
    }

    /// Returns which of some directories lie below another one, and not below each other, by a scan
    /// of all names below it up to the last of them.
    fn grafts_by_scan(&self, top: Ino, wanted: &BTreeSet<Ino>) -> FsResult<BTreeSet<Ino>> {
        let mut found = BTreeSet::new();
        // Damaged rows may form a ring.
        let (mut waiting, mut seen) = (vec![top], BTreeSet::from([top]));
        while let Some(dir) = waiting.pop() {
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
            if found.len() == wanted.len() {
                break;
            }
        }
        Ok(found)
    }
}
