//! Replies: their contents and their encoding.
//!
//! A worker reuses one [`ReplyBuffer`] for all its replies. A reply is a header (16 bytes, written
//! last, when the length is known) and a body.

use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::Timestamp;

use super::args::{Fh, Lock};
use super::codec::{Fields, Sink};
use super::flags::OpenFlags;
use crate::errno::Errno;

/// Bytes of the header before every reply.
pub const HEADER_SIZE: usize = 16;
/// Bytes of attributes.
const ATTR_SIZE: usize = 88;
/// Bytes before the data of the reply to IOCTL.
const IOCTL_HEAD_SIZE: usize = 16;
/// Bytes of an entry.
const ENTRY_SIZE: usize = 128;

/// A lifetime that never ends in practice: the kernel counts ticks, so it must be representable.
pub const FOREVER: Duration = Duration::from_secs(1 << 32);

/// Type of a file, by its number in directory entries (and in modes, shifted by 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Plain file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileKind {
    /// From the type bits of a mode.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        match (mode >> 12) & 0xf {
            1 => Some(Self::Fifo),
            2 => Some(Self::CharDevice),
            4 => Some(Self::Directory),
            6 => Some(Self::BlockDevice),
            8 => Some(Self::Regular),
            10 => Some(Self::Symlink),
            12 => Some(Self::Socket),
            _ => None,
        }
    }

    /// The type bits of a mode.
    #[must_use]
    pub const fn to_mode(self) -> u32 {
        (self as u32) << 12
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: Ino,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// Birth time; goes out by STATX only.
    pub btime: Timestamp,
    /// File type and permission bits.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, as the kernel encodes it for user space.
    pub rdev: u32,
    /// Preferred length of reads and writes.
    pub blksize: u32,
}

impl Attr {
    fn encode(&self) -> [u8; ATTR_SIZE] {
        Fields::default()
            .u64(self.ino.0)
            .u64(self.size)
            .u64(self.blocks)
            .i64(self.atime.seconds())
            .i64(self.mtime.seconds())
            .i64(self.ctime.seconds())
            .u32(self.atime.nanos())
            .u32(self.mtime.nanos())
            .u32(self.ctime.nanos())
            .u32(self.mode)
            .u32(self.nlink)
            .u32(self.uid)
            .u32(self.gid)
            .u32(self.rdev)
            .u32(self.blksize)
            .u32(0)
            .done()
    }
}

/// An inode under a name, which counts as one lookup of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number; 0 for a negative entry.
    pub ino: Ino,
    /// Distinguishes inodes that have had the same number.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
    /// Lifetime of the name in the kernel's cache.
    pub entry_ttl: Duration,
    /// Lifetime of the attributes in the kernel's cache.
    pub attr_ttl: Duration,
}

impl Entry {
    fn encode(&self) -> [u8; ENTRY_SIZE] {
        encode_entry(
            self.ino,
            self.generation,
            (self.entry_ttl, self.attr_ttl),
            &self.attr.encode(),
        )
    }
}

fn encode_entry(
    ino: Ino,
    generation: u64,
    (entry_ttl, attr_ttl): (Duration, Duration),
    attr: &[u8; ATTR_SIZE],
) -> [u8; ENTRY_SIZE] {
    Fields::default()
        .u64(ino.0)
        .u64(generation)
        .u64(entry_ttl.as_secs())
        .u64(attr_ttl.as_secs())
        .u32(entry_ttl.subsec_nanos())
        .u32(attr_ttl.subsec_nanos())
        .bytes(attr)
        .done()
}

/// Reply to LOOKUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The name exists.
    Found(Entry),
    /// The name does not exist, which the kernel may cache.
    Missing {
        /// Lifetime in the kernel's cache.
        ttl: Duration,
    },
}

/// Reply to GETATTR and SETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// Lifetime in the kernel's cache.
    pub ttl: Duration,
}

