//! Shared contents against the inodes that use them, and their repair.
//!
//! Contents without users are no issue: a mount deletes them, or waits for a transaction that may
//! use them. Chunks without an owner are one ([`Issue::LooseData`]).

use super::scan::{Found, FoundInode};
use super::{Issue, Trees};
use crate::FsResult;
use crate::contents::Contents;
use crate::locator::{Locator, SysRow, Tree};
use crate::rows::is_readable;
use crate::shared::{has, without};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use stitch_base::Ino;
use stitch_db::Changes;
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_shared::SharedRow;
use stitch_format::fs_sys::{decode_number, encode_number};

/// After every chunk of a file.
const CHUNKS_MAX: u64 = 1 << 51;
const _: () = assert!(
    CHUNKS_MAX >= crate::data::FILE_BYTES_MAX.div_ceil(CHUNK_BYTES),
    "contents of any file"
);

/// Rows of shared contents, and what was found under their numbers.
#[derive(Debug, Default)]
pub(super) struct SharedRows {
    pub(super) rows: BTreeMap<Ino, SharedRow>,
    /// Inodes with own chunks, by the numbers under which these are.
    owners: BTreeMap<Ino, Ino>,
    contents: BTreeSet<Ino>,
    /// Contents, and inodes that use them.
    users: BTreeSet<(Ino, Ino)>,
    /// Chunks under the numbers of contents.
    present: BTreeMap<Ino, Vec<Range<u64>>>,
}

impl SharedRows {
    /// Takes a row. Returns false if its value is damaged.
    pub(super) fn add(&mut self, row: SysRow, value: &[u8]) -> bool {
        match row {
            SysRow::Shared(ino) => match SharedRow::decode(value) {
                Ok(row) => self.add_row(ino, row),
                Err(_) => return false,
            },
            SysRow::Contents(number) => {
                self.contents.insert(number);
                self.present.entry(number).or_default();
                return decode_number(value).is_ok();
            }
            SysRow::ContentsUser(number, ino) => {
                self.users.insert((number, ino));
            }
            _ => return false,
        }
        true
    }

    fn add_row(&mut self, ino: Ino, row: SharedRow) {
        debug_assert_ne!(row.contents, Some(row.own), "a reader takes no such row");
        self.owners.insert(row.own, ino);
        if let Some(contents) = row.contents {
            self.present.entry(contents).or_default();
        }
        self.rows.insert(ino, row);
    }

    fn is_empty(&self) -> bool {
        debug_assert!(
            self.present.len() <= self.rows.len() + self.contents.len(),
            "chunks under numbers of contents"
        );
        self.rows.is_empty() && self.contents.is_empty() && self.users.is_empty()
    }

    /// The largest number in a row.
    pub(super) fn largest(&self) -> u64 {
        let own = self.owners.keys().next_back();
        let contents = self.present.keys().next_back();
        debug_assert!(
            self.rows.is_empty() == self.owners.is_empty(),
            "each row has a number for own chunks"
        );
        own.max(contents).map_or(0, |number| number.0)
    }

    /// Takes a chunk. Reports false if its number is none of contents.
    pub(super) fn add_chunk(&mut self, number: Ino, chunk: u64) -> bool {
        let Some(present) = self.present.get_mut(&number) else {
            return false;
        };
        debug_assert!(
            present.last().is_none_or(|last| last.end <= chunk),
            "chunks come in order"
        );
        match present.last_mut() {
            Some(last) if last.end == chunk => last.end = chunk.saturating_add(1),
            _ => present.push(chunk..chunk.saturating_add(1)),
        }
        debug_assert!(
            present.last().is_some_and(|last| last.start <= chunk),
            "the chunk is in the last extent"
        );
        true
    }

    /// The inode whose own chunks are under a number. `is_shared`: the inode of that number shares
    /// contents.
    pub(super) fn owner(&self, number: Ino, is_shared: bool) -> Option<Ino> {
        match self.owners.get(&number) {
            Some(ino) => Some(*ino),
            None => (!is_shared).then_some(number),
        }
    }

