//! Decoded requests.

use stitch_base::Ino;

use super::args::{
    CopyFileRange, Create, FSync, Fallocate, Flush, ForgetList, Groups, Ioctl, LSeek, Lock, MkDir,
    MkNod, Open, Read, Release, Rename, SetAttr, SetXattr, Statx, Write,
};
use super::codec::{Reader, WireError};
use super::init::InitRequest;
use super::opcode::Opcode;

/// Bytes of the header before every request.
pub const HEADER_SIZE: usize = 40;

/// The header before every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the request, header included.
    pub len_bytes: u32,
    /// The operation, as a number.
    pub opcode: u32,
    /// Number of the request, which the reply repeats.
    pub unique: u64,
    /// The inode of the operation.
    pub ino: Ino,
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Process of the caller.
    pub pid: u32,
    /// Bytes of extensions at the end of the request.
    pub extensions_len_bytes: usize,
}

impl Header {
    /// Decodes the header at the front of a request.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when there are not enough bytes for one.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut head = Reader::new(bytes);
        let header = Self {
            len_bytes: head.u32()?,
            opcode: head.u32()?,
            unique: head.u64()?,
            ino: Ino(head.u64()?),
            uid: head.u32()?,
            gid: head.u32()?,
            pid: head.u32()?,
            extensions_len_bytes: usize::from(head.u16()?) * 8,
        };
        head.skip(2)?;
        Ok(header)
    }
}