/// Reply to STATX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// The attributes, birth time included.
    pub attr: Attr,
    /// Lifetime in the kernel's cache.
    pub ttl: Duration,
    /// `STATX_ATTR_*` that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` that are known.
    pub attributes_mask: u64,
}

/// Reply to OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The handle by which later requests name the open file.
    pub fh: Fh,
    /// Flags of its use.
    pub flags: OpenFlags,
    /// With `PASSTHROUGH`: the kernel's number of the registered file; else 0.
    pub backing: u32,
}

/// Reply to STATFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size, in fragments.
    pub blocks: u64,
    /// Free, in fragments.
    pub blocks_free: u64,
    /// Free for users, in fragments.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred length of reads and writes.
    pub block_size: u32,
    /// Most bytes of a name.
    pub name_len_max: u32,
    /// Bytes in a fragment.
    pub fragment_size: u32,
}

/// `STATX_BASIC_STATS | STATX_BTIME`
const STATX_MASK: u32 = 0xfff;

/// An entry of a directory, as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Number of the inode.
    pub ino: Ino,
    /// Offset at which to continue after this entry; not 0.
    pub next_offset: u64,
    /// Type of the inode.
    pub kind: FileKind,
    /// Name.
    pub name: &'a [u8],
}

impl DirEntry<'_> {
    fn put(&self, out: &mut Sink<'_>) -> bool {
        debug_assert!(self.next_offset != 0, "a listing begins at 0");
        debug_assert!(!self.name.is_empty(), "an entry has a name");
        let name_len = u32::try_from(self.name.len()).expect("a name is short");
        let head = Fields::<24>::default()
            .u64(self.ino.0)
            .u64(self.next_offset)
            .u32(name_len)
            .u32(self.kind as u32)
            .done();
        let padding = self.name.len().next_multiple_of(8) - self.name.len();
        out.put(&head) && out.put(self.name) && out.put_zeros(padding)
    }
}

/// Encodes the entries of a READDIR.
#[derive(Debug)]
pub struct DirSink<'a> {
    out: Sink<'a>,
}

impl<'a> DirSink<'a> {
    pub(crate) const fn new(out: Sink<'a>) -> Self {
        Self { out }
    }

    /// Adds an entry. Returns false if it does not fit: stop then.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let before = self.out.len();
        let fits = entry.put(&mut self.out);
        debug_assert!(
            !fits || self.out.len().is_multiple_of(8),
            "entries are aligned"
        );
        if !fits {
            self.out.truncate(before);
        }
        fits
    }

    /// Bytes used.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.out.len()
    }

    /// True when no entry is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.out.is_empty()
    }
}

/// Encodes the entries of a READDIRPLUS.
#[derive(Debug)]
pub struct DirPlusSink<'a> {
    out: Sink<'a>,
}

impl<'a> DirPlusSink<'a> {
    pub(crate) const fn new(out: Sink<'a>) -> Self {
        Self { out }
    }

    /// Adds an entry. Returns false if it does not fit: stop then, and do not count it.
    ///
    /// With `looked_up` it counts as one lookup of that inode. `.` and `..` come without.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry<'_>, looked_up: Option<&Entry>) -> bool {
        let before = self.out.len();
        let head = looked_up.map_or([0; ENTRY_SIZE], Entry::encode);
        let fits = self.out.put(&head) && entry.put(&mut self.out);
        debug_assert!(
            !fits || self.out.len().is_multiple_of(8),
            "entries are aligned"
        );
        if !fits {
            self.out.truncate(before);
        }
        fits
    }

    /// Bytes used.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.out.len()
    }

    /// True when no entry is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.out.is_empty()
    }
}

/// The buffer of a worker's replies. It grows to the largest reply and stays so.
#[derive(Debug)]
pub struct ReplyBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Default for ReplyBuffer {
    fn default() -> Self {
        Self::over(vec![0; HEADER_SIZE], HEADER_SIZE)
    }
}

