//! OPEN, where it is served: with passthrough, and in a store with immutable or append-only files,
//! which the kernel does not know about. In other mounts the kernel stops sending OPEN after the
//! first reply.
//!
//! With passthrough, attributes of files that may be changed through a mapping expire at once.

use std::io;
use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::FsError;

use super::opens::CACHED;
use super::{Adapter, Opens, OrErrno as _, convert};
use crate::backing::BackingFiles;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::wire::flags::OpenFlags;
use crate::wire::reply::{AttrReply, Entry, FOREVER, Opened};

impl Adapter {
    pub(super) fn serve_opens(&self, files: BackingFiles) -> io::Result<()> {
        let opens = Opens::new(files, &self.fs)?;
        let set = self.opens.set(opens);
        set.map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// Reports whether OPEN is answered; elsewhere the kernel does without.
    pub(super) fn answers_opens(&self) -> bool {
        self.fs.has_fixed_files() || self.opens.get().is_some()
    }

    pub(super) fn open_file(&self, ino: Ino, flags: u32) -> Answer<Opened> {
        let asks = self.fs.has_fixed_files();
        if asks {
            let writes = flags & libc::O_ACCMODE.cast_unsigned() != 0;
            let appends = flags & convert::O_APPEND != 0;
            self.fs.check_open(ino, writes, appends).or_errno()?;
        }
        let Some(opens) = self.opens.get() else {
            return if asks { Ok(CACHED) } else { Err(Errno::ENOSYS) };
        };
        let decided = opens.open(&self.fs, ino, flags);
        if decided.is_newly_mapped {
            self.attr_cache.drop_attr(ino);
        }
        if decided.opened.flags == OpenFlags::PASSTHROUGH {
            // Reads of a passthrough file send no requests.
            self.fs.touch_atime(ino);
        }
        Ok(decided.opened)
    }

    /// Adds lifetime and generation to an entry.
    pub(super) fn timed(&self, entry: Entry) -> Entry {
        let attr_ttl = self.attr_ttl(entry.ino);
        let mut attr = self.with_mapped(entry.attr);
        let generation = self.generation_of(entry.ino);
        let ino = self.number(entry.ino);
        attr.ino = ino;
        Entry {
            ino,
            attr,
            attr_ttl,
            generation,
            ..entry
        }
    }

    /// Returns how long the kernel may cache an inode's attributes.
    pub(super) fn attr_ttl(&self, ino: Ino) -> Duration {
        match self.opens.get() {
            Some(opens) if opens.is_mapped(ino) => Duration::ZERO,
            _ => FOREVER,
        }
    }

    /// Returns current attributes, also for a file that is changed through a mapping.
    pub(super) fn attr_now(&self, ino: Ino) -> Result<stitch_fs::Attr, FsError> {
        if self.opens.get().is_some_and(|opens| opens.is_mapped(ino))
            && let Err(error) = self.fs.note_mapped_writes(ino)
        {
            tracing::debug!(%error, ino = ino.0, "the change time is updated later");
        }
        self.fs.get_attr(ino)
    }

    pub(super) fn attr_reply(&self, attr: &stitch_fs::Attr) -> AttrReply {
        AttrReply {
            attr: self.attr_of(attr),
            ttl: self.attr_ttl(attr.ino),
        }
    }

    pub(super) fn forgotten(&self, ino: Ino) {
        if let Some(opens) = self.opens.get() {
            opens.forget(&self.fs, ino);
        }
    }
}
