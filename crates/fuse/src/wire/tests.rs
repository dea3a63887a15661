//! Layouts pinned byte by byte, and malformed requests.

use std::time::Duration;

use proptest::prelude::*;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;

use super::args::{Fh, LockKind, SetTime};
use super::codec::WireError;
use super::flags::{InitFlags, OpenFlags, WriteFlags};
use super::init::InitReply;
use super::notice::Notice;
use super::opcode::Opcode;
use super::reply::{
    Attr, AttrReply, DirEntry, DirPlusSink, DirSink, Entry, FileKind, Lookup, Opened, ReplyBuffer,
    StatxReply,
};
use super::request::{Header, Layout, Operation, Request};
use crate::errno::Errno;

/// Little-endian words, as the kernel of this machine writes them.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn text(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        self
    }
}

fn request(opcode: Opcode, body: Bytes, extensions: &Bytes) -> Vec<u8> {
    let len = u32::try_from(40 + body.0.len() + extensions.0.len()).unwrap();
    let units = u32::try_from(extensions.0.len() / 8).unwrap();
    let head = Bytes::default()
        .u32(len)
        .u32(opcode as u32)
        .u64(0x77)
        .u64(5);
    let mut head = head.u32(1000).u32(100).u32(4242).u32(units).0;
    head.extend(body.0);
    head.extend(&extensions.0);
    head
}

fn plain(opcode: Opcode, body: Bytes) -> Vec<u8> {
    request(opcode, body, &Bytes::default())
}

const LAYOUT: Layout = Layout { setxattr_ext: true };

#[test]
fn the_header_names_caller_and_operation() {
    let bytes = plain(Opcode::Lookup, Bytes::default().text("name\0"));
    let request = Request::parse(&bytes, LAYOUT).unwrap();
    let header = request.header;
    assert_eq!((header.unique, header.ino), (0x77, Ino(5)));
    assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
    assert!(matches!(
        request.operation,
        Operation::Lookup { name: b"name" }
    ));
}

#[test]
fn setattr_takes_only_the_fields_that_are_meant() {
    // MODE, SIZE, ATIME_NOW, MTIME, KILL_SUIDGID
    let valid = 1 | 8 | (1 << 7) | (1 << 5) | (1 << 11);
    let body = Bytes::default().u32(valid).u32(0).u64(9).u64(4096).u64(8);
    let body = body.u64(1).u64(2).u64(3).u32(10).u32(20).u32(30);
    let body = body.u32(0o644).u32(0).u32(7).u32(8).u32(0);
    let bytes = plain(Opcode::SetAttr, body);
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::SetAttr(args) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!((args.mode, args.size), (Some(0o644), Some(4096)));
    assert_eq!(
        (args.uid, args.gid, args.fh, args.ctime),
        (None, None, None, None)
    );
    assert_eq!(args.atime, Some(SetTime::Now));
    assert_eq!(args.mtime, Some(SetTime::At(Timestamp(2_000_000_020))));
    assert!(args.kill_suidgid);
}

#[test]
fn write_borrows_its_data() {
    let body = Bytes::default()
        .u64(3)
        .u64(512)
        .u32(5)
        .u32(4)
        .u64(0)
        .u32(0o2001)
        .u32(0);
    let bytes = plain(Opcode::Write, body.text("hello"));
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::Write(args) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        (args.fh, args.offset, args.data),
        (Fh(3), 512, &b"hello"[..])
    );
    assert!(args.write_flags.contains(WriteFlags::KILL_SUIDGID));
    assert_eq!(args.lock_owner, None);
}

#[test]
fn creations_bring_a_group() {
    let body = Bytes::default()
        .u32(0o101)
        .u32(0o100_666)
        .u32(0o22)
        .u32(0)
        .text("new\0");
    let groups = Bytes::default().u32(16).u32(32).u32(1).u32(50);
    let bytes = request(Opcode::Create, body, &groups);
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    assert_eq!(parsed.groups.iter().collect::<Vec<_>>(), [50]);
    let Operation::Create(args) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        (args.name, args.mode, args.umask),
        (&b"new"[..], 0o100_666, 0o22)
    );
}

