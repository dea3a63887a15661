//! Primitives of all codecs: numbers and byte strings from and to bytes.
//!
//! Fixed-width numbers are little-endian. Varints are LEB128 of at most ten bytes, in their
//! shortest form (a longer form is refused, so that every value has one encoding). Byte strings
//! are a varint length and the bytes.

use crate::FormatError;

/// Longest varint, in bytes.
pub const VARINT_BYTES_MAX: usize = 10;

/// Reads a record front to back. Never panics on any input.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    record: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, which should hold a `record`; errors name it.
    #[inline]
    #[must_use]
    pub const fn new(record: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            record,
            bytes,
            at: 0,
        }
    }

    /// Offset of the next byte.
    #[inline]
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// True when nothing is left.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Everything that is left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let left = self.bytes.len() - self.at;
        if len > left {
            return Err(self.cut(len, left));
        }
        let out = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(out)
    }

    #[cold]
    const fn cut(&self, needed: usize, left: usize) -> FormatError {
        FormatError::Truncated {
            record: self.record,
            at: self.at,
            needed,
            left,
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("take gives the length asked for"))
    }

    /// One byte.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    #[inline]
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Eight bytes, signed.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn i64(&mut self) -> Result<i64, FormatError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A varint.
    ///
    /// # Errors
    /// [`FormatError::Truncated`]; [`FormatError::Field`] if it does not fit 64 bits or is not in
    /// its shortest form.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, FormatError> {
        match self.bytes.get(self.at) {
            // Most take one byte.
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => match self.bytes[self.at..]
                .first_chunk()
                .map(|word| of_word(*word))
            {
                Some(Some((value, len_bytes))) => {
                    self.at += len_bytes;
                    Ok(value)
                }
                _ => self.varint_by_bytes(),
            },
        }
    }

    /// Reads a varint that is long, invalid, or near the end.
    #[cold]
    fn varint_by_bytes(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        for index in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if index == VARINT_BYTES_MAX - 1 && bits > 1 {
                return Err(self.field("varint", "at most 64 bits", format!("{byte:#x} last")));
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(self.field(
                        "varint",
                        "its shortest form",
                        "a trailing zero".into(),
                    ));
                }
                return Ok(value);
            }
        }
        Err(self.field("varint", "at most ten bytes", "more".into()))
    }

    /// Reads a varint that counts bytes or items in memory.
    ///
    /// # Errors
    /// Those of [`Self::varint`].
    #[inline]
    pub fn varint_usize(&mut self) -> Result<usize, FormatError> {
        let value = self.varint()?;
        usize::try_from(value)
            .map_err(|_| self.field("varint", "a length in memory", value.to_string()))
    }

    /// A byte string: varint length, then the bytes.
    ///
    /// # Errors
    /// Those of [`Self::varint`] and [`Self::take`].
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], FormatError> {
        let len = self.varint_usize()?;
        self.take(len)
    }

    /// Checks that the record ends here.
    ///
    /// # Errors
    /// [`FormatError::Field`] if anything is left.
    pub fn finish(self) -> Result<(), FormatError> {
        if self.is_empty() {
            return Ok(());
        }
        let left = self.bytes.len() - self.at;
        Err(self.field("end", "no bytes left", format!("{left} bytes left")))
    }

    /// An error about a field of this record.
    #[cold]
    #[must_use]
    pub fn field(&self, field: &'static str, expected: &str, found: String) -> FormatError {
        FormatError::Field {
            record: self.record,
            field,
            expected: expected.to_owned(),
            found,
        }
    }
}

