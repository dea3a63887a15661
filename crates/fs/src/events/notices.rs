//! What the kernel's caches have to drop after a change that it did not ask for: a commit of a
//! transaction, a rollback, the emptying of a removed tree.
//!
//! | event | notice |
//! |---|---|
//! | linked, unlinked | the name, if the directory is known: the kernel may have it, or its lack |
//! | directory removed | the directory: listing, attributes, and the names that were in it |
//! | entries replaced, directory detached | the directory: listing, attributes |
//! | contents replaced | each inode: pages, attributes |
//! | changed | attributes alone, unless the inode has a notice above |
//! | all others | none: what they change comes with one of these, or the kernel has nothing of it |
//!
//! The kernel knows an inode only if it looked the inode up. So what is not in the inode table
//! before the events are applied gets no notice.
//!
//! When the kernel drops the name of a removed directory, it drops all that is unused below. So the
//! names in removed directories are apart from the others: they need a notice only where the kernel
//! still has the directory, for a program that is in it or has a file open below it.
//!
//! ```text
//! removed: a/, a/b/, a/b/f        name / a        the kernel drops a, b and f
//!                                 removed a       the kernel has it?  no: nothing more
//!                                 removed a/b     the kernel has it?  yes: the name f in it
//! ```
//!
//! Invariant: an inode has one notice at most. No name in `names` is in a removed directory.

use super::Event;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;

/// What the kernel, or another cache above a file system, has to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Names that lead to another inode than before, or to none: directory and name. The directory
    /// is none of `removed_dirs`.
    pub names: BTreeSet<(Ino, Box<[u8]>)>,
    /// Removed directories, with the names that were in them.
    pub removed_dirs: BTreeMap<Ino, BTreeSet<Box<[u8]>>>,
    /// Inodes with other contents, entries, attributes or extended attributes.
    pub inodes: BTreeSet<Ino>,
    /// Inodes with other attributes alone.
    pub attrs: BTreeSet<Ino>,
}

impl Notices {
    /// Returns the notices of some events, which are not applied yet. `is_known` reports whether an
    /// inode is in the inode table.
    pub(crate) fn of(events: &[Event<'_>], is_known: impl Fn(Ino) -> bool) -> Self {
        let mut notices = Self::default();
        for event in events {
            if let Event::DirRemoved(dir) = event
                && is_known(*dir)
            {
                notices.removed_dirs.insert(*dir, BTreeSet::new());
            }
        }
        for event in events {
            notices.add(event, &is_known);
        }
        notices.keep_one_each();
        debug_assert!(
            notices.names.len() <= events.len(),
            "an event is about one name at most"
        );
        notices
    }

    fn add(&mut self, event: &Event<'_>, is_known: &impl Fn(Ino) -> bool) {
        match event {
            Event::Linked { at, .. } | Event::Unlinked { at, .. } => {
                if is_known(at.parent) {
                    self.add_name(at.parent, Box::from(at.name));
                }
            }
            Event::EntriesReplaced(dir) | Event::DirDetached(dir) => {
                self.inodes.extend(Some(*dir).filter(|dir| is_known(*dir)));
            }
            Event::ContentsReplaced(inos) => {
                let known = inos.iter().copied().filter(|ino| is_known(*ino));
                self.inodes.extend(known);
            }
            Event::Changed(inode) => {
                let ino = inode.head.ino;
                self.attrs.extend(Some(ino).filter(|ino| is_known(*ino)));
            }
            Event::Made(_)
            | Event::DirRemoved(_)
            | Event::Orphaned
            | Event::ExtentsChanged(..)
            | Event::ChunkCounted(..)
            | Event::StoredBeside { .. }
            | Event::CutBeside(_)
            | Event::RemovedBeside(_)
            | Event::ContentsLeft(_)
            | Event::Fixed => {}
        }
    }

    fn add_name(&mut self, dir: Ino, name: Box<[u8]>) {
        debug_assert!(!name.is_empty(), "a directory has no entry without a name");
        match self.removed_dirs.get_mut(&dir) {
            Some(names) => names.insert(name),
            None => self.names.insert((dir, name)),
        };
    }

    /// Drops the notices of inodes that another notice has too.
    fn keep_one_each(&mut self) {
        let (removed, inodes) = (&self.removed_dirs, &mut self.inodes);
        inodes.retain(|ino| !removed.contains_key(ino));
        let is_told = |ino: &Ino| inodes.contains(ino) || removed.contains_key(ino);
        self.attrs.retain(|ino| !is_told(ino));
        debug_assert!(self.holds());
    }

    /// Reports whether an inode has one notice at most. Looks at the smaller sets alone.
    fn holds(&self) -> bool {
        let is_once = |ino: &Ino| !self.attrs.contains(ino) && !self.inodes.contains(ino);
        let is_elsewhere = |dir: &Ino| !self.removed_dirs.contains_key(dir);
        self.attrs.is_disjoint(&self.inodes)
            && self.removed_dirs.keys().all(is_once)
            && self.names.iter().all(|(dir, _)| is_elsewhere(dir))
    }

    /// Adds the notices of a later change.
    pub fn extend(&mut self, later: Self) {
        debug_assert!(self.holds());
        debug_assert!(later.holds());
        for (dir, names) in later.removed_dirs {
            let older = (dir, Box::default())..(dir.next(), Box::default());
            let older: Vec<_> = self.names.extract_if(older, |_| true).collect();
            let all = self.removed_dirs.entry(dir).or_default();
            all.extend(names);
            all.extend(older.into_iter().map(|(_, name)| name));
        }
        for (dir, name) in later.names {
            self.add_name(dir, name);
        }
        self.inodes.extend(later.inodes);
        self.attrs.extend(later.attrs);
        self.keep_one_each();
    }

    /// Reports whether nothing has to be dropped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let has_names = !self.names.is_empty() || !self.removed_dirs.is_empty();
        !has_names && self.inodes.is_empty() && self.attrs.is_empty()
    }
}

#[cfg(test)]
mod tests;
