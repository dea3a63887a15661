//! Clones that lie below the directory that is compared: each is a view of its own.
//!
//! ```text
//!   old    dir/a = clone 1   dir/b = clone 2                        of mainline's rows
//!   new    dir/x = clone 1                     dir/c = clone 3
//!          compared as a     a name that       a name that
//!          view, below x     is gone           is new
//! ```
//!
//! Of two views, each clone is a name and nothing else: a clone in one of them is none in the
//! other.

use super::comparison::{Comparison, Reach};
use super::side::{Reached, Side};
use super::views::ViewsAt;
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;

/// A clone that one side shows, and where.
#[derive(Debug)]
pub(super) struct ShownClone {
    pub(super) view: u64,
    pub(super) root: Ino,
    pub(super) graft: Ino,
    pub(super) reached: Reached,
}

/// The clones in one view below the directory.
#[derive(Debug, Default)]
pub(super) struct InnerClones {
    /// Those that both sides show.
    pub(super) both: Vec<Reach>,
    /// Those of the first side alone.
    pub(super) old: Vec<ShownClone>,
    /// Those of the second side alone.
    pub(super) new: Vec<ShownClone>,
    /// The directories at which they lie.
    pub(super) grafts: BTreeSet<Ino>,
}

/// The clones of a view that lie below the directory on one side.
fn shown(side: &Side<'_>, views: &ViewsAt<'_>, view: u64) -> FsResult<BTreeMap<u64, ShownClone>> {
    let mut shown = BTreeMap::new();
    for (number, record) in views.clones_in(view) {
        if let Some(reached) = side.reach(record.graft)? {
            let clone = ShownClone {
                view: number,
                root: record.root,
                graft: record.graft,
                reached,
            };
            shown.insert(number, clone);
        }
    }
    Ok(shown)
}

impl Comparison<'_> {
    /// Finds the clones below the directory.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if two views show one clone; those of a read.
    pub(super) fn inner_clones(
        &self,
        (old, new): (&ViewsAt<'_>, &ViewsAt<'_>),
    ) -> FsResult<InnerClones> {
        let views = self.reach.views;
        let before = shown(&self.old, old, views.0)?;
        let mut after = shown(&self.new, new, views.1)?;
        let is_shared = before.keys().any(|number| after.contains_key(number));
        if is_shared && !self.relation.is_one_view() {
            return Err(FsError::Unsupported);
        }
        let mut inner = InnerClones::default();
        inner
            .grafts
            .extend(before.values().map(|clone| clone.graft));
        inner.grafts.extend(after.values().map(|clone| clone.graft));
        for (number, clone) in before {
            match after.remove(&number) {
                Some(now) => {
                    debug_assert_eq!(now.root, clone.root, "a clone keeps its directory");
                    inner.both.push(Reach {
                        dir: clone.root,
                        views: (number, number),
                        old: clone.reached,
                        new: now.reached,
                    });
                }
                None => inner.old.push(clone),
            }
        }
        inner.new.extend(after.into_values());
        debug_assert!(
            inner.both.len() <= inner.grafts.len(),
            "each has a directory"
        );
        Ok(inner)
    }
}