    /// Reports whether a chunk of an inode is a shared one.
    pub(super) fn shares(&self, ino: Ino, chunk: u64) -> bool {
        self.rows.get(&ino).is_some_and(|row| has(row, chunk))
    }

    /// Returns how many of the chunks that an inode shares exist.
    pub(super) fn chunks(&self, ino: Ino) -> u64 {
        let Some(row) = self.rows.get(&ino) else {
            return 0;
        };
        let present = row.contents.and_then(|number| self.present.get(&number));
        let mut count = 0;
        for run in present.into_iter().flatten() {
            let within = |extent: &Range<u64>| {
                let (start, end) = (extent.start.max(run.start), extent.end.min(run.end));
                end.saturating_sub(start)
            };
            count += row.extents.iter().map(within).sum::<u64>();
        }
        debug_assert!(
            count
                <= row
                    .extents
                    .iter()
                    .map(|one| one.end - one.start)
                    .sum::<u64>(),
            "a chunk is shared once"
        );
        count
    }

    /// The number under which a chunk of an inode is; `None` for a shared one without contents.
    pub(super) fn number_of(&self, ino: Ino, chunk: u64) -> Option<Ino> {
        match self.rows.get(&ino) {
            Some(row) if has(row, chunk) => row.contents,
            Some(row) => Some(row.own),
            None => Some(ino),
        }
    }

    /// The numbers under which chunks of an inode are.
    pub(super) fn numbers(&self, ino: Ino) -> Vec<Ino> {
        match self.rows.get(&ino) {
            Some(row) => [Some(row.own), row.contents]
                .into_iter()
                .flatten()
                .collect(),
            None => vec![ino],
        }
    }
}

/// Compares the rows with inodes, with each other and with the header.
pub(super) fn rows(found: &Found) -> Vec<Issue> {
    let mut issues = Vec::new();
    let shared = &found.shared;
    let shares = |inode: &&FoundInode| inode.contents() == Some(Contents::Shared);
    let mut inos: Vec<Ino> = found.inodes.keys().copied().collect();
    inos.sort_unstable();
    for ino in inos {
        let inode = &found.inodes[&ino];
        match shared.rows.get(&ino) {
            None if shares(&inode) => issues.push(Issue::NoSharedRow {
                ino,
                key: inode.key.to_vec(),
            }),
            Some(row) if shares(&inode) => issues.extend(row_of(shared, ino, inode, row)),
            _ => {}
        }
    }
    debug_assert!(issues.len() <= 2 * found.inodes.len(), "two for each inode");
    for &ino in shared.rows.keys() {
        if found.inodes.get(&ino).filter(shares).is_none() {
            issues.push(Issue::LooseSharedRow { ino });
        }
    }
    for &(number, ino) in &shared.users {
        let row = shared.rows.get(&ino);
        if row.is_none_or(|row| row.contents != Some(number)) {
            issues.push(Issue::FalseUser { number, ino });
        }
    }
    if !shared.is_empty() && !found.has(|header| header.has_shared) {
        issues.push(Issue::UnmarkedShared);
    }
    issues
}

fn row_of(shared: &SharedRows, ino: Ino, inode: &FoundInode, row: &SharedRow) -> Vec<Issue> {
    debug_assert_eq!(
        inode.contents(),
        Some(Contents::Shared),
        "it shares contents by its own row"
    );
    debug_assert!(shared.rows.contains_key(&ino), "the row of this inode");
    let mut issues = Vec::new();
    let is_beyond = |extent: &Range<u64>| extent.end > inode.size.div_ceil(CHUNK_BYTES);
    if row.extents.last().is_some_and(is_beyond) {
        let size = inode.size;
        issues.push(Issue::SharedBeyondEnd { ino, size });
    }
    let is_known =
        |number: Ino| shared.contents.contains(&number) && shared.users.contains(&(number, ino));
    if let Some(number) = row.contents.filter(|number| !is_known(*number)) {
        issues.push(Issue::MissingUser { number, ino });
    }
    debug_assert!(issues.len() <= 2, "one for the end, one for the use");
    issues
}

