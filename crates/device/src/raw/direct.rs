//! Reading and writing a block device past the page cache.
//!
//! What begins and ends with a sector of the device goes straight between the medium and a buffer
//! here; the kernel keeps both ways of access the same: what the page cache has not written yet, it
//! writes before such a read, and what such a write goes over, it forgets. So each request may take
//! the way that suits it. Requests that are not whole sectors are not for here ([`Direct::fits`]).
//!
//! Buffers must begin at a page: bytes are copied once, as the page cache would, unless what is written is
//! one piece that begins so.

use crate::ring::Rings;
use crate::{Wanted, past, positioned};
use std::fs::File;
use std::io;
use stitch_base::sync::Mutex;

/// Where buffers begin, which suits every device.
const ALIGN: usize = 4096;
/// Most bytes of one request.
pub(super) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Buffers that are kept for the next request.
const KEPT_MAX: usize = 64;

/// A device past the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    /// What a request must be a multiple of.
    sector_bytes: u64,
    rings: Option<Rings>,
    kept: Mutex<Vec<Buffer>>,
}

/// Memory that the device may use.
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

/// A part of a request: a piece of the device, and one buffer.
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
    /// `file` was opened with `O_DIRECT`. Without rings, requests are made one after the other.
    pub(super) fn new(file: File, sector_bytes: u64, rings: Option<Rings>) -> Self {
        Self {
            file,
            sector_bytes,
            rings,
            kept: Mutex::default(),
        }
    }

    /// The device once more in the same way.
    pub(super) fn again(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// True if a piece of the device is whole sectors.
    pub(super) fn fits(&self, offset: u64, len: usize) -> bool {
        let is_whole = |bytes: u64| bytes.is_multiple_of(self.sector_bytes);
        len > 0 && is_whole(offset) && is_whole(len as u64)
    }

    /// True if a piece is whole sectors, and the memory for it is as the device wants it.
    pub(super) fn fits_memory(&self, piece: &Wanted<'_>) -> bool {
        past::fits(piece) && self.fits(piece.offset, piece.out.len())
    }

    /// Reads pieces that are as the device wants them into their own memory; those that the page cache
    /// has from there, by `buffered`.
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

    /// Reads all pieces, at the same time where there are rings. Each fits.
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

    /// The pieces as requests, in their order: rows of pieces that follow each other, cut where they
    /// are too long.
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

    /// Writes all of `pieces` from `offset`, which together are whole sectors.
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
