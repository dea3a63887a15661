//! Patterns of `KEYS` and `MATCH`: `*`, `?`, `[a-z]`, `[^a]`, and `\` before what stands for
//! itself.

/// True if `text` matches `pattern` whole.
///
/// # Cost
/// At most the product of both lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and the text that it has taken so far ends.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if let Some(next) = one(pattern, p, text[t]) {
            p = next;
            t += 1;
            continue;
        }
        let Some((after, taken)) = star else {
            return false;
        };
        star = Some((after, taken + 1));
        (p, t) = (after, taken + 1);
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns where the pattern goes on if what is at `p`, which is no star, matches one byte.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        other => (other == byte).then_some(p + 1),
    }
}

/// Returns where the pattern goes on behind a class that has `byte` in it. A class without an end
/// ends with the pattern.
fn class(pattern: &[u8], start: usize, byte: u8) -> Option<usize> {
    let mut p = start;
    let is_inverted = pattern.get(p) == Some(&b'^');
    p += usize::from(is_inverted);
    let mut is_in = false;
    loop {
        match pattern.get(p) {
            None => break,
            Some(b']') => {
                p += 1;
                break;
            }
            Some(b'\\') if p + 1 < pattern.len() => {
                is_in |= pattern[p + 1] == byte;
                p += 2;
            }
            Some(&low) => match pattern.get(p + 1..p + 3) {
                Some(&[b'-', high]) if high != b']' => {
                    is_in |= (low.min(high)..=low.max(high)).contains(&byte);
                    p += 3;
                }
                _ => {
                    is_in |= low == byte;
                    p += 1;
                }
            },
        }
    }
    (is_in != is_inverted).then_some(p)
}

/// Returns the bytes with which every match begins.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
    let end = pattern.iter().position(special).unwrap_or(pattern.len());
    &pattern[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let cases = [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[abc", "c", true),
            ("**a**", "bab", true),
            ("", "a", false),
            ("a\\", "a\\", true),
        ];
        for (pattern, text, expected) in cases {
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(5000).as_bytes()));
    }

    #[test]
    fn a_prefix_ends_before_the_first_special_byte() {
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"[a]b"), b"");
        assert_eq!(literal_prefix(b"abc"), b"abc");
    }
}
