//! The memory of one entry, and serving a request in it.
//!
//! ```text
//!   bytes:  ... | header, arguments | payload ...
//!                                   ^ body_at, a page's beginning: what the kernel knows
//! ```
//!
//! 1. A request with data is made contiguous: its header and arguments are copied right before the
//!    payload. Its reply is short: it is made in another buffer and copied over the payload.
//! 2. A request that only reads has no data: its reply is made in the payload itself.
//!
//! Invariants: while the kernel has the entry, nothing here accesses its memory, and the memory is
//! neither moved nor freed. A reply that would have moved it ends the session instead.

use std::io;

use stitch_base::sync::Arc;

use crate::dispatch::{Dispatcher, Outcome};
use crate::errno::Errno;
use crate::transport::ReplySender;
use crate::wire::opcode::Opcode;
use crate::wire::reply::{HEADER_SIZE as REPLY_HEADER_SIZE, ReplyBuffer, encode_header};
use crate::wire::request::HEADER_SIZE;
use crate::wire::ring::{ARGUMENTS_MAX, Arrival, HEAD_SIZE, put_answer};

const PAGE_SIZE: usize = 4096;
/// Most bytes before the payload.
const BEFORE_MAX: usize = HEADER_SIZE + ARGUMENTS_MAX;

/// Buffers of an entry.
#[derive(Debug)]
pub(super) struct RingEntry {
    head: Vec<u8>,
    bytes: Vec<u8>,
    body_at: usize,
    payload_max: usize,
    /// Address of `bytes`, to detect a move.
    place: usize,
    beside: ReplyBuffer,
}

/// The result that the kernel must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    /// Identifies the request.
    pub(super) commit_id: u64,
    /// Length of the reply.
    pub(super) answer_bytes: usize,
    /// The handler panicked.
    pub(super) is_poisoned: bool,
}

/// A reply: its header, and the length of its body.
struct ReplyHead {
    header: [u8; REPLY_HEADER_SIZE],
    body_len: usize,
    is_poisoned: bool,
}

impl ReplyHead {
    fn failed(unique: u64) -> Self {
        Self {
            header: encode_header(16, Some(Errno::EIO), unique),
            body_len: 0,
            is_poisoned: false,
        }
    }

    /// Splits an outcome. Requests without a reply do not come by a ring.
    fn of<'a>(outcome: &Outcome<'a>, unique: u64) -> (Self, &'a [u8]) {
        let (message, is_poisoned) = match outcome {
            Outcome::Reply(message) => (*message, false),
            Outcome::Poisoned(message) => (*message, true),
            Outcome::Silent => return (Self::failed(unique), &[]),
        };
        let (header, body) = message
            .split_first_chunk()
            .expect("an answer begins with its header");
        let answer = Self {
            header: *header,
            body_len: body.len(),
            is_poisoned,
        };
        (answer, body)
    }
}

impl RingEntry {
    /// Creates buffers for requests and replies with up to `payload_max` bytes of data.
    pub(super) fn new(payload_max: usize) -> Self {
        // Zeros that are never touched take no memory.
        let bytes = vec![0u8; BEFORE_MAX + PAGE_SIZE + payload_max];
        let place = bytes.as_ptr().addr();
        let body_at = (place + BEFORE_MAX).next_multiple_of(PAGE_SIZE) - place;
        debug_assert!(body_at + payload_max <= bytes.len());
        Self {
            head: vec![0; HEAD_SIZE],
            bytes,
            body_at,
            payload_max,
            place,
            beside: ReplyBuffer::default(),
        }
    }

    /// Returns address and length of the buffers for the kernel.
    pub(super) fn buffers(&mut self) -> [(*mut u8, usize); 2] {
        let head = (self.head.as_mut_ptr(), HEAD_SIZE);
        self.check();
        let payload = &mut self.bytes[self.body_at..][..self.payload_max];
        [head, (payload.as_mut_ptr(), payload.len())]
    }

    /// The kernel writes to the place that it knows.
    fn check(&self) {
        debug_assert_eq!(self.bytes.as_ptr().addr(), self.place, "it is not moved");
        debug_assert!(
            (self.place + self.body_at).is_multiple_of(PAGE_SIZE),
            "on a page"
        );
        debug_assert!(
            self.body_at + self.payload_max <= self.bytes.len(),
            "it has room"
        );
    }

    /// Reports whether the kernel has put a request here.
    pub(super) fn has_request(&self) -> bool {
        Arrival::parse(self.head(), self.payload_max).is_ok()
    }

