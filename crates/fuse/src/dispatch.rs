//! Decodes a request, calls the handler, and encodes the reply.
//!
//! Invariants:
//! - every request that has a reply gets exactly one, from here or by its [`Deferred`];
//! - if a handler panics, the reply is `EIO` and the session ends: its memory cannot be trusted,
//!   and everything acknowledged is in the log.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stitch_base::sync::Arc;

use crate::counts::RequestCounts;
use crate::errno::Errno;
use crate::handler::{Answer, Caller, Context, Deferred, Handler};
use crate::transport::ReplySender;
use crate::wire::args::{CopyFileRange, Ioctl, Read, Write};
use crate::wire::codec::{Sink, WireError};
use crate::wire::flags::WriteFlags;
use crate::wire::opcode::Opcode;
use crate::wire::reply::{DirPlusSink, DirSink, ReplyBuffer};
use crate::wire::request::{Header, Layout, Operation, Request};
use crate::write_back::{LOOK, WriteBackCounts};

/// Most bytes of an extended attribute or a list of them (the kernel's own limit).
const XATTR_SIZE_MAX: usize = 1 << 16;
/// Most bytes of a link's target: a page without the terminating zero.
const LINK_SIZE_MAX: usize = 4095;
/// Most bytes of a READ or a listing: far above the negotiated size.
const READ_SIZE_MAX: usize = 16 << 20;
/// Most bytes of an ioctl: its command has 14 bits for the length.
const IOCTL_SIZE_MAX: usize = 1 << 14;
/// The largest result of COPY_FILE_RANGE.
const COPY_COUNT_MAX: u64 = 0xffff_f000;

/// What the transport must do after a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Send this reply.
    Reply(&'a [u8]),
    /// Nothing: the request has no reply, or not yet.
    Silent,
    /// Send this reply, then end the session: the handler panicked.
    Poisoned(&'a [u8]),
}

/// Most attempts of a request that finds no space. Each time some was freed.
const ROOM_TRIES: usize = 1000;

/// Calls the handler.
pub struct Dispatcher {
    handler: Arc<dyn Handler>,
    counts: Arc<RequestCounts>,
    layout: Layout,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher")
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// The result of an operation other than an error.
enum Said {
    /// The body is in the buffer.
    Body,
    /// Nothing now.
    Nothing,
}

impl Dispatcher {
    /// Creates a dispatcher that calls `handler`.
    #[must_use]
    pub fn new(handler: Arc<dyn Handler>, counts: Arc<RequestCounts>, layout: Layout) -> Self {
        Self {
            handler,
            counts,
            layout,
        }
    }

    /// Serves the request in `bytes`. Deferred replies are sent through `sender`.
    pub fn dispatch<'a>(
        &self,
        bytes: &[u8],
        reply: &'a mut ReplyBuffer,
        sender: &Arc<dyn ReplySender>,
    ) -> Outcome<'a> {
        let Ok(header) = Header::parse(bytes) else {
            tracing::warn!(
                len_bytes = bytes.len(),
                "a request without a header was dropped"
            );
            return Outcome::Silent;
        };
        self.counts.count(header.opcode);
        let _span = tracing::trace_span!(
            "fuse",
            op = Opcode::from_raw(header.opcode).map_or("UNKNOWN", Opcode::name),
            req = header.unique,
            ino = header.ino.0,
        )
        .entered();
        reply.clear();
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(bytes, reply, sender)));
        match served {
            Ok(Ok(Said::Body)) => Outcome::Reply(reply.finish(header.unique, None)),
            Ok(Ok(Said::Nothing)) => Outcome::Silent,
            Ok(Err(errno)) => {
                tracing::trace!(?errno, "refused");
                Outcome::Reply(reply.finish(header.unique, Some(errno)))
            }
            Err(_) => {
                tracing::error!(op = header.opcode, ino = header.ino.0, "a request panicked");
                Outcome::Poisoned(reply.finish(header.unique, Some(Errno::EIO)))
            }
        }
    }

    fn serve(
        &self,
        bytes: &[u8],
        reply: &mut ReplyBuffer,
        sender: &Arc<dyn ReplySender>,
    ) -> Answer<Said> {
        let request = match Request::parse(bytes, self.layout) {
            Ok(request) => request,
            Err(error) => return refuse_malformed(bytes, error),
        };
        let header = &request.header;
        let context = Context {
            caller: Caller {
                uid: header.uid,
                gid: header.gid,
                pid: header.pid,
            },
            unique: header.unique,
            groups: request.groups,
        };
        let call = Call {
            handler: &*self.handler,
            write_back: self.counts.write_back(),
            context: &context,
            ino: header.ino,
        };
        match request.operation {
            Operation::Forget { count } => self.handler.forget(header.ino, count),
            Operation::BatchForget(list) => self.handler.batch_forget(list),
            Operation::Interrupt { unique } => self.handler.interrupt(unique),
            Operation::SetLkW(lock) => {
                let deferred = Deferred::new(header.unique, Arc::clone(sender));
                self.handler.setlkw(&context, header.ino, &lock, deferred);
            }
            operation => {
                return call
                    .answer_with_room(&operation, reply)
                    .map(|()| Said::Body);
            }
        }
        Ok(Said::Nothing)
    }
}

