//! Periods as people write them: `90s`, `5m`, `2h`, `1d`, or seconds.

use std::time::Duration;

/// Returns the period that a text says.
///
/// # Errors
/// It says none; the text names the way to write one.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no period: write a number with s, m, h or d, as 90s or 2h");
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &trimmed[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let all = number.checked_mul(seconds).ok_or_else(wrong)?;
    Ok(Duration::from_secs(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_numbers_with_a_unit() {
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("5m", 300),
            (" 2h ", 7200),
            ("1d", 86_400),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in [
            "",
            "h",
            "2x",
            "-1s",
            "1.5h",
            "2 h",
            "99999999999999999999s",
            "1hh",
        ] {
            let why = parse(wrong).unwrap_err();
            assert!(why.contains("as 90s or 2h"), "{why}");
        }
        assert!(parse(&format!("{}d", u64::MAX)).is_err(), "too long");
    }
}
