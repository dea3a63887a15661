//! A client for one request after the other, as `stitchfs kv` needs it on a mount.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Longest string that is taken from a server, in bytes.
const BULK_BYTES_MAX: usize = 64 << 20;
/// Most elements of an array that are taken.
const ELEMENTS_MAX: usize = 16 << 20;
/// Arrays in arrays, at most.
const DEPTH_MAX: usize = 8;

/// What a server has replied, in version 2 of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// `+text`
    Simple(String),
    /// A number.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// Nothing.
    Null,
    /// Several of them.
    Array(Vec<Response>),
    /// `-CODE text`: in the place of one element of an `EXEC`, or of the whole.
    Error(String),
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The server has ended, or cannot be reached.
    #[error("the server does not respond: {0}")]
    Io(#[from] io::Error),
    /// The server does not speak the protocol.
    #[error("the server's reply makes no sense")]
    Protocol,
    /// The server has refused the command.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Remote {
    stream: BufReader<UnixStream>,
}

impl Remote {
    /// Uses a connection.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Runs a command.
    ///
    /// # Errors
    /// [`RemoteError::Refused`] with what the server says; else the connection is of no more use.
    pub fn call(&mut self, args: &[&[u8]]) -> Result<Response, RemoteError> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        response_of(&mut self.stream)
    }
}

/// Reads a reply. One that is an error is [`RemoteError::Refused`].
pub(crate) fn response_of(from: &mut impl BufRead) -> Result<Response, RemoteError> {
    match read(from, 0)? {
        Response::Error(text) => Err(RemoteError::Refused(text)),
        other => Ok(other),
    }
}

fn read(from: &mut impl BufRead, depth: usize) -> Result<Response, RemoteError> {
    let line = read_line(from)?;
    let (kind, rest) = line.split_at_checked(1).ok_or(RemoteError::Protocol)?;
    let number = || rest.parse::<i64>().map_err(|_| RemoteError::Protocol);
    match kind {
        "+" => Ok(Response::Simple(rest.to_owned())),
        "-" => Ok(Response::Error(rest.to_owned())),
        ":" => Ok(Response::Integer(number()?)),
        "$" => match number()? {
            -1 => Ok(Response::Null),
            len => read_bulk(from, bounded(len, BULK_BYTES_MAX)?),
        },
        "*" => match number()? {
            -1 => Ok(Response::Null),
            _ if depth == DEPTH_MAX => Err(RemoteError::Protocol),
            count => {
                let mut elements = Vec::new();
                for _ in 0..bounded(count, ELEMENTS_MAX)? {
                    elements.push(read(from, depth + 1)?);
                }
                Ok(Response::Array(elements))
            }
        },
        _ => Err(RemoteError::Protocol),
    }
}

fn read_line(from: &mut impl BufRead) -> Result<String, RemoteError> {
    const LINE_BYTES_MAX: u64 = 64 << 10;
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let line = line.strip_suffix(b"\r\n").ok_or(RemoteError::Protocol)?;
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn read_bulk(from: &mut impl BufRead, len: usize) -> Result<Response, RemoteError> {
    let mut bytes = vec![0; len + 2];
    from.read_exact(&mut bytes)?;
    bytes.truncate(len);
    Ok(Response::Bulk(bytes))
}

fn bounded(number: i64, max: usize) -> Result<usize, RemoteError> {
    let number = usize::try_from(number).map_err(|_| RemoteError::Protocol)?;
    if number > max {
        return Err(RemoteError::Protocol);
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(mut bytes: &[u8]) -> Result<Response, RemoteError> {
        response_of(&mut bytes)
    }

    #[test]
    fn replies_are_read_and_hostile_ones_refused() {
        let array = parsed(b"*3\r\n:-1\r\n$2\r\n\r\n\r\n-ERR x\r\n").unwrap();
        let expected = [
            Response::Integer(-1),
            Response::Bulk(b"\r\n".to_vec()),
            Response::Error("ERR x".to_owned()),
        ];
        assert_eq!(array, Response::Array(expected.to_vec()));
        assert!(
            matches!(parsed(b"-ERR x\r\n"), Err(RemoteError::Refused(text)) if text == "ERR x")
        );
        let nested = b"*1\r\n".repeat(20);
        for wrong in [
            &b"$99999999999\r\n"[..],
            b"*99999999999\r\n",
            b"$-2\r\n",
            b"?\r\n",
            b"\r\n",
            b"+no end",
            &nested,
        ] {
            assert!(matches!(parsed(wrong), Err(RemoteError::Protocol)));
        }
        assert!(matches!(parsed(b""), Err(RemoteError::Io(_))));
        assert!(matches!(parsed(b"$5\r\nab"), Err(RemoteError::Io(_))));
    }
}
