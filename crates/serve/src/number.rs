//! Numbers as text, as Redis reads and writes them.

use std::io::Write as _;

/// Returns the integer that is written in `text` in its one shortest form.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_shortest = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    if !is_shortest {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns the floating-point number in `text`; `inf` is one, and not-a-number is none.
pub(crate) fn float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: f64 = text.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Returns the shortest text that gives the number back, with an exponent only where it is long.
pub(crate) fn float_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // -0 is 0 to a client that compares text.
    let number = if number == 0.0 { 0.0 } else { number };
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => {
                format!("{digits}e+{exponent}")
            }
            _ => text,
        };
    }
    format!("{number}")
}

/// Appends an integer.
pub(crate) fn push_integer(out: &mut Vec<u8>, number: i64) {
    if let Ok(small @ 0..=9) = u8::try_from(number) {
        out.push(b'0' + small);
    } else {
        write!(out, "{number}").expect("a vector takes all bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        for wrong in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "9223372036854775808",
        ] {
            assert_eq!(integer(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn floats_are_written_as_short_as_they_can_be_read() {
        let cases = [
            (0.1, "0.1"),
            (-0.0, "0"),
            (3.0, "3"),
            (1e21, "1e+21"),
            (1.5e-7, "1.5e-7"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, text) in cases {
            assert_eq!(float_text(number), text);
            assert_eq!(float(text.as_bytes()), Some(number));
        }
        assert_eq!(float(b"nan"), None);
        assert_eq!(float(b"1x"), None);
    }
}
