//! The records of a ledger, as bytes.
//!
//! ```text
//! length of the rest (u32) | kind (u8) | inode (u64) | AT: lookups (u64), temp (u8), place
//!                                                    | MAY: place
//!                                                    | COUNT: lookups (u64)                | GONE
//! place: OWN | ENTRY, parent (u64), name (u16 and bytes) | MEMORY, row (u32 and bytes)
//! ```

use crate::inode::{Inode, Location};
use bytes::Bytes;
use std::collections::HashMap;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{InodeHead, MetaRow};

const AT: u8 = 1;
const MAY: u8 = 2;
const COUNT: u8 = 3;
const GONE: u8 = 4;

const OWN: u8 = 1;
const ENTRY: u8 = 2;
const MEMORY: u8 = 3;

/// Places that are remembered of one inode: where it was, and where it may be.
const PLACES_MAX: usize = 2;

/// Where a row is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Own,
    Entry { parent: Ino, name: &'a [u8] },
    Memory { row: std::borrow::Cow<'a, [u8]> },
}

impl<'a> Place<'a> {
    pub(crate) fn of(inode: &'a Inode) -> Self {
        match &inode.location {
            Location::Own => Self::Own,
            Location::Entry { parent, name } => Self::Entry {
                parent: *parent,
                name,
            },
            Location::Memory(tail) => {
                debug_assert_eq!(inode.head.nlink, 0, "what has a name has a row");
                let row = [inode.head.encode().as_slice(), tail].concat();
                Self::Memory { row: row.into() }
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Own => out.push(OWN),
            Self::Entry { parent, name } => {
                out.push(ENTRY);
                out.extend(parent.0.to_le_bytes());
                debug_assert!(!name.is_empty(), "a name has a byte");
                let len = u16::try_from(name.len()).expect("a name has at most 255 bytes");
                out.extend(len.to_le_bytes());
                out.extend_from_slice(name);
            }
            Self::Memory { row } => {
                out.push(MEMORY);
                let len = u32::try_from(row.len()).expect("a small file");
                debug_assert!(len > 0, "a row has a head");
                out.extend(len.to_le_bytes());
                out.extend_from_slice(row);
            }
        }
    }

    fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
        Some(match u8::from_le_bytes(take(bytes)?) {
            OWN => Self::Own,
            ENTRY => {
                let parent = Ino(u64::from_le_bytes(take(bytes)?));
                let len = u16::from_le_bytes(take(bytes)?);
                let name = take_slice(bytes, usize::from(len))?;
                Self::Entry { parent, name }
            }
            MEMORY => {
                let len = u32::from_le_bytes(take(bytes)?);
                let row = take_slice(bytes, usize::try_from(len).ok()?)?;
                Self::Memory { row: row.into() }
            }
            _ => return None,
        })
    }
}

/// One thing that the ledger says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// The inode is known by so many lookups, and its row is there.
    At {
        ino: Ino,
        lookups: u64,
        is_temp: bool,
        place: Place<'a>,
    },
    /// Its row may be there, too.
    May { ino: Ino, place: Place<'a> },
    /// It is known by so many lookups.
    Count { ino: Ino, lookups: u64 },
    /// It is known no more.
    Gone { ino: Ino },
}

impl<'a> Record<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        let (kind, ino) = match self {
            Self::At { ino, .. } => (AT, ino),
            Self::May { ino, .. } => (MAY, ino),
            Self::Count { ino, .. } => (COUNT, ino),
            Self::Gone { ino } => (GONE, ino),
        };
        out.push(kind);
        debug_assert!(ino.0 > 0, "0 is no inode");
        out.extend(ino.0.to_le_bytes());
        match self {
            Self::At {
                lookups,
                is_temp,
                place,
                ..
            } => {
                out.extend(lookups.to_le_bytes());
                out.push(u8::from(*is_temp));
                place.encode(out);
            }
            Self::May { place, .. } => place.encode(out),
            Self::Count { lookups, .. } => out.extend(lookups.to_le_bytes()),
            Self::Gone { .. } => {}
        }
        let len = u32::try_from(out.len() - start - 4).expect("a record is small");
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
        debug_assert!(
            Record::decode(&out[start..])
                .is_some_and(|(read, rest)| read == *self && rest.is_empty()),
            "the next process reads what was written"
        );
    }

    /// The first record of these bytes, and what follows it. `None` at the end, and for what is
    /// none.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = bytes;
        let len = u32::from_le_bytes(take(&mut rest)?);
        let mut body = take_slice(&mut rest, usize::try_from(len).ok()?)?;
        debug_assert!(rest.len() < bytes.len(), "each record comes further");
        let body = &mut body;
        let kind = u8::from_le_bytes(take(body)?);
        let ino = Ino(u64::from_le_bytes(take(body)?));
        let record = match kind {
            AT => Self::At {
                ino,
                lookups: u64::from_le_bytes(take(body)?),
                is_temp: u8::from_le_bytes(take(body)?) != 0,
                place: Place::decode(body)?,
            },
            MAY => Self::May {
                ino,
                place: Place::decode(body)?,
            },
            COUNT => Self::Count {
                ino,
                lookups: u64::from_le_bytes(take(body)?),
            },
            GONE => Self::Gone { ino },
            _ => return None,
        };
        body.is_empty().then_some((record, rest))
    }

    /// Takes note of it.
    pub(super) fn apply(&self, known: &mut HashMap<Ino, LedgerInode>) {
        let (Self::At { ino, .. }
        | Self::May { ino, .. }
        | Self::Count { ino, .. }
        | Self::Gone { ino }) = *self;
        if matches!(self, Self::Gone { .. }) {
            known.remove(&ino);
            return;
        }
        let entry = known.entry(ino).or_insert_with(|| LedgerInode::new(ino));
        debug_assert_eq!(entry.ino, ino, "the inode of the record");
        match self {
            Self::At {
                lookups,
                is_temp,
                place,
                ..
            } => {
                entry.lookups = *lookups;
                entry.is_temp = *is_temp;
                entry.places.clear();
                entry.in_memory = None;
                entry.learn(place);
            }
            Self::May { place, .. } => entry.learn(place),
            Self::Count { lookups, .. } => entry.lookups = *lookups,
            Self::Gone { .. } => {}
        }
    }
}

