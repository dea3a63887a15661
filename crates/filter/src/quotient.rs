//! An immutable quotient filter, probed in its serialised form.
//!
//! A hash is mapped monotonically (multiply, then shift) onto a fingerprint below `n * 2^r`, for
//! `n` keys and `r` remainder bits. The fingerprint's high part is the quotient, its low part the
//! remainder. Fingerprints of one quotient form a run; runs lie in quotient order, remainders in
//! ascending order within their run.
//!
//! ```text
//! byte 0          r: 7 or 12
//! 2n bits         for each quotient: one 1 bit for each key of its run, then a 0 bit
//! n * r bits      the remainders
//! padding         zero bits up to a whole byte
//! ```
//!
//! The length in bytes determines `n`, as each key takes at least 8 bits. A probe selects the end
//! of the run before its own (a popcount scan; filters are per data block, so the scan is short),
//! then compares one remainder on average.
//!
//! - A key that was added is always found.
//! - Another key is found with a probability of at most `2^-r`: see [`Precision`].
//! - Size is `r + 2` bits per key, plus the first byte.
//!
//! Paper: Bender et al., "Don't Thrash: How to Cache Your Hash on Flash", 2012; and its use in
//! Shetty et al., "Building Workload-Independent Storage with VT-Trees", 2013, section 3.1.
//! Differs: the filter never changes, so no slot is left empty and nothing is shifted: two bits per
//! key (run lengths in unary) do what three metadata bits per slot do there. The number of
//! quotients need not be a power of two. There is one filter per data block, which a stitched block
//! keeps, so filters are never merged.

use stitch_base::ErrorKind;

use crate::bits::{self, BitWriter};

/// Bits per key beside the remainder.
const METADATA_BITS: u8 = 2;
/// Bytes before the bit string.
const HEADER_BYTES: usize = 1;
/// Largest number of keys in one filter.
const KEY_COUNT_MAX: usize = 1 << 24;

/// How often a filter reports an absent key as present, and how many bits that costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 9 bits per key; wrong for 0.78 % of other keys.
    #[default]
    Normal,
    /// 14 bits per key; wrong for 0.024 % of other keys. Since format 2.2.
    High,
}

impl Precision {
    /// Bits of a fingerprint below the quotient, as the first byte says. Do not renumber.
    const fn remainder_bits(self) -> u8 {
        match self {
            Self::Normal => 7,
            Self::High => 12,
        }
    }

    const fn from_remainder_bits(bits: u8) -> Option<Self> {
        match bits {
            7 => Some(Self::Normal),
            12 => Some(Self::High),
            _ => None,
        }
    }

    /// Bits per key. From 8 on, the length in bytes determines the number of keys.
    const fn key_bits(self) -> usize {
        (self.remainder_bits() + METADATA_BITS) as usize
    }
}

const _: () = assert!(Precision::Normal.key_bits() >= 8);

/// The reason that bytes are not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The bytes do not follow the layout.
    #[error("corrupt quotient filter: {what} is {found}, expected {expected}")]
    Corrupt {
        /// The field or property that is wrong.
        what: &'static str,
        /// What it should be.
        expected: usize,
        /// What it is.
        found: usize,
    },
}

impl FilterError {
    /// The kind that callers act on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }
}

/// A hash's quotient, below `key_count`, and remainder. Keeps the order of hashes.
fn split(hash: u64, key_count: usize, precision: Precision) -> (usize, u64) {
    debug_assert!(0 < key_count && key_count <= KEY_COUNT_MAX);
    let width = precision.remainder_bits();
    let range = (key_count as u128) << width;
    let fingerprint = ((u128::from(hash) * range) >> 64) as u64;
    let quotient = (fingerprint >> width) as usize;
    debug_assert!(quotient < key_count);
    (quotient, fingerprint & ((1 << width) - 1))
}

/// Bytes of a filter of `key_count` keys.
const fn len_bytes(key_count: usize, precision: Precision) -> usize {
    HEADER_BYTES + (key_count * precision.key_bits()).div_ceil(8)
}

/// Builds serialised quotient filters.
#[derive(Debug, Clone, Copy)]
pub struct QuotientFilter;

