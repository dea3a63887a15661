//! A string of bits over bytes: bit `i` is bit `i % 8` of byte `i / 8`.
//!
//! Reads beyond the end return zero bits and never panic, so that a reader of hostile bytes needs
//! no bounds checks of its own.

/// The 64 bits that start at byte `index`; bytes beyond the end count as zero.
fn word_at(bytes: &[u8], index: usize) -> u64 {
    let tail = bytes.get(index..).unwrap_or_default();
    if let Some(chunk) = tail.first_chunk::<8>() {
        return u64::from_le_bytes(*chunk);
    }
    let mut word = [0_u8; 8];
    word[..tail.len()].copy_from_slice(tail);
    u64::from_le_bytes(word)
}

/// The `width` bits (at most 32) that start at bit `at`, first bit lowest.
pub(crate) fn read(bytes: &[u8], at: usize, width: u32) -> u64 {
    debug_assert!(width <= 32);
    (word_at(bytes, at / 8) >> (at % 8)) & ((1 << width) - 1)
}

/// Number of one bits among the first `count` bits.
pub(crate) fn ones_before(bytes: &[u8], count: usize) -> usize {
    let mut ones = 0;
    let mut at = 0;
    while at < count {
        let kept = (count - at).min(64);
        let mask = u64::MAX >> (64 - kept);
        ones += (word_at(bytes, at / 8) & mask).count_ones() as usize;
        at += 64;
    }
    ones
}

/// Position of the zero bit that has exactly `rank` zero bits before it, if it lies within the
/// first `count` bits.
pub(crate) fn select_zero(bytes: &[u8], count: usize, rank: usize) -> Option<usize> {
    let mut left = rank;
    let mut at = 0;
    while at < count {
        let mut zeros = !word_at(bytes, at / 8);
        let here = zeros.count_ones() as usize;
        if left < here {
            for _ in 0..left {
                zeros &= zeros - 1;
            }
            let position = at + zeros.trailing_zeros() as usize;
            return (position < count).then_some(position);
        }
        left -= here;
        at += 64;
    }
    None
}

/// Appends bits to a byte vector.
pub(crate) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    pending_bits: u32,
}

impl<'a> BitWriter<'a> {
    /// Starts a bit string at the end of `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            pending: 0,
            pending_bits: 0,
        }
    }

    /// Appends the low `width` bits (at most 32) of `value`, whose other bits are zero.
    pub(crate) fn push(&mut self, value: u64, width: u32) {
        debug_assert!(width <= 32);
        debug_assert!(value >> width == 0);
        self.pending |= value << self.pending_bits;
        self.pending_bits += width;
        while self.pending_bits >= 8 {
            self.out.push(self.pending.to_le_bytes()[0]);
            self.pending >>= 8;
            self.pending_bits -= 8;
        }
    }

    /// Ends the bit string; the rest of the last byte is zero.
    pub(crate) fn finish(self) {
        if self.pending_bits > 0 {
            self.out.push(self.pending.to_le_bytes()[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_in_order() {
        let mut bytes = Vec::new();
        let mut writer = BitWriter::new(&mut bytes);
        for value in 0..200_u64 {
            writer.push(value % 128, 7);
        }
        writer.finish();
        assert_eq!(bytes.len(), 175);
        for value in 0..200_usize {
            assert_eq!(read(&bytes, value * 7, 7), value as u64 % 128);
        }
    }

    #[test]
    fn reading_beyond_the_end_gives_zeros() {
        assert_eq!(read(&[0xff], 4, 16), 0x0f);
        assert_eq!(read(&[], 1000, 16), 0);
        assert_eq!(ones_before(&[0xff, 0x01], 1000), 9);
    }

    #[test]
    fn select_finds_each_zero() {
        let bytes: Vec<u8> = (0..=255).collect();
        let count = bytes.len() * 8;
        let zeros: Vec<usize> = (0..count).filter(|&at| read(&bytes, at, 1) == 0).collect();
        for (rank, &position) in zeros.iter().enumerate() {
            assert_eq!(select_zero(&bytes, count, rank), Some(position));
        }
        assert_eq!(select_zero(&bytes, count, zeros.len()), None);
        assert_eq!(ones_before(&bytes, count), count - zeros.len());
    }
}
