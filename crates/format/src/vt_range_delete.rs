//! Range delete blocks of a VT-tree table, as the payload of a block: a version (u8: 1), a count,
//! and of each range delete its start and end (byte strings) and sequence number (varint).

use crate::FormatError;
use crate::codec::{Reader, put_bytes, put_varint};
use stitch_base::Seqno;

const RECORD: &str = "range delete block";
const VERSION: u8 = 1;

/// A stored range delete: removes what is older than `seqno` in `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRangeDelete<'a> {
    /// First key of the range.
    pub start: &'a [u8],
    /// First key after the range.
    pub end: &'a [u8],
    /// When it was written.
    pub seqno: Seqno,
}

impl StoredRangeDelete<'_> {
    /// A bound on the bytes that it takes.
    #[must_use]
    pub const fn bytes_max(&self) -> usize {
        self.start.len() + self.end.len() + 30
    }
}

/// Range deletes as a payload.
#[must_use]
pub fn encode(deletes: &[StoredRangeDelete<'_>]) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_varint(&mut out, deletes.len() as u64);
    for delete in deletes {
        put_bytes(&mut out, delete.start);
        put_bytes(&mut out, delete.end);
        put_varint(&mut out, delete.seqno.0);
    }
    out
}

/// Reads a payload.
///
/// # Errors
/// [`FormatError`] says what is wrong.
pub fn decode(bytes: &[u8]) -> Result<Vec<StoredRangeDelete<'_>>, FormatError> {
    let mut r = Reader::new(RECORD, bytes);
    let version = r.u8()?;
    if version > VERSION {
        return Err(FormatError::Newer {
            record: RECORD,
            found: u32::from(version),
            supported: u32::from(VERSION),
        });
    }
    if version != VERSION {
        return Err(r.field("version", "1", version.to_string()));
    }
    let mut out = Vec::new();
    for _ in 0..r.varint()? {
        let delete = StoredRangeDelete {
            start: r.bytes()?,
            end: r.bytes()?,
            seqno: Seqno(r.varint()?),
        };
        if delete.start >= delete.end {
            return Err(r.field("range", "not empty", format!("{delete:?}")));
        }
        out.push(delete);
    }
    r.finish()?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<StoredRangeDelete<'static>> {
        let delete = |start, end, seqno| StoredRangeDelete {
            start,
            end,
            seqno: Seqno(seqno),
        };
        vec![delete(b"", b"ab", 0x81), delete(b"c", b"d", 3)]
    }

    #[test]
    fn bytes_are_pinned() {
        let golden = [1, 2, 0, 2, b'a', b'b', 0x81, 1, 1, b'c', 1, b'd', 3];
        assert_eq!(encode(&sample()), golden);
        assert_eq!(decode(&golden).unwrap(), sample());
        let bound: usize = sample().iter().map(StoredRangeDelete::bytes_max).sum();
        assert!(golden.len() <= bound);
    }

    #[test]
    fn cuts_and_flips_are_seen() {
        let whole = encode(&sample());
        for len in 0..whole.len() {
            assert!(decode(&whole[..len]).is_err(), "cut at {len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(decode(&flipped).ok(), Some(sample()), "bit {bit}");
        }
    }

    #[test]
    fn empty_ranges_are_refused() {
        assert!(decode(&[1, 1, 1, b'b', 1, b'b', 3]).is_err());
    }
}
