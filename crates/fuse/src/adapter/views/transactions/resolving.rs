//! Requests about conflicts of a transaction, its rebase and what it began with.

use stitch_base::Ino;
use stitch_fs::{Attr, DirName, FileKind, FileSystem, FsResult, RecordKey, Side, TransactionLife};

use super::scope::Asker;
use super::{REPLY_BYTES_MAX, ReplyWords, number_reply};
use crate::adapter::OrErrno as _;
use crate::adapter::process::Process;
use crate::adapter::report::check_caller;
use crate::adapter::views::Views;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::transactions::{record_word, side_word};

/// Bits of others in a mode.
const OTHERS_READ: u16 = 0o4;
const OTHERS_PASS: u16 = 0o1;

impl Views {
    pub(super) fn list_conflicts(
        &self,
        asker: &Asker<'_>,
        name: &str,
        from: usize,
    ) -> Answer<Vec<u8>> {
        let info = self.owned(asker, name)?;
        let open = self.transactions.table.by_number(info.number)?;
        let all = open.conflicts(self.mainline.fs(), from == 0).or_errno()?;
        let mut reply = ReplyWords::default();
        reply.add(&[all.len().to_string().as_bytes()]);
        for (conflict, side) in all.iter().skip(from) {
            let (kind, side) = (conflict.kind.to_string(), side_word(*side));
            let record = conflict.record.as_ref();
            let record = record.map(|record| record_word(&record.tree, &record.key));
            let path = record.as_ref().unwrap_or(&conflict.path);
            if !reply.add(&[kind.as_bytes(), side.as_bytes(), path]) {
                return Ok(reply.0);
            }
        }
        open.forget_conflicts();
        Ok(reply.0)
    }

    pub(super) fn resolve(
        &self,
        asker: &Asker<'_>,
        (name, path): (&str, &[u8]),
        side: Side,
    ) -> Answer<Vec<u8>> {
        let number = self.owned_and_kept(asker, name)?;
        let open = self.transactions.table.by_number(number)?;
        let resolved = open.resolve(self.mainline.fs(), path, side);
        Ok(resolved_reply(name, &resolved))
    }

    pub(super) fn resolve_record(
        &self,
        asker: &Asker<'_>,
        (name, record): (&str, &RecordKey),
        side: Side,
    ) -> Answer<Vec<u8>> {
        let number = self.owned_and_kept(asker, name)?;
        let open = self.transactions.table.by_number(number)?;
        let resolved = open.resolve_record(self.mainline.fs(), record, side);
        Ok(resolved_reply(name, &resolved.map(|()| 1)))
    }

    pub(super) fn begin_rebase(&self, asker: &Asker<'_>, name: &str) -> Answer<Vec<u8>> {
        let number = self.owned_and_kept(asker, name)?;
        let open = self.transactions.table.by_number(number)?;
        match self.transactions.commits.queue_rebase(open) {
            Err(Errno::EBUSY) if crate::survive::is_resent(asker.context.unique) => {}
            queued => queued?,
        }
        Ok(number_reply(number))
    }

    /// The number of an open transaction that does not end with a process.
    fn owned_and_kept(&self, asker: &Asker<'_>, name: &str) -> Answer<u64> {
        let info = self.owned(asker, name)?;
        match info.life == TransactionLife::Named && !self.transactions.is_watched(info.number) {
            true => Ok(info.number),
            false => Err(Errno::EINVAL),
        }
    }

    /// Returns contents of a file as a transaction began, those that fit, from an offset on.
    pub(super) fn base_contents(
        &self,
        asker: &Asker<'_>,
        (name, path): (&str, &[u8]),
        offset: u64,
    ) -> Answer<Vec<u8>> {
        let info = self.owned(asker, name)?;
        let open = self.transactions.table.by_number(info.number)?;
        let base = open.base(self.mainline.fs(), offset == 0).or_errno()?;
        let reads = |attr: &Attr| may_see(asker.context, attr, OTHERS_READ);
        let passes = |attr: &Attr| may_see(asker.context, attr, OTHERS_PASS);
        let mut contents = Vec::new();
        let attr = look_up(&base, path, passes)?;
        let read = match attr.kind {
            FileKind::Directory => Err(Errno::EISDIR),
            FileKind::Regular if reads(&attr) => {
                let read = base.read(attr.ino, offset, REPLY_BYTES_MAX, &mut contents);
                read.or_errno()
            }
            FileKind::Regular => Err(Errno::EACCES),
            _ => Err(Errno::EINVAL),
        };
        base.forget(attr.ino, 1);
        if read? == 0 {
            open.forget_base();
        }
        Ok(contents)
    }
}

fn resolved_reply(name: &str, resolved: &FsResult<usize>) -> Vec<u8> {
    match resolved {
        Ok(count) => {
            tracing::info!(name, count, "conflicts of a transaction were resolved");
            ReplyWords::of(&[count.to_string().as_bytes()])
        }
        Err(error) => super::commits::refusal_of(error),
    }
}

/// Reports whether the caller may see a file that the daemon reads for it. Other users than root
/// and the daemon's see their own files, and files whose mode lets all users read them.
fn may_see(context: &Context<'_>, attr: &Attr, bit: u16) -> bool {
    let is_owner = Process::of(context).uid() == Some(attr.uid);
    check_caller(context).is_ok() || is_owner || attr.perm & bit != 0
}

/// Looks a path up. Counts a lookup of what it leads to.
fn look_up(fs: &FileSystem, path: &[u8], passes: impl Fn(&Attr) -> bool) -> Answer<Attr> {
    let mut at = fs.get_attr(Ino::ROOT).or_errno()?;
    for name in path.split(|byte| *byte == b'/') {
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::ENOENT);
        }
        let found = match passes(&at) {
            true => fs.lookup(DirName::new(at.ino, name)).or_errno(),
            false => Err(Errno::EACCES),
        };
        if at.ino != Ino::ROOT {
            fs.forget(at.ino, 1);
        }
        at = found?;
    }
    debug_assert!(at.ino != Ino::ROOT, "a path has a name");
    Ok(at)
}
