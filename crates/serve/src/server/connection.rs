//! One client's socket with what was read and what is to be written.

use super::listener::Stream;
use super::poll::Interest;
use crate::client::ClientState;
use crate::resp::{Decoded, Decoder, Reply};
use crate::service::{ReplyKind, Service};
use std::io::{self, Read as _, Write as _};

/// Replies that wait to be written: with more of them, the client's commands wait.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Buffers that are larger than this are given back when they are empty.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A reply of the round that runs.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Where it begins in the output.
    at: usize,
    kind: ReplyKind,
}

/// Why [`Connection::run`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// All commands that were complete have run.
    All,
    /// The round is to end before the next command.
    RoundFull,
    /// The client has to read replies before the next command.
    OutputFull,
}

/// A client that is connected.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) client: ClientState,
    pub(super) interest: Interest,
    input: Vec<u8>,
    decoder: Decoder,
    output: Vec<u8>,
    marks: Vec<Mark>,
    /// The client sends no more.
    has_ended: bool,
    /// There are commands that wait until the client has read replies.
    has_waiting: bool,
    /// The socket is of no more use.
    is_broken: bool,
}

impl Connection {
    pub(super) fn new(stream: Stream, client: ClientState) -> Self {
        Self {
            stream,
            client,
            interest: Interest::Read,
            input: Vec::new(),
            decoder: Decoder::default(),
            output: Vec::new(),
            marks: Vec::new(),
            has_ended: false,
            has_waiting: false,
            is_broken: false,
        }
    }

    /// Reads what there is, up to the length of `buffer`.
    pub(super) fn read(&mut self, buffer: &mut [u8]) {
        match self.stream.read(buffer) {
            Ok(0) => self.has_ended = true,
            Ok(len) => self.input.extend_from_slice(&buffer[..len]),
            Err(error) if is_temporary(&error) => {}
            Err(_) => self.is_broken = true,
        }
    }

    /// Runs the commands that are complete.
    pub(super) fn run(&mut self, service: &mut Service) -> Ran {
        let mut begin = 0;
        let ran = loop {
            if self.output.len() > OUTPUT_BYTES_MAX {
                break Ran::OutputFull;
            }
            if self.client.is_closing {
                begin = self.input.len();
                break Ran::All;
            }
            let input = &self.input[begin..];
            match self.decoder.decode(input, self.client.limits()) {
                Decoded::More => break Ran::All,
                Decoded::Wrong(text) => {
                    Reply::new(&mut self.output, self.client.protocol)
                        .error(&format!("ERR {text}"));
                    self.client.is_closing = true;
                }
                Decoded::Command(len) => {
                    if service.is_round_full(&self.client, len) {
                        break Ran::RoundFull;
                    }
                    let mut args: Vec<&[u8]> = Vec::with_capacity(self.decoder.count());
                    args.extend(self.decoder.args(input));
                    let at = self.output.len();
                    debug_assert_eq!(args.len(), self.decoder.count(), "all arguments");
                    debug_assert!(self.marks.last().is_none_or(|mark| mark.at <= at));
                    let kind = service.execute(&mut self.client, &args, &mut self.output);
                    if kind != ReplyKind::None {
                        self.marks.push(Mark { at, kind });
                    }
                    self.decoder.reset();
                    begin += len;
                }
            }
        };
        self.has_waiting = ran == Ran::OutputFull;
        self.take_input(begin);
        ran
    }

    fn take_input(&mut self, len: usize) {
        debug_assert!(len <= self.input.len(), "commands lie in the input");
        if len < self.input.len() {
            self.input.drain(..len);
            return;
        }
        self.input.clear();
        self.decoder.reset();
        if self.input.capacity() > KEPT_BYTES_MAX {
            self.input = Vec::new();
        }
    }

    /// Ends the round: its replies may go out.
    pub(super) fn accept_round(&mut self) {
        self.marks.clear();
    }

    /// Ends the round whose commit has failed: replies that depend on it become the error.
    pub(super) fn fail_round(&mut self, error: &str) {
        let Some(first) = self.marks.first().map(|mark| mark.at) else {
            return;
        };
        debug_assert!(first <= self.output.len(), "marks lie in the output");
        let replies = self.output.split_off(first);
        let ends = self.marks.iter().skip(1).map(|mark| mark.at);
        let ends = ends.chain([first + replies.len()]);
        for (mark, end) in self.marks.iter().zip(ends) {
            match mark.kind {
                ReplyKind::Keys => {
                    Reply::new(&mut self.output, self.client.protocol).error(error);
                }
                _ => self
                    .output
                    .extend_from_slice(&replies[mark.at - first..end - first]),
            }
        }
        self.marks.clear();
    }

    /// Writes replies, as far as the socket takes them.
    pub(super) fn write(&mut self) {
        debug_assert!(self.marks.is_empty(), "replies go out after their round");
        let mut written = 0;
        while written < self.output.len() && !self.is_broken {
            match self.stream.write(&self.output[written..]) {
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => break,
                Err(_) => self.is_broken = true,
            }
        }
        if written == self.output.len() {
            self.output.clear();
            if self.output.capacity() > KEPT_BYTES_MAX {
                self.output = Vec::new();
            }
        } else {
            self.output.drain(..written);
        }
    }

    /// Reports whether there are replies that the socket has not taken yet.
    pub(super) const fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reports whether the connection is over.
    pub(super) const fn is_over(&self) -> bool {
        let is_ending = self.client.is_closing || (self.has_ended && !self.has_waiting);
        self.is_broken || (is_ending && self.output.is_empty())
    }
}

/// Reports whether the same call may succeed later.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::Interrupted
}
