//! Requests that make and remove clones; see [`crate::clones`] and `trees`.

use stitch_base::{Ino, PinId};
use stitch_fs::{Caller, CloneInfo, CloneSource, DirName, FileKind, FileSystem, FsError};

use super::changes::check_owner;
use super::live;
use super::node::{Node, Slot};
use super::unasked::UnaskedChange;
use super::{Views, live::OpenClone};
use crate::adapter::convert::Owner;
use crate::adapter::report::put_framed;
use crate::adapter::{Adapter, OrErrno as _};
use crate::clones::Target;
use crate::errno::Errno;
use crate::handler::{Answer, Context, Handler as _};
use crate::survive::is_resent;
use crate::wire::args::Ioctl;
use crate::wire::codec::Sink;
use crate::wire::reply::{Entry, Lookup};

/// Name of an attribute of a clone's directory that tells what is known of the clone. It is not
/// stored, and not listed.
pub const CLONE_XATTR: &str = "stitchfs.clone";

impl Views {
    /// Records an announcement of a clone.
    pub(super) fn announce_clone(
        &self,
        context: &Context<'_>,
        source: Ino,
        input: &[u8],
    ) -> Answer<()> {
        let target = Target::parse(input).ok_or(Errno::EINVAL)?;
        if !self.mainline.fs().takes_clones() {
            return Err(Errno::ENOTSUP);
        }
        self.with_source(source, |source| {
            let attr = source.fs.get_attr(source.dir).or_errno()?;
            if attr.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR);
            }
            check_owner(context, attr.uid)
        })?;
        self.announced.remember(context, (source, target));
        Ok(())
    }

    /// Runs a request with a directory of any view as a source.
    fn with_source<T>(
        &self,
        number: Ino,
        request: impl FnOnce(CloneSource<'_>) -> Answer<T>,
    ) -> Answer<T> {
        match self.node(number) {
            Node::Mainline => request(live_source(self.mainline.fs(), number)),
            Node::Live(slot, _) if slot.is_transaction() => Err(Errno::ENOTSUP),
            Node::Live(slot, dir) => self.clones.within(slot, |clone| {
                request(live_source(clone.adapter().fs(), dir))
            }),
            Node::Past(slot, dir) => self.table.within(slot, |past| {
                // The pins of moments and transactions have other names.
                let info = past.view().info();
                if info.name.contains('/') || self.is_moment(info.id)? {
                    return Err(Errno::ENOTSUP);
                }
                let (part, dir) = past.part(dir)?;
                request(CloneSource {
                    fs: part.fs(),
                    dir,
                    snapshot: Some(&info.name),
                })
            }),
            Node::Control(_) | Node::Link | Node::TransactionLink(_) => Err(Errno::EINVAL),
            Node::Unknown => Err(Errno::ESTALE),
        }
    }

    fn is_moment(&self, id: PinId) -> Answer<bool> {
        let moments = self.mainline.fs().history().moments().or_errno()?;
        Ok(moments.iter().any(|moment| moment.id == id))
    }

    /// Makes a clone if this thread has announced one of this name; `None` for any other MKDIR.
    pub(super) fn made_clone(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Answer<Option<Entry>> {
        let Some((source, target)) = self.announced.take(context) else {
            return Ok(None);
        };
        if (target.parent, &target.name[..]) != (parent, name) {
            return Ok(None);
        }
        let owner = Owner::new(context);
        let made = self.with_source(source, |source| {
            self.change(parent, |home, parent| {
                let at = DirName::new(parent, name);
                self.make_clone(context, &owner.caller(), home, &source, at)
            })
        });
        if made == Err(Errno::ENOSPC) {
            // The request is served again once there is room.
            self.announced.remember(context, (source, target));
        }
        made.map(Some)
    }

    fn make_clone(
        &self,
        context: &Context<'_>,
        caller: &Caller<'_>,
        home: &Adapter,
        source: &CloneSource<'_>,
        at: DirName<'_>,
    ) -> Answer<Entry> {
        let info = match home.fs().make_clone(caller, source, at) {
            // Perhaps this very request has done it, and only the answer is missing.
            Err(FsError::Exists) if is_resent(context.unique) => {
                let found = home.fs().peek(at).or_errno()?;
                let clone = found.and_then(|ino| home.fs().clone_at(ino));
                clone.ok_or(Errno::EEXIST)?
            }
            made => made.or_errno()?,
        };
        tracing::info!(number = info.number, "made a clone");
        self.places.note();
        let clone = self.clones.by_number(info.number)?;
        // The kernel does not look up what it has made.
        if let Ok(graft) = home.fs().lookup(at) {
            clone.hold_graft(home.fs());
            home.fs().forget(graft.ino, 1);
        }
        clone.lookup_root()
    }

    /// Puts the directory of a clone where a lookup in `home` has found its graft.
    pub(super) fn enter_clone(&self, home: &Adapter, looked_up: Lookup) -> Answer<Lookup> {
        let Lookup::Found(entry) = &looked_up else {
            return Ok(looked_up);
        };
        let graft = Slot::within(entry.ino);
        let Some(info) = home.fs().clone_at(graft) else {
            return Ok(looked_up);
        };
        let clone = self.clones.by_number(info.number);
        if let Ok(clone) = &clone {
            clone.hold_graft(home.fs());
            self.note_fixed(clone.adapter().fs());
        }
        home.fs().forget(graft, 1);
        Ok(live::found(clone?.lookup_root()?))
    }

    /// Looks up the directory that a clone lies in. The kernel asks for it on the way up from a
    /// directory that it has by a file handle.
    pub(super) fn above_clone(&self, info: &CloneInfo) -> Answer<Lookup> {
        let find = |home: &Adapter| {
            home.fs().look_up_number(info.graft).or_errno()?;
            let found = home.find(Ino::ROOT, info.graft, b"..");
            home.fs().forget(info.graft, 1);
            found
        };
        match info.home {
            0 => find(&self.mainline),
            home => find(self.clones.by_number(home)?.adapter()),
        }
    }

    /// Serves an ioctl in a clone or a transaction.
    pub(super) fn ioctl_in_view(
        &self,
        context: &Context<'_>,
        (slot, ino): (Slot, Ino),
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        if slot.is_transaction() {
            return self.live(slot, |adapter| {
                let result = adapter.ioctl(context, ino, args, out);
                self.note_fixed(adapter.fs());
                result
            });
        }
        self.clones.within(slot, |clone| {
            let result = clone.ioctl(context, ino, args, out);
            self.note_fixed(clone.adapter().fs());
            result
        })
    }

    /// Announces the removal of a clone and all that is in it: the next RMDIR of the thread is of
    /// the graft. Reports whether the inode is the directory of a clone.
    pub(super) fn announce_removal(&self, context: &Context<'_>, number: Ino) -> Answer<bool> {
        let Node::Live(slot, ino) = self.node(number) else {
            return Ok(false);
        };
        if slot.is_transaction() {
            return Ok(false);
        }
        let info = self.clones.by_slot(slot)?.info().clone();
        if info.root != ino {
            return Ok(false);
        }
        check_owner(context, info.owner)?;
        match info.home {
            0 => self.mainline.trees.announce_checked(context, info.graft),
            home => {
                let home = self.clones.by_number(home)?;
                home.adapter().trees.announce_checked(context, info.graft);
            }
        }
        Ok(true)
    }

    /// Takes clones that were removed out of use, after a request that may have removed some.
    pub(super) fn leave_removed(&self) {
        let removed = self.clones.take_removed();
        if removed.is_empty() {
            return;
        }
        for clone in &removed {
            clone.let_graft_go();
            tracing::info!(number = clone.info().number, "removed a clone");
        }
        for clone in &removed {
            self.notices.queue(UnaskedChange::View(clone.numbers()));
        }
        self.notices.end(removed);
        self.mainline.reclaiming.note();
    }
}

/// A directory that is no snapshot's.
const fn live_source(fs: &FileSystem, dir: Ino) -> CloneSource<'_> {
    CloneSource {
        fs,
        dir,
        snapshot: None,
    }
}

impl OpenClone {
    /// Serves an ioctl: what is known of the clone, of its directory; flags of any inode.
    pub(super) fn ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        if args.command != crate::report::READ {
            return self.adapter().ioctl(context, ino, args, out);
        }
        if ino != self.info().root {
            return Err(Errno::ENOTTY);
        }
        let name = crate::report::name_in(args.input).ok_or(Errno::EINVAL)?;
        if name != CLONE_XATTR.as_bytes() {
            return Err(Errno::ENOTSUP);
        }
        put_framed(&self.description(), out).map(|()| 0)
    }

    /// Returns what there is to say about the clone, as JSON.
    fn description(&self) -> Vec<u8> {
        let info = self.info();
        let text = format!(
            "{{\"number\":{},\"owner\":{},\"created_ns\":{}}}",
            info.number, info.owner, info.created.0
        );
        text.into_bytes()
    }
}
