//! Walks over keys.

use super::{Keyspace, Value};
use crate::error::CommandError;
use crate::glob;
use crate::pending::RowRange;
use bytes::Bytes;
use std::ops::ControlFlow;
use stitch_base::random;
use stitch_db::Direction;
use stitch_format::redis::{self, Kind};

/// Which keys a walk returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyFilter<'a> {
    /// Pattern of the name.
    pub(crate) pattern: Option<&'a [u8]>,
    pub(crate) kind: Option<Kind>,
}

impl KeyFilter<'_> {
    fn takes(&self, key: &[u8], kind: Kind) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && self
                .pattern
                .is_none_or(|pattern| glob::matches(pattern, key))
    }
}

/// Part of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPage {
    pub(crate) keys: Vec<Vec<u8>>,
    /// The last key that was looked at; `None` when the walk is over.
    pub(crate) last: Option<Vec<u8>>,
}

impl Keyspace {
    /// Looks at up to `count` keys after `after`, in their order.
    pub(crate) fn keys_after(
        &self,
        after: Option<&[u8]>,
        count: usize,
        filter: KeyFilter<'_>,
    ) -> Result<KeyPage, CommandError> {
        let prefix = glob::literal_prefix(filter.pattern.unwrap_or_default());
        let mut range = self.range_of_prefix(prefix);
        if let Some(after) = after {
            let mut start = redis::key_row(after);
            start.push(0);
            range.start = range.start.max(start);
        }
        let mut page = KeyPage::default();
        let mut seen = 0;
        self.visit_keys(&range, |key, value| {
            if seen == count {
                // There is more: the walk goes on after the last key that was looked at.
                return ControlFlow::Break(());
            }
            seen += 1;
            page.last = Some(key.to_vec());
            if filter.takes(key, value.head.kind) {
                page.keys.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })
        .map(|is_over| {
            if is_over {
                page.last = None;
            }
            page
        })
    }

    fn range_of_prefix(&self, prefix: &[u8]) -> RowRange {
        let (_, end) = redis::all_rows(redis::KEYS);
        let start = redis::key_row(prefix);
        let end = stitch_kv::prefix_end(&start).unwrap_or_else(|| end.to_vec());
        RowRange { start, end }
    }

    /// Calls `visit` with keys that have not expired. Returns whether it went through to the end.
    fn visit_keys(
        &self,
        range: &RowRange,
        mut visit: impl FnMut(&[u8], &Value) -> ControlFlow<()>,
    ) -> Result<bool, CommandError> {
        let mut wrong = None;
        let mut is_over = true;
        self.rows.scan(range, Direction::Forward, |row, stored| {
            let value =
                match Value::decode(&Bytes::copy_from_slice(&stored[..stored.len().min(64)])) {
                    Ok(value) => value,
                    Err(error) => {
                        wrong = Some(error);
                        return ControlFlow::Break(());
                    }
                };
            let Some(key) = redis::user_key(row).filter(|_| !self.is_over(value.head.expiry_ms))
            else {
                return ControlFlow::Continue(());
            };
            let flow = visit(key, &value);
            is_over = flow.is_continue();
            flow
        })?;
        match wrong {
            Some(error) => Err(error),
            None => Ok(is_over),
        }
    }

    /// Returns some key: the first one at or after a random place between the first and the last.
    /// Not all are equally likely.
    ///
    /// # Cost
    /// Three seeks.
    pub(crate) fn random_key(&self) -> Result<Option<Vec<u8>>, CommandError> {
        let (start, end) = redis::all_rows(redis::KEYS);
        let all = RowRange {
            start: start.to_vec(),
            end: end.to_vec(),
        };
        let Some(first) = self.first_key(&all)? else {
            return Ok(None);
        };
        let mut last = None;
        self.rows.scan(&all, Direction::Backward, |row, _| {
            last = redis::user_key(row).map(<[u8]>::to_vec);
            ControlFlow::Break(())
        })?;
        let last = last.unwrap_or_else(|| first.clone());
        let place = place_between(&first, &last, random_number());
        let mut from = all.clone();
        from.start = redis::key_row(&place);
        Ok(Some(self.first_key(&from)?.unwrap_or(first)))
    }

    fn first_key(&self, range: &RowRange) -> Result<Option<Vec<u8>>, CommandError> {
        let mut found = None;
        self.visit_keys(range, |key, _| {
            found = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}

/// A number from the system; a fixed one when it has none to give.
fn random_number() -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = random::bytes16().unwrap_or_default();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// A place between two keys: what they begin with alike, then a number between their next bytes.
fn place_between(first: &[u8], last: &[u8], random: u64) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let low = next_bytes(&first[common..]);
    let high = next_bytes(&last[common..]).max(low);
    let span = (high - low).saturating_add(1);
    let place = low + u64::try_from((u128::from(random) * u128::from(span)) >> 64).unwrap_or(0);
    [&first[..common], &place.to_be_bytes()].concat()
}

fn next_bytes(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(key) {
        *to = *from;
    }
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_lies_between_the_keys() {
        let (first, last) = (b"user:1000".as_slice(), b"user:1999".as_slice());
        assert!(place_between(first, last, 0).as_slice() <= &b"user:1000\0\0\0\0\0"[..]);
        for random in [1 << 62, 1 << 63, u64::MAX] {
            let place = place_between(first, last, random);
            assert!(place.as_slice() >= &b"user:1000"[..]);
            assert!(place.as_slice() <= &b"user:1999\0\0\0\0\0"[..]);
        }
        assert_ne!(
            place_between(first, last, 1 << 62),
            place_between(first, last, 3 << 62)
        );
        assert_eq!(place_between(b"a", b"a", 9)[..1], *b"a");
    }
}
