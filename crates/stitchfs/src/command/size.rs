//! Sizes as people write them: `8G`, `256M`, `64KiB`, `1.5T`, `10GB`, `4096`.

use stitchfs::memory::BUDGET_BYTES_MIN;

/// Bytes of a size. `K M G T P` and `KiB MiB ...` are powers of 1024, `KB MB ...` of 1000, in
/// either case.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("{text:?} is not a size: write a number with K, M, G or T after it, as 8G or 256M")
    };
    let trimmed = text.trim();
    let digits_end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let factor = factor(unit.trim()).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part = fraction_of(fraction, factor).ok_or_else(wrong)?;
    let bytes = whole.checked_mul(factor).and_then(|b| b.checked_add(part));
    bytes.ok_or_else(|| format!("{text:?} is more than any device has"))
}

/// Bytes of a memory budget: a size that is not too small to work with.
pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse(text)?;
    if bytes < BUDGET_BYTES_MIN {
        let least = BUDGET_BYTES_MIN >> 20;
        return Err(format!(
            "{text:?} is too little memory: give {least}M or more"
        ));
    }
    Ok(bytes)
}

fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    let (letter, base) = match unit.as_str() {
        "" | "B" => return Some(1),
        u if u.ends_with("IB") => (&u[..u.len() - 2], 1024u64),
        u if u.ends_with('B') => (&u[..u.len() - 1], 1000),
        u => (u, 1024),
    };
    let power = ["K", "M", "G", "T", "P", "E"]
        .iter()
        .position(|l| *l == letter)?;
    base.checked_pow(u32::try_from(power).ok()? + 1)
}

/// `fraction` are the digits after the point.
fn fraction_of(fraction: &str, factor: u64) -> Option<u64> {
    if fraction.is_empty() {
        return Some(0);
    }
    if fraction.len() > 9 {
        return None;
    }
    let digits: u64 = fraction.parse().ok()?;
    let scale = 10u64.pow(u32::try_from(fraction.len()).ok()?);
    let bytes = u128::from(digits) * u128::from(factor) / u128::from(scale);
    u64::try_from(bytes).ok()
}

/// A size for people: three figures and a binary unit.
pub(super) fn show(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10;
    while tenths >= 10_240 {
        tenths = (tenths + 512) / 1024;
        unit += 1;
    }
    if tenths.is_multiple_of(10) || tenths >= 1000 {
        format!("{} {}", tenths.div_ceil(10), UNITS[unit])
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// Units of a length of time, in seconds, the longest first.
pub(super) const TIME_UNITS: [(&str, u64); 5] = [
    ("w", 7 * 86_400),
    ("d", 86_400),
    ("h", 3600),
    ("m", 60),
    ("s", 1),
];

/// Returns the seconds of a length of time like `15m`; `None` for any other text.
pub(super) fn parse_seconds(text: &str) -> Option<u64> {
    TIME_UNITS.iter().find_map(|(unit, length)| {
        let number = text.strip_suffix(unit)?;
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| is_plain)?;
        number.checked_mul(*length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases: [(&str, u64); 12] = [
            ("4096", 4096),
            ("64k", 64 << 10),
            ("256M", 256 << 20),
            ("8G", 8 << 30),
            ("8g", 8 << 30),
            ("8GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1.5G", 3 << 29),
            ("0.25K", 256),
            ("2 T", 2 << 40),
            ("10B", 10),
            ("1E", 1 << 60),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "G",
            "8X",
            "-1G",
            "8 G B",
            "1.2.3G",
            "0x10",
            "99999999999G",
            "16E",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn too_little_memory_is_refused() {
        assert_eq!(parse_memory("64M"), Ok(64 << 20));
        for text in ["1M", "67108863", "0"] {
            let error = parse_memory(text).unwrap_err();
            assert!(error.contains("64M"), "{error}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        let cases: [(u64, &str); 7] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (8 << 30, "8 GiB"),
            ((8 << 30) - (300 << 20), "7.7 GiB"),
            (250 << 20, "250 MiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(show(bytes), text);
        }
    }
}
