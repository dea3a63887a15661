//! What the kernel's caches have to drop after a change that it did not ask for: a commit of a
//! transaction, a rollback, the emptying of a removed tree.
//!
//! | event | notice |
//! |---|---|
//! | linked, unlinked | the name, if the directory is known: the kernel may have it, or its lack |
//! | entries replaced, directory removed or detached | the directory: listing, attributes |
//! | contents replaced | each inode: pages, attributes |
//! | changed | attributes alone, unless the inode has a notice above |
//! | all others | none: what they change comes with one of these, or the kernel has nothing of it |
//!
//! The kernel knows an inode only if it looked the inode up. So what is not in the inode table
//! before the events are applied gets no notice.
//!
//! Invariant: an inode has one notice at most.

use super::Event;
use std::collections::BTreeSet;
use stitch_base::Ino;

/// What the kernel, or another cache above a file system, has to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Names that lead to another inode than before, or to none: directory and name.
    pub names: BTreeSet<(Ino, Box<[u8]>)>,
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
            notices.add(event, &is_known);
        }
        let inodes = &notices.inodes;
        notices.attrs.retain(|ino| !inodes.contains(ino));
        debug_assert!(
            notices.names.len() <= events.len(),
            "an event is about one name at most"
        );
        notices.check();
        notices
    }

    fn add(&mut self, event: &Event<'_>, is_known: &impl Fn(Ino) -> bool) {
        match event {
            Event::Linked { at, .. } | Event::Unlinked { at, .. } => {
                if is_known(at.parent) {
                    self.names.insert((at.parent, Box::from(at.name)));
                }
            }
            Event::EntriesReplaced(dir) | Event::DirRemoved(dir) | Event::DirDetached(dir) => {
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

    /// Checks that an inode has one notice at most.
    fn check(&self) {
        debug_assert!(
            self.attrs.is_disjoint(&self.inodes),
            "a notice of an inode has its attributes too"
        );
    }

    /// Adds the notices of a later change.
    pub fn extend(&mut self, later: Self) {
        self.names.extend(later.names);
        for ino in later.inodes {
            self.attrs.remove(&ino);
            self.inodes.insert(ino);
        }
        let inodes = &self.inodes;
        let attrs = later.attrs.into_iter();
        self.attrs.extend(attrs.filter(|ino| !inodes.contains(ino)));
        self.check();
    }

    /// Reports whether nothing has to be dropped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.inodes.is_empty() && self.attrs.is_empty()
    }
}

#[cfg(test)]
mod tests;