/// An inode that was known, and where its row may be: the latest place last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LedgerInode {
    pub(crate) ino: Ino,
    pub(crate) lookups: u64,
    pub(crate) is_temp: bool,
    pub(crate) places: Vec<Location>,
    /// What it is if it is in no tree.
    pub(crate) in_memory: Option<(InodeHead, Bytes)>,
}

impl LedgerInode {
    fn new(ino: Ino) -> Self {
        Self {
            ino,
            lookups: 0,
            is_temp: false,
            places: Vec::new(),
            in_memory: None,
        }
    }

    fn learn(&mut self, place: &Place<'_>) {
        match place {
            // That is looked at in any case.
            Place::Own => {}
            Place::Entry { parent, name } => {
                self.places.push(Location::entry(*parent, name));
                if self.places.len() > PLACES_MAX {
                    self.places.remove(0);
                }
                debug_assert!(self.places.len() <= PLACES_MAX, "few places are kept");
            }
            Place::Memory { row } => {
                let row = Bytes::copy_from_slice(row);
                if let Ok(MetaRow::Inode(head, tail)) = MetaRow::decode(&row) {
                    self.in_memory = Some((head, row.slice_ref(tail)));
                }
            }
        }
    }

    /// As it is if no tree has its row.
    pub(crate) fn in_memory(&self) -> Option<(InodeHead, Location)> {
        let (head, tail) = self.in_memory.as_ref()?;
        debug_assert!(self.places.len() <= PLACES_MAX, "few places are kept");
        Some((*head, Location::Memory(Arc::new(tail.clone()))))
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn take_slice<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(first)
}
