//! Clones that lie in the source of a clone that is made: they become clones in it.
//!
//! ```text
//! source, in mainline   dir/  dir/a = view 1   dir/a/b = view 2      other = view 3
//! the clone, view 4     dir/  dir/a = view 5   dir/a/b = view 6
//!                       branches of mainline,  of view 1, of view 2: all of one moment
//! ```
//!
//! 1. *Choose*: the records name the grafts of each file system, and the way from a graft up leads
//!    to the directory, or past it.
//! 2. *Branch* all trees in one step, so of one moment.
//! 3. *Verify*: in the new trees, which do not change, the same grafts are below. If not, a
//!    directory was moved between 1 and 2: all is begun again.
//! 4. *Record* all views in one batch with the graft of the outermost one.
//!
//! The way up from a graft is read row by row. Which row is next is known by memory or back rows:
//!
//! ```text
//! graft 31   -> (20, hash of `a`)    the row there names 31: it lies in 20
//!       20   -> (16, hash of `dir`)  the row there names 20: it lies in 16, which is the directory
//! ```
//!
//! | where a directory may be is known | if |
//! |---|---|
//! | by the inode table | it is in use |
//! | by the places that were noted ([`GraftWays`]) | a clone above it was made or found before |
//! | by its back row | it has one |
//!
//! Where none of them is right, the names below the source are scanned for the graft, unless back
//! rows are complete. A scan asks for back rows, which are put in the background
//! ([`crate::back::ViewBackRows`]).

use super::make::CloneSource;
use super::ways::GraftWays;
use super::{CloneInfo, Standing, ViewOpener};
use crate::back::{BackRowPass, NumberLookup};
use crate::inode::Holds;
use crate::locator::Locator;
use crate::namespace::Namespace;
use crate::residents::{Residents, WAY_DIRS_MAX};
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{FsError, FsResult, LiveView};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_back::Place;
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
            let past = ViewOpener::of(source.fs).open_past(number, None)?;
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
    pub(crate) fn inner_clones(
        &self,
        all: &[CloneInfo],
        ways: &GraftWays,
    ) -> FsResult<Vec<InnerClone>> {
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
            let finder = GraftFinder::of(view.fs(), ways, home);
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
/// Invariant: what is found is the same by ways up and by a scan.
#[derive(Clone, Copy)]
pub(super) struct GraftFinder<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    names: Namespace<'fs>,
    numbers: NumberLookup<'fs>,
    holds: Holds<'fs>,
    pass: BackRowPass<'fs>,
    standing: &'fs Standing,
    ways: &'fs GraftWays,
    /// The view whose clones are looked for. The file system is of it, or a branch of it.
    home: u64,
    is_read_only: bool,
}

/// The ways up from some grafts, as far as they are known.
#[derive(Debug, Default)]
struct WaysUp {
    /// Places that were found in the tree.
    places: BTreeMap<Ino, Place>,
    /// Grafts that lie below the directory.
    below: BTreeSet<Ino>,
    /// Grafts whose way up is not known.
    unknown: BTreeSet<Ino>,
}

