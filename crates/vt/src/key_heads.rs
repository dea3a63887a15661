//! A search among sorted keys that touches few cache lines.
//!
//! Keys in blocks lie hundreds of bytes apart, so each step of a binary search among them waits for
//! memory. Of each key, eight bytes behind what all have in common are kept one after the other: a
//! search goes over these, and looks at whole keys only where they are the same.
//!
//! Paper: Graefe, *Modern B-Tree Techniques*, 2011, section 3.5 ("poor man's normalized keys").

use crate::prefix::{first_bytes, first_eight_bytes};
use std::cmp::Ordering;
use std::convert::Infallible;

/// What several keys begin with. The first bytes lie here, for a look at memory less. Invariant:
/// zeros are behind the first bytes, and the rest has what they have no room for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Common {
    /// The first bytes, big-endian, zeros after the end.
    first: u128,
    /// The bits of `first` that are its own.
    mask: u128,
    len_bytes: usize,
    /// What comes after them.
    rest: Box<[u8]>,
}

impl Common {
    fn new(bytes: &[u8]) -> Self {
        let (first, rest) = bytes.split_at(bytes.len().min(size_of::<u128>()));
        let unused_bits = 8 * (size_of::<u128>() - first.len());
        let mask = u128::MAX.checked_shl(u32::try_from(unused_bits).expect("at most 128"));
        let (first, mask) = (first_bytes(first), mask.unwrap_or(0));
        let common = Self {
            first,
            mask,
            len_bytes: bytes.len(),
            rest: rest.into(),
        };
        debug_assert!(common.holds());
        common
    }

    fn holds(&self) -> bool {
        self.first & !self.mask == 0
            && self.rest.len() == self.len_bytes.saturating_sub(size_of::<u128>())
    }

    /// How `key` compares to keys that begin with this; `Equal` if it begins with it too.
    fn cmp_to(&self, key: &[u8]) -> Ordering {
        debug_assert!(self.holds());
        let own = first_bytes(key) & self.mask;
        let by_first = own.cmp(&self.first);
        if by_first.is_ne() {
            return by_first;
        }
        if key.len() < self.len_bytes {
            // It is zeros or nothing where it ends, and what all have goes on: those are after it.
            let after = key.get(size_of::<u128>()..).unwrap_or_default();
            return after.cmp(&*self.rest).then(Ordering::Less);
        }
        match self.rest.len() {
            0 => Ordering::Equal,
            len => key[size_of::<u128>()..][..len].cmp(&*self.rest),
        }
    }
}

/// The beginnings of keys, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyHeads {
    /// What all keys begin with.
    common: Common,
    /// Of each key the eight bytes behind that, big-endian, zeros after its end.
    heads: Box<[u64]>,
}

impl KeyHeads {
    /// Those of `count` keys in ascending order.
    ///
    /// # Errors
    /// That of the first key that cannot be had.
    pub(crate) fn new<'a, E>(
        count: usize,
        key: impl Fn(usize) -> Result<&'a [u8], E>,
    ) -> Result<Self, E> {
        let mut common = match count {
            0 => &[][..],
            _ => key(0)?,
        };
        // All are looked at: nothing that was stored is trusted to be in order.
        for index in 1..count {
            common = &common[..shared_bytes(common, key(index)?)];
        }
        let head = |index| Ok(first_eight_bytes(&key(index)?[common.len()..]));
        let keys = Self {
            heads: (0..count).map(head).collect::<Result<_, E>>()?,
            common: Common::new(common),
        };
        debug_assert_eq!(keys.len(), count, "each key has a head");
        Ok(keys)
    }

    /// Those of keys that are all in memory.
    pub(crate) fn of<'a>(count: usize, key: impl Fn(usize) -> &'a [u8]) -> Self {
        let heads = Self::new(count, |index| Ok::<_, Infallible>(key(index)));
        heads.unwrap_or_else(|never| match never {})
    }

    /// Number of keys.
    pub(crate) const fn len(&self) -> usize {
        self.heads.len()
    }

    /// Bytes of memory beside its own.
    pub(crate) fn memory_bytes(&self) -> usize {
        debug_assert!(self.common.holds());
        self.common.rest.len() + size_of_val(&*self.heads)
    }

    /// The first key at or after `key`; the number of keys if none. `whole` gives those that this
    /// was made of.
    ///
    /// # Errors
    /// That of the first key that cannot be had.
    ///
    /// # Cost
    /// A key for each halving of those that have the same head as `key`: mostly none, and one where
    /// it is there.
    pub(crate) fn find<'a, E>(
        &self,
        key: &[u8],
        whole: impl Fn(usize) -> Result<&'a [u8], E>,
    ) -> Result<usize, E> {
        match self.common.cmp_to(key) {
            Ordering::Less => return Ok(0),
            Ordering::Greater => return Ok(self.len()),
            Ordering::Equal => {}
        }
        let head = first_eight_bytes(&key[self.common.len_bytes..]);
        let mut low = self.heads.partition_point(|other| *other < head);
        let mut high = low + self.heads[low..].partition_point(|other| *other == head);
        debug_assert!(low <= high, "a range of keys");
        debug_assert!(high <= self.len(), "a range of these keys");
        while low < high {
            let middle = low + (high - low) / 2;
            if whole(middle)? < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        debug_assert!(low <= self.len(), "a key or the end behind the last one");
        Ok(low)
    }

    /// As [`Self::find`], among keys that are all in memory.
    pub(crate) fn find_in<'a>(&self, key: &[u8], whole: impl Fn(usize) -> &'a [u8]) -> usize {
        let found = self.find(key, |index| Ok::<_, Infallible>(whole(index)));
        let found = found.unwrap_or_else(|never| match never {});
        debug_assert!(found <= self.len(), "a key or the end behind the last one");
        found
    }
}

fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
