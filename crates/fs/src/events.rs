//! What a change has done, as events, and the one place where events reach memory and the kernel.
//!
//! An operation stages rows and events together ([`crate::change`]). A commit of a transaction, a
//! rollback and the emptying of a removed tree yield the same events. [`EventSink`] alone applies
//! them.
//!
//! 1. *Announce*, just before the commit: negative entries learn of new names, the ledger of the
//!    places that rows may move to, plain files that nothing is committed for them any more.
//! 2. *Apply*, after the commit, in the order of the events.
//! 3. *Retract*, instead, if the commit failed.
//!
//! | event | inode table | negative entries | hints | others | kernel |
//! |---|---|---|---|---|---|
//! | linked | | adds the hash, announced | notes, of an only name | | name |
//! | unlinked | | removes the hash | removes | | name |
//! | made | adds, one lookup counted | a directory is whole | | | |
//! | changed (attributes, place) | updates, announced | | | plain file, ways up | attributes |
//! | directory removed, detached | | gives up | | detached: queued | listing, attributes |
//! | orphaned | | | | space may come back soon | |
//! | extents changed | | | | extent map | |
//! | chunk counted | notes | | | | |
//! | contents replaced | counted chunk | | | extent map | pages, attributes |
//! | entries replaced | | gives up | | | listing, attributes |
//! | stored beside, cut beside, removed beside | | | | plain files, announced | |
//! | contents left | | | | may be deleted soon | |
//! | fixed | | | | mark of immutable files | |
//!
//! The last column is what the kernel drops after a change that it did not ask for ([`notices`]).
//! After its own requests it knows what changed.
//!
//! Invariant: locks that guard a change are held from its first event until all are applied. So no
//! other operation sees the rows without the events, nor a part of the events.
//!
//! What is learned by reading is no event: it is right before and after. Nor is an eviction, which
//! is always allowed.

mod notices;
mod untold;

pub use notices::Notices;
pub(crate) use untold::Untold;

use crate::contents::Contents;
use crate::data::{Extent, ExtentMaps};
use crate::detach::Detached;
use crate::external::{ExternalName, Leaving, PlainFiles};
use crate::fixed::FixedFiles;
use crate::inode::{Inode, Location};
use crate::residents::Residents;
use crate::room::Room;
use crate::shared::LeftContents;
use crate::system::FileSystem;
use crate::views::Standing;
use crate::{DirName, FsResult};
use stitch_base::Ino;
use stitch_format::fs_key::NAME_HASH_MAX;

/// One thing that a change has done.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A name leads to this inode, which led to another one or to none. It has this hash.
    Linked {
        at: DirName<'a>,
        hash: u64,
        ino: Ino,
        /// The row of the inode is under the name.
        is_only_name: bool,
    },
    /// A name of this hash was deleted.
    Unlinked { at: DirName<'a>, hash: u64 },
    /// An inode was made, for a caller that looks it up with that.
    Made(Inode),
    /// The attributes of an inode, its size or the place of its row changed.
    Changed(Inode),
    /// An empty directory lost its name.
    DirRemoved(Ino),
    /// A directory lost its name, with entries in it.
    DirDetached(Ino),
    /// An inode that is known lost its last name.
    Orphaned,
    /// The file has these allocated extents; `None`: no rows of any.
    ExtentsChanged(Ino, Option<Vec<Extent>>),
    /// The chunk exists and was counted.
    ChunkCounted(Ino, u64),
    /// Contents, allocated extents or extended attributes of these inodes were put from elsewhere.
    ContentsReplaced(Vec<Ino>),
    /// Names of the directory were put from elsewhere, without a lookup of each.
    EntriesReplaced(Ino),
    /// Contents left the store for a new plain file.
    StoredBeside {
        name: ExternalName,
        len: u64,
        size: u64,
    },
    /// That many bytes of a plain file do not count as settled any more.
    CutBeside(u64),
    /// The rows of a plain file are gone.
    RemovedBeside(Leaving),
    /// Shared contents lost a user.
    ContentsLeft(Ino),
    /// A file became immutable or append-only.
    Fixed,
}

