//! The one walk over all rows, and what it keeps.

use super::allocated::Sums;
use super::external::Rows;
use super::lost::Lost;
use super::shared::SharedRows;
use super::{Issue, Trees, views};
use crate::contents::Contents;
use crate::locator::{Locator, SysRow};
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use stitch_base::Ino;
use stitch_db::{Dictionary, Direction, KeyRange};
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow, row_flag};
use stitch_format::fs_key::{CHUNK_BYTES, INO_MAX};
use stitch_format::fs_policy::PolicyRow;
use stitch_format::fs_reads;
use stitch_format::fs_sys::{AllocatedRow, ExternalRow, FsHeader, RollbackRow, decode_number};
use stitch_format::fs_transaction::TransactionRecord;
use stitch_format::fs_view::ViewRecord;
use stitch_kv::KeyRanges;

/// What is kept of an inode.
pub(super) struct FoundInode {
    pub(super) kind: FileKind,
    pub(super) flags: u8,
    pub(super) nlink: u32,
    pub(super) size: u64,
    /// Chunks that there may be by the row's account; `None` where there may be no holes.
    pub(super) chunks_most: Option<u64>,
    /// Chunks counted.
    pub(super) chunks: u64,
    /// Something is wrong with the chunks: they were not all counted.
    pub(super) is_odd: bool,
    /// Directory that the row is in; `None` where it is under its own number.
    pub(super) place: Option<Ino>,
    /// Names counted, the row's own place included.
    pub(super) names: u32,
    /// Key of the row.
    pub(super) key: Box<[u8]>,
    /// There is a back row, right or wrong.
    pub(super) has_back_row: bool,
}

impl FoundInode {
    /// Where its contents are; `None` for what is no regular file.
    pub(super) fn contents(&self) -> Option<Contents> {
        (self.kind == FileKind::Regular).then(|| Contents::of_flags(self.flags))
    }
}

/// A name of an inode that has its own row.
pub(super) struct Link {
    pub(super) key: Vec<u8>,
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
}

/// What the walk found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) issues: Vec<Issue>,
    pub(super) is_readable: bool,
    pub(super) inodes: HashMap<Ino, FoundInode>,
    pub(super) links: Vec<Link>,
    /// Directories that have entries.
    pub(super) parents: BTreeSet<Ino>,
    /// Of each directory, how many directories are in it.
    pub(super) subdirs: BTreeMap<Ino, u32>,
    pub(super) orphans: BTreeSet<Ino>,
    pub(super) next_ino: Option<u64>,
    pub(super) inode_count: Option<u64>,
    pub(super) externals: Rows,
    pub(super) allocated: Sums,
    pub(super) shared: SharedRows,
    /// Writable views that rows tell of.
    pub(super) views: BTreeMap<u64, ViewRecord>,
    /// Directories that have policies of snapshots, each with the clone that it is in; 0 is none.
    pub(super) policies: BTreeSet<(u64, Ino)>,
    /// Row of a rollback that was interrupted, or what is wrong with it.
    pub(super) rollback: Option<Result<RollbackRow, String>>,
    /// Stored number of chunks in unwritten extents.
    pub(super) unwritten: Option<u64>,
    pub(super) header: Option<FsHeader>,
    /// Place up to which every inode under a name is to have one.
    pub(super) back_progress: Option<Place>,
    /// Largest number seen anywhere.
    pub(super) largest: u64,
    /// Of a clone that was made from a narrowed snapshot: the keys of contents that are in all of
    /// these it has.
    begins_with: Vec<KeyRanges>,
    /// Of a clone: the directory that it shows, if not all.
    top: Option<Ino>,
    shown_links: HashSet<Ino>,
    keys: Locator,
    rows: u64,
}

struct RowWalk<'a> {
    trees: &'a Trees,
    lost: &'a Lost,
    progress: &'a mut dyn FnMut(u64),
    found: Found,
}

