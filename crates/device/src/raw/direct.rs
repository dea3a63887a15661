//! Direct reads and writes of a block device.
//!
//! Whole sectors go straight between the medium and a buffer here. The kernel keeps direct and
//! cached access coherent: before a direct read it writes out dirty pages, and a direct write drops
//! cached pages. So each request may use either. Requests that are not whole sectors are not for
//! this module ([`Direct::fits`]).
//!
//! Buffers must be page-aligned. Bytes are copied once, as in the page cache, except for a write of
//! one aligned buffer.

use crate::ring::Rings;
use crate::{Wanted, past, positioned};
use std::fs::File;
use std::io;
use stitch_base::sync::Mutex;

/// Alignment of buffers, enough for every device.
const ALIGN: usize = 4096;
/// Most bytes of one request.
pub(super) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Buffers that are kept for later requests.
const KEPT_MAX: usize = 64;

/// Direct access to a device.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    /// Length of a sector; requests are multiples of it.
    sector_bytes: u64,
    rings: Option<Rings>,
    kept: Mutex<Vec<Buffer>>,
}

/// An aligned buffer.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        let bytes = vec![0; REQUEST_BYTES_MAX + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        assert!(start < ALIGN, "memory has addresses");
        Self { bytes, start }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= REQUEST_BYTES_MAX, "a request is bounded");
        &mut self.bytes[self.start..self.start + len]
    }
}

/// A part of a request: an extent of the device and a buffer for it.
struct Part {
    offset: u64,
    len: usize,
    buffer: Buffer,
}

impl Part {
    fn wanted(&mut self) -> Wanted<'_> {
        Wanted {
            offset: self.offset,
            out: self.buffer.get(self.len),
        }
    }
}

impl Direct {
    /// Creates the access by `file`, which was opened with `O_DIRECT`. Without rings, requests are
    /// made one after the other.
    pub(super) fn new(file: File, sector_bytes: u64, rings: Option<Rings>) -> Self {
        Self {
            file,
            sector_bytes,
            rings,
            kept: Mutex::default(),
        }
    }

    /// Duplicates the descriptor.
    pub(super) fn again(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Reports whether an extent is whole sectors.
    pub(super) fn fits(&self, offset: u64, len: usize) -> bool {
        let is_whole = |bytes: u64| bytes.is_multiple_of(self.sector_bytes);
        len > 0 && is_whole(offset) && is_whole(len as u64)
    }

    /// Reports whether an extent is whole sectors, and its buffer is aligned.
    pub(super) fn fits_memory(&self, piece: &Wanted<'_>) -> bool {
        past::fits(piece) && self.fits(piece.offset, piece.out.len())
    }

    /// Reads aligned extents into their own buffers. Data that is in the page cache is read by
    /// `buffered`.
    pub(super) fn read_into(&self, buffered: &File, pieces: &mut [Wanted<'_>]) -> io::Result<()> {
        for piece in pieces {
            debug_assert!(self.fits_memory(piece), "whole sectors");
            past::read_by_best(&self.file, buffered, piece)?;
        }
        Ok(())
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if out.len() > REQUEST_BYTES_MAX {
            return self.read_each(&mut [Wanted { offset, out }]);
        }
        let mut buffer = self.buffer();
        let bytes = buffer.get(out.len());
        positioned::read_exact(&self.file, offset, bytes)?;
        out.copy_from_slice(bytes);
        self.keep(buffer);
        Ok(())
    }

    /// Reads all extents, in parallel if there are rings. Each must fit.
    pub(super) fn read_each(&self, pieces: &mut [Wanted<'_>]) -> io::Result<()> {
        for row in pieces.chunk_by_mut(|before, after| before.end() == after.offset) {
            debug_assert!(self.fits(row[0].offset, row[0].out.len()), "whole sectors");
        }
        let mut parts = self.parts(pieces);
        match &self.rings {
            Some(rings) if parts.len() > 1 => {
                let wanted = parts.iter_mut().map(Part::wanted);
                rings.read(&self.file, &mut wanted.collect::<Vec<_>>())?;
            }
            _ => {
                for part in &mut parts {
                    let bytes = part.buffer.get(part.len);
                    positioned::read_exact(&self.file, part.offset, bytes)?;
                }
            }
        }
        let mut from = parts
            .iter_mut()
            .map(|part| (part.offset, part.buffer.get(part.len)));
        let mut part: (u64, &[u8]) = (0, &[]);
        for piece in pieces {
            let (mut at, mut out) = (piece.offset, &mut *piece.out);
            while !out.is_empty() {
                if part.1.is_empty() {
                    let (offset, bytes) = from.next().expect("parts cover the pieces");
                    part = (offset, bytes);
                }
                assert_eq!(part.0, at, "parts and pieces are in one order");
                let len = out.len().min(part.1.len());
                out[..len].copy_from_slice(&part.1[..len]);
                part = (part.0 + len as u64, &part.1[len..]);
                at += len as u64;
                out = &mut out[len..];
            }
        }
        parts.into_iter().for_each(|part| self.keep(part.buffer));
        Ok(())
    }

    /// Groups extents into requests, in their order. Neighbouring extents become one request, cut
    /// at the maximum length.
    fn parts(&self, pieces: &[Wanted<'_>]) -> Vec<Part> {
        let mut parts = Vec::new();
        for row in pieces.chunk_by(|before, after| before.end() == after.offset) {
            let mut left: usize = row.iter().map(|piece| piece.out.len()).sum();
            let mut offset = row[0].offset;
            while left > 0 {
                let len = left.min(REQUEST_BYTES_MAX);
                let buffer = self.buffer();
                parts.push(Part {
                    offset,
                    len,
                    buffer,
                });
                offset += len as u64;
                left -= len;
            }
        }
        parts
    }

    /// Writes all of `pieces` from `offset` on; together they are whole sectors.
    pub(super) fn write(&self, offset: u64, pieces: &[&[u8]]) -> io::Result<()> {
        if let [only] = pieces
            && only.as_ptr().align_offset(ALIGN) == 0
        {
            return positioned::write_all(&self.file, offset, pieces);
        }
        let mut buffer = self.buffer();
        let (mut at, mut filled) = (offset, 0);
        for mut piece in pieces.iter().copied() {
            while !piece.is_empty() {
                let len = piece.len().min(REQUEST_BYTES_MAX - filled);
                buffer.get(filled + len)[filled..].copy_from_slice(&piece[..len]);
                (filled, piece) = (filled + len, &piece[len..]);
                if filled == REQUEST_BYTES_MAX {
                    positioned::write_all(&self.file, at, &[buffer.get(filled)])?;
                    at += filled as u64;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            positioned::write_all(&self.file, at, &[buffer.get(filled)])?;
        }
        self.keep(buffer);
        Ok(())
    }

    fn buffer(&self) -> Buffer {
        let kept = self.kept.lock().pop();
        kept.unwrap_or_else(Buffer::new)
    }

    fn keep(&self, buffer: Buffer) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    }
}
