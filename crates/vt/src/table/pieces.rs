//! Memory for blocks that are read together: pieces of the device, packed into buffers that are
//! used again.
//!
//! A piece is a row of blocks, each where the one before it ends, and is read with one request. The
//! blocks of a window can lie in hundreds of pieces. So that each of these needs no memory of its
//! own, they lie one after the other in a few long buffers; a piece is cut between two blocks where
//! a buffer ends.

use super::loader::DataRef;
use crate::page_buffers::{KEPT_BYTES_MAX, PAGE_BYTES, PageBuffer, PageBuffers};
use bytes::Bytes;
use stitch_volume::Wanted;

/// A row of blocks, and where it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    len: usize,
    /// The buffer's number.
    buffer: usize,
    /// Where in the buffer; at a page.
    start: usize,
}

impl Piece {
    const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// Pieces to be read, and memory for them.
#[derive(Debug)]
pub(super) struct Pieces {
    /// In the order of their offsets; those of a buffer follow each other.
    pieces: Vec<Piece>,
    buffers: Vec<PageBuffer>,
}

impl Pieces {
    /// Pieces with all these blocks, in memory of `buffers`.
    pub(super) fn of(blocks: &[DataRef], buffers: &PageBuffers) -> Self {
        let pieces = plan(blocks);
        let in_buffers = pieces.chunk_by(|a, b| a.buffer == b.buffer);
        let len = |last: &Piece| last.start + last.len;
        let lens = in_buffers.map(|pieces| pieces.last().map_or(0, len));
        Self {
            buffers: lens.map(|len| buffers.take(len)).collect(),
            pieces,
        }
    }

    /// What is to be read, and where to.
    pub(super) fn wanted(&mut self) -> Vec<Wanted<'_>> {
        let mut wanted = Vec::with_capacity(self.pieces.len());
        let mut pieces = self.pieces.iter().peekable();
        for (number, buffer) in self.buffers.iter_mut().enumerate() {
            let (mut rest, mut at) = (buffer.as_mut(), 0);
            while let Some(piece) = pieces.next_if(|piece| piece.buffer == number) {
                let (out, after) = rest[piece.start - at..].split_at_mut(piece.len);
                let offset = piece.offset;
                wanted.push(Wanted { offset, out });
                (rest, at) = (after, piece.start + piece.len);
            }
        }
        debug_assert_eq!(wanted.len(), self.pieces.len(), "each lies in a buffer");
        wanted
    }

    /// The pieces, once they were read.
    pub(super) fn read(self) -> ReadPieces {
        let buffers = self.buffers.into_iter();
        ReadPieces {
            pieces: self.pieces,
            buffers: buffers.map(Bytes::from_owner).collect(),
        }
    }
}

/// Pieces that were read. Their memory is used again when nobody has a block of it any more.
#[derive(Debug)]
pub(super) struct ReadPieces {
    pieces: Vec<Piece>,
    buffers: Vec<Bytes>,
}

impl ReadPieces {
    /// The bytes of one of the blocks.
    ///
    /// # Panics
    /// If it is none of them.
    pub(super) fn block(&self, data: &DataRef) -> Bytes {
        let after = self.pieces.partition_point(|p| p.offset <= data.block.addr);
        let piece = &self.pieces[after - 1];
        assert!(data.block.end() <= piece.end(), "a block of these pieces");
        let within = usize::try_from(data.block.addr - piece.offset).expect("in memory");
        let start = piece.start + within;
        self.buffers[piece.buffer].slice(start..start + data.block.len_bytes as usize)
    }
}

/// Where each block goes.
fn plan(blocks: &[DataRef]) -> Vec<Piece> {
    let mut sorted: Vec<&DataRef> = blocks.iter().collect();
    // A longer one last, if an index has two at one place: it is the one that is found.
    sorted.sort_unstable_by_key(|data| (data.block.addr, data.block.len_bytes));
    let mut pieces: Vec<Piece> = Vec::new();
    for data in sorted {
        let (offset, len) = (data.block.addr, data.block.len_bytes as usize);
        let (mut buffer, mut start) = (0, 0);
        if let Some(last) = pieces.last_mut() {
            let end = last.start + last.len;
            if last.end() == offset && end + len <= KEPT_BYTES_MAX {
                last.len += len;
                continue;
            }
            (buffer, start) = (last.buffer, end.next_multiple_of(PAGE_BYTES));
            if start + len > KEPT_BYTES_MAX {
                (buffer, start) = (last.buffer + 1, 0);
            }
        }
        pieces.push(Piece {
            offset,
            len,
            buffer,
            start,
        });
    }
    pieces
}

#[cfg(test)]
mod tests;
