//! Coalesced reads: neighbouring blocks are read by one request, into buffers that are used again.
//!
//! The blocks of one read lie one behind the other on the device. The blocks of a window can need
//! hundreds of reads. They share a few long buffers, so that none needs an allocation of its own; a
//! read is cut between two blocks where a buffer ends.

use super::loader::DataRef;
use crate::page_buffers::{KEPT_BYTES_MAX, PAGE_BYTES, PageBuffer, PageBuffers};
use bytes::Bytes;
use stitch_volume::Wanted;

/// Blocks one behind the other on the device, and where they go in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoalescedRead {
    offset: u64,
    len: usize,
    /// The buffer's number.
    buffer: usize,
    /// Where in the buffer; at a page.
    start: usize,
}

impl CoalescedRead {
    const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// The reads for a list of blocks, and memory for them.
#[derive(Debug)]
pub(super) struct CoalescedReads {
    /// In the order of their offsets; those of a buffer follow each other.
    reads: Vec<CoalescedRead>,
    buffers: Vec<PageBuffer>,
}

impl CoalescedReads {
    /// Plans the reads of all these blocks, in memory of `buffers`.
    pub(super) fn of(blocks: &[DataRef], buffers: &PageBuffers) -> Self {
        let reads = plan(blocks);
        debug_assert!(
            reads.is_sorted_by_key(|read| read.offset),
            "reads are in the order of their offsets"
        );
        debug_assert!(
            reads.is_sorted_by_key(|read| read.buffer),
            "buffers are filled one after the other"
        );
        debug_assert!(
            reads
                .iter()
                .all(|read| read.start.is_multiple_of(PAGE_BYTES)),
            "a read begins at a page"
        );
        let in_buffers = reads.chunk_by(|a, b| a.buffer == b.buffer);
        let len = |last: &CoalescedRead| last.start + last.len;
        let lens = in_buffers.map(|reads| reads.last().map_or(0, len));
        let buffers: Vec<PageBuffer> = lens.map(|len| buffers.take(len)).collect();
        debug_assert_eq!(
            buffers.len(),
            reads.last().map_or(0, |last| last.buffer + 1),
            "each read has its buffer"
        );
        Self { reads, buffers }
    }

    /// Each read: its offset on the device, and its memory.
    pub(super) fn wanted(&mut self) -> Vec<Wanted<'_>> {
        let mut wanted = Vec::with_capacity(self.reads.len());
        debug_assert!(
            self.reads.is_empty() == self.buffers.is_empty(),
            "buffers are those of reads"
        );
        let mut reads = self.reads.iter().peekable();
        for (number, buffer) in self.buffers.iter_mut().enumerate() {
            let (mut rest, mut at) = (buffer.as_mut(), 0);
            while let Some(read) = reads.next_if(|read| read.buffer == number) {
                let (out, after) = rest[read.start - at..].split_at_mut(read.len);
                let offset = read.offset;
                wanted.push(Wanted { offset, out });
                (rest, at) = (after, read.start + read.len);
            }
        }
        debug_assert_eq!(wanted.len(), self.reads.len(), "each lies in a buffer");
        wanted
    }

    /// The buffers, once the reads are done.
    pub(super) fn read(self) -> ReadBuffers {
        debug_assert!(
            self.reads
                .iter()
                .all(|read| read.buffer < self.buffers.len()),
            "each read has gone to a buffer"
        );
        let buffers = self.buffers.into_iter();
        ReadBuffers {
            reads: self.reads,
            buffers: buffers.map(Bytes::from_owner).collect(),
        }
    }
}

/// What the reads have brought. The memory is used again when no block in it is referenced.
#[derive(Debug)]
pub(super) struct ReadBuffers {
    reads: Vec<CoalescedRead>,
    buffers: Vec<Bytes>,
}

impl ReadBuffers {
    /// The bytes of one of the blocks.
    ///
    /// # Panics
    /// If it is none of them.
    pub(super) fn block(&self, data: &DataRef) -> Bytes {
        let after = self.reads.partition_point(|p| p.offset <= data.block.addr);
        let read = &self.reads[after - 1];
        debug_assert!(
            read.offset <= data.block.addr,
            "the read begins before the block"
        );
        assert!(data.block.end() <= read.end(), "one of these blocks");
        let within = usize::try_from(data.block.addr - read.offset).expect("in memory");
        let start = read.start + within;
        debug_assert!(within < read.len, "the block lies in the read");
        self.buffers[read.buffer].slice(start..start + data.block.len_bytes as usize)
    }
}

/// Where each block goes.
fn plan(blocks: &[DataRef]) -> Vec<CoalescedRead> {
    let mut sorted: Vec<&DataRef> = blocks.iter().collect();
    // A longer one last, if an index has two at one place: it is the one that is found.
    sorted.sort_unstable_by_key(|data| (data.block.addr, data.block.len_bytes));
    let mut reads: Vec<CoalescedRead> = Vec::new();
    for data in sorted {
        let (offset, len) = (data.block.addr, data.block.len_bytes as usize);
        let (mut buffer, mut start) = (0, 0);
        if let Some(last) = reads.last_mut() {
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
        reads.push(CoalescedRead {
            offset,
            len,
            buffer,
            start,
        });
    }
    debug_assert!(
        reads.is_sorted_by(|a, b| a.buffer < b.buffer || a.start + a.len <= b.start),
        "reads into one buffer are apart"
    );
    debug_assert!(
        reads
            .iter()
            .all(|read| read.start == 0 || read.start + read.len <= KEPT_BYTES_MAX),
        "buffers of several reads are bounded"
    );
    reads
}

#[cfg(test)]
mod tests;
