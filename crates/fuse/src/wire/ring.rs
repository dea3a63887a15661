//! The protocol of FUSE over `io_uring` (7.42): the fixed buffer beside each entry's payload, and
//! the commands of entries.
//!
//! ```text
//!   head:    0 in or out header (128) | 128 arguments (128) | 256 entry (32)
//!   payload: data of the request, later the body of the answer
//! ```
//!
//! A request has three parts: its header, the structure of its opcode, and the rest. The length of
//! the structure follows from the other two lengths. The layouts are those of the kernel's `struct
//! fuse_uring_req_header`, `fuse_uring_ent_in_out` and `fuse_uring_cmd_req`.

use super::codec::{Fields, Reader, WireError};
use super::request::{HEADER_SIZE, Header};

/// Bytes of the buffer beside the payload.
pub const HEAD_SIZE: usize = 288;
/// Bytes for the arguments of a request.
pub const ARGUMENTS_MAX: usize = 128;
/// Offset of the arguments.
const ARGUMENTS_AT: usize = 128;
/// Offset of the entry's own fields.
const ENTRY_AT: usize = 256;
/// Length of the entry's own fields.
const ENTRY_SIZE: usize = 32;
/// Bytes of a command, in the second half of a submission.
pub const COMMAND_SIZE: usize = 80;
/// Length of the header of a reply.
const REPLY_HEADER_SIZE: usize = super::reply::HEADER_SIZE;

/// Registers an entry's buffers with the kernel, and waits for its first request.
pub const REGISTER: u32 = 1;
/// Sends the reply to an entry's request, and waits for the next.
pub const COMMIT_AND_FETCH: u32 = 2;

/// A received request: the parts of the head, and the length of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Identifies the request in the reply.
    pub commit_id: u64,
    /// The operation.
    pub opcode: u32,
    /// Number of the request.
    pub unique: u64,
    /// Bytes of arguments.
    pub arguments_len: usize,
    /// Bytes of data in the payload.
    pub payload_len: usize,
}

impl Arrival {
    /// Reads a head that the kernel has filled.
    ///
    /// # Errors
    /// If the lengths contradict each other, or exceed `payload_max`.
    pub fn parse(head: &[u8; HEAD_SIZE], payload_max: usize) -> Result<Self, WireError> {
        let mut entry = Reader::new(&head[ENTRY_AT..]);
        entry.skip(8)?;
        let commit_id = entry.u64()?;
        let payload_len = to_usize(entry.u32()?);
        let header = Header::parse(head)?;
        let rest = to_usize(header.len_bytes).checked_sub(HEADER_SIZE + payload_len);
        let arguments_len = rest.ok_or(WireError::BadLength)?;
        if arguments_len > ARGUMENTS_MAX || payload_len > payload_max {
            return Err(WireError::BadLength);
        }
        Ok(Self {
            commit_id,
            opcode: header.opcode,
            unique: header.unique,
            arguments_len,
            payload_len,
        })
    }

    /// Returns the header as received, and the arguments.
    #[must_use]
    pub fn parts<'a>(&self, head: &'a [u8; HEAD_SIZE]) -> (&'a [u8], &'a [u8]) {
        let arguments = &head[ARGUMENTS_AT..][..self.arguments_len];
        (&head[..HEADER_SIZE], arguments)
    }
}

fn to_usize(value: u32) -> usize {
    usize::try_from(value).expect("a machine word has 32 bits or more")
}

/// Writes the head of a reply whose body, of `body_len` bytes, is in the payload.
///
/// # Panics
/// If `header` is not the header of a reply.
pub fn put_answer(head: &mut [u8; HEAD_SIZE], header: &[u8], commit_id: u64, body_len: u32) {
    assert_eq!(header.len(), REPLY_HEADER_SIZE, "an answer has a header");
    head[..REPLY_HEADER_SIZE].copy_from_slice(header);
    let entry: [u8; ENTRY_SIZE] = Fields::default()
        .u64(0)
        .u64(commit_id)
        .u32(body_len)
        .zeros(12)
        .done();
    head[ENTRY_AT..].copy_from_slice(&entry);
}

