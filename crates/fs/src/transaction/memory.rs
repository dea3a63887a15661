//! What mainline's memory learns of a commit.
//!
//! The rows that changed become the events that operations of mainline would have had: names linked
//! and unlinked, inodes changed or moved. Only inodes that are known matter; all others are read
//! when they are looked up.
//!
//! A directory that is known and moved needs its new parent to be known. Every directory above it
//! is among the rows: a move touches them (see [`Change::touch_above`]). So those that are not
//! known are learned before the commit, and held by what is below them afterwards.
//!
//! [`Change::touch_above`]: crate::change::Change::touch_above

use super::own::Own;
use super::resolve::{Plan, Settled};
use super::target::CommitTarget;
use crate::events::Event;
use crate::inode::{CHAIN_UNKNOWN, Hold, Inode, Location};
use crate::locator::{Locator, SysRow};
use crate::residents::Residents;
use crate::schema::Store;
use crate::{DirName, FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_sys::{FsHeader, decode_number};
use stitch_kv::Batch;

/// An inode whose row changed, as it is afterwards.
struct Placed<'p> {
    head: InodeHead,
    /// Its only name; without one, its row is under its number.
    at: Option<DirName<'p>>,
}

impl Placed<'_> {
    fn location(&self) -> Location {
        let own = || Location::Own;
        self.at
            .map_or_else(own, |at| Location::entry(at.parent, at.name))
    }
}

/// What a commit changes in memory.
pub(super) struct Lesson<'p> {
    pub(super) events: Vec<Event<'p>>,
    /// Where the inodes whose rows changed are afterwards.
    places: BTreeMap<Ino, Placed<'p>>,
    /// Inodes whose rows of names or attributes changed or went.
    rows: BTreeSet<Ino>,
    /// Files with other allocated extents.
    allocated: BTreeSet<Ino>,
    /// Inodes that have lost their last name.
    pub(super) orphans: Vec<InodeHead>,
    pub(super) inodes_added: i64,
    pub(super) unwritten_added: i64,
    header: Option<FsHeader>,
    /// Directories that were learned for this commit.
    learned: Vec<Ino>,
}

fn decode(row: Option<&bytes::Bytes>) -> FsResult<Option<MetaRow<'_>>> {
    Ok(row.map(|row| MetaRow::decode(row)).transpose()?)
}

impl<'p> Lesson<'p> {
    pub(super) fn of(target: &CommitTarget<'_>, own: &Own, plan: &'p Plan<'_>) -> FsResult<Self> {
        let mut lesson = Self {
            events: Vec::new(),
            places: BTreeMap::new(),
            rows: BTreeSet::new(),
            allocated: BTreeSet::new(),
            orphans: Vec::new(),
            inodes_added: 0,
            unwritten_added: 0,
            header: None,
            learned: Vec::new(),
        };
        // Sets are made of all their members at once: that takes less time than to add each.
        let mut rows = Vec::with_capacity(plan.meta.len());
        for settled in &plan.meta {
            lesson.take_meta(target.residents, settled, &mut rows)?;
        }
        debug_assert!(
            rows.len() <= 2 * plan.meta.len(),
            "a row is about one inode on each side"
        );
        lesson.rows = rows.into_iter().collect();
        for settled in &plan.sys {
            lesson.take_sys(settled)?;
        }
        debug_assert!(
            lesson.places.len() <= plan.meta.len(),
            "a row carries one inode"
        );
        debug_assert!(
            lesson.places.keys().all(|ino| lesson.rows.contains(ino)),
            "of rows that changed"
        );
        debug_assert!(lesson.orphans.len() <= plan.sys.len(), "each has a row");
        lesson.take_inodes(target.residents);
        lesson.take_contents(own);
        Ok(lesson)
    }