/// Returns the varint of up to eight bytes at the start of a word, and its length. Returns `None`
/// if it is longer, or not in its shortest form. Works on all bytes at once: lengths vary, so a
/// loop would often be mispredicted.
#[inline]
fn of_word(word: [u8; 8]) -> Option<(u64, usize)> {
    let word = u64::from_le_bytes(word);
    let ends = !word & 0x8080_8080_8080_8080;
    if ends == 0 {
        return None;
    }
    // The lowest byte without the bit is the last one.
    let bits = ends.trailing_zeros() + 1;
    let bytes = word & (u64::MAX >> (u64::BITS - bits));
    if bits > 8 && bytes >> (bits - 8) == 0 {
        return None;
    }
    let sevens = bytes & 0x7f7f_7f7f_7f7f_7f7f;
    let pairs = sevens & 0x007f_007f_007f_007f | (sevens & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = pairs & 0x0000_3fff_0000_3fff | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    let value = fours & 0x0fff_ffff | (fours & 0x0fff_ffff_0000_0000) >> 4;
    Some((value, (bits / 8) as usize))
}

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Returns the length of a varint.
#[must_use]
pub const fn varint_bytes(value: u64) -> usize {
    // One for each seven bits; one for 0.
    ((u64::BITS - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Appends a byte string: varint length, then the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// CRC-32C, the checksum of every record.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues a checksum over more bytes.
#[must_use]
pub fn checksum_append(sum: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(sum, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_as_long_as_is_said() {
        for bits in 0..u64::BITS {
            for value in [(1 << bits) - 1, 1 << bits, u64::MAX >> bits] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(varint_bytes(value), out.len(), "{value}");
            }
        }
    }

    #[test]
    fn varints_come_back() {
        for value in [
            0,
            1,
            127,
            128,
            300,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new("test", &out);
            assert_eq!(reader.varint(), Ok(value));
            assert!(reader.finish().is_ok());
        }
    }

    #[test]
    fn varints_of_every_length_come_back_whatever_is_behind_them() {
        for bits in 0..=u64::BITS {
            let most = u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0);
            for value in [most, most / 2 + 1, most / 3, 0x0123_4567_89ab_cdef & most] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                let len = out.len();
                for behind in 0..10 {
                    for byte in [0, 0x7f, 0x80, 0xff] {
                        out.truncate(len);
                        out.extend(std::iter::repeat_n(byte, behind));
                        let mut reader = Reader::new("test", &out);
                        assert_eq!((reader.varint(), reader.at()), (Ok(value), len));
                    }
                }
            }
        }
    }

    #[test]
    fn a_word_and_single_bytes_say_the_same() {
        let mut rng = stitch_base::random::Rng::new(7);
        for round in 0..200_000u64 {
            // Short and long ones, and those that end in zero bits.
            let mut word = rng.next_u64().to_le_bytes();
            let long = usize::try_from(rng.below(9)).expect("small");
            for byte in &mut word[..long] {
                *byte |= 0x80;
            }
            if round.is_multiple_of(2) && long < word.len() {
                word[long] = [0, 0x80, 1][usize::try_from(rng.below(3)).expect("small")];
            }
            let mut reader = Reader::new("test", &word);
            let by_bytes = reader.varint_by_bytes();
            let expected = by_bytes.ok().map(|value| (value, reader.at()));
            assert_eq!(of_word(word), expected, "{word:02x?}");
        }
    }

    #[test]
    fn long_forms_are_refused() {
        assert!(Reader::new("test", &[0x80, 0x00]).varint().is_err());
        assert!(
            Reader::new("test", &[0x80, 0, 1, 1, 1, 1, 1, 1])
                .varint()
                .is_err()
        );
        assert!(Reader::new("test", &[0xff; 10]).varint().is_err());
        let mut eleven = vec![0x80; 10];
        eleven.push(1);
        assert!(Reader::new("test", &eleven).varint().is_err());
    }

    #[test]
    fn a_cut_says_where() {
        let error = Reader::new("test", &[1, 2, 3]).u64().expect_err("cut");
        assert_eq!(
            error,
            FormatError::Truncated {
                record: "test",
                at: 0,
                needed: 8,
                left: 3
            }
        );
    }

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum_append(checksum(b"1234"), b"56789"), 0xe306_9283);
    }
}