/// Walks all trees, around what is lost. A clone shows one directory of them.
pub(super) fn scan(
    trees: &Trees,
    lost: &Lost,
    top: Option<Ino>,
    progress: &mut dyn FnMut(u64),
) -> FsResult<Found> {
    let mut walk = RowWalk {
        trees,
        lost,
        progress,
        found: Found {
            begins_with: views::contents_of(trees),
            top: top.filter(|top| *top != Ino::ROOT),
            keys: trees.keys,
            ..Found::default()
        },
    };
    let Some(header) = walk.header()? else {
        return Ok(walk.found);
    };
    walk.found.is_readable = true;
    walk.found.header = Some(header);
    walk.each(trees.meta, |found, key, value| {
        found.meta(trees.keys, key, value)
    })?;
    walk.each(trees.sys, |found, key, value| {
        found.sys(key, value);
    })?;
    debug_assert!(
        walk.found
            .inodes
            .keys()
            .all(|ino| ino.0 <= walk.found.largest),
        "no inode has a larger number"
    );
    walk.found.shown_links = walk.found.shown_links();
    let shared = walk.found.shared.largest();
    walk.found.largest = walk.found.largest.max(shared);
    let mut chunks = Reported::default();
    debug_assert!(
        walk.found.largest >= shared,
        "numbers of contents are counted"
    );
    walk.each(trees.data, |found, key, value| {
        found.data(&mut chunks, key, value)
    })?;
    let mut xattrs = Reported::default();
    walk.each(trees.xattr, |found, key, _| found.xattr(&mut xattrs, key))?;
    debug_assert!(walk.found.holds());
    Ok(walk.found)
}

/// The inode whose rows the walk is at, so that each issue is reported once.
#[derive(Default)]
struct Reported {
    ino: Ino,
    is_reported: bool,
}

impl Reported {
    /// Reports whether an issue of this inode was reported already.
    fn enter(&mut self, ino: Ino) -> bool {
        if self.ino != ino {
            debug_assert!(self.ino < ino, "rows of an inode come together");
            *self = Self {
                ino,
                is_reported: false,
            };
        }
        debug_assert_eq!(self.ino, ino, "the walk is at this inode");
        self.is_reported
    }
}

impl RowWalk<'_> {
    fn header(&mut self) -> FsResult<Option<FsHeader>> {
        debug_assert!(!self.found.is_readable, "nothing is read before the header");
        let row = self
            .trees
            .schema
            .now()
            .get(self.trees.sys, &self.trees.keys.header())
            .map_err(FsError::from);
        let detail = match row.map(|row| row.map(|row| FsHeader::decode(&row))) {
            Ok(Some(Ok(header))) => return Ok(Some(header)),
            Ok(Some(Err(error))) => error.to_string(),
            Ok(None) => "it is absent".to_owned(),
            Err(error) if error.is_unreadable() => format!("it cannot be read: {error}"),
            Err(error) => return Err(error),
        };
        self.found.issues.push(Issue::NoHeader { detail });
        Ok(None)
    }

    fn each(
        &mut self,
        dictionary: Dictionary,
        mut visit: impl FnMut(&mut Found, &[u8], &[u8]),
    ) -> FsResult<()> {
        let view = self.trees.schema.now();
        for (start, end) in self.lost.readable(dictionary) {
            debug_assert!(
                end.as_ref().is_none_or(|end| start < *end),
                "a range is not empty"
            );
            let range = KeyRange {
                start: &start,
                end: end.as_deref(),
            };
            let mut rows = view.scan(dictionary, range, Direction::Forward)?;
            while let Some((key, value)) = rows.next()? {
                debug_assert!(start.as_slice() <= key);
                debug_assert!(
                    end.as_deref().is_none_or(|end| key < end),
                    "a scan keeps to its range"
                );
                visit(&mut self.found, key, value);
                self.found.rows += 1;
                if self.found.rows.is_multiple_of(4096) {
                    (self.progress)(self.found.rows);
                }
            }
        }
        debug_assert!(self.found.holds());
        (self.progress)(self.found.rows);
        Ok(())
    }
}

