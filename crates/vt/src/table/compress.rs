//! Compression of data blocks, each for itself.
//!
//! 1. A block is kept compressed where that saves an eighth of it and at least one sector;
//!    otherwise it is stored as it is.
//! 2. What does not pay is not tried again at once: after a few blocks in a row, ever more of those
//!    that follow are stored untried, up to a bound. Encrypted or compressed contents cost little
//!    time so, and text after them is found soon.
//! 3. A block's flags say how it is compressed, and the index how long it is unpacked: nothing in
//!    the compressed bytes decides how much memory is taken.

use super::loader::contradiction;
use std::cell::RefCell;
use stitch_format::FormatError;
use stitch_format::block::block_bytes;
use stitch_format::vt_data::{FLAG_LZ4, FLAG_ZSTD};
use stitch_kv::Compression;
use zstd::bulk::{Compressor, Decompressor};

/// Effort of Zstandard (ADR 0070).
const ZSTD_LEVEL: i32 = 1;
/// Blocks in a row that did not pay before any is stored untried.
const MISSES_FREE: u32 = 4;
/// Most blocks in a row that are stored untried.
const UNTRIED_MAX: u32 = 16;

thread_local! {
    /// Making one takes longer than packing a block.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses the blocks of a table. Invariant: blocks are stored untried only after some that did
/// not pay, and few of them.
#[derive(Debug, Default)]
pub(super) struct Packer {
    out: Vec<u8>,
    /// Blocks in a row that did not pay.
    misses: u32,
    /// Blocks that are stored untried from now on.
    untried: u32,
}

impl Packer {
    /// The block's flags and its bytes, if compressing it pays.
    pub(super) fn pack(&mut self, compression: Compression, raw: &[u8]) -> Option<(u8, &[u8])> {
        debug_assert!(self.holds());
        debug_assert!(!raw.is_empty(), "a block holds an entry");
        if compression == Compression::None {
            return None;
        }
        if self.untried > 0 {
            self.untried -= 1;
            return None;
        }
        let packed = match compression {
            Compression::None => None,
            Compression::Lz4 => self.lz4(raw).map(|len| (FLAG_LZ4, len)),
            Compression::Zstd => self.zstd(raw).map(|len| (FLAG_ZSTD, len)),
        };
        match packed.filter(|(_, len)| pays(raw.len(), *len)) {
            Some((flag, len)) => {
                debug_assert!(len < raw.len(), "a compressed block is shorter");
                debug_assert!(
                    unpack(flag, &self.out[..len], raw.len()).is_ok_and(|back| back == raw),
                    "a read unpacks what was packed"
                );
                self.misses = 0;
                Some((flag, &self.out[..len]))
            }
            None => {
                self.misses = self.misses.saturating_add(1);
                let beyond = self.misses.saturating_sub(MISSES_FREE);
                self.untried = beyond.saturating_mul(2).min(UNTRIED_MAX);
                debug_assert!(self.holds());
                None
            }
        }
    }

    fn holds(&self) -> bool {
        self.untried <= UNTRIED_MAX && (self.untried == 0 || self.misses > MISSES_FREE)
    }

    fn lz4(&mut self, raw: &[u8]) -> Option<usize> {
        let len_max = lz4_flex::block::get_maximum_output_size(raw.len());
        if self.out.len() < len_max {
            self.out.resize(len_max, 0);
        }
        let len = lz4_flex::block::compress_into(raw, &mut self.out).ok()?;
        debug_assert!(len <= len_max, "it fits into the longest output");
        Some(len)
    }

    /// What does not fit into the room of what pays is an error, found early.
    fn zstd(&mut self, raw: &[u8]) -> Option<usize> {
        if self.out.len() < raw.len() {
            self.out.resize(raw.len(), 0);
        }
        COMPRESSOR.with_borrow_mut(|kept| {
            if kept.is_none() {
                *kept = Compressor::new(ZSTD_LEVEL).ok();
            }
            let room = &mut self.out[..len_max_that_pays(raw.len())];
            let room_bytes = room.len();
            let len = kept.as_mut()?.compress_to_buffer(raw, room).ok()?;
            debug_assert!(len <= room_bytes, "it fits into the room");
            Some(len)
        })
    }
}

const fn len_max_that_pays(raw_len: usize) -> usize {
    raw_len - raw_len / 8
}

const fn pays(raw_len: usize, packed_len: usize) -> bool {
    packed_len <= len_max_that_pays(raw_len)
        && block_bytes(packed_len as u64) < block_bytes(raw_len as u64)
}

/// What a block with these flags was before it was compressed: `expected_len` bytes. Any bytes may
/// come, and no flags of blocks that are stored as they are.
pub(super) fn unpack(
    flags: u8,
    packed: &[u8],
    expected_len: usize,
) -> Result<Vec<u8>, FormatError> {
    let mut out = vec![0; expected_len];
    let (name, unpacked) = match flags {
        FLAG_LZ4 => {
            let unpacked = lz4_flex::block::decompress_into(packed, &mut out);
            ("LZ4", unpacked.map_err(|error| error.to_string()))
        }
        FLAG_ZSTD => ("Zstandard", unpack_zstd(packed, &mut out)),
        other => {
            let found = other.to_string();
            return Err(contradiction("block flags", "0 to 2".to_owned(), found));
        }
    };
    match unpacked {
        Ok(len) if len == expected_len => Ok(out),
        Ok(len) => Err(contradiction(
            "unpacked length",
            expected_len.to_string(),
            len.to_string(),
        )),
        Err(error) => Err(contradiction(name, "compressed data".to_owned(), error)),
    }
}

fn unpack_zstd(packed: &[u8], out: &mut [u8]) -> Result<usize, String> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let new = || Decompressor::new().map_err(|error| error.to_string());
        let unpacker = match kept {
            Some(unpacker) => unpacker,
            None => kept.insert(new()?),
        };
        let unpacked = unpacker.decompress_to_buffer(packed, out);
        debug_assert!(
            unpacked.as_ref().is_ok_and(|len| *len <= out.len()) || unpacked.is_err(),
            "it fits into the room"
        );
        unpacked.map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    const BOTH: [(Compression, u8); 2] =
        [(Compression::Lz4, FLAG_LZ4), (Compression::Zstd, FLAG_ZSTD)];

    fn text(len: usize) -> Vec<u8> {
        let words = (0..).flat_map(|n: u32| format!("row {n}: a value like others; ").into_bytes());
        words.take(len).collect()
    }

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut out = vec![0; len];
        Rng::new(seed).fill(&mut out);
        out
    }

    #[test]
    fn what_was_packed_comes_back() {
        for (compression, expected_flag) in BOTH {
            let mut packer = Packer::default();
            for len in [600, 4096, 16_384, 70_000, 1_000] {
                let raw = text(len);
                let (flag, packed) = packer.pack(compression, &raw).expect("text shrinks");
                assert_eq!(flag, expected_flag);
                assert!(packed.len() < raw.len() / 2, "{len} bytes of text");
                assert_eq!(unpack(flag, packed, len).as_deref(), Ok(&raw[..]));
            }
            assert!(
                Packer::default()
                    .pack(Compression::None, &text(4096))
                    .is_none()
            );
        }
    }

    #[test]
    fn what_does_not_pay_is_stored_as_it_is() {
        for (compression, _) in BOTH {
            let mut packer = Packer::default();
            assert!(packer.pack(compression, &noise(16_384, 1)).is_none());
            // Saves bytes, but no sector.
            assert!(packer.pack(compression, &text(470)).is_none());
            // Saves less than an eighth.
            let little = [noise(15_000, 2), text(1_400)].concat();
            assert!(packer.pack(compression, &little).is_none());
        }
    }

    #[test]
    fn noise_is_tried_rarely_and_text_after_it_is_found() {
        for (compression, _) in BOTH {
            let mut packer = Packer::default();
            let mut untried = 0;
            for n in 0..400 {
                untried += u32::from(packer.untried > 0);
                assert!(packer.pack(compression, &noise(8192, n)).is_none());
            }
            assert!(untried > 340, "{untried} of 400");
            let raw = text(8192);
            let found = (0..=UNTRIED_MAX).find(|_| packer.pack(compression, &raw).is_some());
            assert!(found.is_some(), "text is compressed again");
            assert!(packer.pack(compression, &raw).is_some());
        }
    }

    #[test]
    fn any_bytes_give_the_length_or_an_error() {
        let raw = text(3000);
        let mut rng = Rng::new(7);
        for (compression, flag) in BOTH {
            let mut packer = Packer::default();
            let (_, packed) = packer.pack(compression, &raw).expect("text shrinks");
            let packed = packed.to_vec();
            for expected_len in [0, 1, 2999, 3001, 1 << 16] {
                assert!(unpack(flag, &packed, expected_len).is_err());
            }
            for cut in 0..packed.len() {
                assert!(unpack(flag, &packed[..cut], 3000).is_err(), "cut at {cut}");
            }
            for bit in 0..packed.len() * 8 {
                let mut flipped = packed.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let found = unpack(flag, &flipped, 3000);
                assert!(found.is_err() || found.is_ok_and(|out| out.len() == 3000));
            }
            for len in 0..2000 {
                let mut bytes = vec![0; len % 200];
                rng.fill(&mut bytes);
                let _ = unpack(flag, &bytes, 5000);
                let head = packed.len().min(len % 40);
                let mixed = [&packed[..head], &bytes].concat();
                let _ = unpack(flag, &mixed, 3000);
            }
        }
        for flags in [0, 3, 4, 255] {
            assert!(unpack(flags, &raw, 3000).is_err());
        }
    }
}