#[test]
fn rename_has_two_layouts() {
    let bytes = plain(Opcode::Rename, Bytes::default().u64(9).text("a\0b\0"));
    let old = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::Rename(args) = old.operation else {
        panic!("{old:?}")
    };
    assert_eq!(
        (args.source_name, args.target_name, args.flags),
        (&b"a"[..], &b"b"[..], 0)
    );
    let bytes = plain(
        Opcode::Rename2,
        Bytes::default().u64(9).u32(2).u32(0).text("a\0b\0"),
    );
    let new = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::Rename(args) = new.operation else {
        panic!("{new:?}")
    };
    assert_eq!((args.target_parent, args.flags), (Ino(9), 2));
}

#[test]
fn setxattr_has_two_layouts() {
    let short = Bytes::default().u32(2).u32(1).text("user.a\0vv");
    let bytes = plain(Opcode::SetXattr, short);
    let parsed = Request::parse(&bytes, Layout::default()).unwrap();
    let Operation::SetXattr(args) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        (args.name, args.value, args.kill_sgid),
        (&b"user.a"[..], &b"vv"[..], false)
    );
    let long = Bytes::default()
        .u32(2)
        .u32(1)
        .u32(1)
        .u32(0)
        .text("user.a\0vv");
    let bytes = plain(Opcode::SetXattr, long);
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::SetXattr(args) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        (args.value, args.flags, args.kill_sgid),
        (&b"vv"[..], 1, true)
    );
}

#[test]
fn forgets_come_in_lists() {
    let body = Bytes::default().u32(2).u32(0).u64(10).u64(1).u64(11).u64(3);
    let bytes = plain(Opcode::BatchForget, body);
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::BatchForget(list) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        list.iter().collect::<Vec<_>>(),
        [(Ino(10), 1), (Ino(11), 3)]
    );
}

#[test]
fn locks_have_a_kind() {
    let lock = |kind| {
        Bytes::default()
            .u64(1)
            .u64(2)
            .u64(0)
            .u64(99)
            .u32(kind)
            .u32(7)
            .u32(1)
            .u32(0)
    };
    let bytes = plain(Opcode::SetLkW, lock(1));
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::SetLkW(args) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        (args.kind, args.end, args.pid, args.flock),
        (LockKind::Write, 99, 7, true)
    );
    let bytes = plain(Opcode::SetLkW, lock(77));
    assert_eq!(
        Request::parse(&bytes, LAYOUT).unwrap_err(),
        WireError::BadValue
    );
}

#[test]
fn init_has_a_second_word_of_flags_if_the_first_says_so() {
    let body = Bytes::default()
        .u32(7)
        .u32(45)
        .u32(131_072)
        .u32(1 << 30)
        .u32(1 << 2);
    let bytes = plain(Opcode::Init, body);
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    let Operation::Init(offer) = parsed.operation else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        offer.flags,
        InitFlags::INIT_EXT | InitFlags::CREATE_SUPP_GROUP
    );
    assert_eq!(
        (offer.major, offer.minor, offer.max_readahead),
        (7, 45, 131_072)
    );
}

#[test]
fn unknown_opcodes_are_left_to_the_handler_side() {
    let mut bytes = plain(Opcode::Lookup, Bytes::default().text("x\0"));
    bytes[4..8].copy_from_slice(&4096u32.to_le_bytes());
    let parsed = Request::parse(&bytes, LAYOUT).unwrap();
    assert!(matches!(parsed.operation, Operation::Unserved));
}