impl Found {
    /// Reports whether what is kept fits the rows that were read: each inode and each link has one.
    fn holds(&self) -> bool {
        self.inodes.len() + self.links.len() <= self.rows as usize
            && self.parents.len() <= self.rows as usize
    }

    /// Reports what the header says; false without a header.
    pub(super) fn has(&self, feature: impl FnOnce(&FsHeader) -> bool) -> bool {
        self.header.as_ref().is_some_and(feature)
    }

    /// Reports whether a file system has the contents of an inode: a clone that was made from a
    /// narrowed snapshot has those below its directory.
    pub(super) fn has_contents_of(&self, ino: Ino) -> bool {
        debug_assert!(self.is_readable, "inodes of what was read");
        let has = |number: &Ino| {
            let chunk = self.keys.chunk(*number, 0);
            self.begins_with.iter().all(|ranges| ranges.has(&chunk))
        };
        self.begins_with.is_empty() || self.shared.numbers(ino).iter().all(has)
    }

    /// Reports whether a path of the file system leads to an inode, or it has no name: of a clone
    /// that is one below its directory.
    pub(super) fn shows(&self, ino: Ino) -> bool {
        let Some(top) = self.top else {
            return true;
        };
        self.inodes.get(&ino).is_none_or(|inode| match inode.place {
            Some(dir) => self.is_below(top, dir),
            None => inode.names == 0 || self.shown_links.contains(&ino),
        })
    }

    /// Returns the inodes with rows of their own to which a path of a clone leads.
    fn shown_links(&self) -> HashSet<Ino> {
        let Some(top) = self.top else {
            return HashSet::new();
        };
        let dir = |link: &Link| Locator::ino_of(&link.key);
        let is_shown = |link: &&Link| dir(link).is_none_or(|dir| self.is_below(top, dir));
        let shown = self.links.iter().filter(is_shown);
        shown.map(|link| link.ino).collect()
    }

    /// Reports whether a directory is `top` or below it. One whose way up is not known is.
    fn is_below(&self, top: Ino, dir: Ino) -> bool {
        debug_assert_ne!(top, Ino::ROOT, "all is below the root");
        let mut at = dir;
        // In a damaged store directories may lie in each other.
        for _ in 0..=self.parents.len() {
            if at == top {
                return true;
            }
            match self.inodes.get(&at).and_then(|inode| inode.place) {
                Some(above) => at = above,
                None => return at != Ino::ROOT,
            }
        }
        true
    }

    fn meta(&mut self, keys: Locator, key: &[u8], value: &[u8]) {
        let damaged = |detail: &str| Issue::BadMetaRow {
            key: key.to_vec(),
            detail: detail.to_owned(),
        };
        let Some(owner) = Locator::ino_of(key).filter(|ino| ino.0 > 0) else {
            return self.issues.push(damaged("the key has no inode number"));
        };
        self.largest = self.largest.max(owner.0);
        let row = match MetaRow::decode(value) {
            Ok(row) => row,
            Err(error) => return self.issues.push(damaged(&error.to_string())),
        };
        self.largest = self.largest.max(row.ino().0);
        let name = Locator::name_of(key);
        if name.is_none() && (key.len() != 8 || row.ino() != owner) {
            return self
                .issues
                .push(damaged("the key is not that of its inode"));
        }
        let Some((_, name)) = name else {
            return match row {
                MetaRow::Inode(head, tail) => self.inode(key, None, &head, tail),
                MetaRow::Link { .. } => self.issues.push(damaged("a link under a number")),
            };
        };
        debug_assert!(!name.is_empty(), "the key of a name");
        debug_assert!(key.len() > 16, "the key of a name");
        debug_assert!(self.largest >= owner.0, "numbers are counted first");
        debug_assert!(self.largest >= row.ino().0, "numbers are counted first");
        self.parents.insert(owner);
        if keys.dentry(owner, name)[..] != *key {
            let (parent, name) = (owner, name.to_vec());
            self.issues.push(Issue::WrongHash {
                parent,
                name,
                key: key.to_vec(),
            });
        }
        match row {
            MetaRow::Inode(head, tail) => self.inode(key, Some(owner), &head, tail),
            MetaRow::Link { ino, kind } => self.links.push(Link {
                key: key.to_vec(),
                ino,
                kind,
            }),
        }
    }