impl QuotientFilter {
    /// Appends to `out` a filter of `hashes`, after sorting them and removing duplicates.
    ///
    /// The hashes must be of good quality in their high bits. The filter of `n` keys is a byte
    /// string of `1 + 9 * n / 8` bytes, rounded up; with [`Precision::High`], of `1 + 14 * n / 8`.
    ///
    /// # Panics
    ///
    /// If there are more than 2^24 distinct hashes.
    pub fn build(hashes: &mut Vec<u64>, precision: Precision, out: &mut Vec<u8>) {
        hashes.sort_unstable();
        hashes.dedup();
        let key_count = hashes.len();
        assert!(key_count <= KEY_COUNT_MAX, "too many keys for one filter");

        let start = out.len();
        out.reserve(len_bytes(key_count, precision));
        let width = precision.remainder_bits();
        out.push(width);
        let mut writer = BitWriter::new(out);
        write_runs(&mut writer, hashes, precision);
        for &hash in hashes.iter() {
            writer.push(split(hash, key_count, precision).1, u32::from(width));
        }
        writer.finish();
        debug_assert_eq!(out.len() - start, len_bytes(key_count, precision));
    }
}

/// Writes the run lengths in unary: for each quotient, a one per key and a closing zero.
fn write_runs(writer: &mut BitWriter<'_>, hashes: &[u64], precision: Precision) {
    let mut open_quotient = 0;
    for &hash in hashes {
        let (quotient, _) = split(hash, hashes.len(), precision);
        debug_assert!(open_quotient <= quotient);
        for _ in open_quotient..quotient {
            writer.push(0, 1);
        }
        writer.push(1, 1);
        open_quotient = quotient;
    }
    for _ in open_quotient..hashes.len() {
        writer.push(0, 1);
    }
}

/// A quotient filter over borrowed bytes.
#[derive(Debug, Clone, Copy)]
pub struct QuotientFilterRef<'a> {
    bits: &'a [u8],
    key_count: usize,
    precision: Precision,
}

impl<'a> QuotientFilterRef<'a> {
    /// Reads the filter that is exactly `bytes`.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the bytes do not follow the layout. A valid filter of other keys cannot be
    /// recognised: the checksum of the surrounding block covers that.
    ///
    /// # Cost
    ///
    /// A popcount over two bits per key; nothing is copied.
    pub fn new(bytes: &'a [u8]) -> Result<Self, FilterError> {
        let Some((&remainder_bits, bits)) = bytes.split_first() else {
            return Err(FilterError::Corrupt {
                what: "length",
                expected: HEADER_BYTES,
                found: 0,
            });
        };
        let Some(precision) = Precision::from_remainder_bits(remainder_bits) else {
            return Err(FilterError::Corrupt {
                what: "number of remainder bits",
                expected: usize::from(Precision::Normal.remainder_bits()),
                found: usize::from(remainder_bits),
            });
        };
        let key_count = bits.len() * 8 / precision.key_bits();
        let filter = Self {
            bits,
            key_count,
            precision,
        };
        filter.check_layout()?;
        Ok(filter)
    }

    /// Returns the filter of bytes that [`Self::new`] has accepted before. With other bytes it
    /// never panics, but its results mean nothing.
    ///
    /// # Cost
    ///
    /// Reads only the first byte: the caller does not wait for the cache lines of the rest.
    #[must_use]
    pub fn of_checked(bytes: &'a [u8]) -> Self {
        let (remainder_bits, bits) = bytes.split_first().unwrap_or((&0, &[]));
        let precision = Precision::from_remainder_bits(*remainder_bits).unwrap_or_default();
        Self {
            bits,
            key_count: (bits.len() * 8 / precision.key_bits()).min(KEY_COUNT_MAX),
            precision,
        }
    }

    /// Checks what the layout fixes: the length, the number of runs and keys, the padding.
    fn check_layout(&self) -> Result<(), FilterError> {
        if self.key_count > KEY_COUNT_MAX {
            let found = self.key_count;
            return Err(FilterError::Corrupt {
                what: "key count",
                expected: KEY_COUNT_MAX,
                found,
            });
        }
        let found = HEADER_BYTES + self.bits.len();
        let expected = len_bytes(self.key_count, self.precision);
        if found != expected {
            return Err(FilterError::Corrupt {
                what: "length",
                expected,
                found,
            });
        }
        let found = bits::ones_before(self.bits, self.key_count * 2);
        if found != self.key_count {
            let expected = self.key_count;
            return Err(FilterError::Corrupt {
                what: "keys in runs",
                expected,
                found,
            });
        }
        let used = self.key_count * self.precision.key_bits();
        let unused = u32::try_from(self.bits.len() * 8 - used).unwrap_or(u32::MAX);
        debug_assert!(unused < 8);
        let padding = bits::read(self.bits, used, unused);
        if padding != 0 {
            let found = padding as usize;
            return Err(FilterError::Corrupt {
                what: "padding",
                expected: 0,
                found,
            });
        }
        Ok(())
    }