    /// Serves the request that the kernel has put here, and puts the reply in its place.
    ///
    /// # Errors
    /// If it is not a request, or the handler's reply was too long: the entry must not be returned
    /// to the kernel then.
    pub(super) fn serve(
        &mut self,
        dispatcher: &Dispatcher,
        sender: &Arc<dyn ReplySender>,
    ) -> io::Result<Served> {
        let arrival = Arrival::parse(self.head(), self.payload_max).map_err(io::Error::other)?;
        let answer = if answers_in_place(&arrival) {
            self.serve_in_place(&arrival, dispatcher, sender)?
        } else {
            self.serve_beside(&arrival, dispatcher, sender)
        };
        self.check();
        debug_assert!(
            answer.body_len <= self.payload_max,
            "the kernel takes no more"
        );
        let body_len = u32::try_from(answer.body_len).expect("it fits the payload");
        let head = self.head.as_mut_slice().try_into().expect("its size");
        put_answer(head, &answer.header, arrival.commit_id, body_len);
        Ok(Served {
            commit_id: arrival.commit_id,
            answer_bytes: answer.body_len,
            is_poisoned: answer.is_poisoned,
        })
    }

    fn head(&self) -> &[u8; HEAD_SIZE] {
        self.head.as_slice().try_into().expect("its size")
    }

    fn serve_beside(
        &mut self,
        arrival: &Arrival,
        dispatcher: &Dispatcher,
        sender: &Arc<dyn ReplySender>,
    ) -> ReplyHead {
        let head = self.head.as_slice().try_into().expect("its size");
        let (header, arguments) = arrival.parts(head);
        let (at, body_at) = (self.body_at - arguments.len(), self.body_at);
        self.bytes[at..body_at].copy_from_slice(arguments);
        self.bytes[at - HEADER_SIZE..at].copy_from_slice(header);
        let request = &self.bytes[at - HEADER_SIZE..body_at + arrival.payload_len];
        let outcome = dispatcher.dispatch(request, &mut self.beside, sender);
        let (answer, body) = ReplyHead::of(&outcome, arrival.unique);
        if body.len() > self.payload_max {
            return ReplyHead::failed(arrival.unique);
        }
        self.bytes[body_at..][..body.len()].copy_from_slice(body);
        answer
    }

    fn serve_in_place(
        &mut self,
        arrival: &Arrival,
        dispatcher: &Dispatcher,
        sender: &Arc<dyn ReplySender>,
    ) -> io::Result<ReplyHead> {
        debug_assert_eq!(arrival.payload_len, 0, "a request with data is in the way");
        let mut request = [0; BEFORE_MAX];
        let (header, arguments) = arrival.parts(self.head());
        request[..HEADER_SIZE].copy_from_slice(header);
        request[HEADER_SIZE..][..arguments.len()].copy_from_slice(arguments);
        let request = &request[..HEADER_SIZE + arguments.len()];
        let full_len = self.bytes.len();
        let mut reply = ReplyBuffer::over(std::mem::take(&mut self.bytes), self.body_at);
        let outcome = dispatcher.dispatch(request, &mut reply, sender);
        let (answer, _) = ReplyHead::of(&outcome, arrival.unique);
        self.bytes = reply.into_bytes();
        let is_in_place = self.bytes.as_ptr().addr() == self.place
            && self.bytes.capacity() >= full_len
            && answer.body_len <= self.payload_max;
        if !is_in_place {
            return Err(io::Error::other("an answer is longer than was asked for"));
        }
        self.lengthen(full_len);
        Ok(answer)
    }

    /// Restores the full length of the buffer after a reply.
    #[expect(unsafe_code, reason = "bytes that are there need not be written again")]
    fn lengthen(&mut self, full_len: usize) {
        debug_assert!(self.bytes.len() <= full_len && full_len <= self.bytes.capacity());
        // SAFETY: this is the allocation that was made with `full_len` zeros (`place` was
        // compared). It still has that size, and its bytes were only ever overwritten.
        unsafe { self.bytes.set_len(full_len) };
    }
}

/// Reports whether a request has no data and a long reply.
fn answers_in_place(arrival: &Arrival) -> bool {
    let reads = [Opcode::Read, Opcode::ReadDir, Opcode::ReadDirPlus];
    arrival.payload_len == 0 && reads.iter().any(|&opcode| opcode as u32 == arrival.opcode)
}

#[cfg(test)]
mod tests;