impl ReplyBuffer {
    /// Uses `bytes` for replies: bodies begin at `body_at`, each header right before.
    ///
    /// # Panics
    /// If the header does not fit, or `bytes` ends before `body_at`.
    #[must_use]
    pub fn over(mut bytes: Vec<u8>, body_at: usize) -> Self {
        assert!(bytes.len() >= body_at, "the body begins where bytes are");
        let start = body_at.checked_sub(HEADER_SIZE);
        let start = start.expect("a header fits before the body");
        bytes.truncate(body_at);
        Self { bytes, start }
    }

    /// Returns the bytes up to the end of the last reply.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Starts a new reply.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.start + HEADER_SIZE);
    }

    /// Returns a sink for a body of at most `limit` bytes.
    pub fn body(&mut self, limit: usize) -> Sink<'_> {
        debug_assert_eq!(self.body_len(), 0, "an answer has one body");
        Sink::new(&mut self.bytes, limit)
    }

    /// Returns the current length of the body.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        self.bytes.len() - HEADER_SIZE - self.start
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the header and returns the whole message. An error has no body.
    pub fn finish(&mut self, unique: u64, error: Option<Errno>) -> &[u8] {
        if error.is_some() {
            self.clear();
        }
        let message = &mut self.bytes[self.start..];
        let len_bytes = u32::try_from(message.len()).expect("a reply is below 4 GiB");
        let header = encode_header(len_bytes, error, unique);
        message[..HEADER_SIZE].copy_from_slice(&header);
        message
    }

    /// The head of the reply to IOCTL, before its data; its result comes by
    /// [`Self::set_ioctl_result`].
    pub fn put_ioctl_head(&mut self) {
        self.put(&[0; IOCTL_HEAD_SIZE]);
    }

    /// Takes the data of the reply to IOCTL.
    pub fn ioctl_data(&mut self, limit: usize) -> Sink<'_> {
        debug_assert_eq!(
            self.body_len(),
            IOCTL_HEAD_SIZE,
            "the data follows the head"
        );
        Sink::new(&mut self.bytes, limit)
    }

    /// What ioctl(2) returns.
    pub fn set_ioctl_result(&mut self, result: i32) {
        let head: [u8; IOCTL_HEAD_SIZE] = Fields::default().i32(result).zeros(12).done();
        let body = &mut self.bytes[self.start + HEADER_SIZE..];
        body[..IOCTL_HEAD_SIZE].copy_from_slice(&head);
    }

    /// Body of INIT.
    pub fn put_init(&mut self, reply: &super::init::InitReply) {
        self.put(&reply.encode());
    }

    /// Body of LOOKUP.
    pub fn put_lookup(&mut self, reply: &Lookup) {
        match reply {
            Lookup::Found(entry) => self.put_entry(entry),
            Lookup::Missing { ttl } => {
                let none = encode_entry(Ino(0), 0, (*ttl, Duration::ZERO), &[0; ATTR_SIZE]);
                self.put(&none);
            }
        }
    }

    /// Body of the requests that make a name.
    pub fn put_entry(&mut self, entry: &Entry) {
        debug_assert!(entry.ino.0 != 0, "0 stands for a missing name");
        self.put(&entry.encode());
    }

    /// Body of GETATTR and SETATTR.
    pub fn put_attr(&mut self, reply: &AttrReply) {
        let body = Fields::<{ 16 + ATTR_SIZE }>::default()
            .u64(reply.ttl.as_secs())
            .u32(reply.ttl.subsec_nanos())
            .u32(0)
            .bytes(&reply.attr.encode())
            .done();
        self.put(&body);
    }

    /// Body of STATX.
    pub fn put_statx(&mut self, reply: &StatxReply) {
        self.put(&encode_statx(reply));
    }

    /// Body of OPEN and OPENDIR.
    pub fn put_opened(&mut self, reply: &Opened) {
        debug_assert_eq!(
            reply.backing != 0,
            reply.flags.contains(OpenFlags::PASSTHROUGH),
            "a registered file is named to be read by the kernel"
        );
        let body = Fields::<16>::default()
            .u64(reply.fh.0)
            .u32(reply.flags.0)
            .u32(reply.backing)
            .done();
        self.put(&body);
    }

    /// Body of CREATE and TMPFILE.
    pub fn put_created(&mut self, (entry, opened): &(Entry, Opened)) {
        self.put_entry(entry);
        self.put_opened(opened);
    }

    /// Body of WRITE and COPY_FILE_RANGE, and of a question for the size of an attribute.
    pub fn put_u32(&mut self, value: u32) {
        self.put(&Fields::<8>::default().u32(value).u32(0).done());
    }

    /// Body of LSEEK and COPY_FILE_RANGE_64.
    pub fn put_u64(&mut self, value: u64) {
        self.put(&Fields::<8>::default().u64(value).done());
    }

    /// Body of STATFS.
    pub fn put_statfs(&mut self, reply: &StatFs) {
        debug_assert!(
            reply.blocks_available <= reply.blocks_free,
            "users get no more than is free"
        );
        debug_assert!(
            reply.blocks_free <= reply.blocks,
            "no more is free than there is"
        );
        let body = Fields::<80>::default()
            .u64(reply.blocks)
            .u64(reply.blocks_free)
            .u64(reply.blocks_available)
            .u64(reply.files)
            .u64(reply.files_free)
            .u32(reply.block_size)
            .u32(reply.name_len_max)
            .u32(reply.fragment_size)
            .zeros(28)
            .done();
        self.put(&body);
    }

    /// Body of GETLK.
    pub fn put_lock(&mut self, lock: &Lock) {
        let body = Fields::<24>::default()
            .u64(lock.start)
            .u64(lock.end)
            .u32(lock.kind.to_raw())
            .u32(lock.pid)
            .done();
        self.put(&body);
    }
}

