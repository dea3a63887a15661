//! Which inodes the transaction decides on, and which mainline.
//!
//! A resolution is about paths; a side is chosen for whole inodes: their names, attributes,
//! contents and extended attributes. Others follow from those that conflict:
//!
//! ```text
//! theirs   all that the transaction wrote about the inode is left out
//!          + what else it put at its names, or had there before
//!          + what it put into a directory that mainline has not
//!          + the directory that the inode comes back into, if the transaction removed it
//! ours     the inode is as in the transaction, wherever mainline has it, or is gone
//!          + what mainline put at its name is removed
//!          + the directories above and below it, if mainline removed them
//! ```

use super::super::own::{BranchTrees, Own};
use super::super::places::{Carrier, Places, about, carried};
use super::super::resolve::ConflictingRow;
use crate::locator::{Locator, Tree};
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead};
use stitch_format::fs_resolution::Side;

/// A name that the transaction wrote, with what it led to at the beginning and leads to now.
pub(super) struct OwnName<'o> {
    pub(super) key: &'o [u8],
    base: Option<Ino>,
    ours: Option<Ino>,
    /// Inodes that the row carries.
    pub(super) base_head: Option<InodeHead>,
    pub(super) ours_head: Option<InodeHead>,
}

impl OwnName<'_> {
    pub(super) fn inos(&self) -> impl Iterator<Item = Ino> {
        [self.base, self.ours].into_iter().flatten()
    }

    fn has(&self, inos: &BTreeSet<Ino>) -> bool {
        self.inos().any(|ino| inos.contains(&ino))
    }
}

/// What a rebase reads, and what it has found out.
pub(super) struct RebaseSides<'a> {
    pub(super) trees: &'a BranchTrees,
    pub(super) keys: Locator,
    pub(super) names: Vec<OwnName<'a>>,
    pub(super) ours: Places<'a>,
    pub(super) theirs: Places<'a>,
}

impl<'a> RebaseSides<'a> {
    pub(super) fn new(trees: &'a BranchTrees, own: &'a Own, keys: Locator) -> FsResult<Self> {
        let mut names = Vec::new();
        for row in &own.meta {
            let (base, ours) = (row.base.as_deref(), row.ours.as_deref());
            names.push(OwnName {
                key: &row.key,
                base: about(base)?,
                ours: about(ours)?,
                base_head: carried(base)?,
                ours_head: carried(ours)?,
            });
        }
        debug_assert_eq!(names.len(), own.meta.len(), "one for each row");
        Ok(Self {
            trees,
            keys,
            names,
            ours: Places::new(trees, trees.own_tree(Tree::Meta), keys),
            theirs: Places::new(trees, trees.theirs_tree(Tree::Meta), keys),
        })
    }

    /// The inodes that the transaction made.
    pub(super) fn made(&self) -> BTreeSet<Ino> {
        let heads = self.names.iter().filter_map(|name| name.ours_head);
        let mut made: BTreeSet<Ino> = heads.map(|head| head.ino).collect();
        for name in &self.names {
            if let Some(base) = name.base {
                made.remove(&base);
            }
        }
        debug_assert!(!made.contains(&Ino::ROOT), "the root was there");
        made
    }

    /// The row that carries an inode in the transaction; `None` if it has no name there.
    pub(super) fn place_in_ours(&self, ino: Ino) -> FsResult<Option<Carrier>> {
        let carries = |head: &Option<InodeHead>| head.is_some_and(|head| head.ino == ino);
        let mut names = self.names.iter();
        if let Some(name) = names.find(|name| carries(&name.ours_head)) {
            let head = name.ours_head.filter(|head| head.ino == ino);
            let key = name.key.to_vec();
            return Ok(head.map(|head| Carrier { key, head }));
        }
        if self.names.iter().any(|name| carries(&name.base_head)) {
            return Ok(None);
        }
        Ok(self.ours.find(ino)?.cloned())
    }

