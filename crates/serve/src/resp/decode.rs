//! Finds commands in the bytes that a connection has sent.
//!
//! ```text
//! *2\r\n $3\r\n GET\r\n $1\r\n a\r\n      an array of bulk strings
//! GET a\r\n                              an inline command: words, quoted if need be
//! ```
//!
//! The decoder goes on where it stopped when more bytes come, so a command that arrives in many
//! pieces costs no more than one that arrives at once. Every length is checked before anything is
//! allocated for it.

use std::ops::Range;

/// Longest argument, in bytes.
const BULK_BYTES_MAX: usize = 8 << 20;
/// Most arguments of a command.
const ARGS_MAX: usize = 1 << 20;
/// Longest command, in bytes.
const COMMAND_BYTES_MAX: usize = 64 << 20;
/// Longest line: an inline command, or a length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a client may send in one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    args: usize,
    bulk_bytes: usize,
}

impl Limits {
    /// Of a client that may run all commands.
    pub(crate) const FULL: Self = Self {
        args: ARGS_MAX,
        bulk_bytes: BULK_BYTES_MAX,
    };
    /// Of a client that has not given the password yet.
    pub(crate) const BEFORE_AUTH: Self = Self {
        args: 10,
        bulk_bytes: 16 << 10,
    };
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// A command, whose arguments are in [`Decoder::args`]; its length in bytes.
    Command(usize),
    /// The command is not complete.
    More,
    /// The bytes are no command; nothing behind them can be understood.
    Wrong(&'static str),
}

/// Where an argument is: in the input, or, for a quoted one, apart.
#[derive(Clone, Debug)]
enum Arg {
    At(Range<usize>),
    Own(Vec<u8>),
}

/// The state of decoding one command, which begins at the input's first byte.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    at: usize,
    args: Vec<Arg>,
    /// Arguments that are still to come, once the array's head was read.
    left: Option<usize>,
    /// Length of the argument whose bytes come next.
    bulk: Option<usize>,
}

impl Decoder {
    /// Forgets the command, for the next one.
    pub(crate) fn reset(&mut self) {
        self.at = 0;
        self.args.clear();
        self.left = None;
        self.bulk = None;
    }

    /// Number of arguments, the command's name included.
    pub(crate) const fn count(&self) -> usize {
        self.args.len()
    }