/// The header before a reply.
#[must_use]
pub fn encode_header(len_bytes: u32, error: Option<Errno>, unique: u64) -> [u8; HEADER_SIZE] {
    let code = error.map_or(0, |errno| -errno.raw());
    debug_assert!(
        code > -512,
        "the kernel drops the reply otherwise, and its caller waits for ever"
    );
    Fields::default()
        .u32(len_bytes)
        .i32(code)
        .u64(unique)
        .done()
}

fn encode_statx(reply: &StatxReply) -> [u8; 288] {
    let attr = &reply.attr;
    debug_assert_eq!(
        reply.attributes & !reply.attributes_mask,
        0,
        "those that are set are known"
    );
    let mode = u16::try_from(attr.mode & 0xffff).expect("masked");
    let time = |time: Timestamp| {
        Fields::<16>::default()
            .i64(time.seconds())
            .u32(time.nanos())
            .u32(0)
            .done()
    };
    let (major, minor) = split_device(attr.rdev);
    Fields::default()
        .u64(reply.ttl.as_secs())
        .u32(reply.ttl.subsec_nanos())
        .zeros(4 + 16)
        .u32(STATX_MASK)
        .u32(attr.blksize)
        .u64(reply.attributes)
        .u32(attr.nlink)
        .u32(attr.uid)
        .u32(attr.gid)
        .u16(mode)
        .zeros(2)
        .u64(attr.ino.0)
        .u64(attr.size)
        .u64(attr.blocks)
        .u64(reply.attributes_mask)
        .bytes(&time(attr.atime))
        .bytes(&time(attr.btime))
        .bytes(&time(attr.ctime))
        .bytes(&time(attr.mtime))
        .u32(major)
        .u32(minor)
        .zeros(8 + 112)
        .done()
}

/// Major and minor number of a device number in the kernel's 32-bit encoding for user space.
const fn split_device(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00),
    )
}
