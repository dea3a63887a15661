//! Deltas of the upsert `chunk`: changes inside 4 KiB of a file's contents that read nothing.
//!
//! | kind (u8) | delta | effect |
//! |---|---|---|
//! | 1 patch | offset u16, bytes | the bytes stand at the offset; a gap before them is zeros |
//! | 2 cut | length u16 | nothing is left from this length on; an empty chunk is absent |
//! | 3 zero | start u16, end u16 | zeros in `[start, end)`, as far as the chunk goes |
//!
//! Do not renumber. A delta that is none of these changes nothing.

use crate::codec::Reader;
use crate::fs_key::CHUNK_BYTES;

const PATCH: u8 = 1;
const CUT: u8 = 2;
const ZERO: u8 = 3;
const CHUNK: usize = CHUNK_BYTES as usize;

/// A change inside a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkDelta<'a> {
    /// Bytes at an offset.
    Patch {
        /// Where the bytes begin.
        offset: u16,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Nothing is left from here on.
    Cut {
        /// Length afterwards, at most.
        len: u16,
    },
    /// Zeros in `[start, end)`.
    Zero {
        /// First byte.
        start: u16,
        /// First byte after.
        end: u16,
    },
}

impl<'a> ChunkDelta<'a> {
    /// Appends the delta to `out`.
    ///
    /// # Panics
    /// If it reaches beyond a chunk.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Patch { offset, bytes } => {
                assert!(usize::from(offset) + bytes.len() <= CHUNK, "within a chunk");
                out.push(PATCH);
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Cut { len } => {
                assert!(usize::from(len) <= CHUNK, "within a chunk");
                out.push(CUT);
                out.extend_from_slice(&len.to_le_bytes());
            }
            Self::Zero { start, end } => {
                assert!(start <= end, "a range");
                assert!(usize::from(end) <= CHUNK, "within a chunk");
                out.push(ZERO);
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
            }
        }
    }

    /// Decodes the delta in `bytes`; `None` if it is invalid.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new("chunk delta", bytes);
        let delta = match reader.u8().ok()? {
            PATCH => Self::Patch {
                offset: reader.u16().ok()?,
                bytes: reader.rest(),
            },
            CUT => Self::Cut {
                len: reader.u16().ok()?,
            },
            ZERO => Self::Zero {
                start: reader.u16().ok()?,
                end: reader.u16().ok()?,
            },
            _ => return None,
        };
        let fits = match delta {
            Self::Patch { offset, bytes } => usize::from(offset) + bytes.len() <= CHUNK,
            Self::Cut { len } => reader.is_empty() && usize::from(len) <= CHUNK,
            Self::Zero { start, end } => {
                reader.is_empty() && start <= end && usize::from(end) <= CHUNK
            }
        };
        fits.then_some(delta)
    }
}

/// Folds a delta over a chunk. Returns whether a chunk is left, which `out` then holds.
pub fn fold(old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(old.unwrap_or_default());
    match ChunkDelta::decode(delta) {
        None => return old.is_some(),
        Some(ChunkDelta::Patch { offset, bytes }) => {
            let start = usize::from(offset);
            let end = start + bytes.len();
            if out.len() < end {
                out.resize(end, 0);
            }
            out[start..end].copy_from_slice(bytes);
        }
        Some(ChunkDelta::Cut { len }) => out.truncate(usize::from(len)),
        Some(ChunkDelta::Zero { start, end }) => {
            let end = usize::from(end).min(out.len());
            let start = usize::from(start).min(end);
            out[start..end].fill(0);
        }
    }
    !out.is_empty()
}

