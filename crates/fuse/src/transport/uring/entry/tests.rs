//! Serves entries without a kernel: the tests write and read their memory as the kernel would.

use stitch_base::Ino;

use super::*;
use crate::counts::RequestCounts;
use crate::handler::{self, Context, Handler};
use crate::wire::args::{Read, Write};
use crate::wire::codec::Sink;
use crate::wire::reply::{AttrReply, Lookup, StatFs};
use crate::wire::request::Layout;

const PAYLOAD_MAX: usize = 1 << 17;

/// A file system whose reads return a pattern, optionally longer than requested.
struct Toy {
    excess: usize,
}

impl Handler for Toy {
    fn lookup(&self, _: &Context<'_>, _: Ino, name: &[u8]) -> handler::Answer<Lookup> {
        match name {
            b"panic" => panic!("as the test wants"),
            b"missing" => Ok(Lookup::Missing {
                ttl: std::time::Duration::ZERO,
            }),
            _ => Err(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Context<'_>, _: Ino) -> handler::Answer<AttrReply> {
        Err(Errno::EIO)
    }

    fn read(
        &self,
        _: &Context<'_>,
        _: Ino,
        args: &Read,
        out: &mut Sink<'_>,
    ) -> handler::Answer<()> {
        let count = usize::try_from(args.size).unwrap() + self.excess;
        out.append(|bytes| bytes.resize(bytes.len() + count, 0x5a));
        Ok(())
    }

    fn write(&self, _: &Context<'_>, ino: Ino, args: &Write<'_>) -> handler::Answer<u32> {
        assert_eq!((ino, args.offset), (Ino(5), 77));
        assert!(args.data.iter().all(|&byte| byte == 0xc3));
        Ok(u32::try_from(args.data.len()).unwrap())
    }

    fn statfs(&self, _: &Context<'_>, _: Ino) -> handler::Answer<StatFs> {
        Err(Errno::EIO)
    }
}

/// The memory that kernel and daemon share.
struct Shared {
    entry: RingEntry,
    dispatcher: Dispatcher,
    sender: Arc<dyn ReplySender>,
}

impl Shared {
    fn new(excess: usize) -> Self {
        let counts = Arc::new(RequestCounts::default());
        Self {
            entry: RingEntry::new(PAYLOAD_MAX),
            dispatcher: Dispatcher::new(Arc::new(Toy { excess }), counts, Layout::default()),
            sender: Arc::new(super::super::NoLateAnswers),
        }
    }

    fn ask(&mut self, opcode: Opcode, arguments: &[u8], data: &[u8]) -> io::Result<Served> {
        let len = u32::try_from(40 + arguments.len() + data.len()).unwrap();
        let head = &mut self.entry.head;
        head.fill(0);
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..8].copy_from_slice(&(opcode as u32).to_le_bytes());
        head[8..16].copy_from_slice(&9u64.to_le_bytes());
        head[16..24].copy_from_slice(&5u64.to_le_bytes());
        head[128..][..arguments.len()].copy_from_slice(arguments);
        head[264..272].copy_from_slice(&1234u64.to_le_bytes());
        head[272..276].copy_from_slice(&u32::try_from(data.len()).unwrap().to_le_bytes());
        let at = self.entry.body_at;
        self.entry.bytes[at..][..data.len()].copy_from_slice(data);
        let (dispatcher, sender) = (&self.dispatcher, &self.sender);
        self.entry.serve(dispatcher, sender)
    }

    /// Returns the error and the body of the reply, as the kernel reads them.
    fn answer(&self) -> (i32, &[u8]) {
        let head = &self.entry.head;
        let error = i32::from_le_bytes(head[4..8].try_into().unwrap());
        assert_eq!(head[8..16], 9u64.to_le_bytes());
        let len = u32::from_le_bytes(head[272..276].try_into().unwrap());
        let at = self.entry.body_at;
        (
            error,
            &self.entry.bytes[at..][..usize::try_from(len).unwrap()],
        )
    }
}

fn read_of(size: u32) -> Vec<u8> {
    [&[0; 16][..], &size.to_le_bytes(), &[0; 20]].concat()
}

#[test]
fn a_read_is_answered_where_the_kernel_looks() {
    let mut shared = Shared::new(0);
    let place = shared.entry.buffers();
    for size in [1u32, 4096, 131_072, 3] {
        let served = shared.ask(Opcode::Read, &read_of(size), &[]).unwrap();
        assert_eq!((served.commit_id, served.is_poisoned), (1234, false));
        let (error, body) = shared.answer();
        assert_eq!((error, body.len()), (0, usize::try_from(size).unwrap()));
        assert!(body.iter().all(|&byte| byte == 0x5a));
    }
    assert_eq!(place, shared.entry.buffers(), "nothing has moved");
    assert_eq!(place[1].0.addr() % PAGE_SIZE, 0);
}

#[test]
fn a_write_brings_all_its_data() {
    let mut shared = Shared::new(0);
    let mut arguments = [0; 40];
    arguments[8..16].copy_from_slice(&77u64.to_le_bytes());
    for len in [1u32, 5000, 131_072] {
        arguments[16..20].copy_from_slice(&len.to_le_bytes());
        let data = vec![0xc3; usize::try_from(len).unwrap()];
        shared.ask(Opcode::Write, &arguments, &data).unwrap();
        let expected = [len.to_le_bytes(), [0; 4]].concat();
        assert_eq!(shared.answer(), (0, &expected[..]));
    }
}

#[test]
fn names_come_in_the_payload_and_errors_have_no_body() {
    let mut shared = Shared::new(0);
    shared.ask(Opcode::Lookup, &[], b"unknown\0").unwrap();
    assert_eq!(shared.answer(), (-libc::ENOENT, &[][..]));
    shared.ask(Opcode::Lookup, &[], b"missing\0").unwrap();
    assert_eq!(shared.answer(), (0, &[0; 128][..]));
    shared.ask(Opcode::Poll, &[0; 24], &[]).unwrap();
    assert_eq!(shared.answer(), (-libc::ENOSYS, &[][..]));
}

#[test]
fn a_panic_is_answered_and_told() {
    let mut shared = Shared::new(0);
    let served = shared.ask(Opcode::Lookup, &[], b"panic\0").unwrap();
    assert!(served.is_poisoned);
    assert_eq!(shared.answer().0, -libc::EIO);
}

#[test]
fn what_has_no_answer_gets_one_all_the_same() {
    // A FORGET does not come by a ring. Every request must be answered, or its entry is lost.
    let mut shared = Shared::new(0);
    shared.ask(Opcode::Forget, &[0; 8], &[]).unwrap();
    assert_eq!(shared.answer().0, -libc::EIO);
}

#[test]
fn an_answer_that_moved_the_buffer_is_not_given_to_the_kernel() {
    // The sink panics, which is caught, but the bytes have moved.
    let mut shared = Shared::new(1 << 20);
    assert!(shared.ask(Opcode::Read, &read_of(131_072), &[]).is_err());
}

#[test]
fn what_is_no_request_is_refused() {
    let mut shared = Shared::new(0);
    shared.entry.head[..4].copy_from_slice(&39u32.to_le_bytes());
    let (dispatcher, sender) = (&shared.dispatcher, &shared.sender);
    assert!(shared.entry.serve(dispatcher, sender).is_err());
}
