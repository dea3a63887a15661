//! Dates and times of UTC, in the Gregorian calendar.

use std::fmt;

/// Seconds of an hour.
pub const HOUR_S: i64 = 3600;
/// Seconds of a day.
pub const DAY_S: i64 = 24 * HOUR_S;
/// 1970 began on a Thursday.
const DAYS_TO_MONDAY: i64 = 3;
/// Years that [`UtcTime::seconds`] takes.
const YEARS: std::ops::RangeInclusive<i64> = 0..=9999;

/// A second of UTC. As text: `2026-11-26 20:00:05`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcTime {
    /// Year.
    pub year: i64,
    /// Month, from 1 on.
    pub month: i64,
    /// Day of the month, from 1 on.
    pub day: i64,
    /// Hour, 0 to 23.
    pub hour: i64,
    /// Minute, 0 to 59.
    pub minute: i64,
    /// Second, 0 to 59.
    pub second: i64,
}

impl UtcTime {
    /// Returns the time that is `seconds` after 1970.
    #[must_use]
    pub const fn of(seconds: i64) -> Self {
        let (year, month, day) = date(seconds.div_euclid(DAY_S));
        let of_day = seconds.rem_euclid(DAY_S);
        debug_assert!(1 <= month && month <= 12);
        debug_assert!(1 <= day && day <= 31);
        debug_assert!(0 <= of_day && of_day < DAY_S);
        Self {
            year,
            month,
            day,
            hour: of_day / HOUR_S,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// Returns the seconds since 1970; `None` for what is no time of the years 0 to 9999.
    #[must_use]
    pub fn seconds(&self) -> Option<i64> {
        let in_range = (0..24).contains(&self.hour)
            && (0..60).contains(&self.minute)
            && (0..60).contains(&self.second)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && YEARS.contains(&self.year);
        if !in_range {
            return None;
        }
        let days = days(self.year, self.month, self.day);
        let of_day = self.hour * HOUR_S + self.minute * 60 + self.second;
        // A day that its month has not is one of the next month.
        (date(days) == (self.year, self.month, self.day)).then_some(days * DAY_S + of_day)
    }

    /// Returns it as part of a file name, without colons: `2026-11-26T20-00-05Z`.
    #[must_use]
    pub fn file_name(&self) -> String {
        let (hour, minute, second) = (self.hour, self.minute, self.second);
        let (year, month, day) = (self.year, self.month, self.day);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}Z")
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02} ", self.year, self.month, self.day)?;
        write!(f, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }
}

/// Returns the number of the week, which begins on Monday.
#[must_use]
pub const fn week(seconds: i64) -> i64 {
    (seconds.div_euclid(DAY_S) + DAYS_TO_MONDAY).div_euclid(7)
}

/// Returns year, month and day of a number of days since 1970: years begin in March here, so that
/// a leap day is the last one.
const fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    debug_assert!(0 <= of_year && of_year <= 365);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (year + era * 400 + next, month, day)
}

/// Returns the days since 1970 of a date: the inverse of [`date`].
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    debug_assert!(0 <= month && month < 12, "March is 0");
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_utc_and_come_back() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            let time = UtcTime::of(seconds);
            assert_eq!(time.to_string(), text);
            assert_eq!(time.seconds(), Some(seconds));
        }
        assert_eq!(
            UtcTime::of(1_700_000_000).file_name(),
            "2023-11-14T22-13-20Z"
        );
    }

    #[test]
    fn every_day_of_four_centuries_comes_after_the_one_before() {
        let mut before = UtcTime::of(-1);
        for day in 0..146_097 {
            let time = UtcTime::of(day * DAY_S);
            let is_next =
                (time.year, time.month, time.day) > (before.year, before.month, before.day);
            assert!(is_next, "{before} {time}");
            assert_eq!(time.seconds(), Some(day * DAY_S));
            before = time;
        }
    }

    #[test]
    fn what_is_no_time_has_no_seconds() {
        let good = UtcTime::of(1_709_164_800);
        assert_eq!(good.to_string(), "2024-02-29 00:00:00");
        for wrong in [
            UtcTime { year: 2023, ..good },
            UtcTime { day: 30, ..good },
            UtcTime { day: 0, ..good },
            UtcTime { month: 13, ..good },
            UtcTime { month: 0, ..good },
            UtcTime { hour: 24, ..good },
            UtcTime { minute: 60, ..good },
            UtcTime { second: -1, ..good },
            UtcTime {
                year: 10_000,
                ..good
            },
        ] {
            assert_eq!(wrong.seconds(), None, "{wrong}");
        }
    }

    #[test]
    fn weeks_begin_on_monday() {
        // 2024-02-29 is a Thursday.
        let thursday = 1_709_164_800;
        assert_eq!(week(thursday), week(thursday + 3 * DAY_S));
        assert_ne!(week(thursday), week(thursday + 4 * DAY_S));
        assert_eq!(week(-1), week(0));
    }
}