    fn inode(&mut self, key: &[u8], place: Option<Ino>, head: &InodeHead, tail: &[u8]) {
        let ino = head.ino;
        debug_assert!(self.largest >= ino.0, "numbers are counted first");
        debug_assert_eq!(
            place.is_some(),
            Locator::name_of(key).is_some(),
            "a place is that of a name"
        );
        debug_assert!(
            place.is_some() || Locator::ino_of(key) == Some(ino),
            "the key of the inode"
        );
        if ino == Ino::ROOT && (place.is_some() || head.kind != FileKind::Directory) {
            let key = key.to_vec();
            let detail = "the root is a directory without a name".to_owned();
            return self.issues.push(Issue::BadMetaRow { key, detail });
        }
        if let Some(first) = self.inodes.get(&ino) {
            // Links lead to the row under the number, so that is the one to keep.
            let is_better = first.place.is_some() && place.is_none();
            let key = if is_better { &first.key } else { key };
            self.issues.push(Issue::TwoRows {
                ino,
                key: key.to_vec(),
            });
            if !is_better {
                return;
            }
        }
        let is_inline =
            head.kind == FileKind::Symlink || Contents::of_flags(head.flags) == Contents::Inline;
        let most = if is_inline {
            head.size.min(CHUNK_BYTES)
        } else {
            0
        };
        let is_long = tail.len() as u64 > most || (is_inline && head.size > CHUNK_BYTES);
        if is_long {
            self.issues.push(Issue::LongInline {
                ino,
                key: key.to_vec(),
            });
        }
        if let (FileKind::Directory, Some(parent)) = (head.kind, place) {
            *self.subdirs.entry(parent).or_default() += 1;
        }
        let inode = FoundInode {
            kind: head.kind,
            flags: head.flags,
            nlink: head.nlink,
            size: head.size,
            chunks_most: head.has(row_flag::HOLES).then_some(head.chunks),
            chunks: 0,
            is_odd: false,
            place,
            names: u32::from(place.is_some()),
            key: key.into(),
            has_back_row: false,
        };
        self.inodes.insert(ino, inode);
    }

    fn sys(&mut self, key: &[u8], value: &[u8]) {
        let row = Locator::sys_row(key);
        if !row.is_some_and(|row| self.sys_row(row, value)) {
            self.issues.push(Issue::BadRow {
                tree: "sys",
                key: key.to_vec(),
            });
        }
    }

