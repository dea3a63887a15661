//! Copies that share contents instead of reading and writing them.
//!
//! ```text
//!   before       a: own 20                                  b: empty
//!   copy a b     a: own 22, contents 20 [0, n)              b: own 21, contents 20 [0, n)
//!   copy a c                                                c: own 23, contents 20 [0, n)
//!   write a[5]   a: own 22, contents 20 [0, 5) [6, n)
//!   copy a d     chunk 5 is read and written                d: own 24, contents 20 [0, 5) [6, n)
//! ```
//!
//! Ranges of a file are shared at the offsets at which they are. So a program may copy a file in
//! ranges, and leave out its holes.

use super::shared::Sharing;
use super::write::stage_chunks;
use super::{ContentChanges, Staged, chunk_count};
use crate::change::Change;
use crate::contents::Contents;
use crate::inode::Inode;
use crate::shared::with;
use crate::{ClearSetId, FsResult};
use std::ops::Range;
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};
use stitch_format::fs_key::CHUNK_BYTES;
use stitch_format::fs_shared::{SHARED_EXTENTS_MAX, SharedRow};

/// Copies of less are written: that costs no more than what sharing costs later.
const SHARED_BYTES_MIN: u64 = 64 << 10;
const _: () = assert!(SHARED_BYTES_MIN >= CHUNK_BYTES, "whole chunks are shared");

/// A part of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyPiece {
    /// Chunks that are shared.
    Shared(Range<u64>),
    /// Bytes that are read and written.
    Copied(Range<u64>),
}

/// Splits a range of bytes by the extents of chunks that can be shared. It ends where more than
/// `budget` bytes would have to be copied.
fn copy_pieces(extents: &[Range<u64>], range: &Range<u64>, budget: u64) -> Vec<CopyPiece> {
    debug_assert!(range.start < range.end, "some bytes are copied");
    let mut pieces = Vec::new();
    debug_assert!(budget > 0, "a copy comes further");
    debug_assert!(
        extents.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "extents come in order"
    );
    let (mut at, mut left) = (range.start, budget);
    let mut copy_to = |pieces: &mut Vec<CopyPiece>, at: u64, end: u64| {
        let stop = end.min(at.saturating_add(left));
        if at < stop {
            pieces.push(CopyPiece::Copied(at..stop));
            left -= stop - at;
        }
        stop
    };
    for extent in extents {
        let start = extent.start * CHUNK_BYTES;
        if copy_to(&mut pieces, at, start.max(at)) < start {
            return pieces;
        }
        pieces.push(CopyPiece::Shared(extent.clone()));
        at = range.end.min(extent.end * CHUNK_BYTES);
    }
    copy_to(&mut pieces, at, range.end);
    pieces
}

/// The chunks of a source that can be shared.
struct Offer {
    /// The number under which they are.
    contents: Ino,
    extents: Vec<Range<u64>>,
    /// The number has to become one of contents.
    is_new: bool,
}

