//! Which moments of the history are kept, and when one is due. Pure.
//!
//! Moments lie in intervals of time, and the first one of each interval is kept. The interval of a
//! moment doubles with its age:
//!
//! ```text
//! age         0 .. 64 b     64 b .. 128 b     128 b .. 256 b     ...     the time kept
//! interval    b             2 b               4 b
//!
//! b = the time kept / 720, from 1 s to 60 s: 5 s for an hour
//! ```
//!
//! - At most 64 moments are in the first column of that table, and 32 in each other one. So their
//!   number grows with the logarithm of the time kept: about 175 for an hour, 210 for a day.
//! - Larger intervals are made of whole smaller ones. So a moment that is the first of a larger
//!   interval was the first of a smaller one, and none is missed that is needed later.
//! - A clock that was set back: a moment counts as no younger than those after it.

/// Young moments, which are all kept.
const YOUNG: i64 = 64;
/// Moments of even age in the time kept.
const PARTS: u64 = 720;
/// Longest interval of young moments, in seconds.
const INTERVAL_S_MAX: u64 = 60;
/// Longest time that moments are kept, in seconds: ten years.
pub const HISTORY_S_MAX: u64 = 10 * 366 * 24 * 3600;
const _: () = assert!(
    HISTORY_S_MAX <= i64::MAX.unsigned_abs(),
    "an age is a signed number"
);
const _: () = assert!(INTERVAL_S_MAX > 0, "intervals are not empty");
const _: () = assert!(YOUNG > 0, "a moment is young at first");

/// Returns the interval of young moments, in seconds.
pub(super) fn interval_s(keep_s: u64) -> i64 {
    (keep_s / PARTS).clamp(1, INTERVAL_S_MAX).cast_signed()
}

/// Returns the interval of moments of this age, in seconds.
fn interval_at(age_s: i64, interval_s: i64) -> i64 {
    debug_assert!(interval_s > 0);
    debug_assert!(age_s >= 0);
    let mut interval = interval_s;
    while age_s >= interval.saturating_mul(YOUNG) {
        interval = interval.saturating_mul(2);
    }
    debug_assert!(
        age_s < interval.saturating_mul(YOUNG),
        "it is young in its interval"
    );
    interval
}

/// Reports whether a moment is due after the last one.
pub(super) fn is_due(last_s: Option<i64>, now_s: i64, interval_s: i64) -> bool {
    debug_assert!(interval_s > 0, "an interval is not empty");
    last_s.is_none_or(|last| last.div_euclid(interval_s) != now_s.div_euclid(interval_s))
}

/// A moment: the second when it was, and the seconds that it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aged {
    pub(super) created_s: i64,
    pub(super) keep_s: u64,
}

/// Reports which moments are to be dropped. `moments` are in the order of their creation.
pub(super) fn dropped(moments: &[Aged], now_s: i64) -> Vec<bool> {
    let mut seconds: Vec<i64> = moments.iter().map(|moment| moment.created_s).collect();
    let mut youngest = now_s;
    for second in seconds.iter_mut().rev() {
        youngest = youngest.min(*second);
        *second = youngest;
    }
    debug_assert!(
        seconds.is_sorted(),
        "none counts as younger than those after it"
    );
    let mut before = None;
    let judge = |(moment, second): (&Aged, &i64)| {
        let age_s = now_s - second;
        let interval = interval_at(age_s, interval_s(moment.keep_s));
        let bucket = second.div_euclid(interval);
        let is_first = before.replace(*second).map(|s: i64| s.div_euclid(interval)) != Some(bucket);
        age_s > moment.keep_s.cast_signed() || !is_first
    };
    moments.iter().zip(&seconds).map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    #[test]
    fn the_interval_follows_from_the_time_kept_and_doubles_with_age() {
        assert_eq!(interval_s(60), 1);
        assert_eq!(interval_s(3600), 5);
        assert_eq!(interval_s(86_400), 60);
        assert_eq!((interval_at(0, 5), interval_at(319, 5)), (5, 5));
        assert_eq!((interval_at(320, 5), interval_at(640, 5)), (10, 20));
        assert!(is_due(None, 7, 5) && is_due(Some(4), 5, 5) && !is_due(Some(5), 9, 5));
    }

    /// What must hold, whatever is kept: enough, and not too much.
    fn check(all: &[i64], kept: &[Aged], now_s: i64, keep_s: u64) {
        let interval = interval_s(keep_s);
        let age = |second: i64| now_s - second;
        let rows = (keep_s.cast_signed() / (interval * YOUNG)).max(1).ilog2() + 2;
        assert!(
            kept.len() <= (YOUNG * i64::from(rows) + 2) as usize,
            "{} kept",
            kept.len()
        );
        let half = keep_s.cast_signed() / 2;
        for second in all.iter().filter(|second| age(**second) < half) {
            // It may have been dropped for one that has come into the next column since.
            let width = interval_at(age(*second), interval);
            let width = interval_at(age(*second) + width, interval);
            let is_shown = |moment: &Aged| (0..width).contains(&(second - moment.created_s));
            assert!(
                kept.iter().any(is_shown),
                "nothing shows {second} at {now_s}"
            );
        }
        let is_old = |moment: &Aged| age(moment.created_s) > keep_s.cast_signed();
        assert!(!kept.iter().any(is_old), "one is too old");
    }

    #[test]
    fn each_moment_is_shown_to_within_its_interval_and_their_number_is_bounded() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let keep_s = [30, 600, 3600, 86_400][(seed % 4) as usize];
            let interval = interval_s(keep_s);
            let (mut now_s, mut all, mut kept) = (1_700_000_000_i64, Vec::new(), Vec::new());
            for _ in 0..3000 {
                now_s += match rng.below(50) {
                    0 => rng.below(keep_s / 3).cast_signed(),
                    _ => rng.below(interval.cast_unsigned() * 2 + 1).cast_signed(),
                };
                let last = kept.last().map(|last: &Aged| last.created_s);
                if is_due(last, now_s, interval) {
                    all.push(now_s);
                    kept.push(Aged {
                        created_s: now_s,
                        keep_s,
                    });
                }
                let mut flags = dropped(&kept, now_s).into_iter();
                kept.retain(|_| !flags.next().expect("one each"));
                check(&all, &kept, now_s, keep_s);
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_no_moment_for_ever() {
        let at = |created_s| Aged {
            created_s,
            keep_s: 100,
        };
        let moments = [at(1_000_000), at(1_000_010), at(500)];
        assert_eq!(dropped(&moments, 510), [false, true, true]);
        assert_eq!(dropped(&moments, 601), [true, true, true]);
    }
}
