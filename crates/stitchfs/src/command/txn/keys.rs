//! Keys of records as arguments: as lists print them, and as hexadecimal digits.

use std::iter;

/// A key of any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyBytes(pub(super) Vec<u8>);

/// Returns the key that is printed so. Text stands for itself.
pub(super) fn parse_shown(text: &str) -> Result<KeyBytes, String> {
    let mut key = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => key.push(escaped(&mut rest).ok_or_else(|| {
                "a backslash begins \\xHH, \\n, \\r, \\t, \\\", \\' or \\\\; write \\\\ for one"
                    .to_owned()
            })?),
            byte => key.push(byte),
        }
    }
    Ok(KeyBytes(key))
}

/// Returns the byte that the characters after a backslash stand for.
fn escaped(rest: &mut impl Iterator<Item = u8>) -> Option<u8> {
    Some(match rest.next()? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        byte @ (b'\\' | b'\'' | b'"') => byte,
        b'x' => byte_of(rest.next()?, rest.next()?)?,
        _ => return None,
    })
}

fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Returns the key of these digits, two for each byte.
pub(super) fn parse_hex(text: &str) -> Result<KeyBytes, String> {
    let mut digits = text.bytes();
    let pairs = iter::from_fn(|| Some((digits.next()?, digits.next())));
    let bytes = pairs.map(|(high, low)| byte_of(high, low?));
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes
        .map(KeyBytes)
        .ok_or_else(|| "a key is hexadecimal digits, two for each byte".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_come_back_from_what_is_printed() {
        let all: Vec<u8> = (0..=255).collect();
        for key in [&all[..], b"", b"user:1", b"\\x41", "\u{fc}".as_bytes()] {
            let shown = key.escape_ascii().to_string();
            assert_eq!(parse_shown(&shown), Ok(KeyBytes(key.to_vec())), "{shown}");
            let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(parse_hex(&digits), Ok(KeyBytes(key.to_vec())), "{digits}");
        }
        assert_eq!(parse_shown("\u{fc}"), Ok(KeyBytes("\u{fc}".into())));
        assert_eq!(parse_hex("fF"), Ok(KeyBytes(vec![255])));
        for wrong in ["\\", "a\\x4", "\\xg0", "\\q"] {
            assert!(parse_shown(wrong).is_err(), "{wrong}");
        }
        for wrong in ["f", "0g", "\u{fc}"] {
            assert!(parse_hex(wrong).is_err(), "{wrong}");
        }
    }
}
