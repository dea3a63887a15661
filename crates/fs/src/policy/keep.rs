//! Which snapshots of a policy are kept, and when one is due. Pure.
//!
//! ```text
//! hourly=2   10:00 10:15 10:30 11:00 11:15        the newest of 10 o'clock and of 11 o'clock
//!                        kept         kept
//! every 15 min         last 10:14   10:15 due     10:29 not due     10:30 due
//!                      last 10:14   09:59 clock went back by less than an interval: not due
//! ```

use stitch_base::calendar::{DAY_S, HOUR_S, UtcTime, week};
use stitch_format::fs_policy::Keep;

/// Number of the interval that a second is in.
pub(super) const fn interval_of(second: i64, every_s: u64) -> i64 {
    debug_assert!(every_s > 0, "an interval is not empty");
    second.div_euclid(every_s.cast_signed())
}

/// Reports whether a snapshot is due in an interval. `last` is the interval of the last one.
///
/// A clock that went back by more than an interval counts as one that went on; by less, it waits.
pub(super) fn is_due(interval: i64, last: Option<i64>) -> bool {
    last.is_none_or(|last| interval > last || interval < last - 1)
}

/// Returns the number of the period that a second is in.
type Period = fn(i64) -> i64;

/// Reports which of the snapshots, by the second of their creation in falling order, are kept.
pub(super) fn kept(keep: &Keep, seconds: &[i64]) -> Vec<bool> {
    debug_assert!(
        seconds.is_sorted_by(|a, b| a >= b),
        "the newest comes first"
    );
    let mut kept = vec![false; seconds.len()];
    let newest = kept.iter_mut().take(usize::from(keep.last.max(1)));
    newest.for_each(|is_kept| *is_kept = true);
    let rules: [(u16, Period); 5] = [
        (keep.hourly, |second| second.div_euclid(HOUR_S)),
        (keep.daily, |second| second.div_euclid(DAY_S)),
        (keep.weekly, week),
        (keep.monthly, |second| {
            let time = UtcTime::of(second);
            time.year * 12 + time.month
        }),
        (keep.yearly, |second| UtcTime::of(second).year),
    ];
    for (count, period) in rules {
        let (mut left, mut last) = (count, None);
        for (is_kept, second) in kept.iter_mut().zip(seconds) {
            let this = Some(period(*second));
            if left > 0 && this != last {
                (*is_kept, left, last) = (true, left - 1, this);
            }
        }
    }
    debug_assert!(
        kept.iter().filter(|is_kept| **is_kept).count()
            <= rules
                .iter()
                .map(|(count, _)| usize::from(*count))
                .sum::<usize>()
                + usize::from(keep.last.max(1)),
        "no more than the rules keep"
    );
    debug_assert!(
        kept.first().is_none_or(|is_kept| *is_kept),
        "the newest one stays"
    );
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds that are kept.
    fn kept_of(keep: Keep, mut seconds: Vec<i64>) -> Vec<i64> {
        seconds.sort_by_key(|second| -second);
        let flags = kept(&keep, &seconds);
        let both = seconds.iter().zip(flags);
        both.filter(|(_, is_kept)| *is_kept)
            .map(|(second, _)| *second)
            .collect()
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        let quarters: Vec<i64> = (0..4 * 50).map(|quarter| quarter * 900).collect();
        let hourly = Keep {
            hourly: 3,
            ..Keep::default()
        };
        let last = 4 * 50 * 900 - 900;
        let expected = vec![last, last - HOUR_S, last - 2 * HOUR_S];
        assert_eq!(kept_of(hourly, quarters.clone()), expected);
        let daily = Keep {
            daily: 7,
            ..Keep::default()
        };
        // Of the third day two hours have passed.
        let expected = vec![last, 2 * DAY_S - 900, DAY_S - 900];
        assert_eq!(kept_of(daily, quarters.clone()), expected);
        assert_eq!(kept_of(Keep::default(), quarters.clone()), vec![last]);
        let three = Keep {
            last: 3,
            ..Keep::default()
        };
        assert_eq!(kept_of(three, quarters).len(), 3);
    }

    #[test]
    fn a_gap_uses_up_no_period() {
        let days = vec![0, DAY_S, 10 * DAY_S, 20 * DAY_S];
        let keep = Keep {
            daily: 3,
            ..Keep::default()
        };
        assert_eq!(kept_of(keep, days), vec![20 * DAY_S, 10 * DAY_S, DAY_S]);
    }

    #[test]
    fn one_is_due_once_in_an_interval_whatever_the_clock_does() {
        assert!(is_due(7, None));
        assert!(!is_due(7, Some(7)) && is_due(8, Some(7)) && is_due(700, Some(7)));
        assert!(!is_due(6, Some(7)), "went back by a moment");
        assert!(is_due(5, Some(7)), "was set back");
        assert_eq!((interval_of(-1, 900), interval_of(900, 900)), (-1, 1));
    }
}
