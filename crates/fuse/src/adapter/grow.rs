//! Files that grow: bytes behind the old end stay zeros.
//!
//! A program that maps a file can write behind its end, in the last page. These bytes are not part
//! of the file, and the kernel sends none of them. When the file grows, they would become visible
//! in the kernel's page, and would be written back with it later. So before the reply to a request
//! that grows a file, the kernel's page is zeroed:
//!
//! ```text
//!   page    |aaaaaaaaaa|........stray.......|
//!                      old end              end of the page
//!   zeros              |000000000000|      up to what the request has written, and the new end
//! ```
//!
//! A page that was not read since the kernel's lookup has no such bytes, and needs no notice.
//!
//! A WRITE that begins in that page is left alone: the kernel may hold the page's lock until the
//! reply.

use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::{FallocateMode, SetAttr, Writer};

use super::pages::PAGE_BYTES;
use super::{Adapter, COPY_SIZE_MAX, OrErrno as _, convert, setid};
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::args::{self, CopyFileRange, Fallocate};
use crate::wire::reply::AttrReply;

/// How long a request waits for the page's lock, which a READ of the page may hold until its reply.
const PATIENCE: Duration = Duration::from_secs(2);

/// The end of a file before a request, if the kernel may have bytes behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldEnd(u64);

/// How a request moves the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// It sets the size.
    Size,
    /// It writes from this offset on, and the kernel does not hold a page's lock.
    Copy(u64),
    /// It writes from this offset on, and the kernel may hold the lock of the first page.
    Write(u64),
}

impl Adapter {
    /// Returns the end of a file that a request may move; `None` if the kernel has no bytes behind
    /// it.
    pub(super) fn old_end(&self, ino: Ino) -> Answer<Option<OldEnd>> {
        if !self.fs.cached_pages(ino).end {
            return Ok(None);
        }
        let size = self.fs.get_attr(ino).or_errno()?.size;
        Ok(Some(OldEnd(size)))
    }

    /// Zeroes the kernel's bytes between the old end of a file and the bytes that the request wrote
    /// behind it. Call it after the change, before the reply.
    pub(super) fn fill_behind(
        &self,
        ino: Ino,
        old_end: Option<OldEnd>,
        growth: Growth,
    ) -> Answer<()> {
        let Some(OldEnd(old_end)) = old_end else {
            return Ok(());
        };
        let new_end = self.fs.get_attr(ino).or_errno()?.size;
        let page_end = old_end.next_multiple_of(PAGE_BYTES);
        if new_end < old_end || new_end >= page_end {
            // The page was dropped, or is an ordinary page from now on.
            self.fs.note_end_uncached(ino);
        }
        let zeros_end = match growth {
            Growth::Size => new_end,
            Growth::Write(from) if from < page_end => return Ok(()),
            Growth::Copy(from) | Growth::Write(from) => from.min(new_end),
        };
        let zeros = old_end..zeros_end.min(page_end);
        if !zeros.is_empty() && !self.pages.zero(ino, zeros, PATIENCE) {
            tracing::warn!(
                ino = ino.0,
                "what was mapped behind the end may come into sight"
            );
        }
        Ok(())
    }

    /// SETATTR.
    pub(super) fn set_attributes(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &args::SetAttr,
    ) -> Answer<AttrReply> {
        let (clear_setid, _) = setid::taken(&self.fs, context, ino, args.kill_suidgid)?;
        let mut set = convert::set_attr(args, clear_setid);
        let old_end = match set {
            SetAttr { size: None, .. } => None,
            _ => self.old_end(ino)?,
        };
        let is_cut_to_nothing = set.size == Some(0);
        if let Some(size) = set.size
            && let Writer::Process(process) = self.writer(context, ino)
        {
            self.fs
                .resize_staged(ino, process, size, clear_setid)
                .or_errno()?;
            set.size = None;
        }
        let actor = self.actor(context);
        let attr = self.fs.set_attr(&actor.caller(), ino, &set).or_errno()?;
        self.fill_behind(ino, old_end, Growth::Size)?;
        if is_cut_to_nothing {
            self.fs.note_uncached(ino);
        }
        Ok(self.attr_reply(&attr))
    }

    /// FALLOCATE.
    pub(super) fn allocate(&self, context: &Context<'_>, ino: Ino, args: &Fallocate) -> Answer<()> {
        let mode = convert::fallocate_mode(args.mode)?;
        let old_end = match mode {
            FallocateMode::Allocate { keep_size: false }
            | FallocateMode::ZeroRange { keep_size: false } => self.old_end(ino)?,
            _ => None,
        };
        self.fs
            .fallocate(ino, mode, args.offset, args.length)
            .or_errno()?;
        self.fill_behind(ino, old_end, Growth::Size)?;
        setid::clear(&self.fs, &self.attr_cache, context, ino)
    }

    /// COPY_FILE_RANGE.
    pub(super) fn copy(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &CopyFileRange,
    ) -> Answer<u64> {
        if args.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let source = (ino, args.source_offset);
        let target = (args.target, args.target_offset);
        let length = args.length.min(COPY_SIZE_MAX);
        let old_end = self.old_end(args.target)?;
        let copied = self.fs.copy_range(source, target, length).or_errno()?;
        self.fill_behind(args.target, old_end, Growth::Copy(args.target_offset))?;
        // The kernel asks for a new access time only after a READ.
        if copied > 0 && self.fs.touch_atime(ino) {
            self.attr_cache.drop_attr(ino);
        }
        setid::clear(&self.fs, &self.attr_cache, context, args.target)?;
        Ok(copied)
    }
}