    /// Number of distinct hashes that the filter was built from.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.key_count
    }

    /// Reports whether the filter may have been built from a key of this hash.
    ///
    /// `false` is certain; `true` is wrong with the probability of [`Precision`].
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        if self.key_count == 0 {
            return false;
        }
        let (quotient, wanted) = split(hash, self.key_count, self.precision);
        let run_bits = self.key_count * 2;
        let run_start = match quotient.checked_sub(1) {
            None => 0,
            Some(before) => match bits::select_zero(self.bits, run_bits, before) {
                Some(end) => end + 1,
                None => return false,
            },
        };
        let width = u32::from(self.precision.remainder_bits());
        // Ones before the run: all bits before it but one zero per quotient.
        for (slot, at) in (run_start - quotient..).zip(run_start..run_bits) {
            if bits::read(self.bits, at, 1) == 0 {
                return false;
            }
            let remainder = bits::read(self.bits, run_bits + slot * width as usize, width);
            if remainder >= wanted {
                return remainder == wanted;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stitch_base::random::Rng;

    use super::*;

    const BOTH: [Precision; 2] = [Precision::Normal, Precision::High];

    fn build(hashes: Vec<u64>) -> Vec<u8> {
        build_as(hashes, Precision::Normal)
    }

    fn build_as(mut hashes: Vec<u64>, precision: Precision) -> Vec<u8> {
        let mut out = Vec::new();
        QuotientFilter::build(&mut hashes, precision, &mut out);
        out
    }

    #[test]
    fn an_empty_filter_holds_nothing() {
        let bytes = build(Vec::new());
        let filter = QuotientFilterRef::new(&bytes).unwrap();
        assert_eq!(bytes.len(), 1);
        assert_eq!(filter.key_count(), 0);
        assert!(!filter.may_contain(0));
        assert!(!filter.may_contain(u64::MAX));
    }

    /// Pins the layout: four keys, one per quotient 0 and 1, two in 3.
    #[test]
    fn layout_is_pinned() {
        let quarter = 1_u64 << 62;
        let remainder = |value: u64| value << 55;
        let hashes = vec![
            remainder(1),
            quarter + remainder(2),
            3 * quarter + remainder(3),
            3 * quarter + remainder(127),
        ];
        // Unary 10 10 0 110, lowest bit first, then 7-bit remainders 1, 2, 3, 127.
        assert_eq!(build(hashes), [7, 0b0110_0101, 0x01, 0xc1, 0xe0, 0x0f]);
    }

    /// The same with remainders of 12 bits.
    #[test]
    fn layout_of_high_precision_is_pinned() {
        let quarter = 1_u64 << 62;
        let remainder = |value: u64| value << 50;
        let hashes = vec![
            remainder(1),
            quarter + remainder(2),
            3 * quarter + remainder(3),
            3 * quarter + remainder(0xfff),
        ];
        let bytes = build_as(hashes, Precision::High);
        assert_eq!(bytes, [12, 0x65, 0x01, 0x20, 0x00, 0x03, 0xf0, 0xff]);
    }

    #[test]
    fn building_appends_and_drops_duplicates() {
        let mut out = vec![0xaa];
        let mut hashes = vec![5, 5, u64::MAX, 5];
        QuotientFilter::build(&mut hashes, Precision::Normal, &mut out);
        assert_eq!(hashes, [5, u64::MAX]);
        assert_eq!(out[0], 0xaa);
        let filter = QuotientFilterRef::new(&out[1..]).unwrap();
        assert_eq!(filter.key_count(), 2);
        assert!(filter.may_contain(5));
        assert!(filter.may_contain(u64::MAX));
    }

    #[test]
    fn size_and_false_positives_are_within_bounds() {
        assert_bounds(Precision::Normal, 10, 0.006..0.008);
        assert_bounds(Precision::High, 15, 0.000_18..0.000_30);
    }

    fn assert_bounds(precision: Precision, key_bits_max: usize, rates: std::ops::Range<f64>) {
        let mut random = Rng::new(1);
        let mut false_positives = 0_u64;
        let mut probes = 0_u64;
        for key_count in (16..=2000).step_by(31).chain(16..=40) {
            let hashes = (0..key_count).map(|_| random.next_u64()).collect();
            let bytes = build_as(hashes, precision);
            assert!(
                bytes.len() * 8 <= key_count * key_bits_max,
                "{key_count} keys: {} bytes",
                bytes.len()
            );
            let filter = QuotientFilterRef::new(&bytes).unwrap();
            assert_eq!(filter.key_count(), key_count);
            for _ in 0..20_000 {
                probes += 1;
                false_positives += u64::from(filter.may_contain(random.next_u64()));
            }
        }
        let rate = false_positives as f64 / probes as f64;
        assert!(rates.contains(&rate), "false positive rate {rate}");
    }

    #[test]
    fn a_length_that_no_key_count_has_is_refused() {
        let mut random = Rng::new(2);
        let bytes = build((0..7).map(|_| random.next_u64()).collect());
        assert_eq!(bytes.len(), 9);
        let mut longer = bytes.clone();
        longer.push(0);

        assert!(QuotientFilterRef::new(&longer).is_err());
        assert!(QuotientFilterRef::new(&[]).is_err());
        assert!(QuotientFilterRef::new(&[7, 0]).is_err());
    }

    /// A truncation can leave another valid filter (a prefix with as many ones as zeros). The
    /// checksum of the surrounding block detects that.
    #[test]
    fn every_truncation_is_refused_or_safe_to_probe() {
        let mut random = Rng::new(2);
        let mut refused = 0;
        let bytes = BOTH.map(|precision| {
            let hashes = (0..400).map(|_| random.next_u64()).collect();
            build_as(hashes, precision)
        });
        let cuts = bytes.iter().flat_map(|b| (0..b.len()).map(|len| &b[..len]));
        for cut in cuts {
            match QuotientFilterRef::new(cut) {
                Ok(filter) => assert!((0..50).all(|_| {
                    let _ = filter.may_contain(random.next_u64());
                    filter.key_count() < 400
                })),
                Err(_) => refused += 1,
            }
        }
        let all = bytes.iter().map(Vec::len).sum::<usize>();
        assert!(refused > all / 2, "only {refused} refused");
    }

    #[test]
    fn a_flipped_run_or_header_bit_is_refused() {
        let mut random = Rng::new(3);
        for precision in BOTH {
            let bytes = build_as((0..100).map(|_| random.next_u64()).collect(), precision);
            for bit in 0..8 + 200 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(QuotientFilterRef::new(&flipped).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = QuotientFilterRef::new(&[0, 1, 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("remainder bits is 0"), "{error}");
    }

    proptest! {
        #[test]
        fn never_misses(hashes in prop::collection::vec(any::<u64>(), 0..600)) {
            for precision in BOTH {
                let bytes = build_as(hashes.clone(), precision);
                let filter = QuotientFilterRef::new(&bytes).unwrap();
                for &hash in &hashes {
                    prop_assert!(filter.may_contain(hash));
                }
            }
        }

        #[test]
        fn never_misses_clustered(
            base in any::<u64>(),
            steps in prop::collection::vec(0_u64..1 << 40, 0..600),
        ) {
            let hashes: Vec<u64> = steps.iter().map(|step| base.wrapping_add(*step)).collect();
            for precision in BOTH {
                let bytes = build_as(hashes.clone(), precision);
                let filter = QuotientFilterRef::new(&bytes).unwrap();
                for &hash in &hashes {
                    prop_assert!(filter.may_contain(hash));
                }
            }
        }

        #[test]
        fn hostile_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            header in prop::sample::select(vec![None, Some(7), Some(12)]),
            probes in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let mut bytes = bytes;
            if let (Some(first), Some(header)) = (bytes.first_mut(), header) {
                *first = header;
            }
            let unchecked = QuotientFilterRef::of_checked(&bytes);
            let checked = QuotientFilterRef::new(&bytes);
            for hash in probes {
                let answer = unchecked.may_contain(hash);
                if let Ok(filter) = &checked {
                    prop_assert_eq!(filter.may_contain(hash), answer);
                }
            }
        }

        #[test]
        fn hostile_bytes_of_valid_layout_never_panic(
            runs in prop::collection::vec(any::<bool>(), 1..200),
            remainder in any::<u64>(),
            width in prop::sample::select(vec![7_u8, 12]),
            probes in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let mut bytes = vec![width];
            let mut writer = BitWriter::new(&mut bytes);
            // As many ones as zeros, in any order.
            for &run in &runs {
                writer.push(u64::from(run), 1);
            }
            for &run in &runs {
                writer.push(u64::from(!run), 1);
            }
            for _ in &runs {
                writer.push(remainder % (1 << width), u32::from(width));
            }
            writer.finish();
            let filter = QuotientFilterRef::new(&bytes).unwrap();
            for hash in probes {
                let _ = filter.may_contain(hash);
            }
        }
    }
}
