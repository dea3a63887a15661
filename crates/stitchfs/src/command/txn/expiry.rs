//! When a transaction expires: `--expires`, and `stitchfs txn keep`.

use super::super::output;
use super::target::{TxnMount, TxnOf};
use anyhow::Result;
use clap::Parser;
use rustix::io::Errno;
use serde_json::json;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::transactions;

/// Units of a time, in seconds.
const UNITS: [(char, u64); 5] = [
    ('s', 1),
    ('m', 60),
    ('h', 3600),
    ('d', 86_400),
    ('w', 604_800),
];
/// Longest time: a hundred years.
const SECONDS_MAX: u64 = 100 * 365 * 86_400;

/// When a transaction expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    In(Duration),
    Never,
}

impl Expiry {
    /// Returns the time, in nanoseconds since 1970.
    pub(super) fn at(self) -> Option<i64> {
        match self {
            Self::Never => None,
            Self::In(after) => {
                let after = i64::try_from(after.as_nanos()).unwrap_or(i64::MAX);
                Some(SystemClock::default().now().0.saturating_add(after))
            }
        }
    }
}

/// Returns the time that a word says.
pub(super) fn parse(word: &str) -> Result<Expiry, String> {
    if word == "never" {
        return Ok(Expiry::Never);
    }
    let wrong = || "is no time: give a number and s, m, h, d or w, such as 2h, or never".to_owned();
    let unit = word.chars().next_back().ok_or_else(wrong)?;
    let found = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, seconds) = found.ok_or_else(wrong)?;
    let count: u64 = word[..word.len() - unit.len_utf8()]
        .parse()
        .map_err(|_| wrong())?;
    match count.checked_mul(*seconds) {
        Some(0) => Err("is no time: it is over at once".to_owned()),
        Some(seconds @ ..=SECONDS_MAX) => Ok(Expiry::In(Duration::from_secs(seconds))),
        _ => Err("is more than 100 years; use never".to_owned()),
    }
}

/// Change when an open transaction is aborted unasked
#[derive(Debug, Parser)]
pub(super) struct TxnKeep {
    /// Time from now on at which it is aborted if it is still open, such as
    /// 90s, 30m, 2h, 7d, or never
    #[arg(
        long,
        value_name = "TIME",
        default_value = "never",
        value_parser = parse
    )]
    expires: Expiry,

    /// Print when it expires as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    of: TxnOf,
}

pub(super) fn keep(args: &TxnKeep) -> Result<u8> {
    let target = TxnMount::find(&args.of.path)?;
    let at = set(&target, &args.of.name, args.expires)?;
    if args.json {
        output::print_json(&json!({ "name": args.of.name, "expires_ns": at }))?;
    }
    Ok(0)
}

/// Changes when a transaction expires. Returns the time, in nanoseconds since 1970.
pub(super) fn set(target: &TxnMount, name: &str, expires: Expiry) -> Result<Option<i64>> {
    let at = expires.at();
    let changed = transactions::expire(target.dir(), name, at);
    changed
        .map(|()| at)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::INVAL) => anyhow::anyhow!(
                "{name}: is a run, which ends with its command; `run --on-success keep` keeps it"
            ),
            _ => target.refused(name, &error),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_limits() {
        for (word, seconds) in [("90s", 90), ("30m", 1800), ("2h", 7200), ("7d", 604_800)] {
            let expected = Expiry::In(Duration::from_secs(seconds));
            assert_eq!(parse(word), Ok(expected), "{word}");
        }
        assert_eq!(parse("2w"), parse("14d"));
        assert_eq!(parse("never"), Ok(Expiry::Never));
        for word in ["", "h", "2", "-2h", "2 h", "0s", "2y", "9999w9", "2\u{e9}"] {
            assert!(parse(word).is_err(), "{word}");
        }
        assert!(parse("99999999999999999999h").is_err());
        assert!(parse("99999999999w").is_err());
        assert_eq!(Expiry::Never.at(), None);
        let now = SystemClock::default().now().0;
        let soon = parse("1h").map(Expiry::at);
        assert!(soon.is_ok_and(|at| at.is_some_and(|at| at >= now + 3_600_000_000_000)));
    }
}