impl ContentChanges<'_> {
    /// Copies the beginning of a range of `source` to `target`, at the same offset, if some of it
    /// can be shared: in one batch, all of it if no more than [`Self::write_step_bytes`] have to be
    /// written. Returns the number of bytes; `None` if nothing can be shared. The inodes are
    /// locked.
    pub(super) fn share_step(
        &self,
        source: &Inode,
        target: &Inode,
        range: &Range<u64>,
    ) -> FsResult<Option<u64>> {
        let Some(chunks) = self.sharable(source, target, range) else {
            return Ok(None);
        };
        let Some(offer) = self.offer(source)? else {
            return Ok(None);
        };
        let is_short = range.end - range.start < SHARED_BYTES_MIN;
        match self.contents.store.used_contents(&target.head)? {
            Some(used) if used != offer.contents => return Ok(None),
            None if is_short || !offer.is_most_of(&source.head) => return Ok(None),
            _ => {}
        }
        let within = |one: &Range<u64>| one.start.max(chunks.start)..one.end.min(chunks.end);
        let extents = offer.extents.iter().map(within);
        let extents: Vec<Range<u64>> = extents.filter(|part| !part.is_empty()).collect();
        if extents.is_empty() {
            return Ok(None);
        }
        let pieces = copy_pieces(&extents, range, self.write_step_bytes());
        debug_assert!(!pieces.is_empty(), "a copy comes further");
        self.share(source, target, &offer, &pieces)
    }

    /// Returns the chunks of a range that can be shared, if the files are of the kinds that can.
    fn sharable(&self, source: &Inode, target: &Inode, range: &Range<u64>) -> Option<Range<u64>> {
        let (from, to) = (&source.head, &target.head);
        let is_kind = |head| matches!(Contents::of(head), Contents::Chunked | Contents::Shared);
        let is_open = Contents::of(to) == Contents::Shared || to.size == 0;
        let are_plain = !from.has(row_flag::ALLOCATED) && !to.has(row_flag::ALLOCATED);
        let stays_inside = !self
            .contents
            .plain_files
            .externals
            .wants(to.size, range.end);
        debug_assert!(range.start <= range.end, "a range of bytes");
        debug_assert!(range.end <= from.size, "the range is within the source");
        let is_it = from.ino != to.ino
            && is_kind(from)
            && from.size >= SHARED_BYTES_MIN
            && Contents::of(to) != Contents::External
            && is_open
            && are_plain
            && stays_inside
            && range.start.is_multiple_of(CHUNK_BYTES)
            && self.contents.atomic_writes.get(from.ino).is_none();
        let is_to_end = range.end == from.size && to.size <= range.end;
        let end = match is_to_end {
            true => chunk_count(range.end),
            false => range.end / CHUNK_BYTES,
        };
        let chunks = range.start / CHUNK_BYTES..end;
        (is_it && !chunks.is_empty()).then_some(chunks)
    }

    /// Returns how the chunks of a file can be shared.
    fn offer(&self, source: &Inode) -> FsResult<Option<Offer>> {
        let head = &source.head;
        let own = match Contents::of(head) {
            Contents::Chunked => head.ino,
            Contents::Shared => {
                let row = self.contents.store.shared_row(head.ino)?;
                if let Some(contents) = row.contents {
                    return Ok(Some(Offer {
                        contents,
                        extents: row.extents,
                        is_new: false,
                    }));
                }
                row.own
            }
            Contents::Inline | Contents::External => return Ok(None),
        };
        if !self.sharing.may_begin(head.ino) {
            return Ok(None);
        }
        let all = 0..chunk_count(head.size);
        debug_assert!(!all.is_empty(), "the caller has checked the size");
        Ok(Some(Offer {
            contents: own,
            extents: vec![all],
            is_new: true,
        }))
    }

    /// Commits a copy. Returns the number of bytes; `None`, with nothing changed, if the target
    /// would have too many extents.
    fn share(
        &self,
        source: &Inode,
        target: &Inode,
        offer: &Offer,
        pieces: &[CopyPiece],
    ) -> FsResult<Option<u64>> {
        debug_assert!(!pieces.is_empty(), "a copy comes further");
        debug_assert_ne!(source.head.ino, target.head.ino, "two files share");
        let contents = self.contents_to_copy(source, pieces)?;
        self.changes
            .mark_header(|header| header.has_shared = true)?;
        let mut change = self.changes.begin();
        let mut to = self.stage(target.clone())?;
        to.leave_row(self.contents.store, &mut change, true)?;
        // Before own chunks: from then on the target uses the contents.
        to.take_shared(&mut change, offer.contents, &(0..0));
        let (mut contents, mut done) = (contents.iter(), 0);
        for piece in pieces {
            match piece {
                CopyPiece::Shared(chunks) => {
                    if !to.take_shared(&mut change, offer.contents, chunks) {
                        return Ok(None);
                    }
                    let end = (chunks.end * CHUNK_BYTES).min(source.head.size);
                    to.grow_by_shared(source, chunks, end);
                    debug_assert!(chunks.start * CHUNK_BYTES < end, "shared chunks have bytes");
                    done += end - chunks.start * CHUNK_BYTES;
                }
                CopyPiece::Copied(range) => {
                    let bytes = contents.next().expect("one for each such piece");
                    to.unshare(self.contents.store, &mut change, range)?;
                    stage_chunks(&mut change, &mut to, range.start, bytes);
                    self.count_chunks(&mut to, range.start, range.end);
                    done += range.end - range.start;
                }
            }
        }
        debug_assert!(
            contents.as_slice().is_empty(),
            "all that was read is copied"
        );
        self.stage_modified(&mut change, &mut to, ClearSetId::None);
        to.finish(&mut change)?;
        if offer.is_new {
            let mut from = self.stage(source.clone())?;
            from.lend(offer, self.changes.new_ino()?);
            change.put_contents(offer.contents, chunk_count(source.head.size));
            from.finish(&mut change)?;
        }
        debug_assert!(done > 0, "each step comes further");
        self.inodes().note_counted(target.head.ino, None);
        change.commit()?;
        Ok(Some(done))
    }

    /// Reads what has to be written of a copy.
    fn contents_to_copy(&self, source: &Inode, pieces: &[CopyPiece]) -> FsResult<Vec<Vec<u8>>> {
        self.contents.note_read(source.head.ino)?;
        let mut all = Vec::new();
        for piece in pieces {
            if let CopyPiece::Copied(range) = piece {
                let mut bytes = Vec::new();
                let len = usize::try_from(range.end - range.start).expect("a step");
                debug_assert!(len > 0, "a piece has bytes");
                self.contents
                    .read_locked(source, range.start, len, &mut bytes)?;
                debug_assert_eq!(bytes.len(), len, "it is within the size");
                all.push(bytes);
            }
        }
        debug_assert!(
            all.len() <= pieces.len(),
            "one for each piece that is copied"
        );
        Ok(all)
    }
}

