//! From the bytes of a request to the bytes of its answer.
//!
//! Invariants:
//! - every request that has an answer gets exactly one, from here or by its [`Deferred`];
//! - a handler that panics has answered `EIO`, and the session ends: what it left in memory is not
//!   to be trusted, what was acknowledged is in the log.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stitch_base::sync::Arc;

use crate::counts::RequestCounts;
use crate::errno::Errno;
use crate::handler::{Answer, Caller, Context, Deferred, Handler};
use crate::transport::ReplySender;
use crate::wire::args::{Create, Ioctl, Read};
use crate::wire::codec::{Sink, WireError};
use crate::wire::opcode::Opcode;
use crate::wire::reply::{DirPlusSink, DirSink, ReplyBuffer};
use crate::wire::request::{Header, Layout, Operation, Request};

/// Bytes of an extended attribute, or a list of them, at most (the kernel's own limit).
const XATTR_SIZE_MAX: usize = 1 << 16;
/// Bytes of a link's target at most: a page, less the terminating zero.
const LINK_SIZE_MAX: usize = 4095;
/// Bytes of a READ or a listing at most: far above what is negotiated.
const READ_SIZE_MAX: usize = 16 << 20;
/// Bytes that an ioctl takes at most: its command has 14 bits for their number.
const IOCTL_SIZE_MAX: usize = 1 << 14;
/// The largest count that COPY_FILE_RANGE can answer with.
const COPY_COUNT_MAX: u64 = 0xffff_f000;

/// What is to be done with an answered request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Send this.
    Reply(&'a [u8]),
    /// Nothing: it has no answer, or not yet.
    Silent,
    /// Send this, then end the session: the handler panicked.
    Poisoned(&'a [u8]),
}

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

/// What an operation has to say beside an error.
enum Said {
    /// The body is in the buffer.
    Body,
    /// Nothing now.
    Nothing,
}

impl Dispatcher {
    /// A dispatcher to `handler`.
    #[must_use]
    pub fn new(handler: Arc<dyn Handler>, counts: Arc<RequestCounts>, layout: Layout) -> Self {
        Self {
            handler,
            counts,
            layout,
        }
    }

    /// Serves the request in `bytes`. Answers that come later go through `sender`.
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
            operation => return call.answer(&operation, reply).map(|()| Said::Body),
        }
        Ok(Said::Nothing)
    }
}

/// A malformed request is answered, unless it is of a kind that has no answer.
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

/// A call of the handler.
struct Call<'a> {
    handler: &'a dyn Handler,
    context: &'a Context<'a>,
    ino: stitch_base::Ino,
}

impl Call<'_> {
    /// One arm for each operation; no wildcard. Long because there are many, not because it does
    /// much.
    fn answer(&self, operation: &Operation<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        let Self {
            handler,
            context,
            ino,
        } = *self;
        match *operation {
            Operation::Lookup { name } => {
                reply.put_lookup(&handler.lookup(context, ino, name)?);
            }
            Operation::GetAttr => reply.put_attr(&handler.getattr(context, ino)?),
            Operation::SetAttr(ref args) => {
                reply.put_attr(&handler.setattr(context, ino, args)?);
            }
            Operation::Statx(ref args) => reply.put_statx(&handler.statx(context, ino, args)?),
            Operation::ReadLink => {
                handler.readlink(context, ino, &mut reply.body(LINK_SIZE_MAX))?;
            }
            Operation::Symlink { name, target } => {
                reply.put_entry(&handler.symlink(context, ino, name, target)?);
            }
            Operation::MkNod(ref args) => reply.put_entry(&handler.mknod(context, ino, args)?),
            Operation::MkDir(ref args) => reply.put_entry(&handler.mkdir(context, ino, args)?),
            Operation::Unlink { name } => handler.unlink(context, ino, name)?,
            Operation::RmDir { name } => handler.rmdir(context, ino, name)?,
            Operation::Rename(ref args) => handler.rename(context, ino, args)?,
            Operation::Link { source, name } => {
                reply.put_entry(&handler.link(context, source, ino, name)?);
            }
            Operation::Open(ref args) => reply.put_opened(&handler.open(context, ino, args)?),
            Operation::OpenDir(ref args) => {
                reply.put_opened(&handler.opendir(context, ino, args)?);
            }
            Operation::Create(ref args) => self.create(args, reply)?,
            Operation::TmpFile(ref args) => self.tmpfile(args, reply)?,
            Operation::Read(ref args) => {
                handler.read(context, ino, args, &mut reply.body(size(args)))?;
            }
            Operation::ReadDir(ref args) => self.readdir(args, reply)?,
            Operation::ReadDirPlus(ref args) => self.readdirplus(args, reply)?,
            Operation::Write(ref args) => reply.put_u32(handler.write(context, ino, args)?),
            Operation::Flush(ref args) => handler.flush(context, ino, args)?,
            Operation::Release(ref args) => handler.release(context, ino, args)?,
            Operation::ReleaseDir(ref args) => handler.releasedir(context, ino, args)?,
            Operation::FSync(ref args) => handler.fsync(context, ino, args)?,
            Operation::FSyncDir(ref args) => handler.fsyncdir(context, ino, args)?,
            Operation::StatFs => reply.put_statfs(&handler.statfs(context, ino)?),
            Operation::SetXattr(ref args) => handler.setxattr(context, ino, args)?,
            Operation::GetXattr { name, size } => {
                fill_sized(reply, size, |out| handler.getxattr(context, ino, name, out))?;
            }
            Operation::ListXattr { size } => {
                fill_sized(reply, size, |out| handler.listxattr(context, ino, out))?;
            }
            Operation::RemoveXattr { name } => handler.removexattr(context, ino, name)?,
            Operation::Access { mask } => handler.access(context, ino, mask)?,
            Operation::GetLk(ref args) => reply.put_lock(&handler.getlk(context, ino, args)?),
            Operation::SetLk(ref args) => handler.setlk(context, ino, args)?,
            Operation::Ioctl(ref args) => self.ioctl(args, reply)?,
            Operation::Fallocate(ref args) => handler.fallocate(context, ino, args)?,
            Operation::LSeek(ref args) => reply.put_u64(handler.lseek(context, ino, args)?),
            Operation::CopyFileRange(mut args) => {
                args.length = args.length.min(COPY_COUNT_MAX);
                let copied = handler.copy_file_range(context, ino, &args)?;
                reply.put_u32(u32::try_from(copied).map_err(|_| Errno::EIO)?);
            }
            Operation::CopyFileRange64(ref args) => {
                reply.put_u64(handler.copy_file_range(context, ino, args)?);
            }
            Operation::SyncFs => handler.syncfs(context)?,
            // The session answers INIT before there is a dispatcher, and calls `destroy` itself.
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

    fn create(&self, args: &Create<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        let (entry, opened) = self.handler.create(self.context, self.ino, args)?;
        reply.put_entry(&entry);
        reply.put_opened(&opened);
        Ok(())
    }

    fn tmpfile(&self, args: &Create<'_>, reply: &mut ReplyBuffer) -> Answer<()> {
        let (entry, opened) = self.handler.tmpfile(self.context, self.ino, args)?;
        reply.put_entry(&entry);
        reply.put_opened(&opened);
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

/// Lets `body` write an extended attribute; a `size` of 0 asks how much there is.
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