    /// The arguments of the command that was found in `input`.
    pub(crate) fn args<'a>(&'a self, input: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.args.iter().map(move |arg| match arg {
            Arg::At(range) => &input[range.clone()],
            Arg::Own(bytes) => bytes.as_slice(),
        })
    }

    /// Goes on with the command at the beginning of `input`. After a command or an error, call
    /// [`Self::reset`] and take the command's bytes away.
    pub(crate) fn decode(&mut self, input: &[u8], limits: Limits) -> Decoded {
        if self.left.is_none() {
            match input.first() {
                None => return Decoded::More,
                Some(b'*') => match self.line(input) {
                    Ok(Some(line)) => match number(&input[line.start + 1..line.end]) {
                        Some(count) if count <= 0 => self.left = Some(0),
                        Some(count) => match usize::try_from(count) {
                            Ok(count) if count <= limits.args => self.left = Some(count),
                            _ => {
                                return Decoded::Wrong("Protocol error: invalid multibulk length");
                            }
                        },
                        None => return Decoded::Wrong("Protocol error: invalid multibulk length"),
                    },
                    Ok(None) => return Decoded::More,
                    Err(_) => return Decoded::Wrong("Protocol error: too big mbulk count string"),
                },
                Some(_) => return self.decode_inline(input),
            }
        }
        self.decode_bulks(input, limits)
    }

    fn decode_bulks(&mut self, input: &[u8], limits: Limits) -> Decoded {
        while let Some(left) = self.left.filter(|left| *left > 0) {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.bulk_len(input, limits) {
                    Ok(Some(len)) => len,
                    Ok(None) => return Decoded::More,
                    Err(wrong) => return Decoded::Wrong(wrong),
                },
            };
            self.bulk = Some(len);
            if input.len() - self.at < len + 2 {
                return Decoded::More;
            }
            let end = self.at + len;
            if &input[end..end + 2] != b"\r\n" {
                return Decoded::Wrong("Protocol error: expected CRLF after an argument");
            }
            self.args.push(Arg::At(self.at..end));
            self.at = end + 2;
            self.bulk = None;
            self.left = Some(left - 1);
        }
        debug_assert!(self.at <= input.len(), "the command lies in the input");
        debug_assert!(self.bulk.is_none(), "its last argument was taken");
        Decoded::Command(self.at)
    }

    fn bulk_len(&mut self, input: &[u8], limits: Limits) -> Result<Option<usize>, &'static str> {
        const WRONG: &str = "Protocol error: invalid bulk length";
        if input.get(self.at).is_some_and(|byte| *byte != b'$') {
            return Err("Protocol error: expected '$'");
        }
        let line = self
            .line(input)
            .map_err(|()| "Protocol error: too big bulk count string")?;
        let Some(line) = line else {
            return Ok(None);
        };
        let len =
            number(&input[line.start + 1..line.end]).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|len| *len <= limits.bulk_bytes).ok_or(WRONG)?;
        if self.at + len > COMMAND_BYTES_MAX {
            return Err("Protocol error: command is too long");
        }
        Ok(Some(len))
    }

    /// Takes a line, without its end. `None` until it is complete.
    fn line(&mut self, input: &[u8]) -> Result<Option<Range<usize>>, ()> {
        let rest = &input[self.at..];
        let within = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let Some(len) = within.iter().position(|byte| *byte == b'\n') else {
            return if rest.len() >= LINE_BYTES_MAX {
                Err(())
            } else {
                Ok(None)
            };
        };
        let start = self.at;
        self.at += len + 1;
        let has_return = len > 0 && rest[len - 1] == b'\r';
        Ok(Some(start..start + len - usize::from(has_return)))
    }

    fn decode_inline(&mut self, input: &[u8]) -> Decoded {
        let line = match self.line(input) {
            Ok(Some(line)) => line,
            Ok(None) => return Decoded::More,
            Err(()) => return Decoded::Wrong("Protocol error: too big inline request"),
        };
        match split_words(&input[line]) {
            Some(words) => {
                self.args.extend(words.into_iter().map(Arg::Own));
                Decoded::Command(self.at)
            }
            None => Decoded::Wrong("Protocol error: unbalanced quotes in request"),
        }
    }
}

/// Digits of which every number fits.
const DIGITS_MAX: usize = 18;

/// A decimal number without leading or trailing anything.
fn number(text: &[u8]) -> Option<i64> {
    if (1..=DIGITS_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_digit) {
        // As good as every number of a client.
        let digits = text.iter().map(|byte| i64::from(byte - b'0'));
        return Some(digits.fold(0, |number, digit| 10 * number + digit));
    }
    let is_plain = text.first().is_some_and(|byte| *byte != b'+');
    let text = std::str::from_utf8(text).ok().filter(|_| is_plain)?;
    text.parse().ok()
}

/// Splits a line into words, as inline commands are: `a "b c\n\x00" 'd'`. Returns `None` for quotes
/// that do not end, or do not end the word.
#[must_use]
pub fn split_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        let Some(&first) = line.get(at) else {
            return Some(words);
        };
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            at = quoted(line, at + 1, first, &mut word)?;
            if line.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return None;
            }
        } else {
            while let Some(&byte) = line.get(at).filter(|byte| !byte.is_ascii_whitespace()) {
                word.push(byte);
                at += 1;
            }
        }
        words.push(word);
    }
}

/// Reads a quoted word up to its quote. Returns where the line goes on.
fn quoted(line: &[u8], mut at: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        let byte = *line.get(at)?;
        at += 1;
        if byte == quote {
            return Some(at);
        }
        if byte != b'\\' {
            word.push(byte);
            continue;
        }
        let escaped = *line.get(at)?;
        at += 1;
        if quote == b'\'' {
            if escaped != b'\'' {
                word.push(b'\\');
            }
            word.push(escaped);
            continue;
        }
        let hex = line.get(at..at + 2).filter(|_| escaped == b'x');
        let hex = hex.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            word.push(byte);
            at += 2;
            continue;
        }
        word.push(match escaped {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'a' => 7,
            other => other,
        });
    }
}

#[cfg(test)]
mod tests;
