//! Listings of directories.

use stitch_base::Ino;
use stitch_fs::{FileKind, Taken};

use super::{Adapter, OrErrno as _, convert, views};
use crate::handler::Answer;
use crate::wire::args::Read;
use crate::wire::reply::{self, DirPlusSink, DirSink};

impl Adapter {
    /// READDIR.
    pub(super) fn list(&self, ino: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        let mut take = |entry: &stitch_fs::DirEntry<'_>| match out.push(&self.listed(entry).0) {
            true => Taken::More,
            false => Taken::Full,
        };
        self.fs.read_dir(ino, args.offset, &mut take).or_errno()
    }

    /// READDIRPLUS.
    pub(super) fn list_known(
        &self,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        let mut iflags = 0;
        let mut grafts = Vec::new();
        let mut take = |entry: &stitch_fs::DirEntry<'_>| {
            let (listed, is_clone) = self.listed(entry);
            // The kernel looks up a clone by its name.
            let attr = entry.attr.as_ref().filter(|_| !is_clone);
            let looked_up = attr.map(|attr| {
                iflags |= attr.iflags;
                self.timed(convert::entry(attr))
            });
            if !out.push(&listed, looked_up.as_ref()) {
                return Taken::Full;
            }
            if is_clone && entry.attr.is_some() {
                grafts.push(entry.ino);
            }
            Taken::More
        };
        let read = self.fs.read_dir_plus(ino, args.offset, &mut take);
        for graft in grafts {
            self.fs.forget(graft, 1);
        }
        self.fs.note_flags(iflags);
        if self.fs.is_crowded() {
            self.pruning.note();
        }
        read.or_errno()
    }

    /// Returns an entry of a directory as it is listed: of a clone, with the number of its own
    /// directory. Reports whether it is one, here or as a transaction shows it.
    fn listed<'a>(&self, entry: &stitch_fs::DirEntry<'a>) -> (reply::DirEntry<'a>, bool) {
        let mut listed = convert::dir_entry(entry);
        let may_be = entry.kind == FileKind::Directory && !matches!(entry.name, b"." | b"..");
        let clone = may_be.then(|| self.fs.clone_at(entry.ino)).flatten();
        let shown = may_be.then(|| self.fs.shown_clone_at(entry.ino)).flatten();
        let number = match (&clone, &shown) {
            (Some(info), _) => Some(views::clone_number(info)),
            (None, Some(shown)) => views::shown_number(shown),
            (None, None) => None,
        };
        listed.ino = number.unwrap_or_else(|| self.number(entry.ino));
        (listed, clone.is_some() || shown.is_some())
    }
}