#[test]
fn every_cut_of_every_request_is_refused_or_understood() {
    for &opcode in Opcode::ALL {
        let body = Bytes::default()
            .u64(7)
            .u64(1)
            .u64(2)
            .u64(3)
            .u64(0)
            .u64(5)
            .u64(0);
        let whole = plain(
            opcode,
            body.clone().text("a\0b\0").u64(0).u64(0).u64(0).u64(0),
        );
        for cut in 0..whole.len() {
            let mut bytes = whole[..cut].to_vec();
            assert!(
                Request::parse(&bytes, LAYOUT).is_err(),
                "{opcode:?} cut at {cut}"
            );
            if cut >= 4 {
                bytes[..4].copy_from_slice(&u32::try_from(cut).unwrap().to_le_bytes());
                // With a consistent header, the body may be valid or not; it must not panic.
                let _ = Request::parse(&bytes, LAYOUT);
            }
        }
    }
}

#[test]
fn lengths_beyond_the_request_are_refused() {
    let huge = Bytes::default()
        .u64(3)
        .u64(512)
        .u32(u32::MAX)
        .u32(0)
        .u64(0)
        .u32(0)
        .u32(0);
    let bytes = plain(Opcode::Write, huge.text("hello"));
    assert_eq!(
        Request::parse(&bytes, LAYOUT).unwrap_err(),
        WireError::Truncated
    );
    let many = Bytes::default().u32(u32::MAX).u32(0).u64(10).u64(1);
    let bytes = plain(Opcode::BatchForget, many);
    assert_eq!(
        Request::parse(&bytes, LAYOUT).unwrap_err(),
        WireError::Truncated
    );
    let bytes = plain(Opcode::Lookup, Bytes::default().text("no end"));
    assert_eq!(
        Request::parse(&bytes, LAYOUT).unwrap_err(),
        WireError::BadName
    );
    let bytes = plain(Opcode::Unlink, Bytes::default().text("\0"));
    assert_eq!(
        Request::parse(&bytes, LAYOUT).unwrap_err(),
        WireError::BadName
    );
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        opcode in 0u32..60,
        extensions in prop_oneof![Just(0u8), any::<u8>()],
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = plain(Opcode::Lookup, Bytes(body));
        bytes[4..8].copy_from_slice(&opcode.to_le_bytes());
        bytes[36] = extensions;
        if let Ok(request) = Request::parse(&bytes, LAYOUT) {
            let ids: Vec<u32> = request.groups.iter().collect();
            prop_assert!(ids.len() * 4 <= bytes.len());
            if let Operation::BatchForget(list) = request.operation {
                prop_assert!(list.iter().count() * 16 <= bytes.len());
            }
        }
        let _ = Header::parse(&bytes[..bytes.len().min(39)]);
    }
}

fn attr() -> Attr {
    Attr {
        ino: Ino(0x0102_0304_0506_0708),
        size: 0x11,
        blocks: 0x22,
        atime: Timestamp::from_parts(0x33, 0x3),
        mtime: Timestamp::from_parts(0x44, 0x4),
        ctime: Timestamp::from_parts(0x55, 0x5),
        btime: Timestamp::from_parts(0x66, 0x6),
        mode: 0o100_644,
        nlink: 0x77,
        uid: 0x88,
        gid: 0x99,
        rdev: 0x0000_1203,
        blksize: 0x1000,
    }
}

fn attr_bytes() -> Vec<u8> {
    let bytes = Bytes::default()
        .u64(0x0102_0304_0506_0708)
        .u64(0x11)
        .u64(0x22);
    let bytes = bytes
        .u64(0x33)
        .u64(0x44)
        .u64(0x55)
        .u32(3)
        .u32(4)
        .u32(5)
        .u32(0o100_644);
    bytes
        .u32(0x77)
        .u32(0x88)
        .u32(0x99)
        .u32(0x1203)
        .u32(0x1000)
        .u32(0)
        .0
}

fn entry() -> Entry {
    Entry {
        ino: Ino(6),
        generation: 2,
        attr: attr(),
        entry_ttl: Duration::new(8, 9),
        attr_ttl: Duration::new(10, 11),
    }
}

fn entry_bytes() -> Vec<u8> {
    let mut bytes = Bytes::default()
        .u64(6)
        .u64(2)
        .u64(8)
        .u64(10)
        .u32(9)
        .u32(11)
        .0;
    bytes.extend(attr_bytes());
    bytes
}

