//! The moments that pins and branch trees hold, and the holder that gives each of them up.

use crate::key_moments::{KeyMoments, MomentCursor};
use stitch_base::Seqno;
use stitch_kv::KeyRanges;

/// Number of a holder among those that are asked about.
pub(super) type HolderNumber = usize;

/// What a moment has for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It stays, whichever holder is dropped alone.
    Several,
    One(HolderNumber),
}

/// Moments in ascending order, each with the holder that alone gives it up.
///
/// Of a version, the moments that need it are an interval of places: see [`Self::place`]. The
/// present has the place after the last moment.
#[derive(Debug)]
pub(super) struct OwnedMoments {
    seqnos: Vec<Seqno>,
    owners: Vec<Owner>,
    /// For each, the place after the last one of those that follow it and have the same owner.
    run_ends: Vec<usize>,
}

/// Something that holds a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MomentHold {
    pub(super) seqno: Seqno,
    /// The holder whose drop ends it; `None` if that of no holder does.
    pub(super) ended_by: Option<HolderNumber>,
}

impl OwnedMoments {
    /// Those that are held so, in any order.
    pub(super) fn new(mut held: Vec<MomentHold>) -> Self {
        held.sort_unstable();
        let (mut seqnos, mut owners) = (Vec::new(), Vec::new());
        for one in held {
            let owner = one.ended_by.map_or(Owner::Several, Owner::One);
            if seqnos.last() != Some(&one.seqno) {
                seqnos.push(one.seqno);
                owners.push(owner);
            } else if owners.last() != Some(&owner) {
                *owners.last_mut().expect("one for each moment") = Owner::Several;
            }
        }
        let mut run_ends = vec![0; owners.len()];
        for at in (0..owners.len()).rev() {
            let goes_on = owners.get(at + 1) == Some(&owners[at]);
            run_ends[at] = if goes_on { run_ends[at + 1] } else { at + 1 };
        }
        debug_assert!(
            seqnos.is_sorted_by(|moment, next| moment < next),
            "each moment once, in order"
        );
        debug_assert_eq!(seqnos.len(), owners.len(), "a moment has an owner");
        debug_assert!(run_ends.is_sorted(), "runs of one owner follow each other");
        debug_assert!(
            run_ends.last().is_none_or(|end| *end == owners.len()),
            "the last run ends with the moments"
        );
        Self {
            seqnos,
            owners,
            run_ends,
        }
    }

    /// Returns the moments.
    pub(super) fn seqnos(&self) -> &[Seqno] {
        &self.seqnos
    }

    /// Returns the place of the first moment that sees a write.
    pub(super) fn place(&self, seqno: Seqno) -> usize {
        self.seqnos.partition_point(|moment| *moment < seqno)
    }

    /// Returns the place after all: what is needed up to it is needed by the present.
    pub(super) fn after_present(&self) -> usize {
        self.seqnos.len() + 1
    }

    /// Returns the holder that alone needs what the moments from `start` on before `end` see.
    pub(super) fn owner_of(&self, start: usize, end: usize) -> Option<HolderNumber> {
        debug_assert!(end <= self.after_present(), "a place of these moments");
        if start >= end || end > self.seqnos.len() || self.run_ends[start] < end {
            return None;
        }
        debug_assert!(start < self.owners.len(), "a place of a moment");
        match self.owners[start] {
            Owner::One(holder) => Some(holder),
            Owner::Several => None,
        }
    }
}

/// What holds moments of a tree.
#[derive(Clone, Debug, Default)]
pub(super) struct TreeHolds {
    /// Of every key.
    pub(super) whole: Vec<MomentHold>,
    /// Of the keys in ranges alone.
    pub(super) ranged: Vec<(MomentHold, KeyRanges)>,
}

impl TreeHolds {
    /// Returns the moments, by key.
    pub(super) fn moments(&self) -> KeyMoments {
        let ranged = self.ranged.iter();
        let moments = KeyMoments::new(
            self.whole.iter().map(|hold| hold.seqno).collect(),
            ranged.map(|(hold, of)| (hold.seqno, of.clone())).collect(),
        );
        debug_assert!(
            moments.all().len() <= self.whole.len() + self.ranged.len(),
            "each moment has a hold"
        );
        moments
    }

    /// Returns the moments of a key.
    fn of(&self, key: &[u8]) -> OwnedMoments {
        let ranged = self.ranged.iter().filter(|(_, ranges)| ranges.has(key));
        let held = self.whole.iter().chain(ranged.map(|(hold, _)| hold));
        OwnedMoments::new(held.copied().collect())
    }
}