/// Joins two adjoining patches into one. Returns false for any other pair.
pub fn join(older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
    let (Some(older), Some(newer)) = (ChunkDelta::decode(older), ChunkDelta::decode(newer)) else {
        return false;
    };
    let (
        ChunkDelta::Patch {
            offset: o1,
            bytes: b1,
        },
        ChunkDelta::Patch {
            offset: o2,
            bytes: b2,
        },
    ) = (older, newer)
    else {
        return false;
    };
    let (start1, start2) = (usize::from(o1), usize::from(o2));
    let (end1, end2) = (start1 + b1.len(), start2 + b2.len());
    if start2 > end1 || start1 > end2 {
        return false;
    }
    let start = start1.min(start2);
    out.push(PATCH);
    out.extend_from_slice(&o1.min(o2).to_le_bytes());
    let head = out.len();
    out.resize(head + end1.max(end2) - start, 0);
    out[head + start1 - start..head + end1 - start].copy_from_slice(b1);
    out[head + start2 - start..head + end2 - start].copy_from_slice(b2);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(delta: ChunkDelta<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        delta.encode(&mut out);
        out
    }

    fn patch(offset: u16, bytes: &[u8]) -> Vec<u8> {
        bytes_of(ChunkDelta::Patch { offset, bytes })
    }

    #[test]
    fn bytes_are_pinned() {
        assert_eq!(patch(0x0102, b"ab"), [1, 2, 1, b'a', b'b']);
        assert_eq!(bytes_of(ChunkDelta::Cut { len: 0x0304 }), [2, 4, 3]);
        let zero = ChunkDelta::Zero {
            start: 0x0506,
            end: 0x0708,
        };
        assert_eq!(bytes_of(zero), [3, 6, 5, 8, 7]);
    }

    #[test]
    fn what_is_no_delta_changes_nothing() {
        for junk in [
            &b""[..],
            &[1],
            &[2, 1],
            &[2, 1, 0, 0],
            &[3, 2, 0, 1, 0],
            &[9, 0, 0],
            &[2, 255, 255],
        ] {
            assert_eq!(ChunkDelta::decode(junk), None);
            let mut out = Vec::new();
            assert!(fold(Some(b"old"), junk, &mut out));
            assert_eq!(out, b"old");
            assert!(!fold(None, junk, &mut Vec::new()));
        }
    }

    #[test]
    fn deltas_do_what_they_say() {
        let mut out = Vec::new();
        assert!(fold(None, &patch(2, b"ab"), &mut out));
        assert_eq!(out, b"\0\0ab");
        out.clear();
        assert!(fold(Some(b"0123456"), &patch(2, b"ab"), &mut out));
        assert_eq!(out, b"01ab456");
        out.clear();
        assert!(fold(
            Some(b"0123"),
            &bytes_of(ChunkDelta::Cut { len: 1 }),
            &mut out
        ));
        assert_eq!(out, b"0");
        assert!(!fold(
            Some(b"0123"),
            &bytes_of(ChunkDelta::Cut { len: 0 }),
            &mut Vec::new()
        ));
        out.clear();
        let zero = bytes_of(ChunkDelta::Zero { start: 2, end: 9 });
        assert!(fold(Some(b"0123"), &zero, &mut out));
        assert_eq!(out, b"01\0\0");
        assert!(!fold(None, &zero, &mut Vec::new()));
    }

    proptest! {
        #[test]
        fn a_joined_patch_does_what_both_did(
            old in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
            a in (0u16..40, proptest::collection::vec(any::<u8>(), 1..20)),
            b in (0u16..40, proptest::collection::vec(any::<u8>(), 1..20)),
        ) {
            let (a, b) = (patch(a.0, &a.1), patch(b.0, &b.1));
            let mut joined = Vec::new();
            if join(&a, &b, &mut joined) {
                let (mut one, mut two, mut both) = (Vec::new(), Vec::new(), Vec::new());
                fold(old.as_deref(), &a, &mut one);
                fold(Some(&one), &b, &mut two);
                fold(old.as_deref(), &joined, &mut both);
                prop_assert_eq!(two, both);
            }
        }

        #[test]
        fn any_bytes_fold(
            old in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
            delta: Vec<u8>,
        ) {
            let mut out = Vec::new();
            fold(old.as_deref(), &delta, &mut out);
            prop_assert!(out.len() <= 4096);
        }
    }
}