fn body_of(fill: impl FnOnce(&mut ReplyBuffer)) -> Vec<u8> {
    let mut buffer = ReplyBuffer::default();
    fill(&mut buffer);
    buffer.finish(1, None)[16..].to_vec()
}

#[test]
fn replies_have_a_header() {
    let mut buffer = ReplyBuffer::default();
    buffer.put_u32(0x51);
    let whole = Bytes::default().u32(24).u32(0).u64(0x77).u32(0x51).u32(0).0;
    assert_eq!(buffer.finish(0x77, None), whole);
    let error = Bytes::default()
        .u32(16)
        .u32(0u32.wrapping_sub(2))
        .u64(0x77)
        .0;
    assert_eq!(buffer.finish(0x77, Some(Errno::ENOENT)), error);
}

#[test]
fn entries_are_laid_out_as_the_kernel_has_them() {
    assert_eq!(entry_bytes().len(), 128);
    assert_eq!(body_of(|reply| reply.put_entry(&entry())), entry_bytes());
    let missing = body_of(|reply| {
        reply.put_lookup(&Lookup::Missing {
            ttl: Duration::new(4, 5),
        })
    });
    let mut expected = Bytes::default().u64(0).u64(0).u64(4).u64(0).u32(5).u32(0).0;
    expected.extend([0; 88]);
    assert_eq!(missing, expected);
}

#[test]
fn attributes_are_laid_out_as_the_kernel_has_them() {
    let reply = AttrReply {
        attr: attr(),
        ttl: Duration::new(1, 2),
    };
    let mut expected = Bytes::default().u64(1).u32(2).u32(0).0;
    expected.extend(attr_bytes());
    assert_eq!(body_of(|buffer| buffer.put_attr(&reply)), expected);
    assert_eq!(expected.len(), 104);
}

#[test]
fn statx_is_laid_out_as_the_kernel_has_it() {
    let reply = StatxReply {
        attr: attr(),
        ttl: Duration::new(1, 2),
        attributes: 4,
        attributes_mask: 5,
    };
    let time = |bytes: Bytes, seconds, nanos| bytes.u64(seconds).u32(nanos).u32(0);
    let head = Bytes::default().u64(1).u32(2).u32(0).u64(0).u64(0);
    let basic = head
        .u32(0xfff)
        .u32(0x1000)
        .u64(4)
        .u32(0x77)
        .u32(0x88)
        .u32(0x99);
    let basic = basic
        .u32(0o100_644)
        .u64(0x0102_0304_0506_0708)
        .u64(0x11)
        .u64(0x22)
        .u64(5);
    let times = time(time(basic, 0x33, 3), 0x66, 6);
    let times = time(time(times, 0x55, 5), 0x44, 4);
    let mut expected = times.u32(0x12).u32(0x03).u32(0).u32(0).0;
    expected.extend([0; 112]);
    assert_eq!(body_of(|buffer| buffer.put_statx(&reply)), expected);
    assert_eq!(expected.len(), 32 + 256);
}

#[test]
fn opened_files_and_init_are_laid_out_as_the_kernel_has_them() {
    let opened = Opened {
        fh: Fh(7),
        flags: OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR,
        backing: 0,
    };
    assert_eq!(
        body_of(|buffer| buffer.put_opened(&opened)),
        Bytes::default().u64(7).u32(10).u32(0).0
    );
    let passed = Opened {
        fh: Fh(0),
        flags: OpenFlags::PASSTHROUGH | OpenFlags::DIRECT_IO,
        backing: 9,
    };
    assert_eq!(
        body_of(|buffer| buffer.put_opened(&passed)),
        Bytes::default().u64(0).u32(129).u32(9).0
    );
    let init = InitReply {
        minor: 45,
        max_readahead: 3,
        flags: InitFlags::INIT_EXT | InitFlags::ALLOW_IDMAP | InitFlags::PASSTHROUGH,
        max_background: 6,
        congestion_threshold: 5,
        max_write: 7,
        time_gran: 1,
        max_pages: 256,
        max_stack_depth: 2,
    };
    let expected = Bytes::default()
        .u32(7)
        .u32(45)
        .u32(3)
        .u32(1 << 30)
        .u32(6 | 5 << 16);
    let mut expected = expected
        .u32(7)
        .u32(1)
        .u32(256)
        .u32(1 << 8 | 1 << 5)
        .u32(2)
        .0;
    expected.extend([0; 24]);
    assert_eq!(body_of(|buffer| buffer.put_init(&init)), expected);
}

