//! Writes replies, in the version of the protocol that the client has chosen.

use crate::number::{self, float_text};

/// Version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Arrays and bulk strings alone.
    #[default]
    Two,
    /// Maps, floating-point numbers and a null of their own as well.
    Three,
}

impl Protocol {
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// Appends one reply to a connection's output. An array's head is followed by its elements.
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    pub(crate) const fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    pub(crate) const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// From the next reply on, that of `HELLO` itself included.
    pub(crate) const fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Where the next reply begins.
    pub(crate) const fn position(&self) -> usize {
        self.out.len()
    }

    /// Takes back everything that was written from `position` on.
    pub(crate) fn rewind(&mut self, position: usize) {
        debug_assert!(position <= self.out.len(), "it was written");
        self.out.truncate(position);
    }

    fn head(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        number::push_integer(self.out, number);
        self.end();
    }

    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    /// `+text`, of text without line ends.
    pub(crate) fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }

    pub(crate) fn ok(&mut self) {
        self.simple("OK");
    }

    /// `-CODE text`. Line ends in the text become spaces.
    pub(crate) fn error(&mut self, text: &str) {
        self.out.push(b'-');
        let plain = text.bytes().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => other,
        });
        self.out.extend(plain);
        self.end();
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// A number of things.
    pub(crate) fn count(&mut self, count: u64) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn flag(&mut self, is_so: bool) {
        self.integer(i64::from(is_so));
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', len(bytes.len()));
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// A bulk string, or null.
    pub(crate) fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    pub(crate) fn null(&mut self) {
        match self.protocol {
            Protocol::Two => self.out.extend_from_slice(b"$-1\r\n"),
            Protocol::Three => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    /// Null where an array is expected.
    pub(crate) fn null_array(&mut self) {
        match self.protocol {
            Protocol::Two => self.out.extend_from_slice(b"*-1\r\n"),
            Protocol::Three => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    /// `count` elements follow.
    pub(crate) fn array(&mut self, count: usize) {
        self.head(b'*', len(count));
    }

    /// `count` keys, each with its value, follow.
    pub(crate) fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Two => self.array(2 * count),
            Protocol::Three => self.head(b'%', len(count)),
        }
    }

    pub(crate) fn float(&mut self, number: f64) {
        let text = float_text(number);
        match self.protocol {
            Protocol::Two => self.bulk(text.as_bytes()),
            Protocol::Three => {
                self.out.push(b',');
                self.out.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }
}

fn len(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn versions_differ_in_maps_floats_and_nulls() {
        let write = |reply: &mut Reply<'_>| {
            reply.map(1);
            reply.float(1.5);
            reply.null();
            reply.null_array();
        };
        assert_eq!(
            written(Protocol::Two, write),
            "*2\r\n$3\r\n1.5\r\n$-1\r\n*-1\r\n"
        );
        assert_eq!(written(Protocol::Three, write), "%1\r\n,1.5\r\n_\r\n_\r\n");
    }

    #[test]
    fn an_error_is_one_line() {
        let text = written(Protocol::Two, |reply| reply.error("ERR a\r\nb"));
        assert_eq!(text, "-ERR a  b\r\n");
    }
}
