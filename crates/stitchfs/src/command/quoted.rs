//! Names as lines show them: quoted as git does, in the style of C, where a line or a terminal
//! would not show them as they are.
//!
//! ```text
//!   plain name, other script as it is
//!   "a\nb"                   a control character, a quote or a backslash is in it
//!   "a\377"                  a byte that is part of no UTF-8 character, in octal digits
//!   "a -> b"                 in a line of a rename alone, which has an arrow between two names
//! ```
//!
//! Keys of records have another form, without quotes: options take them as they are shown
//! ([`super::txn`]). In JSON a name is a string as it is.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

/// The text between the names of a rename.
pub(super) const ARROW: &str = " -> ";

/// Returns a name or path as a line shows it.
pub(super) fn quoted(name: impl AsRef<OsStr>) -> String {
    let bytes = name.as_ref().as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(is_plain) => text.to_owned(),
        _ => in_quotes(bytes),
    }
}

/// Returns both names of a rename, with the arrow between them.
pub(super) fn quoted_rename(from: &Path, to: &Path) -> String {
    let side = |path: &Path| {
        let bytes = path.as_os_str().as_bytes();
        let has_arrow = bytes.windows(ARROW.len()).any(|at| at == ARROW.as_bytes());
        match has_arrow {
            true => in_quotes(bytes),
            false => quoted(path),
        }
    };
    format!("{}{ARROW}{}", side(from), side(to))
}

/// Returns the name that a text is the quoted form of; `None` for a text that is not quoted.
pub(super) fn unquoted(text: &OsStr) -> Option<OsString> {
    let inner = text.as_bytes().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut rest = inner.iter().copied();
    let mut name = Vec::with_capacity(inner.len());
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return None,
            b'\\' => name.push(unescaped(&mut rest)?),
            byte => name.push(byte),
        }
    }
    Some(OsString::from_vec(name))
}

/// Returns a text in which control characters, but for the ends of lines, are escapes: a terminal
/// does nothing at a message that a name is in.
pub(super) fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => out.push('\n'),
            plain if !plain.is_control() => out.push(plain),
            control => out.extend(control.escape_default()),
        }
    }
    out
}

fn is_plain(character: char) -> bool {
    !character.is_control() && !matches!(character, '"' | '\\')
}

fn in_quotes(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match short_escape(character) {
                Some(letter) => out.extend(['\\', letter]),
                None if is_plain(character) => out.push(character),
                None => octal(&mut out, character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        octal(&mut out, chunk.invalid());
    }
    out.push('"');
    out
}

fn octal(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        out.push_str(&format!("\\{byte:03o}"));
    }
}

/// Escapes of one letter, with what they stand for.
const SHORT: [(char, char); 9] = [
    ('\u{7}', 'a'),
    ('\u{8}', 'b'),
    ('\t', 't'),
    ('\n', 'n'),
    ('\u{b}', 'v'),
    ('\u{c}', 'f'),
    ('\r', 'r'),
    ('"', '"'),
    ('\\', '\\'),
];

fn short_escape(character: char) -> Option<char> {
    let found = SHORT.iter().find(|(plain, _)| *plain == character);
    found.map(|(_, letter)| *letter)
}

/// Returns the byte that the escape after a backslash stands for.
fn unescaped(rest: &mut impl Iterator<Item = u8>) -> Option<u8> {
    let first = rest.next()?;
    if let Some((plain, _)) = SHORT
        .iter()
        .find(|(_, letter)| *letter == char::from(first))
    {
        return u8::try_from(*plain).ok();
    }
    let mut number = 0u32;
    for digit in [Some(first), rest.next(), rest.next()] {
        number = number * 8 + char::from(digit?).to_digit(8)?;
    }
    u8::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> String {
        quoted(OsStr::from_bytes(bytes))
    }

    #[test]
    fn names_are_quoted_where_they_need_it_and_come_back() {
        for (bytes, text) in [
            (&b"a/b c"[..], "a/b c"),
            ("\u{e9}t\u{e9}".as_bytes(), "\u{e9}t\u{e9}"),
            (b"a -> b", "a -> b"),
            (b"", ""),
            (b"a\nb", r#""a\nb""#),
            (b"\t\r\x07\x08\x0b\x0c", r#""\t\r\a\b\v\f""#),
            (b"a\"b", r#""a\"b""#),
            (b"a\\b", r#""a\\b""#),
            (b"\x1b[31m", r#""\033[31m""#),
            (b"a\x7f", r#""a\177""#),
            // A control character of two bytes.
            ("\u{9b}31m".as_bytes(), r#""\302\23331m""#),
            (b"a\xff\xe2\x82b", r#""a\377\342\202b""#),
            ("\u{e9}\n".as_bytes(), "\"\u{e9}\\n\""),
        ] {
            assert_eq!(of(bytes), text);
            let back = unquoted(OsStr::new(text));
            let expected = text
                .starts_with('"')
                .then(|| OsString::from_vec(bytes.to_vec()));
            assert_eq!(back, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_quoted_form_stands_for_no_name() {
        for text in [
            "a",
            "\"",
            "\"a",
            "\"a\"b\"",
            r#""\""#,
            r#""\9""#,
            r#""\77""#,
            r#""\777""#,
        ] {
            assert_eq!(unquoted(OsStr::new(text)), None, "{text}");
        }
    }

    #[test]
    fn an_arrow_in_a_name_is_none_of_the_line() {
        let line = |from: &str, to: &str| quoted_rename(Path::new(from), Path::new(to));
        assert_eq!(line("a", "b c"), "a -> b c");
        assert_eq!(line("a -> b", "c"), r#""a -> b" -> c"#);
        assert_eq!(line("a", "b\n"), r#"a -> "b\n""#);
    }

    #[test]
    fn a_message_moves_no_cursor() {
        assert_eq!(harmless("a\x1b[2J\r: b\n  c"), "a\\u{1b}[2J\\r: b\n  c");
    }
}