/// Stages the repair of an issue.
pub(super) fn repair(trees: &Trees, changes: &mut Changes, issue: &Issue) -> FsResult<()> {
    let (sys, keys) = (trees.sys, trees.keys);
    match issue {
        Issue::LooseSharedRow { ino } => changes.delete(sys, &keys.shared(*ino)),
        Issue::FalseUser { number, ino } => {
            changes.delete(sys, &keys.contents_user(*number, *ino));
        }
        Issue::MissingUser { number, ino } => {
            put_contents(trees, changes, *number)?;
            let key = keys.contents_user(*number, *ino);
            debug_assert!(
                is_readable(Tree::Sys, &key, &[]),
                "a repaired row is read again"
            );
            changes.put(sys, &key, &[]);
        }
        Issue::SharedBeyondEnd { ino, size } => {
            let key = keys.shared(*ino);
            if let Some(row) = trees.schema.now().get(sys, &key)? {
                let mut row = SharedRow::decode(&row)?;
                let beyond = size.div_ceil(CHUNK_BYTES)..u64::MAX;
                row.extents = without(&row.extents, &beyond);
                debug_assert!(
                    row.extents
                        .last()
                        .is_none_or(|last| last.end <= beyond.start),
                    "nothing is shared beyond the end"
                );
                let row = row.encode();
                debug_assert!(
                    is_readable(Tree::Sys, &key, &row),
                    "a repaired row is read again"
                );
                changes.put(sys, &key, &row);
            }
        }
        _ => debug_assert!(false, "it is no issue of shared contents"),
    }
    Ok(())
}

/// Puts the row of contents, unless there is one.
fn put_contents(trees: &Trees, changes: &mut Changes, number: Ino) -> FsResult<()> {
    debug_assert!(number.0 > 0, "0 is no number of contents");
    let key = trees.keys.contents(number);
    if trees.schema.now().get(trees.sys, &key)?.is_none() {
        let row = encode_number(CHUNKS_MAX);
        debug_assert!(
            is_readable(Tree::Sys, &key, &row),
            "a repaired row is read again"
        );
        changes.put(trees.sys, &key, &row);
    }
    Ok(())
}

/// Stages a row for an inode that shares contents by its own row: those that it is listed as a user
/// of, whole. `new`: a number for its own chunks, if others may share what is under its own.
pub(super) fn put_row(
    trees: &Trees,
    changes: &mut Changes,
    ino: Ino,
    size: u64,
    new: Ino,
) -> FsResult<()> {
    debug_assert!(new.0 > 0, "a number of an inode");
    let (sys, keys) = (trees.sys, trees.keys);
    let view = trees.schema.now();
    let all = keys.all_contents();
    let mut rows = view.scan(sys, all.keys(), stitch_db::Direction::Forward)?;
    let (mut contents, mut known, mut is_contents) = (None, None, false);
    while let Some((key, _)) = rows.next()? {
        match Locator::sys_row(key) {
            Some(SysRow::Contents(number)) => {
                known = Some(number);
                is_contents |= number == ino;
            }
            // 0 is no number of contents: a damaged row has it.
            Some(SysRow::ContentsUser(number, user)) if user == ino && number.0 > 0 => {
                // Without a row of the contents it may be damaged.
                let is_better = contents.is_none() || known == Some(number);
                contents = if is_better { Some(number) } else { contents };
            }
            _ => {}
        }
    }
    is_contents |= contents == Some(ino);
    let chunks = 0..size.div_ceil(CHUNK_BYTES);
    let extents = match contents.is_some() && !chunks.is_empty() {
        true => vec![chunks],
        false => Vec::new(),
    };
    let row = SharedRow {
        own: if is_contents { new } else { ino },
        contents,
        extents,
    };
    debug_assert!(
        row.extents.is_empty() || row.contents.is_some(),
        "extents are those of contents"
    );
    debug_assert_ne!(
        row.contents,
        Some(row.own),
        "own chunks are apart from shared ones"
    );
    let (key, row) = (keys.shared(ino), row.encode());
    debug_assert!(
        is_readable(Tree::Sys, &key, &row),
        "a repaired row is read again"
    );
    changes.put(sys, &key, &row);
    Ok(())
}
