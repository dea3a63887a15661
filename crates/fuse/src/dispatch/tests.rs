//! Requests without a kernel.

use std::io;

use stitch_base::Ino;
use stitch_base::sync::Mutex;

use super::*;
use crate::wire::args::{ForgetList, Lock};
use crate::wire::reply::{AttrReply, Lookup, StatFs};

/// Keeps what was sent.
#[derive(Debug, Default)]
struct Sent(Mutex<Vec<Vec<u8>>>);

impl ReplySender for Sent {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.0.lock().push(message.to_vec());
        Ok(())
    }
}

#[derive(Default)]
struct Toy {
    forgotten: Mutex<Vec<(Ino, u64)>>,
    waiting: Mutex<Vec<Deferred>>,
    /// How often it has room after it was asked to make some, and how often it was asked.
    room: Mutex<(u64, u64)>,
}

impl Handler for Toy {
    fn lookup(&self, _: &Context<'_>, _: Ino, name: &[u8]) -> Answer<Lookup> {
        assert!(name != b"panic", "as planned");
        Err(Errno::ENOENT)
    }
    fn getattr(&self, _: &Context<'_>, _: Ino) -> Answer<AttrReply> {
        Err(Errno::ESTALE)
    }
    fn statfs(&self, _: &Context<'_>, _: Ino) -> Answer<StatFs> {
        Ok(StatFs::default())
    }
    fn getxattr(&self, _: &Context<'_>, _: Ino, _: &[u8], out: &mut Sink<'_>) -> Answer<()> {
        assert!(out.put(b"value"), "there is room");
        Ok(())
    }
    fn read(&self, _: &Context<'_>, _: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        assert_eq!(out.room(), usize::try_from(args.size).unwrap());
        out.put_some(b"0123456789");
        Ok(())
    }
    fn ioctl(&self, _: &Context<'_>, _: Ino, args: &Ioctl<'_>, out: &mut Sink<'_>) -> Answer<i32> {
        if out.put(args.input) {
            Ok(7)
        } else {
            Err(Errno::EINVAL)
        }
    }
    fn readlink(&self, _: &Context<'_>, _: Ino, out: &mut Sink<'_>) -> Answer<()> {
        assert!(out.put(b"link"), "there is room");
        match self.room.lock().0 {
            0 => Ok(()),
            _ => Err(Errno::ENOSPC),
        }
    }
    fn room_mark(&self) -> u64 {
        100 + self.room.lock().1
    }
    fn makes_room(&self, mark: u64) -> bool {
        assert_eq!(
            mark,
            self.room_mark(),
            "taken before the request was served"
        );
        let (left, asked) = &mut *self.room.lock();
        *asked += 1;
        *left = left.saturating_sub(1);
        true
    }
    fn forget(&self, ino: Ino, count: u64) {
        self.forgotten.lock().push((ino, count));
    }
    fn setlkw(&self, _: &Context<'_>, _: Ino, _: &Lock, reply: Deferred) {
        self.waiting.lock().push(reply);
    }
    fn interrupt(&self, unique: u64) {
        self.waiting.lock().retain(|reply| reply.unique() != unique);
    }
    fn batch_forget(&self, list: ForgetList<'_>) {
        self.forgotten.lock().extend(list.iter());
    }
}

