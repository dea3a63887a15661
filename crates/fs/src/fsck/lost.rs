//! Rows that cannot be read: what they may have been, and what cannot be judged without them.
//!
//! 1. The engine says which ranges of keys are lost. Where all keys of one can be read after all,
//!    newer writes hide what was in it.
//! 2. The walk leaves the others out; what it kept then says whose rows are in them.
//! 3. Of the issues, those are withheld that a lost row would explain.

use super::Issue;
use super::Trees;
use super::issue::Owner;
use super::scan::{Found, FoundInode};
use crate::contents::Contents;
use crate::locator::{Locator, RowKey, RowRange};
use crate::{FsError, FsResult};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use stitch_base::Ino;
use stitch_db::{Dictionary, Direction, KeyRange};
use stitch_format::fs_inode::{FileKind, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_kv::LostKeys;

/// Most chunks of a file that are tried, one by one.
const CHUNKS_TRIED_MAX: u64 = 1 << 16;
/// Deepest path that is spelled out.
const DEPTH_MAX: usize = 1 << 12;

/// One lost range, `[start, end)`.
#[derive(Clone, Debug)]
struct Range {
    tree: &'static str,
    dictionary: Dictionary,
    start: Vec<u8>,
    end: Vec<u8>,
}

impl Range {
    /// Reports whether keys of a number may be in it.
    fn is_near(&self, number: Ino) -> bool {
        let first = Locator::ino_of(&self.start).unwrap_or_default();
        let last = Locator::ino_of(&self.end).unwrap_or(Ino(u64::MAX));
        first <= number && number <= last
    }
}

/// All lost ranges of a file system.
#[derive(Debug, Default)]
pub(super) struct Lost {
    keys: Locator,
    ranges: Vec<Range>,
    /// Ranges whose contents are hidden by newer writes.
    hidden: Vec<Range>,
}

impl Lost {
    /// Of the ranges that the engine reports, those of this file system.
    pub(super) fn new(trees: &Trees, lost: &[LostKeys]) -> FsResult<Self> {
        let mut out = Self {
            keys: trees.keys,
            ..Self::default()
        };
        for keys in lost {
            let Some((tree, dictionary)) = trees.named(keys.tree) else {
                continue;
            };
            let range = Range {
                tree,
                dictionary,
                start: keys.first.clone(),
                end: [&keys.last[..], &[0]].concat(),
            };
            if can_read(trees, dictionary, &range.start, &range.end)? {
                out.hidden.push(range);
            } else {
                out.ranges.push(range);
            }
        }
        out.ranges
            .sort_by(|a, b| (a.tree, &a.start).cmp(&(b.tree, &b.start)));
        debug_assert!(
            out.ranges.len() + out.hidden.len() <= lost.len(),
            "each is lost or hidden"
        );
        debug_assert!(
            out.ranges
                .iter()
                .all(|range| trees.named(range.dictionary.tree()).is_some()),
            "ranges of this file system"
        );
        Ok(out)
    }

    /// What is not lost of a tree, as ranges of which the last has no end.
    pub(super) fn readable(&self, dictionary: Dictionary) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut out = Vec::new();
        let mut at = Vec::new();
        for range in self.ranges.iter().filter(|r| r.dictionary == dictionary) {
            if at < range.start {
                out.push((at, Some(range.start.clone())));
                at = range.end.clone();
            } else {
                at = at.max(range.end.clone());
            }
        }
        debug_assert!(
            out.windows(2)
                .all(|pair: &[(Vec<u8>, Option<Vec<u8>>)]| pair[0].1.as_ref() < Some(&pair[1].0)),
            "what can be read is in order and apart"
        );
        out.push((at, None));
        out
    }

    /// Reports whether nothing is lost.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Reports whether any row of a tree is lost.
    pub(super) fn is_any_of(&self, tree: &str) -> bool {
        self.of(tree).next().is_some()
    }

    fn of(&self, tree: &str) -> impl Iterator<Item = &Range> {
        self.ranges.iter().filter(move |r| r.tree == tree)
    }

    /// Reports whether any row of a range may be lost.
    fn touches(&self, rows: &RowRange) -> bool {
        debug_assert!(rows.start() <= rows.end());
        self.of(rows.tree().name())
            .any(|r| r.start.as_slice() < rows.end() && rows.start() < r.end.as_slice())
    }

    /// Reports whether a row may be lost.
    fn has(&self, key: &RowKey) -> bool {
        self.of(key.tree().name())
            .any(|r| r.start.as_slice() <= &key[..] && &key[..] < r.end.as_slice())
    }

    /// One issue for each range, with whose rows are in it.
    pub(super) fn issues(&self, trees: &Trees, found: &Found) -> FsResult<Vec<Issue>> {
        if self.is_empty() && self.hidden.is_empty() {
            return Ok(Vec::new());
        }
        let paths = Paths::new(found);
        let mut out = Vec::new();
        for range in &self.ranges {
            out.push(Issue::Lost {
                tree: range.tree,
                first: range.start.clone(),
                end: range.end.clone(),
                owners: owners(trees, found, &paths, range)?,
            });
        }
        for range in &self.hidden {
            out.push(Issue::LostUnused {
                tree: range.tree,
                first: range.start.clone(),
                end: range.end.clone(),
            });
        }
        debug_assert_eq!(
            out.len(),
            self.ranges.len() + self.hidden.len(),
            "one for each range"
        );
        Ok(out)
    }

    /// Takes out of `issues` what rows that are lost may explain, and says how many they were.
    pub(super) fn withhold(&self, found: &Found, issues: Vec<Issue>) -> Vec<Issue> {
        if self.is_empty() {
            return issues;
        }
        let explained = |issue: &Issue| self.explains(found, issue);
        let all = issues.len();
        let (withheld, mut left): (Vec<_>, Vec<_>) = issues.into_iter().partition(explained);
        // That a file's contents are lost says that they were not counted.
        let is_untold = |issue: &&Issue| !matches!(issue, Issue::ChunkCount { .. });
        let count = withheld.iter().filter(is_untold).count();
        debug_assert_eq!(
            left.len() + withheld.len(),
            all,
            "each issue is left or withheld"
        );
        if count > 0 {
            left.push(Issue::Unchecked { count });
        }
        left
    }

    /// Reports whether rows that say which contents are shared may be lost.
    fn has_lost_sharing(&self, found: &Found) -> bool {
        found.has(|header| header.has_shared) && self.of("sys").next().is_some()
    }

    /// Reports whether chunks of an inode may be lost.
    fn has_lost_chunks(&self, found: &Found, ino: Ino) -> bool {
        let mut numbers = found.shared.numbers(ino).into_iter();
        let is_lost = numbers.any(|number| self.touches(&self.keys.chunks_from(number, 0)));
        debug_assert!(
            !is_lost || self.is_any_of("data"),
            "chunks are in the data tree"
        );
        is_lost || self.has_lost_sharing(found)
    }

    /// Reports whether names that count as links of an inode may be lost.
    fn may_have_names_of(&self, found: &Found, ino: Ino) -> bool {
        debug_assert!(!self.is_empty(), "a row is lost");
        let inode = found.inodes.get(&ino);
        match inode.is_some_and(|inode| inode.kind == FileKind::Directory) {
            true => self.touches(&self.keys.directory(ino)),
            false => self.is_any_of("meta"),
        }
    }

    /// Reports whether a lost row may be all that is wrong.
    fn explains(&self, found: &Found, issue: &Issue) -> bool {
        debug_assert!(!self.is_empty(), "a row is lost");
        debug_assert!(found.is_readable, "inodes of what was read");
        let has_lost_names = self.of("meta").next().is_some();
        match issue {
            Issue::NoRoot => self.has(&self.keys.own(Ino::ROOT)),
            Issue::DanglingName { ino, .. } => self.has(&self.keys.own(*ino)),
            Issue::Nameless { .. } | Issue::MissingDirectory { .. } => has_lost_names,
            Issue::LinkCount {
                ino,
                stored,
                counted,
                ..
            } => counted < stored && self.may_have_names_of(found, *ino),
            Issue::UnlistedOrphan { ino } => self.has(&self.keys.orphan(*ino)),
            Issue::LooseData { ino } => {
                let is_elsewhere = has_lost_names && !found.inodes.contains_key(ino);
                is_elsewhere || self.has_lost_sharing(found)
            }
            Issue::FalseOrphan { ino }
            | Issue::LooseXattr { ino, key: None }
            | Issue::BackRow { ino, place: None }
            | Issue::LooseExternal { ino }
            | Issue::LooseAllocated { ino }
            | Issue::FalsePolicy { ino } => has_lost_names && !found.inodes.contains_key(ino),
            Issue::ChunkCount { ino, .. } => self.has_lost_chunks(found, *ino),
            Issue::NoSharedRow { .. } | Issue::MissingUser { .. } | Issue::FalseUser { .. } => {
                self.has_lost_sharing(found)
            }
            Issue::LooseSharedRow { .. } | Issue::FalseClonePolicy { .. } => has_lost_names,
            Issue::NoPlainFile { ino } => self.has(&self.keys.external(*ino)),
            Issue::BackRow { ino, .. } => self.has(&self.keys.back(*ino)),
            Issue::UnwrittenCount { .. } => has_lost_names || self.of("sys").next().is_some(),
            Issue::NextIno { .. } => self.has(&self.keys.next_ino()),
            Issue::BrokenRollback { .. } => self.has(&self.keys.rollback()),
            Issue::InodeCount { .. } => has_lost_names || self.has(&self.keys.inode_count()),
            Issue::InClone { .. }
            | Issue::CloneAdrift { .. }
            | Issue::CloneWithoutTrees { .. }
            | Issue::BadMoment { .. }
            | Issue::InterruptedRollback { .. }
            | Issue::NoHeader { .. }
            | Issue::BadMetaRow { .. }
            | Issue::WrongHash { .. }
            | Issue::BadRow { .. }
            | Issue::WrongType { .. }
            | Issue::TwoRows { .. }
            | Issue::NotADirectory { .. }
            | Issue::Unreachable { .. }
            | Issue::DataBeyondEnd { .. }
            | Issue::LongChunk { .. }
            | Issue::LooseXattr { key: Some(_), .. }
            | Issue::LongInline { .. }
            | Issue::SettledBeyondEnd { .. }
            | Issue::Unmarked
            | Issue::UnmarkedAllocated
            | Issue::SharedBeyondEnd { .. }
            | Issue::UnmarkedShared
            | Issue::BadAllocated { .. }
            | Issue::MissingPlainFile { .. }
            | Issue::ShortPlainFile { .. }
            | Issue::ExtraPlainFile { .. }
            | Issue::Lost { .. }
            | Issue::LostUnused { .. }
            | Issue::Unchecked { .. } => false,
        }
    }
}

