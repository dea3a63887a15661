//! Times on the command line.
//!
//! | form | example |
//! |---|---|
//! | time ago: number, unit, `ago` | `10 min ago`, `2h ago`, `1 day ago` |
//! | date | `2026-11-26` |
//! | date and time, of UTC or with a zone | `2026-11-26 14:00`, `2026-11-26T14:00:05+02:00` |
//! | time of today | `14:00` |
//! | name of a moment | `2026-11-26T14-00-05Z` |

use anyhow::{Context as _, Result};
use stitch_base::calendar::{DAY_S, UtcTime};

const HELP: &str = "a time is like `10 min ago`, `2026-11-26 14:00` (UTC), `14:00`, or \
                    `2026-11-26T14:00:05+02:00`";

/// Returns the second since 1970 that a text stands for.
pub(super) fn parse(text: &str, now_s: i64) -> Result<i64> {
    let text = text.trim();
    let found = ago(text, now_s).or_else(|| moment(text, now_s));
    found.with_context(|| format!("{text:?}: is no time; {HELP}"))
}

/// Returns the second that a text on the command line stands for.
pub(super) fn parse_now(text: &str) -> Result<i64, String> {
    parse(text, super::now_s()).map_err(|_| format!("is no time: {HELP}"))
}

/// Seconds of a unit of time.
fn unit(name: &str) -> Option<i64> {
    Some(match name {
        "s" | "sec" | "second" | "seconds" => 1,
        "m" | "min" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => DAY_S,
        "w" | "week" | "weeks" => 7 * DAY_S,
        _ => return None,
    })
}

fn ago(text: &str, now_s: i64) -> Option<i64> {
    let amount = text.strip_suffix("ago")?.trim_end();
    let digits = amount.bytes().take_while(u8::is_ascii_digit).count();
    let (number, name) = amount.split_at(digits);
    let seconds = number
        .parse::<i64>()
        .ok()?
        .checked_mul(unit(name.trim_start())?)?;
    now_s.checked_sub(seconds)
}

fn moment(text: &str, now_s: i64) -> Option<i64> {
    let Some((date, rest)) = text.split_once(['T', ' ']) else {
        return match text.contains(':') {
            true => seconds(&UtcTime::of(now_s).to_string()[..10], text),
            false => seconds(text, "00:00"),
        };
    };
    let (time, zone_s) = zone(rest.trim_start())?;
    seconds(date, &time.replace('-', ":"))?.checked_sub(zone_s)
}

/// Splits a time from its zone. Returns how far the zone is before UTC, in seconds.
fn zone(text: &str) -> Option<(&str, i64)> {
    if let Some(time) = text.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    // A minus between digits may be that of a moment's name, which ends with Z.
    let Some(at) = text.rfind(['+', '-']) else {
        return Some((text, 0));
    };
    let (time, zone) = text.split_at(at);
    let (hours, minutes) = zone[1..].split_once(':').unwrap_or((&zone[1..], "0"));
    let seconds = number(hours, 23)? * 3600 + number(minutes, 59)? * 60;
    Some((
        time,
        if zone.starts_with('+') {
            seconds
        } else {
            -seconds
        },
    ))
}

fn number(text: &str, most: i64) -> Option<i64> {
    let is_plain = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_plain)?;
    (number <= most).then_some(number)
}

/// Date and time as numbers.
fn seconds(date: &str, time: &str) -> Option<i64> {
    let mut date = date.split('-');
    let mut time = time.split(':');
    let part = |parts: &mut std::str::Split<'_, char>| number(parts.next()?, 9999);
    let (year, month, day) = (part(&mut date)?, part(&mut date)?, part(&mut date)?);
    let (hour, minute) = (part(&mut time)?, part(&mut time)?);
    // Parts of a second make no difference here.
    let second = match time.next() {
        Some(second) => number(second.split('.').next()?, 59)?,
        None => 0,
    };
    if date.next().is_some() || time.next().is_some() {
        return None;
    }
    let time = UtcTime {
        year,
        month,
        day,
        hour,
        minute,
        second,
    };
    time.seconds()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2023-11-14 22:13:20.
    const NOW: i64 = 1_700_000_000;

    #[test]
    fn times_are_read() {
        for (text, expected) in [
            ("10 min ago", NOW - 600),
            ("1 minute ago", NOW - 60),
            ("2h ago", NOW - 7200),
            ("3 days ago", NOW - 3 * DAY_S),
            ("0s ago", NOW),
            ("2023-11-14 22:13:20", NOW),
            ("2023-11-14 22:13", NOW - 20),
            ("2023-11-14", NOW - 80_000),
            ("22:13:20", NOW),
            ("2023-11-14T22:13:20Z", NOW),
            ("2023-11-14T22:13:20.75Z", NOW),
            ("2023-11-15T00:13:20+02:00", NOW),
            ("2023-11-14 17:13:20-05:00", NOW),
            ("2023-11-14T22-13-20Z", NOW),
        ] {
            assert_eq!(parse(text, NOW).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "ago",
            "min ago",
            "10 ago",
            "10 parsecs ago",
            "-1 min ago",
            "99999999999999999999 s ago",
            "2023-02-30",
            "2023-11-14 25:00",
            "2023-11-14 22:13:20:00",
            "2023-11",
            "22:61",
            "2023-11-14T22:13:20+99:00",
            "tomorrow",
        ] {
            let error = parse(text, NOW).unwrap_err().to_string();
            assert!(error.contains("10 min ago"), "{text}: {error}");
        }
    }
}