/// Refuses a malformed request, unless its opcode has no reply.
fn refuse_malformed(bytes: &[u8], error: WireError) -> Answer<Said> {
    tracing::warn!(%error, len_bytes = bytes.len(), "a malformed request was refused");
    let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt];
    let opcode = Header::parse(bytes)
        .ok()
        .and_then(|header| Opcode::from_raw(header.opcode));
    match opcode {
        Some(opcode) if silent.contains(&opcode) => Ok(Said::Nothing),
        _ => Err(Errno::EINVAL),
    }
}

/// A call of the handler. WRITEs from the kernel's cache are counted around it.
struct Call<'a> {
    handler: &'a dyn Handler,
    write_back: &'a WriteBackCounts,
    context: &'a Context<'a>,
    ino: stitch_base::Ino,
}

impl Call<'_> {
    /// Serves the operation, again while missing space is being freed. An operation that found no
    /// space can be repeated: an error leaves nothing done except the first part of a write.
    fn answer_with_room(&self, operation: &Operation<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        let mut mark = self.handler.room_mark();
        let mut answer = self.answer(operation, reply);
        for _ in 0..ROOM_TRIES {
            if !matches!(answer, Err(Errno::ENOSPC)) || !self.handler.makes_room(mark) {
                break;
            }
            reply.clear();
            mark = self.handler.room_mark();
            answer = self.answer(operation, reply);
        }
        answer
    }

    /// Calls the handler: one arm for each operation, no wildcard. Long, but simple.
    fn answer(&self, operation: &Operation<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        let (h, c, ino) = (self.handler, self.context, self.ino);
        match operation {
            Operation::Lookup { name } => reply.put_lookup(&h.lookup(c, ino, name)?),
            Operation::GetAttr => reply.put_attr(&h.getattr(c, ino)?),
            Operation::SetAttr(args) => reply.put_attr(&h.setattr(c, ino, args)?),
            Operation::Statx(args) => reply.put_statx(&h.statx(c, ino, args)?),
            Operation::ReadLink => h.readlink(c, ino, &mut reply.body(LINK_SIZE_MAX))?,
            Operation::Symlink { name, target } => {
                reply.put_entry(&h.symlink(c, ino, name, target)?);
            }
            Operation::MkNod(args) => reply.put_entry(&h.mknod(c, ino, args)?),
            Operation::MkDir(args) => reply.put_entry(&h.mkdir(c, ino, args)?),
            Operation::Unlink { name } => h.unlink(c, ino, name)?,
            Operation::RmDir { name } => h.rmdir(c, ino, name)?,
            Operation::Rename(args) => h.rename(c, ino, args)?,
            Operation::Link { source, name } => reply.put_entry(&h.link(c, *source, ino, name)?),
            Operation::Open(args) => reply.put_opened(&h.open(c, ino, args)?),
            Operation::OpenDir(args) => reply.put_opened(&h.opendir(c, ino, args)?),
            Operation::Create(args) => reply.put_created(&h.create(c, ino, args)?),
            Operation::TmpFile(args) => reply.put_created(&h.tmpfile(c, ino, args)?),
            Operation::Read(args) => h.read(c, ino, args, &mut reply.body(size(args)))?,
            Operation::ReadDir(args) => self.readdir(args, reply)?,
            Operation::ReadDirPlus(args) => self.readdirplus(args, reply)?,
            Operation::Write(args) => self.write(args, reply)?,
            Operation::Flush(args) => h.flush(c, ino, args)?,
            Operation::Release(args) => h.release(c, ino, args)?,
            Operation::ReleaseDir(args) => h.releasedir(c, ino, args)?,
            Operation::FSync(args) => h.fsync(c, ino, args)?,
            Operation::FSyncDir(args) => h.fsyncdir(c, ino, args)?,
            Operation::StatFs => reply.put_statfs(&h.statfs(c, ino)?),
            Operation::SetXattr(args) => h.setxattr(c, ino, args)?,
            Operation::GetXattr { name, size } => {
                match h.probed_xattr_size(ino, name).filter(|_| *size == 0) {
                    Some(probed) => reply.put_u32(probed),
                    None => fill_sized(reply, *size, |out| h.getxattr(c, ino, name, out))?,
                }
            }
            Operation::ListXattr { size } => {
                fill_sized(reply, *size, |out| h.listxattr(c, ino, out))?;
            }
            Operation::RemoveXattr { name } => h.removexattr(c, ino, name)?,
            Operation::Access { mask } => h.access(c, ino, *mask)?,
            Operation::GetLk(args) => reply.put_lock(&h.getlk(c, ino, args)?),
            Operation::SetLk(args) => h.setlk(c, ino, args)?,
            Operation::Ioctl(args) => self.ioctl(args, reply)?,
            Operation::Fallocate(args) => h.fallocate(c, ino, args)?,
            Operation::LSeek(args) => reply.put_u64(h.lseek(c, ino, args)?),
            Operation::CopyFileRange(args) => self.copy_small(args, reply)?,
            Operation::CopyFileRange64(args) => reply.put_u64(h.copy_file_range(c, ino, args)?),
            Operation::SyncFs => h.syncfs(c)?,
            // The session handles INIT before there is a dispatcher, and calls `destroy` itself.
            Operation::Init(_) => return Err(Errno::EIO),
            Operation::Destroy => {}
            Operation::Unserved => return Err(Errno::ENOSYS),
            Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Interrupt { .. }
            | Operation::SetLkW(_) => unreachable!("these were served before"),
        }
        Ok(())
    }

    /// Serves COPY_FILE_RANGE, whose reply has 32 bits for the count.
    fn copy_small(&self, args: &CopyFileRange, reply: &mut ReplyBuffer) -> Answer<()> {
        let length = args.length.min(COPY_COUNT_MAX);
        let args = CopyFileRange { length, ..*args };
        let copied = self
            .handler
            .copy_file_range(self.context, self.ino, &args)?;
        reply.put_u32(u32::try_from(copied).map_err(|_| Errno::EIO)?);
        Ok(())
    }

    fn write(&self, args: &Write<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        let is_cached = args.write_flags.contains(WriteFlags::CACHE);
        let _busy = is_cached.then(|| self.write_back.begin());
        let count = self.handler.write(self.context, self.ino, args)?;
        reply.put_u32(count);
        Ok(())
    }

    fn readdir(&self, args: &Read, reply: &mut ReplyBuffer) -> Answer<()> {
        let mut out = DirSink::new(reply.body(size(args)));
        self.handler.readdir(self.context, self.ino, args, &mut out)
    }

    fn readdirplus(&self, args: &Read, reply: &mut ReplyBuffer) -> Answer<()> {
        let mut out = DirPlusSink::new(reply.body(size(args)));
        self.handler
            .readdirplus(self.context, self.ino, args, &mut out)
    }

    fn ioctl(&self, args: &Ioctl<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        reply.put_ioctl_head();
        let limit = usize::try_from(args.output_size)
            .unwrap_or(usize::MAX)
            .min(IOCTL_SIZE_MAX);
        let mut out = reply.ioctl_data(limit);
        if args.command == LOOK {
            // The kernel counts this request too.
            let look = self.write_back.look(1);
            return out.put(&look.encode()).then_some(()).ok_or(Errno::EINVAL);
        }
        let result = self.handler.ioctl(self.context, self.ino, args, &mut out)?;
        reply.set_ioctl_result(result);
        Ok(())
    }
}

fn size(args: &Read) -> usize {
    usize::try_from(args.size)
        .unwrap_or(usize::MAX)
        .min(READ_SIZE_MAX)
}

/// Lets `body` write an extended attribute; a `size` of 0 asks for its length.
fn fill_sized(
    reply: &mut ReplyBuffer,
    size: u32,
    body: impl FnOnce(&mut Sink<'_>) -> Answer<()>,
) -> Answer<()> {
    body(&mut reply.body(XATTR_SIZE_MAX))?;
    let used = reply.body_len();
    if size == 0 {
        reply.clear();
        reply.put_u32(u32::try_from(used).expect("at most 64 KiB"));
        return Ok(());
    }
    if u32::try_from(used).is_ok_and(|used| used <= size) {
        Ok(())
    } else {
        Err(Errno::ERANGE)
    }
}

#[cfg(test)]
mod tests;