/// Reports whether all rows of a range can be read.
fn can_read(trees: &Trees, dictionary: Dictionary, start: &[u8], end: &[u8]) -> FsResult<bool> {
    let view = trees.schema.now();
    let walk = || -> FsResult<()> {
        let mut rows = view.scan(dictionary, KeyRange::new(start, end), Direction::Forward)?;
        while rows.next()?.is_some() {}
        Ok(())
    };
    match walk() {
        Ok(()) => Ok(true),
        Err(error) if error.is_unreadable() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whose rows are in a range.
fn owners(trees: &Trees, found: &Found, paths: &Paths<'_>, range: &Range) -> FsResult<Vec<Owner>> {
    let numbers = |ino: Ino| match range.tree {
        "data" => found.shared.numbers(ino),
        _ => vec![ino],
    };
    let is_near = |ino: Ino| numbers(ino).into_iter().any(|number| range.is_near(number));
    let mut near: Vec<(Ino, &FoundInode)> = Vec::new();
    if range.tree != "sys" {
        let all = found.inodes.iter().map(|(ino, inode)| (*ino, inode));
        near.extend(all.filter(|(ino, _)| is_near(*ino)));
        near.sort_unstable_by_key(|(ino, _)| *ino);
    }
    let mut owners = Vec::new();
    debug_assert!(
        near.is_sorted_by(|a, b| a.0 < b.0),
        "each inode once, in order"
    );
    for (ino, inode) in near {
        let is_owner = match (range.tree, inode.kind) {
            ("data", FileKind::Regular) if inode.contents() != Some(Contents::Inline) => {
                has_lost_contents(trees, found, range, (ino, inode.size))?
            }
            ("meta", FileKind::Directory) => {
                has_lost_row(trees, range, &trees.keys.directory(ino))?
            }
            ("xattr", _) if inode.flags & row_flag::XATTRS != 0 => {
                has_lost_row(trees, range, &trees.keys.xattrs(ino))?
            }
            _ => false,
        };
        if is_owner {
            debug_assert_ne!(range.tree, "sys", "its rows are of no owner");
            let path = paths.of(ino);
            owners.push(Owner { ino, path });
        }
    }
    debug_assert!(
        owners.is_sorted_by(|a, b| a.ino < b.ino),
        "each owner once, in order"
    );
    Ok(owners)
}

/// Reports whether some of these rows that are in a lost range cannot be read.
fn has_lost_row(trees: &Trees, range: &Range, rows: &RowRange) -> FsResult<bool> {
    debug_assert_eq!(
        range.tree,
        rows.tree().name(),
        "rows of the tree that is lost in part"
    );
    let (start, end) = (
        range.start.as_slice().max(rows.start()),
        range.end.as_slice().min(rows.end()),
    );
    Ok(start < end && !can_read(trees, range.dictionary, start, end)?)
}

/// Reports whether some contents of a file of this size cannot be read: its own, or shared ones
/// that it uses.
fn has_lost_contents(
    trees: &Trees,
    found: &Found,
    range: &Range,
    (ino, size): (Ino, u64),
) -> FsResult<bool> {
    debug_assert_eq!(range.tree, "data", "contents are chunks");
    for number in found.shared.numbers(ino) {
        let is_used = |chunk| found.shared.number_of(ino, chunk) == Some(number);
        if range.is_near(number) && has_lost_chunk(trees, range, (number, size), &is_used)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reports whether a chunk under a number that is used cannot be read, of a file of this size. A
/// filter may know of each that it was not in the block.
fn has_lost_chunk(
    trees: &Trees,
    range: &Range,
    (number, size): (Ino, u64),
    is_used: &dyn Fn(u64) -> bool,
) -> FsResult<bool> {
    debug_assert_eq!(range.tree, "data", "contents are chunks");
    let chunk_at = |key: &[u8]| {
        let is_same = Locator::ino_of(key) == Some(number);
        is_same.then(|| Locator::chunk_before(key)).flatten()
    };
    let first = chunk_at(&range.start).unwrap_or(0);
    let count = size.div_ceil(CHUNK_BYTES);
    // The end is a key and a zero byte.
    let end = chunk_at(&range.end).map_or(count, |last| count.min(last.saturating_add(1)));
    debug_assert!(end <= count, "no chunk behind the end of the file");
    if end.saturating_sub(first) > CHUNKS_TRIED_MAX {
        return has_lost_row(trees, range, &trees.keys.chunks_from(number, 0));
    }
    let view = trees.schema.now();
    for chunk in (first..end).filter(|chunk| is_used(*chunk)) {
        match view.get(range.dictionary, &trees.keys.chunk(number, chunk)) {
            Ok(_) => {}
            Err(error) => {
                let error = FsError::from(error);
                return if error.is_unreadable() {
                    Ok(true)
                } else {
                    Err(error)
                };
            }
        }
    }
    Ok(false)
}

/// Finds paths of inodes.
pub(super) struct Paths<'a> {
    found: &'a Found,
    /// A name of each inode that has its own row.
    links: HashMap<Ino, &'a [u8]>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(found: &'a Found) -> Self {
        let links = found
            .links
            .iter()
            .map(|link| (link.ino, link.key.as_slice()));
        Self {
            found,
            links: links.collect(),
        }
    }

    /// A path from the root; `None` if a name on the way is not known.
    pub(super) fn of(&self, ino: Ino) -> Option<PathBuf> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let inode = self.found.inodes.get(&at)?;
            let key = match inode.place {
                Some(_) => &*inode.key,
                None => self.links.get(&at)?,
            };
            let (_, name) = Locator::name_of(key)?;
            debug_assert!(!name.is_empty(), "a name is not empty");
            names.push(name);
            at = Locator::ino_of(key)?;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        debug_assert!(names.len() <= DEPTH_MAX, "a path that is spelled out");
        debug_assert_eq!(
            names.is_empty(),
            ino == Ino::ROOT,
            "the root alone has no name"
        );
        names.reverse();
        let path = [b"/", &names.join(&b'/')[..]].concat();
        Some(PathBuf::from(OsString::from_vec(path)))
    }
}

#[cfg(test)]
mod tests;