#[test]
fn directory_entries_are_padded_and_stop_when_full() {
    let mut space = Vec::new();
    let mut out = DirSink::new(super::codec::Sink::new(&mut space, 100));
    let entry = DirEntry {
        ino: Ino(3),
        next_offset: 9,
        kind: FileKind::Regular,
        name: b"abc",
    };
    assert!(out.push(&entry));
    assert_eq!(out.len(), 32);
    assert!(out.push(&DirEntry {
        name: b"eight888",
        ..entry
    }));
    assert!(out.push(&entry));
    assert!(!out.push(&entry), "four bytes are left");
    assert_eq!(out.len(), 96);
    let first = Bytes::default()
        .u64(3)
        .u64(9)
        .u32(3)
        .u32(8)
        .text("abc\0\0\0\0\0")
        .0;
    assert_eq!(space[..32], first);
}

#[test]
fn a_listing_with_attributes_repeats_the_entry() {
    let mut space = Vec::new();
    let mut out = DirPlusSink::new(super::codec::Sink::new(&mut space, 400));
    let dot = DirEntry {
        ino: Ino(3),
        next_offset: 1,
        kind: FileKind::Directory,
        name: b".",
    };
    assert!(out.push(&dot, None));
    let file = DirEntry {
        ino: entry().ino,
        name: b"f",
        ..dot
    };
    assert!(out.push(&file, Some(&entry())));
    assert!(!out.push(&dot, None));
    assert_eq!(out.len(), 320);
    assert!(
        space[..128].iter().all(|&byte| byte == 0),
        "no entry for the dot"
    );
    assert_eq!(space[160..288], entry_bytes());
}

#[test]
fn notices_are_laid_out_as_the_kernel_has_them() {
    let inode = Notice::InvalidateInode {
        ino: Ino(5),
        offset: -1,
        length: 0,
    };
    let expected = Bytes::default()
        .u32(40)
        .u32(2)
        .u64(0)
        .u64(5)
        .u64(u64::MAX)
        .u64(0)
        .0;
    assert_eq!(inode.encode(), expected);
    let entry = Notice::InvalidateEntry {
        parent: Ino(1),
        name: b"ab",
        expire_only: true,
    };
    let expected = Bytes::default()
        .u32(35)
        .u32(3)
        .u64(0)
        .u64(1)
        .u32(2)
        .u32(1)
        .text("ab\0")
        .0;
    assert_eq!(entry.encode(), expected);
    let store = Notice::Store {
        ino: Ino(5),
        offset: 0x0102,
        bytes: b"abc",
    };
    let expected = Bytes::default()
        .u32(43)
        .u32(4)
        .u64(0)
        .u64(5)
        .u64(0x0102)
        .u32(3)
        .u32(0)
        .text("abc")
        .0;
    assert_eq!(store.encode(), expected);
    let epoch = Bytes::default().u32(16).u32(8).u64(0).0;
    assert_eq!(Notice::IncrementEpoch.encode(), epoch);
    let inos = [Ino(7), Ino(8)];
    let prune = Bytes::default()
        .u32(48)
        .u32(9)
        .u64(0)
        .u32(2)
        .u32(0)
        .u64(0)
        .u64(7)
        .u64(8)
        .0;
    assert_eq!(Notice::Prune { inos: &inos }.encode(), prune);
}
