//! From a number to its inode.

use super::{BackRowPass, RINGS_MAX};
use crate::inode::{Hold, Holds, Location};
use crate::namespace::Namespace;
use crate::numbers::Numbers;
use crate::residents::Residents;
use crate::schema::{FIRST_INO, Store};
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::{Attr, DirName, FsError, FsResult};
use std::collections::BTreeSet;
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::InodeHead;

/// What one try to learn an inode by its number comes to.
enum ResolveStep {
    /// It is known, and a lookup of it is counted.
    Learned(Attr),
    /// Its name is here, in a directory that is to be learned first.
    Above(Place),
    /// Its name has changed meanwhile.
    Again,
}

/// Directories that are known as long as this is: each has one lookup.
struct Ancestors<'fs> {
    holds: Holds<'fs>,
    inos: Vec<Ino>,
}

impl Drop for Ancestors<'_> {
    fn drop(&mut self) {
        for &ino in &self.inos {
            self.holds.forget(ino);
        }
    }
}

/// Learns inodes by their numbers.
///
/// Invariant: the directories above an inode are known before it is, and stay known until then.
#[derive(Clone, Copy)]
pub(crate) struct NumberLookup<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    /// Where a serializable transaction notes what it reads.
    reads: Option<&'fs ReadSet>,
    names: Namespace<'fs>,
    holds: Holds<'fs>,
    numbers: &'fs Numbers,
    pass: BackRowPass<'fs>,
    /// Back rows that are missing may be put.
    may_put: bool,
}

impl<'fs> NumberLookup<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            reads: fs.reads.as_deref(),
            names: Namespace::of(fs),
            holds: Holds::of(fs),
            numbers: &fs.numbers,
            pass: BackRowPass::of(fs),
            may_put: !fs.is_read_only() && fs.branch.is_none(),
        }
    }

    /// See [`FileSystem::look_up_number`].
    pub(crate) fn look_up(&self, ino: Ino) -> FsResult<Attr> {
        match self.resolve(ino) {
            Err(FsError::Stale(_)) if self.may_lack_back_row(ino) => {
                self.pass.complete().inspect_err(|error| {
                    tracing::warn!(%error, "a file handle is stale: back rows are not complete");
                })?;
                self.resolve(ino)
            }
            resolved => resolved,
        }
    }

    /// Reports whether the pass may find an inode of this number.
    fn may_lack_back_row(&self, ino: Ino) -> bool {
        let is_used = (FIRST_INO..self.numbers.next()).contains(&ino.0);
        self.may_put && is_used && !self.pass.is_complete()
    }

    /// Learns an inode, after the directories above it that are not known.
    fn resolve(&self, ino: Ino) -> FsResult<Attr> {
        // Each directory is that of the name before it.
        let start = || (vec![(ino, None)], BTreeSet::from([ino]));
        let (mut path, mut on_path) = start();
        let mut ancestors = Ancestors {
            holds: self.holds,
            inos: Vec::new(),
        };
        let mut rings = 0;
        loop {
            debug_assert!(rings <= RINGS_MAX, "a damaged ring has an end");
            debug_assert_eq!(
                path.len(),
                on_path.len(),
                "no directory is on the path twice"
            );
            let last = path.last_mut().expect("it ends with the inode itself");
            let next = last.0;
            match self.learn_number(next, last.1.take())? {
                ResolveStep::Again => {}
                ResolveStep::Above(place) if on_path.insert(place.parent) => {
                    last.1 = Some(place);
                    path.push((place.parent, None));
                }
                // Directories were moved meanwhile, or their rows are damaged.
                ResolveStep::Above(_) if rings < RINGS_MAX => {
                    rings += 1;
                    (path, on_path) = start();
                }
                ResolveStep::Above(Place { parent, .. }) => {
                    return Err(FsError::ring_at(parent));
                }
                ResolveStep::Learned(attr) if next == ino => {
                    debug_assert_eq!(attr.ino, ino, "the inode that was asked for");
                    return Ok(attr);
                }
                ResolveStep::Learned(attr) => {
                    debug_assert_eq!(attr.ino, next, "the directory that was asked for");
                    ancestors.inos.push(next);
                    on_path.remove(&next);
                    path.pop();
                }
            }
        }
    }

    /// Counts a lookup of an inode that is known, or whose directory is. `place` is where its back
    /// row led before, if it was read.
    fn learn_number(&self, ino: Ino, place: Option<Place>) -> FsResult<ResolveStep> {
        let place = match place {
            Some(place) => place,
            None => match self.learn_or_locate(ino)? {
                ResolveStep::Above(place) => place,
                learned => return Ok(learned),
            },
        };
        // Keeps the directory known until the inode is.
        if self.residents.inodes.hold(place.parent, Hold::Pin).is_err() {
            return Ok(ResolveStep::Above(place));
        }
        let step = self.learn_at(ino, place);
        self.holds.let_go(place.parent, Hold::Pin);
        step
    }

    /// Counts a lookup of an inode that is known, or has its row under its number; otherwise
    /// returns where its name is.
    fn learn_or_locate(&self, ino: Ino) -> FsResult<ResolveStep> {
        let learned = |head: Option<InodeHead>| {
            head.map_or(ResolveStep::Again, |head| {
                ResolveStep::Learned(Attr::of(&head))
            })
        };
        let _inode = self.residents.locks.inode_read(ino);
        if let Some(known) = self.residents.inodes.find(ino) {
            debug_assert_eq!(known.head.ino, ino, "the inode of the number");
            return match known.head.nlink {
                0 => Err(FsError::Stale(ino)),
                _ => Ok(learned(self.residents.inodes.look_up(ino))),
            };
        }
        let moment = self.residents.inodes.moment();
        if let Some(reads) = self.reads {
            reads.note_own_inode(ino)?;
        }
        match self.store.own_row(ino)? {
            Some((head, _)) if head.nlink == 0 => Err(FsError::Stale(ino)),
            Some((head, _)) => {
                let head = self.residents.inodes.learn(&head, Location::Own, moment)?;
                Ok(learned(head))
            }
            None => {
                let place = self.pass.row(ino)?;
                place.map(ResolveStep::Above).ok_or(FsError::Stale(ino))
            }
        }
    }

    /// Reports whether an inode without a row under its number has a name; `None` if that is known
    /// only once back rows are complete.
    pub(crate) fn has_place(&self, ino: Ino) -> FsResult<Option<bool>> {
        if !self.pass.is_complete() {
            return Ok(None);
        }
        match self.pass.row(ino)? {
            Some(place) => Ok(Some(self.names.find_at(place, ino)?.is_some())),
            None => Ok(self.pass.is_complete().then_some(false)),
        }
    }

    /// Counts a lookup of an inode in a directory that is known and pinned.
    fn learn_at(&self, ino: Ino, place: Place) -> FsResult<ResolveStep> {
        let attr = {
            let _names = self.residents.locks.dir_read(place.parent);
            let moment = self.residents.inodes.moment();
            match self.names.find_at(place, ino)? {
                Some((name, dentry)) => {
                    self.names
                        .learn(DirName::new(place.parent, &name), &dentry, moment)?
                }
                // As long as the back row is the same, it was not moved.
                None if self.pass.row(ino)? == Some(place) => return Err(FsError::Stale(ino)),
                None => return Ok(ResolveStep::Again),
            }
        };
        debug_assert_eq!(attr.ino, ino, "the name of the inode");
        if !self.names.is_below(place.parent, Ino::ROOT) {
            self.holds.forget(ino);
            return Err(FsError::Stale(ino));
        }
        Ok(ResolveStep::Learned(attr))
    }
}
