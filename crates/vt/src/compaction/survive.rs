//! Which range deletes a compaction keeps.

use super::stitch::holds_any;
use crate::entry::RangeDelete;
use crate::range_delete::RangeDeletes;
use stitch_base::Seqno;

/// The range deletes that still matter, by start.
///
/// One that newer ones of the same stripe cover whole does not: a reader that sees it sees them
/// too. Where nothing is below and no snapshot is older, a range delete has hidden all that it ever
/// will, and goes.
pub(crate) fn surviving(
    all: &RangeDeletes,
    snapshots: &[Seqno],
    is_bottom: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Vec<RangeDelete> {
    let matters = |delete: &&RangeDelete| {
        let is_spent =
            !holds_any(snapshots, Seqno(0), delete.seqno) && is_bottom(&delete.start, &delete.end);
        !is_spent && !is_covered(all, delete, snapshots)
    };
    all.sorted().into_iter().filter(matters).cloned().collect()
}

/// True if newer range deletes of the same stripe cover all of this one.
fn is_covered(all: &RangeDeletes, delete: &RangeDelete, snapshots: &[Seqno]) -> bool {
    let next = snapshots.partition_point(|s| *s < delete.seqno);
    let stripe_end = snapshots.get(next).copied().unwrap_or(Seqno(u64::MAX));
    let mut at = delete.start.as_slice();
    loop {
        let cover = all.cover(at, stripe_end);
        if cover.seqno.is_none_or(|by| by <= delete.seqno) {
            return false;
        }
        match cover.until {
            Some(until) if until < delete.end.as_slice() => at = until,
            _ => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(deletes: &[(&str, &str, u64)]) -> RangeDeletes {
        let delete = |&(start, end, seqno): &(&str, &str, u64)| RangeDelete {
            start: start.into(),
            end: end.into(),
            seqno: Seqno(seqno),
        };
        RangeDeletes::new(deletes.iter().map(delete).collect())
    }

    fn left(all: &RangeDeletes, snapshots: &[u64], bottom: bool) -> Vec<u64> {
        let snapshots: Vec<Seqno> = snapshots.iter().map(|s| Seqno(*s)).collect();
        let kept = surviving(all, &snapshots, &|_, _| bottom);
        kept.iter().map(|d| d.seqno.0).collect()
    }

    #[test]
    fn at_the_bottom_only_snapshots_keep_range_deletes() {
        let all = set(&[("a", "c", 5), ("x", "z", 9)]);
        assert_eq!(left(&all, &[], false), [5, 9]);
        assert_eq!(left(&all, &[], true), Vec::<u64>::new());
        assert_eq!(left(&all, &[5], true), [9]);
        assert_eq!(left(&all, &[4], true), [5, 9]);
    }

    #[test]
    fn what_newer_ones_cover_together_goes() {
        let all = set(&[("a", "e", 5), ("a", "c", 7), ("c", "f", 8)]);
        assert_eq!(left(&all, &[], false), [7, 8]);
        assert_eq!(left(&all, &[6], false), [7, 5, 8]);
        let gap = set(&[("a", "e", 5), ("a", "b", 7), ("c", "f", 8)]);
        assert_eq!(left(&gap, &[], false), [7, 5, 8]);
    }
}
