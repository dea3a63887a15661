//! WRITE: its offset, the bits it clears, and whether it is synchronous.

use stitch_base::Ino;
use stitch_fs::{WriteOptions, Writer};

use super::grow::Growth;
use super::{Adapter, OrErrno as _, convert, setid};
use crate::handler::{Answer, Context};
use crate::survive::is_resent;
use crate::wire::args::Write;
use crate::wire::flags::WriteFlags;

impl Adapter {
    /// Serves a WRITE, and syncs it if it is synchronous and bypasses the kernel's cache.
    pub(super) fn write_request(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Write<'_>,
    ) -> Answer<u32> {
        // A write from the cache has its final offset, however the file was opened. So has a resent
        // write: its offset is the end of the file at the first time.
        let is_resent = is_resent(context.unique);
        let is_cached = args.write_flags.contains(WriteFlags::CACHE);
        let is_stranger = args.write_flags.contains(WriteFlags::KILL_SUIDGID);
        let (clear_setid, drops_attr) = setid::taken(&self.fs, context, ino, is_stranger)?;
        let options = WriteOptions {
            append: args.flags & convert::O_APPEND != 0 && !is_cached && !is_resent,
            clear_setid,
        };
        // Pages hold no bytes behind the end, and an append leaves no gap.
        let old_end = match is_cached || options.append {
            true => None,
            false => self.old_end(ino)?,
        };
        let writer = match is_cached {
            true => Writer::Cache,
            false => self.writer(context, ino),
        };
        self.fs
            .write_by(writer, ino, args.offset, args.data, options)
            .or_errno()?;
        self.fill_behind(ino, old_end, Growth::Write(args.offset))?;
        if drops_attr {
            self.attr_cache.drop_attr(ino);
        }
        // After direct writes the kernel sends no FSYNC if they are asynchronous, or if the reply
        // to OPEN made the file direct. After others it sends one, which finds nothing to do.
        if !is_cached && args.flags & convert::O_DSYNC != 0 {
            self.fs.sync_inode(ino).or_errno()?;
        }
        Ok(u32::try_from(args.data.len()).expect("a request is below 4 GiB"))
    }
}