/// The moments of one key after the other, with their owners.
#[derive(Debug)]
pub(super) struct OwnedCursor<'a> {
    holds: &'a TreeHolds,
    keys: MomentCursor<'a>,
    owned: OwnedMoments,
}

impl<'a> OwnedCursor<'a> {
    /// Stands on the first key of all. `moments` are those of `holds`.
    pub(super) fn new(holds: &'a TreeHolds, moments: &'a KeyMoments) -> Self {
        let (keys, owned) = (MomentCursor::new(moments), holds.of(&[]));
        debug_assert_eq!(
            owned.seqnos(),
            keys.seqnos(),
            "the moments are those of the holds"
        );
        Self { holds, keys, owned }
    }

    /// Moves to a key.
    pub(super) fn seek(&mut self, key: &[u8]) {
        if self.keys.seek(key) {
            self.owned = self.holds.of(key);
        }
        debug_assert_eq!(
            self.owned.seqnos(),
            self.keys.seqnos(),
            "the owners are those of the key's moments"
        );
    }

    /// Reports whether keys from `first` to `last`, both included, may have different moments.
    pub(super) fn differ(&self, first: &[u8], last: &[u8]) -> bool {
        debug_assert!(first <= last, "a range of keys is in order");
        self.keys.moments().differ(first, last)
    }

    /// Returns the moments of the current key.
    pub(super) const fn owned(&self) -> &OwnedMoments {
        &self.owned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(held: &[(u64, Option<HolderNumber>)]) -> OwnedMoments {
        let held = held.iter().map(|&(seqno, ended_by)| MomentHold {
            seqno: Seqno(seqno),
            ended_by,
        });
        OwnedMoments::new(held.collect())
    }

    #[test]
    fn a_version_belongs_to_the_one_holder_of_all_its_moments() {
        let all = moments(&[(9, Some(1)), (3, Some(0)), (5, Some(1)), (7, Some(1))]);
        let owner = |a: u64, b: u64| all.owner_of(all.place(Seqno(a)), all.place(Seqno(b)));
        assert_eq!(owner(1, 4), Some(0));
        assert_eq!(
            owner(3, 4),
            Some(0),
            "a moment sees the write that it is at"
        );
        assert_eq!(owner(1, 3), None, "no moment before the newer one");
        assert_eq!(owner(1, 6), None, "two holders");
        assert_eq!(owner(4, 8), Some(1));
        assert_eq!(owner(4, 99), Some(1));
        let present = all.after_present();
        assert_eq!(all.owner_of(all.place(Seqno(4)), present), None);
    }

    #[test]
    fn a_moment_of_two_holders_is_neithers() {
        let all = moments(&[
            (3, Some(0)),
            (3, Some(1)),
            (5, Some(0)),
            (5, Some(0)),
            (7, None),
        ]);
        assert_eq!(all.seqnos(), [Seqno(3), Seqno(5), Seqno(7)]);
        assert_eq!(all.owner_of(0, 1), None);
        assert_eq!(all.owner_of(1, 2), Some(0), "held twice by one");
        assert_eq!(all.owner_of(2, 3), None, "it stays");
    }

    #[test]
    fn a_key_has_the_moments_of_the_ranges_that_it_is_in() {
        let hold = |seqno: u64, ended_by| MomentHold {
            seqno: Seqno(seqno),
            ended_by,
        };
        let ranges = KeyRanges::new([(b"c".to_vec(), Some(b"f".to_vec()))]);
        let holds = TreeHolds {
            whole: vec![hold(5, None)],
            ranged: vec![
                (hold(9, Some(1)), ranges.clone()),
                (hold(5, Some(1)), ranges),
            ],
        };
        let moments = holds.moments();
        let mut cursor = OwnedCursor::new(&holds, &moments);
        let mut owner = |key: &[u8], (a, b): (u64, u64)| {
            cursor.seek(key);
            let owned = cursor.owned();
            owned.owner_of(owned.place(Seqno(a)), owned.place(Seqno(b)))
        };
        assert_eq!(owner(b"a", (6, 10)), None, "nothing holds it here");
        assert_eq!(owner(b"c", (6, 10)), Some(1));
        assert_eq!(owner(b"d", (4, 6)), None, "another holds it of every key");
        assert_eq!(owner(b"f", (6, 10)), None);
        assert!(cursor.differ(b"a", b"c") && !cursor.differ(b"c", b"e"));
    }
}