/// Encodes a command about an entry of queue `queue`.
#[must_use]
pub fn encode_command(queue: u16, commit_id: u64) -> [u8; COMMAND_SIZE] {
    Fields::default()
        .u64(0)
        .u64(commit_id)
        .u16(queue)
        .zeros(6 + 56)
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD_MAX: usize = 1 << 17;

    /// A WRITE of 3 bytes, as the kernel stores it: 40 bytes of header, 40 of arguments.
    fn written_by_the_kernel() -> [u8; HEAD_SIZE] {
        let mut head = [0xee; HEAD_SIZE];
        head[..4].copy_from_slice(&83u32.to_le_bytes());
        head[4..8].copy_from_slice(&16u32.to_le_bytes());
        head[8..16].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        head[36..40].copy_from_slice(&[0; 4]);
        head[128..168].copy_from_slice(&[0xaa; 40]);
        head[256..264].copy_from_slice(&[0; 8]);
        head[264..272].copy_from_slice(&0x1112_1314_1516_1718u64.to_le_bytes());
        head[272..276].copy_from_slice(&3u32.to_le_bytes());
        head
    }

    #[test]
    fn a_request_is_found_in_its_parts() {
        let head = written_by_the_kernel();
        let arrival = Arrival::parse(&head, PAYLOAD_MAX).unwrap();
        let expected = Arrival {
            commit_id: 0x1112_1314_1516_1718,
            opcode: 16,
            unique: 0x0102_0304_0506_0708,
            arguments_len: 40,
            payload_len: 3,
        };
        assert_eq!(arrival, expected);
        let (header, arguments) = arrival.parts(&head);
        assert_eq!(header, &head[..40]);
        assert_eq!(arguments, [0xaa; 40]);
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let parse = |at: usize, value: u32| {
            let mut head = written_by_the_kernel();
            head[at..at + 4].copy_from_slice(&value.to_le_bytes());
            Arrival::parse(&head, PAYLOAD_MAX)
        };
        // Shorter than a header and the payload; more arguments than there is room for; more
        // payload than its buffer.
        assert_eq!(parse(0, 42), Err(WireError::BadLength));
        assert_eq!(parse(0, 40 + 129 + 3), Err(WireError::BadLength));
        assert!(parse(0, 40 + 128 + 3).is_ok());
        assert_eq!(parse(272, u32::MAX), Err(WireError::BadLength));
        let mut head = written_by_the_kernel();
        head[..4].copy_from_slice(&0x0002_0028u32.to_le_bytes());
        head[272..276].copy_from_slice(&0x0002_0000u32.to_le_bytes());
        assert!(Arrival::parse(&head, PAYLOAD_MAX).is_ok());
        assert_eq!(
            Arrival::parse(&head, PAYLOAD_MAX - 1),
            Err(WireError::BadLength)
        );
    }

    #[test]
    fn an_answer_has_these_bytes() {
        let mut head = [0; HEAD_SIZE];
        let header: [u8; 16] = std::array::from_fn(|i| u8::try_from(i + 1).unwrap());
        put_answer(&mut head, &header, 0x2122_2324_2526_2728, 0x3132_3334);
        assert_eq!(head[..16], header);
        assert_eq!(head[16..256], [0; 240]);
        let entry = [
            0, 0, 0, 0, 0, 0, 0, 0, // flags
            0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, // commit id
            0x34, 0x33, 0x32, 0x31, 0, 0, 0, 0, // bytes of payload, padding
            0, 0, 0, 0, 0, 0, 0, 0, // reserved
        ];
        assert_eq!(head[256..], entry);
    }

    #[test]
    fn a_command_has_these_bytes() {
        let command = encode_command(0x4142, 0x5152_5354_5556_5758);
        let fields = [
            0, 0, 0, 0, 0, 0, 0, 0, // flags
            0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51, // commit id
            0x42, 0x41, 0, 0, 0, 0, 0, 0, // queue, padding
        ];
        assert_eq!(command[..24], fields);
        assert_eq!(command[24..], [0; 56]);
    }
}
