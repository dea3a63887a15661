//! Sets of runs: what is in some and not in others.

use stitch_format::vt_manifest::Run;

/// Sorts runs and joins those that touch.
///
/// # Panics
/// If any two overlap: a byte of the device has one owner.
pub(crate) fn coalesce(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort();
    let are_apart = runs.windows(2).all(|pair| pair[0].end() <= pair[1].addr);
    assert!(are_apart, "a byte of the device has one owner");
    let total = |runs: &[Run]| runs.iter().map(|run| run.len_bytes).sum::<u64>();
    let before = total(&runs);
    let joined = joined(runs);
    debug_assert_eq!(total(&joined), before, "no byte is lost");
    joined
}

/// Sorts runs and joins those that touch or overlap: those that an index names, which may be
/// damaged.
pub(crate) fn union(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort();
    joined(runs)
}

/// Joins sorted runs that touch or overlap.
fn joined(runs: Vec<Run>) -> Vec<Run> {
    debug_assert!(runs.is_sorted(), "runs are joined in order");
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match out.last_mut() {
            Some(last) if run.addr <= last.end() => {
                last.len_bytes = last.end().max(run.end()) - last.addr;
            }
            _ => out.push(run),
        }
    }
    debug_assert!(
        out.windows(2).all(|pair| pair[0].end() < pair[1].addr),
        "joined runs do not touch"
    );
    out
}

/// What is in `all` and not in `kept`. Both sorted and apart.
pub(crate) fn subtract(all: &[Run], kept: &[Run]) -> Vec<Run> {
    debug_assert!(kept.is_sorted(), "what is kept is in order");
    let mut out = Vec::new();
    let mut holes = kept.iter().peekable();
    for run in all {
        let mut at = run.addr;
        while let Some(hole) = holes.peek() {
            if hole.addr >= run.end() {
                break;
            }
            if hole.addr > at {
                out.push(piece(at, hole.addr));
            }
            at = at.max(hole.end());
            if hole.end() > run.end() {
                break;
            }
            holes.next();
        }
        if at < run.end() {
            out.push(piece(at, run.end()));
        }
    }
    debug_assert!(
        out.windows(2).all(|pair| pair[0].end() <= pair[1].addr),
        "in order"
    );
    debug_assert!(
        out.iter().all(|run| !meets_any(kept, run)),
        "nothing that is kept is left"
    );
    out
}

/// Reports whether a run meets one of `runs`, which are sorted and apart.
pub(crate) fn meets_any(runs: &[Run], run: &Run) -> bool {
    debug_assert!(
        runs.is_sorted_by(|one, next| one.end() <= next.addr),
        "runs are searched by halves"
    );
    let next = runs.partition_point(|one| one.end() <= run.addr);
    runs.get(next).is_some_and(|one| one.addr < run.end())
}

fn piece(from: u64, to: u64) -> Run {
    debug_assert!(from < to, "a run is not empty");
    Run {
        addr: from,
        len_bytes: to - from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pairs: &[(u64, u64)]) -> Vec<Run> {
        pairs.iter().map(|&(from, to)| piece(from, to)).collect()
    }

    #[test]
    fn touching_runs_are_joined() {
        let joined = coalesce(runs(&[(30, 40), (0, 10), (10, 20)]));
        assert_eq!(joined, runs(&[(0, 20), (30, 40)]));
    }

    #[test]
    #[should_panic(expected = "one owner")]
    fn overlaps_are_refused() {
        coalesce(runs(&[(0, 10), (9, 12)]));
    }

    #[test]
    fn runs_that_overlap_are_joined_where_they_may() {
        let joined = union(runs(&[
            (30, 40),
            (0, 10),
            (5, 8),
            (9, 20),
            (20, 21),
            (30, 40),
        ]));
        assert_eq!(joined, runs(&[(0, 21), (30, 40)]));
    }

    #[test]
    fn what_is_kept_is_cut_out() {
        let all = runs(&[(0, 100), (200, 300), (400, 500)]);
        let kept = runs(&[(0, 10), (20, 30), (90, 120), (150, 210), (250, 450)]);
        let left = runs(&[(10, 20), (30, 90), (210, 250), (450, 500)]);
        assert_eq!(subtract(&all, &kept), left);
        assert_eq!(subtract(&all, &[]), all);
        assert!(subtract(&all, &runs(&[(0, 600)])).is_empty());
    }

    #[test]
    fn a_run_meets_those_that_it_shares_bytes_with() {
        let all = runs(&[(10, 20), (20, 30), (40, 50)]);
        let meets = |from, to| meets_any(&all, &piece(from, to));
        assert!(meets(0, 11) && meets(29, 31) && meets(49, 60) && meets(0, 100) && meets(22, 23));
        assert!(!meets(0, 10) && !meets(30, 40) && !meets(50, 60));
        assert!(!meets_any(&[], &piece(0, 10)));
    }

    #[test]
    fn one_hole_over_two_runs_cuts_both() {
        let left = subtract(&runs(&[(0, 10), (20, 30)]), &runs(&[(5, 25)]));
        assert_eq!(left, runs(&[(0, 5), (25, 30)]));
    }
}