/// The operation with its arguments.
#[derive(Clone, Copy, Debug)]
#[expect(
    missing_docs,
    reason = "the variants' comments say what their fields are"
)]
pub enum Operation<'a> {
    /// Find a name.
    Lookup { name: &'a [u8] },
    /// Subtract lookups.
    Forget { count: u64 },
    /// Subtract lookups of many inodes.
    BatchForget(ForgetList<'a>),
    /// Read attributes.
    GetAttr,
    /// Change attributes.
    SetAttr(SetAttr),
    /// Read more attributes.
    Statx(Statx),
    /// Read a symbolic link.
    ReadLink,
    /// Make a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Make a file, device, pipe or socket.
    MkNod(MkNod<'a>),
    /// Make a directory.
    MkDir(MkDir<'a>),
    /// Remove a name.
    Unlink { name: &'a [u8] },
    /// Remove a directory.
    RmDir { name: &'a [u8] },
    /// Move a name.
    Rename(Rename<'a>),
    /// Give `source` a further name in this directory.
    Link { source: Ino, name: &'a [u8] },
    /// Open a file.
    Open(Open),
    /// Open a directory.
    OpenDir(Open),
    /// Make and open a file.
    Create(Create<'a>),
    /// Make a file without a name.
    TmpFile(Create<'a>),
    /// Read from a file.
    Read(Read),
    /// List a directory.
    ReadDir(Read),
    /// List a directory with attributes.
    ReadDirPlus(Read),
    /// Write to a file.
    Write(Write<'a>),
    /// A descriptor was closed.
    Flush(Flush),
    /// The last descriptor was closed.
    Release(Release),
    /// The last descriptor of a directory was closed.
    ReleaseDir(Release),
    /// Make a file durable.
    FSync(FSync),
    /// Make a directory durable.
    FSyncDir(FSync),
    /// Space and limits.
    StatFs,
    /// Set an extended attribute.
    SetXattr(SetXattr<'a>),
    /// Read an extended attribute of at most `size` bytes, or its size if `size` is 0.
    GetXattr { name: &'a [u8], size: u32 },
    /// List extended attributes in at most `size` bytes, or their size if `size` is 0.
    ListXattr { size: u32 },
    /// Remove an extended attribute.
    RemoveXattr { name: &'a [u8] },
    /// Check the caller's rights.
    Access { mask: u32 },
    /// Test for a lock.
    GetLk(Lock),
    /// Take or drop a lock.
    SetLk(Lock),
    /// Take a lock, waiting for it.
    SetLkW(Lock),
    /// The caller of request `unique` got a signal.
    Interrupt { unique: u64 },
    /// Device control.
    Ioctl(Ioctl<'a>),
    /// Allocate, punch or zero.
    Fallocate(Fallocate),
    /// Find data or a hole.
    LSeek(LSeek),
    /// Copy, counted in 32 bits.
    CopyFileRange(CopyFileRange),
    /// Copy, counted in 64 bits.
    CopyFileRange64(CopyFileRange),
    /// Make everything durable.
    SyncFs,
    /// First request.
    Init(InitRequest),
    /// Last request.
    Destroy,
    /// An operation that is not served, known or not.
    Unserved,
}

/// Variants of the request layout, by the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// SETXATTR has two more words.
    pub setxattr_ext: bool,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its header.
    pub header: Header,
    /// Groups of a creation.
    pub groups: Groups<'a>,
    /// The operation.
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Decodes a request.
    ///
    /// # Errors
    /// If it is malformed. Reply `EINVAL` if it has a header ([`Header::parse`]).
    pub fn parse(bytes: &'a [u8], layout: Layout) -> Result<Self, WireError> {
        let header = Header::parse(bytes)?;
        if usize::try_from(header.len_bytes).ok() != Some(bytes.len()) {
            return Err(WireError::BadLength);
        }
        let body = bytes.get(HEADER_SIZE..).ok_or(WireError::Truncated)?;
        let cut = body.len().checked_sub(header.extensions_len_bytes);
        let (body, extensions) = body.split_at(cut.ok_or(WireError::BadLength)?);
        let groups = Groups::parse(extensions)?;
        let operation = match Opcode::from_raw(header.opcode) {
            Some(opcode) => parse_operation(opcode, &mut Reader::new(body), layout)?,
            None => Operation::Unserved,
        };
        Ok(Self {
            header,
            groups,
            operation,
        })
    }
}

/// One arm for each opcode; no wildcard, so that a new one forces a decision.
fn parse_operation<'a>(
    opcode: Opcode,
    body: &mut Reader<'a>,
    layout: Layout,
) -> Result<Operation<'a>, WireError> {
    Ok(match opcode {
        Opcode::Lookup => Operation::Lookup { name: body.name()? },
        Opcode::Forget => Operation::Forget { count: body.u64()? },
        Opcode::BatchForget => Operation::BatchForget(ForgetList::parse(body)?),
        Opcode::GetAttr => body.skip(16).map(|()| Operation::GetAttr)?,
        Opcode::SetAttr => Operation::SetAttr(SetAttr::parse(body)?),
        Opcode::Statx => Operation::Statx(Statx::parse(body)?),
        Opcode::ReadLink => Operation::ReadLink,
        Opcode::Symlink => Operation::Symlink {
            name: body.name()?,
            target: body.text()?,
        },
        Opcode::MkNod => Operation::MkNod(MkNod::parse(body)?),
        Opcode::MkDir => Operation::MkDir(MkDir::parse(body)?),
        Opcode::Unlink => Operation::Unlink { name: body.name()? },
        Opcode::RmDir => Operation::RmDir { name: body.name()? },
        Opcode::Rename => Operation::Rename(Rename::parse(body, false)?),
        Opcode::Rename2 => Operation::Rename(Rename::parse(body, true)?),
        Opcode::Link => Operation::Link {
            source: Ino(body.u64()?),
            name: body.name()?,
        },
        Opcode::Open => Operation::Open(Open::parse(body)?),
        Opcode::OpenDir => Operation::OpenDir(Open::parse(body)?),
        Opcode::Create => Operation::Create(Create::parse(body)?),
        Opcode::TmpFile => Operation::TmpFile(Create::parse(body)?),
        Opcode::Read => Operation::Read(Read::parse(body)?),
        Opcode::ReadDir => Operation::ReadDir(Read::parse(body)?),
        Opcode::ReadDirPlus => Operation::ReadDirPlus(Read::parse(body)?),
        Opcode::Write => Operation::Write(Write::parse(body)?),
        Opcode::Flush => Operation::Flush(Flush::parse(body)?),
        Opcode::Release => Operation::Release(Release::parse(body)?),
        Opcode::ReleaseDir => Operation::ReleaseDir(Release::parse(body)?),
        Opcode::FSync => Operation::FSync(FSync::parse(body)?),
        Opcode::FSyncDir => Operation::FSyncDir(FSync::parse(body)?),
        Opcode::StatFs => Operation::StatFs,
        Opcode::SetXattr => Operation::SetXattr(SetXattr::parse(body, layout.setxattr_ext)?),
        Opcode::GetXattr => parse_getxattr(body)?,
        Opcode::ListXattr => Operation::ListXattr { size: sized(body)? },
        Opcode::RemoveXattr => Operation::RemoveXattr { name: body.name()? },
        Opcode::Access => Operation::Access { mask: sized(body)? },
        Opcode::GetLk => Operation::GetLk(Lock::parse(body)?),
        Opcode::SetLk => Operation::SetLk(Lock::parse(body)?),
        Opcode::SetLkW => Operation::SetLkW(Lock::parse(body)?),
        Opcode::Interrupt => Operation::Interrupt {
            unique: body.u64()?,
        },
        Opcode::Ioctl => Operation::Ioctl(Ioctl::parse(body)?),
        Opcode::Fallocate => Operation::Fallocate(Fallocate::parse(body)?),
        Opcode::LSeek => Operation::LSeek(LSeek::parse(body)?),
        Opcode::CopyFileRange => Operation::CopyFileRange(CopyFileRange::parse(body)?),
        Opcode::CopyFileRange64 => Operation::CopyFileRange64(CopyFileRange::parse(body)?),
        Opcode::SyncFs => Operation::SyncFs,
        Opcode::Init => Operation::Init(InitRequest::parse(body)?),
        Opcode::Destroy => Operation::Destroy,
        Opcode::BMap
        | Opcode::Poll
        | Opcode::NotifyReply
        | Opcode::SetupMapping
        | Opcode::RemoveMapping => Operation::Unserved,
    })
}

fn parse_getxattr<'a>(body: &mut Reader<'a>) -> Result<Operation<'a>, WireError> {
    let size = sized(body)?;
    let name = body.name()?;
    Ok(Operation::GetXattr { name, size })
}

/// A 32-bit number and its padding.
fn sized(body: &mut Reader<'_>) -> Result<u32, WireError> {
    let value = body.u32()?;
    body.skip(4)?;
    Ok(value)
}