    /// The inodes whose rows changed, which are all with other contents, and those with other
    /// extended attributes or extents.
    fn take_contents(&mut self, own: &Own) {
        let mut inodes: BTreeSet<Ino> = own.xattr.iter().filter_map(Locator::ino_of).collect();
        inodes.extend(&self.rows);
        inodes.extend(&self.allocated);
        let inodes = inodes.into_iter().collect();
        self.events.push(Event::ContentsReplaced(inodes));
    }

    /// Takes a row of names or attributes, and adds the inodes that it is about to `rows`.
    fn take_meta(
        &mut self,
        residents: &Residents,
        settled: &'p Settled<'_>,
        rows: &mut Vec<Ino>,
    ) -> FsResult<()> {
        let key = &settled.row.key[..];
        let (old, new) = (
            decode(settled.theirs.as_ref())?,
            decode(settled.last.as_ref())?,
        );
        rows.extend(old.iter().chain(&new).map(MetaRow::ino));
        let dir = Locator::ino_of(key).ok_or_else(|| {
            FsError::Corrupt(format!("no key of an inode: {}", key.escape_ascii()))
        })?;
        let name = Locator::name_of(key);
        if let Some(MetaRow::Inode(head, _)) = new {
            let at = name.map(|(_, name)| DirName::new(dir, name));
            self.places.insert(head.ino, Placed { head, at });
        }
        let Some((hash, name)) = name else {
            return Ok(());
        };
        let at = DirName::new(dir, name);
        match (old, new) {
            (Some(_), None) => self.events.push(Event::Unlinked { at, hash }),
            (Some(old), Some(new)) if old.ino() == new.ino() => {}
            (_, Some(new)) => {
                if old.is_none() {
                    miss(residents, key);
                }
                self.events.push(Event::Linked {
                    at,
                    hash,
                    ino: new.ino(),
                    is_only_name: matches!(new, MetaRow::Inode(..)),
                });
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn take_sys(&mut self, settled: &Settled<'_>) -> FsResult<()> {
        let (old, new) = (settled.theirs.as_deref(), settled.last.as_deref());
        let number = |row: Option<&[u8]>| row.map_or(Ok(0), decode_number);
        let added = || FsResult::Ok(number(new)?.wrapping_sub(number(old)?).cast_signed());
        match Locator::sys_row(&settled.row.key) {
            Some(SysRow::InodeCount) => {
                debug_assert_eq!(self.inodes_added, 0, "one row counts them");
                self.inodes_added = added()?;
            }
            Some(SysRow::Unwritten) => {
                debug_assert_eq!(self.unwritten_added, 0, "one row counts them");
                self.unwritten_added = added()?;
            }
            Some(SysRow::Header) => {
                debug_assert!(self.header.is_none(), "there is one header");
                self.header = new.map(FsHeader::decode).transpose()?;
            }
            Some(SysRow::Fixed) => self.events.push(Event::Fixed),
            Some(SysRow::Orphan(ino)) if new.is_some() && old.is_none() => {
                let place = self.places.get(&ino);
                self.orphans.extend(place.map(|placed| placed.head));
            }
            Some(SysRow::Extent(ino, _)) => {
                self.allocated.insert(ino);
            }
            Some(SysRow::ContentsUser(number, _)) if new.is_none() => {
                self.events.push(Event::ContentsLeft(number));
            }
            _ => {}
        }
        Ok(())
    }

    /// The inodes that are known and are other ones afterwards.
    fn take_inodes(&mut self, residents: &Residents) {
        for (ino, placed) in &self.places {
            let head = &placed.head;
            let Some(known) = residents.inodes.find(*ino) else {
                continue;
            };
            debug_assert_eq!(head.ino, *ino, "the place of the inode");
            debug_assert_eq!(known.head.ino, *ino, "the inode of the number");
            if head.nlink == 0 && known.head.nlink > 0 {
                self.events.push(match head.kind {
                    FileKind::Directory => Event::DirRemoved(*ino),
                    _ => Event::Orphaned,
                });
            }
            self.events.push(Event::Changed(Inode {
                head: *head,
                location: placed.location(),
                chain: CHAIN_UNKNOWN,
                is_temp: false,
            }));
        }
    }

    /// Makes the new parents of known directories known, and lets the path cache forget what moves.
    /// Mainline is frozen.
    pub(super) fn prepare(&mut self, residents: &Residents) -> FsResult<()> {
        debug_assert!(self.learned.is_empty(), "it is prepared once");
        let dirs = self.places.values();
        let dirs = dirs.filter(|placed| placed.head.kind == FileKind::Directory);
        let known = dirs.filter_map(|placed| {
            let known = residents.inodes.find(placed.head.ino)?;
            Some((known, placed.location()))
        });
        for (known, location) in known.collect::<Vec<_>>() {
            if known.location == location {
                continue;
            }
            residents.drop_step(&known);
            if let Location::Entry { parent, .. } = location {
                self.learn(residents, parent)?;
            }
        }
        Ok(())
    }

    /// Makes a directory and those above it known.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] if the way up leads nowhere, or has no end.
    fn learn(&mut self, residents: &Residents, dir: Ino) -> FsResult<()> {
        let inodes = &residents.inodes;
        let (mut above, mut at) = (Vec::new(), dir);
        while inodes.find(at).is_none() {
            let place = self.places.get(&at);
            let entry = place.and_then(|placed| Some((placed.head, placed.at?)));
            let Some((head, name)) = entry else {
                return Err(FsError::Corrupt(format!("directory {at} is nowhere")));
            };
            debug_assert_eq!(head.ino, at, "the place of the inode");
            above.push((head, Location::entry(name.parent, name.name)));
            if above.len() > self.places.len() {
                return Err(FsError::ring_at(at));
            }
            at = name.parent;
        }
        for (head, location) in above.into_iter().rev() {
            let learned = inodes.learn(&head, location, inodes.moment())?;
            debug_assert!(learned.is_some(), "mainline is frozen");
            self.learned.push(head.ino);
        }
        Ok(())
    }

    /// Lets go of the directories that were learned: what is below them holds them now.
    pub(super) fn release(&mut self, residents: &Residents) {
        for ino in self.learned.drain(..).rev() {
            let gone = residents.let_go(ino, Hold::Lookups(1));
            debug_assert!(gone.is_none_or(|gone| gone.is_dir()), "it has no contents");
        }
    }

    /// Puts and deletes the back rows that the transaction did not.
    pub(super) fn put_back_rows(&self, store: &Store, batch: &mut Batch<'_>) {
        let keys = store.keys;
        for ino in &self.rows {
            let key = keys.back(*ino);
            let tree = store.tree(key.tree());
            match self.places.get(ino).and_then(|placed| placed.at) {
                Some(at) => {
                    let place = Locator::place_of(&keys.dentry(at.parent, at.name));
                    let place = place.unwrap_or(Place::FIRST);
                    debug_assert!(place != Place::FIRST, "the key of a name");
                    batch.put(tree, &key, &place.encode());
                }
                _ => batch.delete(tree, &key),
            }
        }
    }

    /// Takes over what is no event, after the commit.
    pub(super) fn apply_rest(&self, target: &CommitTarget<'_>) {
        let residents = target.residents;
        residents.count_inodes(self.inodes_added);
        if let Some(header) = self.header {
            *target.header.lock() = header;
        }
        let inodes = &residents.inodes;
        let forgotten = self.orphans.iter().copied();
        let forgotten = forgotten.filter(|head| inodes.find(head.ino).is_none());
        // What has a name again must not be reclaimed.
        let is_named = |ino| {
            self.places
                .get(&ino)
                .is_some_and(|placed| placed.head.nlink > 0)
        };
        residents.unqueue(is_named);
        residents.queue_forgotten(forgotten.collect());
    }
}

/// Looks a name up that is to be made, as an operation that makes one does (see `names`).
fn miss(residents: &Residents, key: &[u8]) {
    if !residents.names.is_missing(key) {
        residents.names.note_missing(key);
    }
}