impl Offer {
    /// Reports whether at least half of a file is shared.
    fn is_most_of(&self, head: &InodeHead) -> bool {
        debug_assert_eq!(head.kind, FileKind::Regular, "files alone share contents");
        let shared: u64 = self.extents.iter().map(|one| one.end - one.start).sum();
        shared >= chunk_count(head.size) / 2
    }
}

impl Staged {
    /// Stages that chunks are those of contents. Reports false if that were too many extents.
    fn take_shared(&mut self, change: &mut Change<'_>, contents: Ino, chunks: &Range<u64>) -> bool {
        debug_assert!(chunks.start <= chunks.end, "a range of chunks");
        let own = self.number();
        let sharing = self.sharing.get_or_insert_with(|| Sharing {
            before: None,
            row: SharedRow {
                own,
                contents: None,
                extents: Vec::new(),
            },
        });
        let extents = with(&sharing.row.extents, chunks);
        if extents.len() > SHARED_EXTENTS_MAX {
            return false;
        }
        sharing.row.contents = Some(contents);
        debug_assert_ne!(
            sharing.row.own, contents,
            "own chunks are apart from shared ones"
        );
        sharing.row.extents = extents;
        let stored = chunk_count(self.head.size).min(chunks.end);
        if chunks.start < stored {
            change.delete_chunks(own, chunks.start, stored);
        }
        true
    }

    /// Stages the size of a file after chunks of `source` up to a byte `end`, and what it counts of
    /// its chunks.
    fn grow_by_shared(&mut self, source: &Inode, chunks: &Range<u64>, end: u64) {
        let from = &source.head;
        let count = chunks.end - chunks.start;
        debug_assert!(chunks.start < chunks.end, "an extent is not empty");
        let (has_holes, added) = match from.has(row_flag::HOLES) {
            true => (true, count.min(from.chunks)),
            false => (false, count),
        };
        if has_holes {
            self.note_holes();
        }
        self.grow(end, chunks.start * CHUNK_BYTES);
        debug_assert!(self.head.size >= end, "the size has all that is shared");
        if self.head.has(row_flag::HOLES) {
            let full = chunk_count(self.head.size);
            self.head.chunks = self.head.chunks.saturating_add(added).min(full);
        }
    }

    /// Stages that the own chunks of a file become contents that others may share. What it writes
    /// from now on is under the number `own`.
    fn lend(&mut self, offer: &Offer, own: Ino) {
        debug_assert!(offer.is_new, "they are its own ones");
        debug_assert_ne!(offer.contents, own, "another number");
        debug_assert_eq!(
            offer.contents,
            self.number(),
            "the number of its own chunks"
        );
        let before = self.sharing.take().and_then(|sharing| sharing.before);
        let row = SharedRow {
            own,
            contents: Some(offer.contents),
            extents: offer.extents.clone(),
        };
        self.sharing = Some(Sharing { before, row });
    }
}

#[cfg(test)]
mod tests {
    use super::CopyPiece::{Copied, Shared};
    use super::*;

    #[test]
    fn pieces_follow_the_extents_up_to_the_budget() {
        let extents = [2..4, 6..10];
        let range = 4096..45_000;
        let all = [
            Copied(4096..8192),
            Shared(2..4),
            Copied(16_384..24_576),
            Shared(6..10),
            Copied(40_960..45_000),
        ];
        assert_eq!(copy_pieces(&extents, &range, 1 << 20), all);
        let cut = [Copied(4096..8192), Shared(2..4), Copied(16_384..20_480)];
        assert_eq!(copy_pieces(&extents, &range, 8192), cut);
        let none = copy_pieces(&extents, &range, 4096);
        assert_eq!(none, cut[..2]);
        let whole = 0..3;
        let end = copy_pieces(std::slice::from_ref(&whole), &(0..10_000), 4096);
        assert_eq!(end, [Shared(whole)], "the last chunk is short");
    }
}