impl Event<'_> {
    /// Checks what every consumer of an event relies on.
    fn check(&self) {
        match self {
            Event::Linked { at, hash, .. } | Event::Unlinked { at, hash } => {
                debug_assert!(!at.name.is_empty(), "a name has a byte");
                debug_assert!((1..=NAME_HASH_MAX).contains(hash), "the hash of a name");
            }
            Event::Changed(inode) => {
                let is_in_memory = matches!(inode.location, Location::Memory(_));
                debug_assert!(
                    !is_in_memory || inode.head.nlink == 0,
                    "what has a name has a row"
                );
                debug_assert!(
                    !inode.is_temp || inode.head.nlink == 0,
                    "a temporary file has no name"
                );
            }
            Event::StoredBeside { name, len, size } => {
                debug_assert!(name.number > 0, "a plain file has a number");
                debug_assert!(len <= size, "a plain file is no longer than its file");
            }
            Event::Made(inode) => {
                debug_assert!(
                    inode.head.nlink > 0 || inode.is_temp,
                    "a new inode has a name, or is temporary"
                );
                debug_assert_eq!(inode.chain, 0, "a new row is whole");
            }
            Event::DirRemoved(dir) | Event::DirDetached(dir) => {
                debug_assert_ne!(*dir, Ino::ROOT, "the root keeps its place");
            }
            Event::ExtentsChanged(ino, _) | Event::ChunkCounted(ino, _) => {
                debug_assert_ne!(*ino, Ino::ROOT, "the root is a directory");
            }
            Event::EntriesReplaced(dir) => debug_assert!(dir.0 > 0, "0 is no inode"),
            Event::ContentsReplaced(inos) => {
                debug_assert!(inos.iter().all(|ino| ino.0 > 0), "0 is no inode");
            }
            Event::ContentsLeft(number) => debug_assert!(number.0 > 0, "contents have a number"),
            _ => {}
        }
    }
}

/// The parts of a file system in memory that events change.
///
/// Invariant: nothing else announces, applies or retracts events, and nothing here reads or writes
/// rows. So what the table has no column for is not changed by a change.
#[derive(Clone, Copy)]
pub(crate) struct EventSink<'fs> {
    pub(crate) residents: &'fs Residents,
    /// Plain files, and those that are lent.
    pub(crate) plain_files: PlainFiles<'fs>,
    /// Removed trees that are to be emptied.
    detached: &'fs Detached,
    /// Files that may be forgotten soon.
    room: &'fs Room,
    pub(crate) extents: &'fs ExtentMaps,
    left_contents: &'fs LeftContents,
    fixed: FixedFiles<'fs>,
    /// Knows the places of directories above clones.
    standing: &'fs Standing,
}

