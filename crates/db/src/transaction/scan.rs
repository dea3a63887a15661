//! A scan of a transaction: what the store has, with what the transaction has written over it.
//!
//! ```text
//! own        put b         upsert d   delete e      put x
//! cleared              [ c ........................ z )
//! store      a    b   |  c    d    e     f          |  z    not read between c and z
//! scan       a    b(own)      d(over nothing)      x    z
//! ```
//!
//! The store is scanned piece by piece, around the cleared ranges.

use super::cleared::Segment;
use super::writes::{Own, fold};
use super::{Source, Transaction};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;
use std::ops::Bound;
use stitch_base::TreeId;
use stitch_kv::{Direction, Entry, KeyRange, KvError, Scan};

type Owns<'a> = Peekable<Box<dyn Iterator<Item = (&'a Vec<u8>, &'a Own)> + 'a>>;

/// A scan under way. It shows what the transaction saw when the scan began.
pub struct TransactionScan<'a> {
    transaction: &'a Transaction,
    tree: TreeId,
    range: Segment,
    direction: Direction,
    source: Source,
    /// What the transaction has written in the range and the scan has not passed.
    own: Owns<'a>,
    /// Pieces of the range in which the store is still to be scanned.
    pieces: VecDeque<Segment>,
    store: Option<Box<dyn Scan + 'a>>,
    /// The store's next entry, in `head`.
    has_head: bool,
    head: (Vec<u8>, Vec<u8>),
    /// The key given last, and its value if that was not the store's.
    key: Vec<u8>,
    value: Bytes,
    has_given: bool,
    /// Nothing of the range is left.
    is_over: bool,
}

impl std::fmt::Debug for TransactionScan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionScan")
            .field("tree", &self.tree)
            .field("range", &self.range)
            .field("direction", &self.direction)
            .finish_non_exhaustive()
    }
}

/// What comes next.
enum Next {
    Store,
    Own,
    /// The store's entry, and what the transaction has made of it.
    Both,
}

/// The keys of a range that a transaction has written, in the order of a scan.
fn own_entries<'a>(
    keys: Option<&'a BTreeMap<Vec<u8>, Own>>,
    range: KeyRange<'_>,
    direction: Direction,
) -> Box<dyn Iterator<Item = (&'a Vec<u8>, &'a Own)> + 'a> {
    let Some(keys) = keys else {
        return Box::new(std::iter::empty());
    };
    let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
    let entries = keys.range::<[u8], _>((Bound::Included(range.start), end));
    match direction {
        Direction::Forward => Box::new(entries),
        Direction::Backward => Box::new(entries.rev()),
    }
}

impl<'a> TransactionScan<'a> {
    pub(super) fn new(
        transaction: &'a Transaction,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Self {
        let is_empty = range.end.is_some_and(|end| end <= range.start);
        let writes = transaction.writes.tree(tree).filter(|_| !is_empty);
        let whole = (range.start.to_vec(), range.end.map(<[u8]>::to_vec));
        let mut pieces = match writes {
            Some(writes) => writes.cleared.rest_of(range),
            None => vec![whole.clone()],
        };
        if is_empty {
            pieces.clear();
        }
        if direction == Direction::Backward {
            pieces.reverse();
        }
        Self {
            transaction,
            tree,
            range: whole,
            direction,
            source: transaction.source(tree),
            own: own_entries(writes.map(|writes| &writes.keys), range, direction).peekable(),
            pieces: pieces.into(),
            store: None,
            has_head: false,
            head: (Vec::new(), Vec::new()),
            key: Vec::new(),
            value: Bytes::new(),
            has_given: false,
            is_over: false,
        }
    }

    /// Fetches the store's next entry into `head`, unless it is there or the store is at its end.
    fn fetch(&mut self) -> Result<(), KvError> {
        while !self.has_head {
            if self.store.is_none() {
                let Some((start, end)) = self.pieces.pop_front() else {
                    return Ok(());
                };
                let range = KeyRange {
                    start: &start,
                    end: end.as_deref(),
                };
                let (engine, at) = (&self.transaction.engine, self.source.at.as_ref());
                self.store = Some(engine.scan(self.source.tree, range, self.direction, at)?);
            }
            let store = self.store.as_mut().expect("it was begun");
            if let Some((key, value)) = store.next()? {
                self.head.0.clear();
                self.head.0.extend_from_slice(key);
                self.head.1.clear();
                self.head.1.extend_from_slice(value);
                self.has_head = true;
            } else {
                self.store = None;
            }
        }
        Ok(())
    }

    fn next_source(&mut self) -> Option<Next> {
        let own = self.own.peek();
        match (self.has_head, own) {
            (false, None) => None,
            (true, None) => Some(Next::Store),
            (false, Some(_)) => Some(Next::Own),
            (true, Some((own, _))) => {
                let order = self.head.0.as_slice().cmp(own.as_slice());
                let order = match self.direction {
                    Direction::Forward => order,
                    Direction::Backward => order.reverse(),
                };
                Some(match order {
                    Ordering::Less => Next::Store,
                    Ordering::Equal => Next::Both,
                    Ordering::Greater => Next::Own,
                })
            }
        }
    }

    /// Takes the transaction's next entry. Returns false if the key is absent.
    fn take_own(&mut self, base: Option<Bytes>) -> bool {
        let (key, own) = self.own.next().expect("there is one");
        let value = match own {
            Own::Value(value) => Some(value.clone()),
            Own::Absent => None,
            Own::Deltas(deltas) => {
                let upserts = self.transaction.engine.upserts();
                fold(upserts, key, base, deltas)
            }
        };
        let Some(value) = value else {
            return false;
        };
        self.value = value;
        self.key.clone_from(key);
        true
    }

    fn step(&mut self) -> Result<Option<Next>, KvError> {
        loop {
            self.fetch()?;
            let Some(next) = self.next_source() else {
                self.is_over = true;
                return Ok(None);
            };
            let is_present = match next {
                Next::Store => {
                    self.has_head = false;
                    self.key.clone_from(&self.head.0);
                    true
                }
                Next::Own => self.take_own(None),
                Next::Both => {
                    self.has_head = false;
                    let base = Bytes::copy_from_slice(&self.head.1);
                    self.take_own(Some(base))
                }
            };
            if is_present {
                self.has_given = true;
                return Ok(Some(next));
            }
        }
    }

    /// The part of the range of which the caller knows what is in it.
    fn read_range(&self) -> Option<Segment> {
        let (start, end) = self.range.clone();
        if self.is_over {
            return Some((start, end));
        }
        if !self.has_given {
            return None;
        }
        Some(match self.direction {
            Direction::Forward => {
                let mut after = self.key.clone();
                after.push(0);
                (start, Some(after))
            }
            Direction::Backward => (self.key.clone(), end),
        })
    }
}

impl Scan for TransactionScan<'_> {
    fn next(&mut self) -> Result<Option<Entry<'_>>, KvError> {
        if self.is_over {
            return Ok(None);
        }
        match self.step()? {
            None => Ok(None),
            Some(Next::Store) => Ok(Some((&self.key, &self.head.1))),
            Some(Next::Own | Next::Both) => Ok(Some((&self.key, &self.value))),
        }
    }
}

impl Drop for TransactionScan<'_> {
    fn drop(&mut self) {
        if let Some((start, end)) = self.read_range() {
            let range = KeyRange {
                start: &start,
                end: end.as_deref(),
            };
            let mut reads = self.transaction.reads.lock();
            reads.range(&self.source.since, self.tree, range);
        }
    }
}