    /// Takes a row of the sys tree. Returns false if its value is damaged, or its kind is none that
    /// the store may have.
    fn sys_row(&mut self, row: SysRow, value: &[u8]) -> bool {
        let number = decode_number(value).ok();
        match row {
            SysRow::Header => return true,
            SysRow::Rollback => {
                self.rollback = Some(RollbackRow::decode(value).map_err(|e| e.to_string()));
                return true;
            }
            SysRow::Fixed => return number.is_some(),
            SysRow::NextIno => self.next_ino = number.or(self.next_ino),
            SysRow::InodeCount => self.inode_count = number.or(self.inode_count),
            SysRow::Unwritten => self.unwritten = number.or(self.unwritten),
            SysRow::NextView => return number.is_some() && self.has(|header| header.has_views),
            SysRow::View(number) => {
                let Ok(record) = ViewRecord::decode(value) else {
                    return false;
                };
                self.views.insert(number, record);
                return self.has(|header| header.has_views);
            }
            SysRow::Orphan(ino) => {
                self.largest = self.largest.max(ino.0);
                self.orphans.insert(ino);
                return true;
            }
            SysRow::Extent(ino, end) => {
                let Ok(row) = AllocatedRow::decode(value) else {
                    return false;
                };
                self.allocated.entry(ino).or_default().add(end, &row);
                return true;
            }
            SysRow::BackProgress | SysRow::Back(_) => {
                return self.has(|header| header.has_back_rows) && self.back(row, value);
            }
            SysRow::Transaction(number) => {
                self.largest = self.largest.max(number.0);
                let is_known = TransactionRecord::decode(value).is_ok();
                return is_known && self.has(|header| header.has_transactions);
            }
            SysRow::Reads(..) => {
                let is_known = fs_reads::decode(value).is_ok();
                return is_known && self.has(|header| header.has_transactions);
            }
            SysRow::Policy(view, dir) => {
                self.policies.insert((view, dir));
                let is_known = PolicyRow::decode(value).is_ok();
                return is_known
                    && self.has(|header| match view {
                        0 => header.has_policies,
                        _ => header.has_clone_policies,
                    });
            }
            SysRow::Shared(_) | SysRow::Contents(_) | SysRow::ContentsUser(..) => {
                return self.shared.add(row, value);
            }
            SysRow::External(ino) => {
                let row = ExternalRow::decode(value).ok();
                // No plain file got a larger number, and none after it is left for an inode.
                let Some(row) = row.filter(|row| row.number <= INO_MAX) else {
                    return false;
                };
                self.largest = self.largest.max(ino.0).max(row.number);
                self.externals.insert(ino, row);
                return true;
            }
        }
        number.is_some()
    }

    fn data(&mut self, reported: &mut Reported, key: &[u8], value: &[u8]) {
        let place = Locator::ino_of(key).zip(Locator::chunk_of(key));
        let Some((number, chunk)) = place.filter(|_| value.len() as u64 <= CHUNK_BYTES) else {
            return self.issues.push(Issue::BadRow {
                tree: "data",
                key: key.to_vec(),
            });
        };
        if self.shared.add_chunk(number, chunk) || reported.enter(number) {
            return;
        }
        let contents = |ino: &Ino| self.inodes.get(ino).and_then(FoundInode::contents);
        let is_shared = contents(&number) == Some(Contents::Shared);
        let owner = self.shared.owner(number, is_shared);
        let owner = owner.filter(|ino| contents(ino).is_some_and(Contents::are_chunks));
        let Some(ino) = owner else {
            reported.is_reported = true;
            return self.issues.push(Issue::LooseData { ino: number });
        };
        if self.shared.shares(ino, chunk) {
            return;
        }
        debug_assert!(
            contents(&ino).is_some_and(Contents::are_chunks),
            "an inode with chunks"
        );
        let inode = self.inodes.get_mut(&ino).expect("it was found");
        let end = chunk
            .saturating_mul(CHUNK_BYTES)
            .saturating_add(value.len() as u64);
        inode.chunks += 1;
        if end <= inode.size {
            return;
        }
        reported.is_reported = true;
        inode.is_odd = true;
        let start = chunk.saturating_mul(CHUNK_BYTES);
        self.issues.push(if start < inode.size {
            let len_bytes = inode.size - start;
            debug_assert!(
                len_bytes < value.len() as u64,
                "a chunk that is cut is shorter"
            );
            Issue::LongChunk {
                ino: number,
                chunk,
                len_bytes,
            }
        } else {
            let ino = number;
            Issue::DataBeyondEnd { ino, chunk }
        });
    }

    fn xattr(&mut self, reported: &mut Reported, key: &[u8]) {
        let Some(ino) = Locator::ino_of(key).filter(|_| key.len() > 8) else {
            return self.issues.push(Issue::BadRow {
                tree: "xattr",
                key: key.to_vec(),
            });
        };
        if reported.enter(ino) {
            return;
        }
        let inode = self.inodes.get(&ino);
        if inode.is_none_or(|inode| inode.flags & row_flag::XATTRS == 0) {
            debug_assert_eq!(reported.ino, ino, "the walk is at this inode");
            reported.is_reported = true;
            let key = inode.map(|inode| inode.key.to_vec());
            self.issues.push(Issue::LooseXattr { ino, key });
        }
    }
}