impl<'fs> GraftFinder<'fs> {
    /// The finder of the clones of the view `home`, in `fs`, which is that view or a branch of it.
    pub(super) fn of(fs: &'fs FileSystem, ways: &'fs GraftWays, home: u64) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            names: Namespace::of(fs),
            numbers: NumberLookup::of(fs),
            holds: Holds::of(fs),
            pass: BackRowPass::of(fs),
            standing: &fs.standing,
            ways,
            home,
            is_read_only: fs.is_read_only(),
        }
    }

    /// Asks for the back rows of the file system, unless they cannot be put, or it is a view that
    /// is being made. They are put in the background
    /// ([`ViewBackRows::put_asked`](crate::back::ViewBackRows::put_asked)).
    fn want_back_rows(&self) {
        debug_assert!(!self.pass.is_complete(), "those that are there suffice");
        if !self.is_read_only && self.standing.number == self.home {
            self.standing.views.want_back_rows(self.home);
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
        debug_assert!(clones.iter().all(|info| info.home == self.home));
        let grafts: BTreeSet<Ino> = clones.iter().map(|info| info.graft).collect();
        let mut ways = WaysUp::default();
        for &graft in &grafts {
            match self.is_below_by_way(graft, (top, &grafts), &mut ways)? {
                Some(true) => drop(ways.below.insert(graft)),
                Some(false) => {}
                None => drop(ways.unknown.insert(graft)),
            }
        }
        if !ways.unknown.is_empty() {
            self.find_unknown(top, &grafts, &mut ways)?;
        }
        debug_assert!(
            ways.below.is_subset(&grafts),
            "of those that were asked for"
        );
        self.note(&ways);
        Ok(ways.below)
    }

    /// Notes the ways up in the view that the file system is. A view that is being made has the
    /// clones that were chosen alone.
    fn note(&self, ways: &WaysUp) {
        if self.is_read_only {
            return;
        }
        let number = self.standing.number;
        if number == self.home {
            self.ways.note(number, ways.places.clone());
            return;
        }
        let mut places = BTreeMap::new();
        for &graft in &ways.below {
            note_way(&mut places, graft, &ways.places);
        }
        debug_assert!(places.len() <= ways.places.len(), "a part of them");
        self.ways.note(number, places);
    }

    /// Finds the grafts whose way up is not known, by back rows if all are there.
    fn find_unknown(&self, top: Ino, grafts: &BTreeSet<Ino>, ways: &mut WaysUp) -> FsResult<()> {
        debug_assert!(ways.below.is_disjoint(&ways.unknown), "those are known");
        let unknown = std::mem::take(&mut ways.unknown);
        if !self.pass.is_complete() {
            self.want_back_rows();
            return self.find_by_scan(top, (&unknown, grafts), ways);
        }
        for graft in unknown {
            if self.lies_below(graft, top, grafts)? {
                ways.below.insert(graft);
            }
        }
        Ok(())
    }

    /// Reports whether a graft lies below a directory, and none of the others between, by the rows
    /// on the way up; `None` if a part of the way is not known.
    fn is_below_by_way(
        &self,
        graft: Ino,
        (top, grafts): (Ino, &BTreeSet<Ino>),
        ways: &mut WaysUp,
    ) -> FsResult<Option<bool>> {
        debug_assert!(grafts.contains(&graft), "a clone lies at it");
        let end = self.standing.views.shown_root(self.home);
        let mut at = graft;
        for _ in 0..WAY_DIRS_MAX {
            let is_hidden = at != graft && grafts.contains(&at);
            if at == top {
                return Ok(Some(graft != top));
            }
            if is_hidden || at == Ino::ROOT || at == end {
                return Ok(Some(false));
            }
            let known = match ways.places.get(&at) {
                Some(place) => Some(*place),
                None => self.place_in_tree(at)?,
            };
            let Some(place) = known else {
                let is_removed = self.is_removed(at)?;
                return Ok(is_removed.then_some(false));
            };
            debug_assert_ne!(place.parent, at, "no directory is in itself");
            ways.places.insert(at, place);
            at = place.parent;
        }
        Ok(None)
    }

    /// Returns where a directory is in the tree, if that can be known without a scan.
    fn place_in_tree(&self, dir: Ino) -> FsResult<Option<Place>> {
        debug_assert_ne!(dir, Ino::ROOT, "the root is in no directory");
        let in_use = self.residents.inodes.find(dir);
        let in_use = in_use
            .and_then(|inode| inode.name())
            .map(|(parent, name)| Place {
                parent,
                hash: self.store.keys.name_hash(&name),
            });
        let noted = self.ways.place_of(self.home, dir);
        for place in [in_use, noted.filter(|_| noted != in_use)]
            .into_iter()
            .flatten()
        {
            if self.names.find_at(place, dir)?.is_some() {
                return Ok(Some(place));
            }
        }
        match self.pass.row_if_kept(dir)? {
            Some(place) if self.names.find_at(place, dir)?.is_some() => Ok(Some(place)),
            _ => Ok(None),
        }
    }

    /// Reports whether a directory has lost its name, with all in it.
    fn is_removed(&self, dir: Ino) -> FsResult<bool> {
        let row = self.store.own_row(dir)?;
        Ok(row.is_some_and(|(head, _)| head.nlink == 0))
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

    /// Finds which of some grafts lie below a directory, and not below another graft, by a scan of
    /// all names below it up to the last of them. Notes their ways up.
    fn find_by_scan(
        &self,
        top: Ino,
        (wanted, grafts): (&BTreeSet<Ino>, &BTreeSet<Ino>),
        ways: &mut WaysUp,
    ) -> FsResult<()> {
        debug_assert!(wanted.is_subset(grafts), "clones lie at them");
        let mut left = wanted.len();
        // Damaged rows may form a ring.
        let (mut waiting, mut seen) = (vec![top], BTreeMap::new());
        while let Some(dir) = waiting.pop() {
            let mut rows = self.store.scan(&self.store.keys.dentries(dir))?;
            while let Some((key, row)) = rows.next()? {
                let (MetaRow::Inode(head, _), Some(place)) =
                    (MetaRow::decode(row)?, Locator::place_of(key))
                else {
                    continue;
                };
                let is_dir = head.kind == FileKind::Directory && head.ino != top;
                if !is_dir || seen.insert(head.ino, place).is_some() {
                    continue;
                }
                if !grafts.contains(&head.ino) {
                    waiting.push(head.ino);
                } else if wanted.contains(&head.ino) {
                    debug_assert!(left > 0, "each is found once");
                    left -= 1;
                    ways.below.insert(head.ino);
                    note_way(&mut ways.places, head.ino, &seen);
                }
            }
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Notes the places of a directory, and of those above it, as far as they were seen.
fn note_way(places: &mut BTreeMap<Ino, Place>, dir: Ino, seen: &BTreeMap<Ino, Place>) {
    let mut at = dir;
    while let Some(place) = seen.get(&at)
        && places.insert(at, *place).is_none()
    {
        at = place.parent;
    }
}

#[cfg(test)]
mod tests;