impl<'fs> EventSink<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            residents: &fs.residents,
            plain_files: PlainFiles::of(fs),
            detached: &fs.detached,
            room: &fs.room,
            extents: &fs.extents,
            left_contents: &fs.left_contents,
            fixed: FixedFiles::of(fs),
            standing: &fs.standing,
        }
    }

    /// Prepares memory for a commit.
    pub(crate) fn announce(&self, events: &[Event<'_>]) {
        for event in events {
            event.check();
            match event {
                Event::Linked { at, hash, .. } => self.residents.names.add((at.parent, *hash)),
                Event::Changed(inode) => self.residents.inodes.intend(inode),
                Event::RemovedBeside(leaving) => self.plain_files.externals.leave(leaving),
                _ => {}
            }
        }
    }

    /// Takes back what was announced, if anything was, after a commit that failed. A hash that was
    /// added stays: negative entries may have more hashes than there are names.
    pub(crate) fn retract(&self, events: &[Event<'_>]) {
        for event in events {
            match event {
                Event::Changed(inode) => {
                    self.residents.inodes.stay(inode.head.ino);
                    self.plain_files.fit_again(inode.head.ino);
                }
                Event::RemovedBeside(leaving) => self.plain_files.externals.stay(leaving),
                _ => {}
            }
        }
    }

    /// Applies the events of a change that was committed.
    ///
    /// # Errors
    /// [`crate::FsError::Stale`] if the directory of a new directory is not known any more: the
    /// change is committed all the same.
    pub(crate) fn apply(&self, events: Vec<Event<'_>>) -> FsResult<()> {
        for event in events {
            match event {
                Event::Made(inode) => self.residents.made(inode)?,
                Event::Changed(inode) => self.apply_changed(inode),
                Event::DirDetached(ino) => {
                    self.residents.names.give_up(ino);
                    self.detached.push(ino);
                }
                Event::Orphaned => self.room.await_forget(),
                Event::ExtentsChanged(ino, extents) => self.extents.set(ino, extents),
                Event::ContentsReplaced(inos) => {
                    for ino in inos {
                        self.residents.inodes.note_counted(ino, None);
                        self.extents.set(ino, None);
                    }
                }
                Event::StoredBeside { name, len, size } => {
                    self.plain_files.externals.enter(name, len, size)
                }
                Event::CutBeside(bytes) => self.plain_files.externals.uncount(bytes),
                Event::RemovedBeside(leaving) => self.plain_files.externals.retire(&leaving),
                Event::ContentsLeft(number) => self.left_contents.add(number),
                Event::Fixed => self.fixed.mark(),
                Event::Linked { .. }
                | Event::Unlinked { .. }
                | Event::DirRemoved(_)
                | Event::EntriesReplaced(_)
                | Event::ChunkCounted(..) => self.residents.apply(&event),
            }
        }
        Ok(())
    }

    /// Applies the events of a change that the kernel did not ask for. Returns what it has to drop,
    /// which is sent when no lock is held any more.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn apply_unasked(&self, events: Vec<Event<'_>>) -> FsResult<Notices> {
        let notices = self.notices_of(&events);
        debug_assert!(
            notices.names.len() <= events.len(),
            "an event is about one name at most"
        );
        self.apply(events)?;
        Ok(notices)
    }

    /// Returns what the kernel has to drop after events that it did not ask for. They are not
    /// applied yet.
    pub(crate) fn notices_of(&self, events: &[Event<'_>]) -> Notices {
        Notices::of(events, |ino| self.residents.inodes.is_known(ino))
    }

    /// Notes the place of a directory above a clone. A row is put whole where it moves to.
    fn note_moved(&self, inode: &Inode) {
        let Location::Entry { parent, name } = &inode.location else {
            return;
        };
        if !inode.is_dir() || inode.chain > 0 {
            return;
        }
        let (ways, view) = (&self.standing.views.ways, self.standing.number);
        ways.note_moved(view, inode.head.ino, || {
            let at = DirName::new(*parent, name);
            self.residents.way_up(inode.head.ino, at)
        });
    }

    fn apply_changed(&self, inode: Inode) {
        let (ino, size) = (inode.head.ino, inode.head.size);
        debug_assert!(ino.0 > 0, "0 is no inode");
        let is_external = Contents::are_external(&inode.head);
        self.note_moved(&inode);
        self.residents.inodes.update(inode);
        if is_external && let Some(plain) = self.plain_files.externals.note_size(ino, size) {
            self.plain_files.fit(&plain);
        }
    }
}

impl FileSystem {
    /// Passes to `send` what the kernel has to drop after changes whose notices no call has
    /// returned: batches of a rollback that failed later or was finished at open, entries of
    /// removed trees. One thread sends at a time: when this returns, all that was kept before the
    /// call is sent. `send` must not call this.
    pub fn send_notices<T>(&self, send: impl FnOnce(Notices) -> T) -> T {
        self.untold.send(send)
    }
}

#[cfg(test)]
mod tests;