    /// Inodes that the transaction has moved, and that mainline has below a directory.
    fn moved_out_of(&self, dir: Ino) -> FsResult<Vec<Ino>> {
        let above = BTreeSet::from([dir]);
        let mut moved = Vec::new();
        for name in &self.names {
            let is_old = |head: InodeHead| name.base_head.is_some_and(|old| old.ino == head.ino);
            if let Some(head) = name.ours_head.filter(|head| !is_old(*head))
                && head.ino != dir
                && self.theirs.is_below(head.ino, &above)?
            {
                moved.push(head.ino);
            }
        }
        debug_assert!(!moved.contains(&dir), "others than the directory");
        Ok(moved)
    }

    /// Reports whether the transaction took the name of a directory.
    fn is_removed(&self, dir: Ino) -> bool {
        let is_it = |head: &Option<InodeHead>| head.is_some_and(|head| head.ino == dir);
        let mut names = self.names.iter();
        let was_there = names.any(|name| is_it(&name.base_head));
        was_there && !self.names.iter().any(|name| is_it(&name.ours_head))
    }
}

/// The inodes on which a side was chosen.
#[derive(Debug, Default)]
pub(super) struct Winners {
    pub(super) theirs: BTreeSet<Ino>,
    pub(super) ours: BTreeSet<Ino>,
    /// Of [`Self::ours`], those that have no name in the transaction.
    pub(super) gone: BTreeSet<Ino>,
    /// Keys of names at which mainline's inode is removed, with that inode.
    pub(super) cleared: BTreeMap<Vec<u8>, Ino>,
    /// Directories of [`Self::theirs`] that were chosen themselves: what the transaction removed in
    /// them comes back.
    whole: BTreeSet<Ino>,
}

const SEVERAL: FsError = FsError::Unresolvable(
    "it has several names, and names of it have changed; take --theirs, and make the change again",
);

impl Winners {
    /// Takes the side of a row in conflict.
    pub(super) fn choose(
        &mut self,
        sides: &RebaseSides<'_>,
        row: &ConflictingRow<'_>,
        side: Side,
    ) -> FsResult<()> {
        let mut inos = BTreeSet::new();
        debug_assert!(!row.key.is_empty(), "no row has an empty key");
        match sides.names.iter().find(|name| name.key == row.key) {
            Some(name) if row.tree == Tree::Meta => inos.extend(name.inos()),
            _ => {
                inos.insert(row.conflict.ino);
            }
        }
        debug_assert!(!inos.is_empty(), "a row is about an inode");
        match side {
            Side::Theirs => {
                self.theirs.extend(&inos);
                self.whole.extend(inos);
            }
            Side::Ours => {
                let theirs = match row.tree {
                    Tree::Meta => about(sides.trees.theirs(row.tree, row.key)?.as_deref())?,
                    _ => None,
                };
                if let Some(ino) = theirs.filter(|ino| !inos.contains(ino)) {
                    self.cleared.insert(row.key.to_vec(), ino);
                }
                self.ours.extend(inos);
            }
        }
        debug_assert!(
            self.whole.is_subset(&self.theirs),
            "what comes back is mainline's"
        );
        Ok(())
    }

    /// Adds what follows.
    ///
    /// # Errors
    /// [`FsError::Unresolvable`].
    pub(super) fn complete(&mut self, sides: &RebaseSides<'_>) -> FsResult<()> {
        self.complete_theirs(sides)?;
        self.complete_ours(sides)?;
        self.cleared.retain(|_, ino| !self.ours.contains(ino));
        debug_assert!(
            self.gone.is_subset(&self.ours),
            "what is gone is gone in the transaction"
        );
        debug_assert!(
            self.whole.is_subset(&self.theirs),
            "what comes back is mainline's"
        );
        match self.ours.is_disjoint(&self.theirs) {
            true => Ok(()),
            false => Err(FsError::Unresolvable(
                "a file or directory is in two conflicts; take the same side for both",
            )),
        }
    }