fn request(opcode: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = u32::try_from(40 + body.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend(len.to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(9u64.to_le_bytes());
    bytes.extend(5u64.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

struct Bench {
    toy: Arc<Toy>,
    dispatcher: Dispatcher,
    sent: Arc<Sent>,
    buffer: ReplyBuffer,
}

impl Bench {
    fn new() -> Self {
        let toy = Arc::new(Toy::default());
        let counts = Arc::new(RequestCounts::default());
        let dispatcher = Dispatcher::new(toy.clone(), counts, Layout::default());
        Self {
            toy,
            dispatcher,
            sent: Arc::default(),
            buffer: ReplyBuffer::default(),
        }
    }

    fn ask(&mut self, opcode: Opcode, body: &[&[u8]]) -> Outcome<'_> {
        self.ask_raw(&request(opcode as u32, body))
    }

    fn ask_raw(&mut self, bytes: &[u8]) -> Outcome<'_> {
        let sender: Arc<dyn ReplySender> = self.sent.clone();
        self.dispatcher.dispatch(bytes, &mut self.buffer, &sender)
    }
}

/// The error and the body of an answer.
fn taken(outcome: &Outcome<'_>) -> (i32, Vec<u8>) {
    let Outcome::Reply(bytes) = outcome else {
        panic!("{outcome:?}")
    };
    let error = i32::from_le_bytes(bytes[4..8].try_into().unwrap());
    assert_eq!(
        usize::try_from(u32::from_le_bytes(bytes[..4].try_into().unwrap())),
        Ok(bytes.len())
    );
    assert_eq!(bytes[8..16], 9u64.to_le_bytes());
    (error, bytes[16..].to_vec())
}

#[test]
fn the_size_of_an_attribute_can_be_asked_for() {
    let mut bench = Bench::new();
    let mut ask = |size: u32| {
        let size = size.to_le_bytes();
        taken(&bench.ask(Opcode::GetXattr, &[&size, &[0; 4], b"user.a\0"]))
    };
    assert_eq!(ask(0), (0, vec![5, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(ask(5), (0, b"value".to_vec()));
    assert_eq!(ask(4), (-libc::ERANGE, vec![]));
}

#[test]
fn a_read_gets_no_more_than_it_asked_for() {
    let mut bench = Bench::new();
    let args = |size: u32| [&[0; 16][..], &size.to_le_bytes(), &[0; 20]].concat();
    assert_eq!(
        taken(&bench.ask(Opcode::Read, &[&args(4)])),
        (0, b"0123".to_vec())
    );
    assert_eq!(
        taken(&bench.ask(Opcode::Read, &[&args(40)])),
        (0, b"0123456789".to_vec())
    );
}

#[test]
fn an_ioctl_answers_with_its_result_before_its_data() {
    let mut bench = Bench::new();
    let head = [&[0; 24][..], &3u32.to_le_bytes(), &8u32.to_le_bytes()].concat();
    let (error, body) = taken(&bench.ask(Opcode::Ioctl, &[&head, b"abc"]));
    assert_eq!(error, 0);
    assert_eq!(body, [&7i32.to_le_bytes()[..], &[0; 12], b"abc"].concat());
}

#[test]
fn what_is_not_understood_is_refused_or_passed_over() {
    let mut bench = Bench::new();
    assert_eq!(
        taken(&bench.ask(Opcode::Lookup, &[b"no end"])).0,
        -libc::EINVAL
    );
    assert_eq!(taken(&bench.ask_raw(&request(4000, &[]))).0, -libc::ENOSYS);
    assert_eq!(
        taken(&bench.ask(Opcode::Poll, &[&[0; 24]])).0,
        -libc::ENOSYS
    );
    assert_eq!(bench.ask(Opcode::Forget, &[b"short"]), Outcome::Silent);
    assert_eq!(bench.ask_raw(b"not even a header"), Outcome::Silent);
}

#[test]
fn a_request_without_space_is_served_again_while_some_is_made() {
    let bound = ROOM_TRIES as u64;
    for (lacks, asked, errno) in [
        (0, 0, 0),
        (1, 1, 0),
        (4, 4, 0),
        (2 * bound, bound, libc::ENOSPC),
    ] {
        let mut bench = Bench::new();
        bench.toy.room.lock().0 = lacks;
        let (found, body) = taken(&bench.ask(Opcode::ReadLink, &[]));
        assert_eq!(found.abs(), errno, "after {lacks} times");
        assert_eq!(bench.toy.room.lock().1, asked);
        if errno == 0 {
            assert_eq!(body, b"link", "the answer of the last time alone");
        }
    }
}

#[test]
fn a_request_without_space_is_refused_at_once_if_none_is_made() {
    struct Full;
    impl Handler for Full {
        fn lookup(&self, _: &Context<'_>, _: Ino, _: &[u8]) -> Answer<Lookup> {
            Err(Errno::ENOSPC)
        }
        fn getattr(&self, _: &Context<'_>, _: Ino) -> Answer<AttrReply> {
            Err(Errno::ENOSPC)
        }
        fn statfs(&self, _: &Context<'_>, _: Ino) -> Answer<StatFs> {
            Err(Errno::ENOSPC)
        }
    }
    let mut bench = Bench::new();
    let counts = Arc::new(RequestCounts::default());
    bench.dispatcher = Dispatcher::new(Arc::new(Full), counts, Layout::default());
    let (errno, _) = taken(&bench.ask(Opcode::Lookup, &[b"name\0"]));
    assert_eq!(errno.abs(), libc::ENOSPC);
}

#[test]
fn forgets_are_not_answered() {
    let mut bench = Bench::new();
    let three = 3u64.to_le_bytes();
    assert_eq!(bench.ask(Opcode::Forget, &[&three]), Outcome::Silent);
    let list = [&1u64.to_le_bytes()[..], &8u64.to_le_bytes(), &three].concat();
    assert_eq!(bench.ask(Opcode::BatchForget, &[&list]), Outcome::Silent);
    assert_eq!(*bench.toy.forgotten.lock(), [(Ino(5), 3), (Ino(8), 3)]);
}

#[test]
fn a_late_answer_is_sent_once_even_if_it_is_dropped() {
    let mut bench = Bench::new();
    let lock = [&[0; 40][..], &[0; 8]].concat();
    assert_eq!(bench.ask(Opcode::SetLkW, &[&lock]), Outcome::Silent);
    assert!(bench.sent.0.lock().is_empty());
    let late = bench.toy.waiting.lock().pop().unwrap();
    late.reply(Ok(()));
    assert_eq!(bench.sent.0.lock().len(), 1);
    assert_eq!(bench.ask(Opcode::SetLkW, &[&lock]), Outcome::Silent);
    assert_eq!(
        bench.ask(Opcode::Interrupt, &[&9u64.to_le_bytes()]),
        Outcome::Silent
    );
    let sent = bench.sent.0.lock();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1][4..8], (-libc::EIO).to_le_bytes());
}

#[test]
fn a_panic_is_answered() {
    let mut bench = Bench::new();
    let Outcome::Poisoned(bytes) = bench.ask(Opcode::Lookup, &[b"panic\0"]) else {
        panic!()
    };
    assert_eq!(bytes[4..8], (-libc::EIO).to_le_bytes());
}
