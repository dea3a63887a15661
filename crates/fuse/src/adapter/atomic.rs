//! Atomic writes of files, by the ioctls of F2FS that `SQLite` uses.
//!
//! ```text
//! program              kernel                       daemon
//! ioctl(START)     --> IOCTL ------------------->   held in memory from now on
//! pwrite           --> WRITE (and its page cache)   staged
//! ioctl(COMMIT)    --> IOCTL ------------------->   one batch, synced; the reply follows
//!
//! is killed        --> FLUSH ------------------->   ends the atomic write
//!                                                   notice: drop the file's pages
//!                      releases the file's locks <- reply
//! ```
//!
//! The kernel has staged bytes in its page cache. So whatever ends an atomic write without a commit
//! is answered only when the kernel has dropped them. FLUSH comes before the kernel releases the
//! locks of a process that was killed: the next process that has the lock reads the file as it was.
//! Without `FLUSH` requests there are no atomic writes ([`AdapterOptions::atomic_writes`]).
//!
//! [`AdapterOptions::atomic_writes`]: super::AdapterOptions::atomic_writes

use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::{AtomicWriter, Caller, FILE_BYTES_MAX, FsError, Writer};

use super::process::Process;
use super::{Adapter, OrErrno as _, reclaim, refused};
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::args::Ioctl;
use crate::wire::codec::{Fields, Sink};

/// `F2FS_IOC_START_ATOMIC_WRITE`
const START: u32 = 0xf501;
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`
const COMMIT: u32 = 0xf502;
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`, in older headers `F2FS_IOC_ABORT_VOLATILE_WRITE`
const ABORT: u32 = 0xf505;
/// `F2FS_IOC_GET_FEATURES`
const GET_FEATURES: u32 = 0x8004_f50c;
/// `F2FS_FEATURE_ATOMIC_WRITE`
const FEATURE_ATOMIC_WRITE: u32 = 0x4;

/// How long one notice that drops pages may take: READs that hold pages are answered before.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most attempts to have pages dropped. One that gets no turn takes 5 ms.
const DROPS_MAX: usize = 400;
/// Most attempts of a commit that finds no space. Each time some was freed.
const ROOM_TRIES: usize = 1000;

/// Reports whether a command is about atomic writes.
pub(super) const fn is_asked(command: u32) -> bool {
    matches!(command, START | COMMIT | ABORT | GET_FEATURES)
}

/// Reports whether a command begins or ends an atomic write.
pub(super) const fn is_change(command: u32) -> bool {
    matches!(command, START | COMMIT | ABORT)
}

impl Adapter {
    /// Serves the ioctls. `ENOTTY` in a mount without atomic writes.
    pub(super) fn atomic_ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        if !self.options.atomic_writes {
            return Err(Errno::ENOTTY);
        }
        match args.command {
            START => self.start_atomic(context, ino)?,
            COMMIT => self.commit_atomic(context, ino)?,
            ABORT => self.abort_atomic(context, ino)?,
            _ => {
                let takes = self.fs.takes_atomic_writes(ino).or_errno()?;
                let features = if takes { FEATURE_ATOMIC_WRITE } else { 0 };
                if !out.put(&Fields::<4>::default().u32(features).done()) {
                    return Err(Errno::EINVAL);
                }
            }
        }
        Ok(0)
    }

    /// The kernel does not tell how the file was opened. So the caller must own it, as on F2FS, and
    /// an owner may write.
    fn start_atomic(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        let process = Process::of(context);
        // A process that cannot be seen cannot be told from others.
        let (Some(id), Some(uid)) = (process.id(), process.uid()) else {
            return Err(Errno::ENOTSUP);
        };
        let caller = Caller {
            uid,
            gid: uid,
            groups: &[],
        };
        let writer = AtomicWriter {
            process: id,
            thread: context.caller.pid,
        };
        let start = || self.fs.start_atomic_write(&caller, ino, writer);
        let mut started = start();
        if matches!(started, Err(FsError::Busy)) && self.has_atomic(context, ino) {
            // Its own was ended by another change of the file.
            self.end_atomic(ino);
            started = start();
        }
        started.or_errno()
    }

    /// After an error the atomic write has ended, unless it is of another process.
    fn commit_atomic(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        let Writer::Process(process) = self.writer(context, ino) else {
            return Err(match self.fs.atomic_writer(ino) {
                Some(_) => Errno::EBUSY,
                None => Errno::EINVAL,
            });
        };
        let mut committed = Err(FsError::NoSpace);
        for _ in 0..ROOM_TRIES {
            let mark = self.fs.room_mark();
            committed = self.fs.commit_atomic_write(ino, process);
            let is_full = matches!(committed, Err(FsError::NoSpace));
            if !is_full || !reclaim::make_room(&self.fs, mark) {
                break;
            }
        }
        match committed {
            Ok(_) => {
                // The times have changed since the last WRITE.
                self.attr_cache.drop_attr(ino);
                Ok(())
            }
            Err(error) => {
                self.end_atomic(ino);
                Err(refused(&error))
            }
        }
    }

    fn abort_atomic(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        if self.fs.atomic_writer(ino).is_none() {
            return Ok(());
        }
        if !self.has_atomic(context, ino) {
            return Err(Errno::EBUSY);
        }
        self.end_atomic(ino);
        Ok(())
    }

    /// FLUSH: a process has closed a descriptor, and so loses its locks of the file. `ENOSYS` in a
    /// mount without atomic writes: the kernel sends no more.
    pub(super) fn flush_request(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        if !self.options.atomic_writes {
            return Err(Errno::ENOSYS);
        }
        let Some(owner) = self.fs.atomic_writer(ino) else {
            return Ok(());
        };
        // The thread that closes the files of a killed process is any of its threads. One that
        // cannot be seen may be of it.
        let is_other = owner.thread != context.caller.pid
            && Process::of(context)
                .id()
                .is_some_and(|id| id != owner.process);
        if !is_other {
            self.end_atomic(ino);
        }
        Ok(())
    }

    /// Returns the sender of a request, as far as the atomic write of a file matters.
    pub(super) fn writer(&self, context: &Context<'_>, ino: Ino) -> Writer {
        match self.fs.atomic_writer(ino) {
            None => Writer::Other,
            Some(owner) if owner.thread == context.caller.pid => Writer::Process(owner.process),
            Some(_) => Process::of(context)
                .id()
                .map_or(Writer::Other, Writer::Process),
        }
    }

    /// Reports whether the sender of a request has the atomic write of a file.
    fn has_atomic(&self, context: &Context<'_>, ino: Ino) -> bool {
        let owner = self.fs.atomic_writer(ino);
        owner.is_some_and(|owner| self.writer(context, ino) == Writer::Process(owner.process))
    }

    /// Ends an atomic write, if there is one, and returns when the kernel has dropped its pages.
    fn end_atomic(&self, ino: Ino) {
        if !self.fs.end_atomic_write(ino) {
            return;
        }
        let all = 0..FILE_BYTES_MAX;
        let is_dropped = (0..DROPS_MAX).any(|_| self.pages.drop_range(ino, all.clone(), PATIENCE));
        if !is_dropped {
            tracing::error!(
                ino = ino.0,
                "the kernel may show bytes of an atomic write that was not committed"
            );
        }
        self.fs.remove_atomic_write(ino);
    }
}