    fn complete_theirs(&mut self, sides: &RebaseSides<'_>) -> FsResult<()> {
        let mut before = (0, 0);
        while (self.theirs.len(), self.whole.len()) != before {
            before = (self.theirs.len(), self.whole.len());
            for name in &sides.names {
                let parent = Locator::name_of(name.key).and_then(|_| Locator::ino_of(name.key));
                let is_in = |parent: Ino| {
                    FsResult::Ok(self.theirs.contains(&parent) && !sides.theirs.has(parent)?)
                };
                let is_in = parent.map_or(Ok(false), is_in)?;
                if is_in || name.has(&self.theirs) {
                    self.theirs.extend(name.inos());
                }
                let back = name
                    .base_head
                    .filter(|head| self.theirs.contains(&head.ino));
                if let (Some(_), Some(parent)) = (back, parent)
                    && sides.is_removed(parent)
                {
                    self.theirs.insert(parent);
                }
            }
        }
        debug_assert!(
            self.whole.is_subset(&self.theirs),
            "what comes back is mainline's"
        );
        Ok(())
    }

    fn complete_ours(&mut self, sides: &RebaseSides<'_>) -> FsResult<()> {
        let made = sides.made();
        let mut waiting: Vec<Ino> = self.ours.iter().copied().collect();
        let mut passed = BTreeSet::new();
        while let Some(ino) = waiting.pop() {
            self.ours.insert(ino);
            if !passed.insert(ino) {
                continue;
            }
            let Some(place) = sides.place_in_ours(ino)? else {
                self.gone.insert(ino);
                waiting.extend(sides.moved_out_of(ino)?);
                continue;
            };
            check_links(sides, &place)?;
            let is_new = |ino: &Ino| !self.ours.contains(ino) && !made.contains(ino);
            if let Some(parent) = place.parent().filter(is_new)
                && !sides.theirs.has(parent)?
            {
                waiting.push(parent);
            }
            let is_lost = !made.contains(&ino) && !sides.theirs.has(ino)?;
            if is_lost && place.head.kind == FileKind::Directory {
                let children = lost_children(sides, ino)?;
                waiting.extend(children.into_iter().filter(|child| is_new(child)));
            }
        }
        debug_assert!(self.gone.is_disjoint(&made), "what it made has a name");
        debug_assert!(self.ours.is_subset(&passed), "each was looked at");
        debug_assert!(
            self.gone.is_subset(&self.ours),
            "what is gone is gone in the transaction"
        );
        Ok(())
    }
}

/// Inodes in a directory of the transaction which mainline does not have any more.
fn lost_children(sides: &RebaseSides<'_>, dir: Ino) -> FsResult<Vec<Ino>> {
    let mut lost = Vec::new();
    let range = sides.keys.dentries(dir);
    let own = sides.trees.own_tree(Tree::Meta);
    sides.trees.scan(own, range.keys(), |_, row| {
        match carried(Some(row))? {
            Some(head) if !sides.theirs.has(head.ino)? => lost.push(head.ino),
            Some(_) => {}
            None => return Err(SEVERAL),
        }
        Ok(())
    })?;
    Ok(lost)
}

/// Refuses an inode with several names, if names of it have changed.
fn check_links(sides: &RebaseSides<'_>, place: &Carrier) -> FsResult<()> {
    let ino = place.head.ino;
    let theirs = sides.theirs.find(ino)?;
    debug_assert!(
        theirs.is_none_or(|theirs| theirs.head.ino == ino),
        "one inode on both sides"
    );
    let is_linked = place.is_linked() || theirs.is_some_and(Carrier::is_linked);
    let is_name = |name: &&OwnName<'_>| Locator::name_of(name.key).is_some();
    let has_changed = sides.names.iter().filter(is_name);
    let has_changed = has_changed.flat_map(OwnName::inos).any(|own| own == ino);
    let is_same = theirs.is_some_and(|theirs| {
        theirs.is_linked() && place.is_linked() && theirs.head.nlink == place.head.nlink
    });
    match is_linked && (has_changed || !is_same) {
        true => Err(SEVERAL),
        false => Ok(()),
    }
}
