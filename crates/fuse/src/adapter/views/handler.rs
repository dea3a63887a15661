//! Each request, routed to its view.

use std::io;

use stitch_base::Ino;

use super::node::Node;
use super::unasked::UnaskedChange;
use super::{SNAPSHOT_XATTR, Views, places};
use crate::adapter::{REMOVE_TREE_XATTR, opens};
use crate::backing::BackingFiles;
use crate::errno::Errno;
use crate::handler::{Answer, Context, Handler};
use crate::notify::Notifier;
use crate::session::Negotiated;
use crate::wire::args::{
    CopyFileRange, Create, FSync, Fallocate, Flush, ForgetList, Ioctl, LSeek, MkDir, MkNod, Open,
    Read, Release, Rename, SetAttr, SetXattr, Statx, Write,
};
use crate::wire::codec::Sink;
use crate::wire::reply::{
    AttrReply, DirPlusSink, DirSink, Entry, Lookup, Opened, StatFs, StatxReply,
};

/// Reports whether flags of open(2) ask for changes.
const fn is_for_writing(flags: u32) -> bool {
    flags & (libc::O_ACCMODE | libc::O_TRUNC).cast_unsigned() != 0
}

fn without_attributes(AttrReply { attr, ttl }: AttrReply) -> StatxReply {
    StatxReply {
        attr,
        ttl,
        attributes: 0,
        attributes_mask: 0,
    }
}

fn put_target(target: &[u8], out: &mut Sink<'_>) -> Answer<()> {
    match out.put(target) {
        true => Ok(()),
        false => Err(Errno::ENAMETOOLONG),
    }
}

impl Handler for Views {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) {
        self.mainline.init(negotiated, notifier);
        self.clones.connect(notifier);
        self.notices.start(&self.table, &self.clones, notifier);
        if !self.mainline.fs().is_read_only() {
            self.transactions.start(notifier);
            self.rollbacks.start(self.rollback_runner(notifier));
            places::start(&self.places, self.mainline.fs());
            let runner = self.policy_runner(notifier);
            self.policies.start(move || runner.run());
        }
    }

    fn passthrough(&self, files: BackingFiles) -> io::Result<()> {
        self.mainline.passthrough(files)
    }

    fn room_mark(&self) -> u64 {
        self.mainline.room_mark()
    }

    fn makes_room(&self, mark: u64) -> bool {
        self.mainline.makes_room(mark)
    }

    fn destroy(&self) {
        self.policies.stop();
        self.places.stop();
        self.rollbacks.stop();
        self.transactions.stop();
        self.notices.stop();
        self.table.clear();
        self.clones.clear();
        self.mainline.destroy();
    }

    fn lookup(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        match self.node(parent) {
            Node::Mainline => self.lookup_mainline(context, parent, name),
            Node::Control(dir) => self.lookup_control(dir, name),
            Node::Live(slot, ino) if slot.is_transaction() => {
                self.lookup_live_in_transaction((slot, ino), name)
            }
            Node::Live(slot, ino) => self.clones.within(slot, |clone| {
                if name == b".." && ino == clone.info().root {
                    return self.above_clone(clone.info());
                }
                let found = clone.lookup(ino, name)?;
                self.enter_clone(clone.adapter(), found)
            }),
            node => self.within(node, Errno::ESTALE, |past, ino| {
                let found = past.lookup(ino, name);
                if past.is_crowded() {
                    self.notices.prune();
                }
                found
            }),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        match self.node(ino) {
            Node::Mainline => self.mainline.forget(ino, count),
            Node::Past(slot, ino) => self.table.forget(slot, ino, count),
            Node::Live(slot, ino) if slot.is_transaction() => {
                self.transactions.table.forget(slot, ino, count);
            }
            Node::Live(slot, ino) => {
                if self.clones.forget(slot, ino, count) {
                    self.notices.close_idle();
                }
            }
            // They are not counted.
            Node::Control(_) | Node::Link | Node::TransactionLink(_) | Node::Unknown => {}
        }
    }

    fn batch_forget(&self, list: ForgetList<'_>) {
        if list.iter().all(|(ino, _)| self.node(ino) == Node::Mainline) {
            return self.mainline.batch_forget(list);
        }
        for (ino, count) in list.iter() {
            self.forget(ino, count);
        }
    }

    fn getattr(&self, context: &Context<'_>, ino: Ino) -> Answer<AttrReply> {
        match self.node(ino) {
            Node::Mainline => self.mainline.getattr(context, ino),
            Node::Control(dir) => self.control_attr(dir),
            Node::Link => self.link_attr(),
            Node::TransactionLink(slot) => self.transaction_link_attr(slot),
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.getattr(context, ino)),
            node => self.within(node, Errno::ESTALE, |past, ino| past.getattr(ino)),
        }
    }

    fn statx(&self, context: &Context<'_>, ino: Ino, args: &Statx) -> Answer<StatxReply> {
        match self.node(ino) {
            Node::Mainline => self.mainline.statx(context, ino, args),
            Node::Control(dir) => Ok(without_attributes(self.control_attr(dir)?)),
            Node::Link => Ok(without_attributes(self.link_attr()?)),
            Node::TransactionLink(slot) => {
                Ok(without_attributes(self.transaction_link_attr(slot)?))
            }
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.statx(context, ino, args)),
            node => self.within(node, Errno::ESTALE, |past, ino| past.statx(ino)),
        }
    }

    fn setattr(&self, context: &Context<'_>, ino: Ino, args: &SetAttr) -> Answer<AttrReply> {
        self.change(ino, |adapter, ino| adapter.setattr(context, ino, args))
    }

    fn access(&self, context: &Context<'_>, ino: Ino, mask: u32) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.access(context, ino, mask),
            Node::Control(_) | Node::Link | Node::TransactionLink(_)
                if mask & stitch_fs::access_mask::WRITE == 0 =>
            {
                Ok(())
            }
            // Who may is checked when it is done.
            Node::Control(dir) if dir.of().is_some() && !self.mainline.fs().is_read_only() => {
                Ok(())
            }
            Node::Control(_) | Node::Link | Node::TransactionLink(_) => Err(Errno::EROFS),
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.access(context, ino, mask)),
            node => self.within(node, Errno::ESTALE, |past, ino| {
                past.access(context, ino, mask)
            }),
        }
    }

    fn readlink(&self, context: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.readlink(context, ino, out),
            Node::Link => {
                let link = self.link.as_ref().ok_or(Errno::ESTALE)?;
                put_target(&link.target, out)
            }
            Node::TransactionLink(slot) => put_target(&self.transaction_link(slot)?.target, out),
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.readlink(context, ino, out)),
            node => self.within(node, Errno::EINVAL, |past, ino| past.readlink(ino, out)),
        }
    }

    fn symlink(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        self.check_new(parent, name)?;
        self.change(parent, |adapter, parent| {
            adapter.symlink(context, parent, name, target)
        })
    }

    fn mknod(&self, context: &Context<'_>, parent: Ino, args: &MkNod<'_>) -> Answer<Entry> {
        self.check_new(parent, args.name)?;
        self.change(parent, |adapter, parent| {
            adapter.mknod(context, parent, args)
        })
    }

    fn mkdir(&self, context: &Context<'_>, parent: Ino, args: &MkDir<'_>) -> Answer<Entry> {
        if let Node::Control(dir) = self.node(parent) {
            return self.make_snapshot(context, dir, args.name);
        }
        self.check_new(parent, args.name)?;
        if let Some(made) = self.made_clone(context, parent, args.name)? {
            return Ok(made);
        }
        self.change(parent, |adapter, parent| {
            adapter.mkdir(context, parent, args)
        })
    }

    fn unlink(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        self.check_old(parent, name)?;
        self.change(parent, |adapter, parent| {
            adapter.unlink(context, parent, name)
        })
    }

    fn rmdir(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<()> {
        if let Node::Control(dir) = self.node(parent) {
            return self.remove_snapshot(context, dir, name);
        }
        self.check_old(parent, name)?;
        let removed = self.change(parent, |adapter, parent| {
            adapter.rmdir(context, parent, name)
        });
        if removed.is_ok() {
            self.leave_removed();
        }
        removed
    }

    fn rename(&self, context: &Context<'_>, parent: Ino, args: &Rename<'_>) -> Answer<()> {
        let target = self.node(args.target_parent);
        if self.node(parent).view() != target.view() {
            return Err(Errno::EXDEV);
        }
        self.check_old(parent, args.source_name)?;
        self.check_old(args.target_parent, args.target_name)?;
        self.change(parent, |adapter, parent| {
            let args = Rename {
                target_parent: target.within(args.target_parent),
                ..*args
            };
            adapter.rename(context, parent, &args)
        })
    }

    fn link(&self, context: &Context<'_>, source: Ino, parent: Ino, name: &[u8]) -> Answer<Entry> {
        self.check_new(parent, name)?;
        let linked = self.node(source);
        if linked.view() != self.node(parent).view() {
            return Err(Errno::EXDEV);
        }
        self.change(parent, |adapter, parent| {
            adapter.link(context, linked.within(source), parent, name)
        })
    }

    fn tmpfile(
        &self,
        context: &Context<'_>,
        parent: Ino,
        args: &Create<'_>,
    ) -> Answer<(Entry, Opened)> {
        self.change(parent, |adapter, parent| {
            adapter.tmpfile(context, parent, args)
        })
    }

    fn open(&self, context: &Context<'_>, ino: Ino, args: &Open) -> Answer<Opened> {
        if self.node(ino) == Node::Mainline {
            return self.mainline.open(context, ino, args);
        }
        if let Node::Live(slot, ino) = self.node(ino) {
            return match self.live(slot, |adapter| adapter.open(context, ino, args)) {
                Err(Errno::ENOSYS) if self.mainline.answers_opens() => Ok(opens::CACHED),
                opened => opened,
            };
        }
        if is_for_writing(args.flags) {
            self.check_writable(ino)?;
        }
        if self.mainline.answers_opens() {
            Ok(opens::CACHED)
        } else {
            Err(Errno::ENOSYS)
        }
    }

    fn flush(&self, context: &Context<'_>, ino: Ino, _: &Flush) -> Answer<()> {
        self.flush_file(context, ino)
    }

    fn release(&self, context: &Context<'_>, ino: Ino, args: &Release) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.release(context, ino, args),
            _ => Ok(()),
        }
    }

    fn read(&self, context: &Context<'_>, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.read(context, ino, args, out),
            Node::Live(..) => {
                self.change(ino, |adapter, ino| adapter.read(context, ino, args, out))
            }
            node => self.within(node, Errno::EISDIR, |past, ino| past.read(ino, args, out)),
        }
    }

    fn write(&self, context: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        let refused = self.check_writable(ino);
        if refused.is_err() {
            // The kernel has the bytes in its cache.
            self.notices.queue(UnaskedChange::WriteRefused(ino));
        }
        refused?;
        self.change(ino, |adapter, ino| adapter.write(context, ino, args))
    }

    fn fsync(&self, context: &Context<'_>, ino: Ino, args: &FSync) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.fsync(context, ino, args),
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.fsync(context, ino, args)),
            _ => Ok(()),
        }
    }

    fn fsyncdir(&self, context: &Context<'_>, ino: Ino, args: &FSync) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.fsyncdir(context, ino, args),
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.fsyncdir(context, ino, args)),
            _ => Ok(()),
        }
    }

    fn syncfs(&self, context: &Context<'_>) -> Answer<()> {
        self.mainline.syncfs(context)
    }

    fn readdir(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirSink<'_>,
    ) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.readdir(context, ino, args, out),
            Node::Control(dir) => self.list_control(dir, args.offset, &mut |entry| out.push(entry)),
            Node::Live(..) => {
                self.change(ino, |adapter, ino| adapter.readdir(context, ino, args, out))
            }
            node => self.within(node, Errno::ESTALE, |past, ino| {
                past.readdir(ino, args, out)
            }),
        }
    }

    fn readdirplus(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.readdirplus(context, ino, args, out),
            Node::Control(dir) => {
                self.list_control(dir, args.offset, &mut |entry| out.push(entry, None))
            }
            Node::Live(..) => self.change(ino, |adapter, ino| {
                adapter.readdirplus(context, ino, args, out)
            }),
            node => self.within(node, Errno::ESTALE, |past, ino| {
                let read = past.readdirplus(ino, args, out);
                if past.is_crowded() {
                    self.notices.prune();
                }
                read
            }),
        }
    }

    fn statfs(&self, context: &Context<'_>, _: Ino) -> Answer<StatFs> {
        self.mainline.statfs(context, Ino::ROOT)
    }

    fn setxattr(&self, context: &Context<'_>, ino: Ino, args: &SetXattr<'_>) -> Answer<()> {
        let is_removal = args.name == REMOVE_TREE_XATTR.as_bytes();
        if is_removal && self.announce_removal(context, ino)? {
            return Ok(());
        }
        self.change(ino, |adapter, ino| adapter.setxattr(context, ino, args))
    }

    fn probed_xattr_size(&self, ino: Ino, name: &[u8]) -> Option<u32> {
        match self.node(ino) {
            Node::Mainline | Node::Live(..) => None,
            node => {
                let probed = self.within(node, Errno::ENODATA, |past, ino| {
                    Ok(past.probed_size(ino, name))
                });
                probed.ok().flatten()
            }
        }
    }

    fn getxattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<()> {
        let node = self.node(ino);
        if node == Node::Mainline {
            return self.mainline.getxattr(context, ino, name, out);
        }
        if let Node::Live(..) = node {
            return self.change(ino, |adapter, ino| {
                adapter.getxattr(context, ino, name, out)
            });
        }
        self.mainline.check_xattrs()?;
        self.within(node, Errno::ENODATA, |past, ino| {
            match self.description(past, ino) {
                Some(text) if name == SNAPSHOT_XATTR.as_bytes() => match out.put(&text) {
                    true => Ok(()),
                    false => Err(Errno::E2BIG),
                },
                _ => past.getxattr(&self.mainline.actor(context), ino, name, out),
            }
        })
    }

    fn listxattr(&self, context: &Context<'_>, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        match self.node(ino) {
            Node::Mainline => self.mainline.listxattr(context, ino, out),
            Node::Control(_) | Node::Link | Node::TransactionLink(_) => {
                self.mainline.check_xattrs()
            }
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.listxattr(context, ino, out)),
            node => {
                self.mainline.check_xattrs()?;
                self.within(node, Errno::ESTALE, |past, ino| {
                    past.listxattr(context, ino, out)
                })
            }
        }
    }

    fn removexattr(&self, context: &Context<'_>, ino: Ino, name: &[u8]) -> Answer<()> {
        self.change(ino, |adapter, ino| adapter.removexattr(context, ino, name))
    }

    fn interrupt(&self, unique: u64) {
        self.mainline.interrupt(unique);
        self.usage.interrupt(unique);
    }

    fn ioctl(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        let node = self.node(ino);
        match (node, args.command) {
            (Node::Live(slot, _), crate::snapshots::CHANGE) if slot.is_transaction() => {
                return Err(Errno::ENOTSUP);
            }
            (Node::Mainline | Node::Control(_) | Node::Live(..), crate::snapshots::CHANGE) => {
                return self.change_snapshots(context, ino, args.input).map(|()| 0);
            }
            (_, crate::transactions::ASK) => {
                return self.ask_transactions(context, ino, args.input, out);
            }
            (_, crate::differences::ASK) => {
                return self.ask_differences(context, ino, args.input, out);
            }
            (_, crate::usage::ASK) => {
                return self.ask_usage(context, ino, args.input, out);
            }
            (_, crate::clones::ANNOUNCE) => {
                return self.announce_clone(context, ino, args.input).map(|()| 0);
            }
            (_, crate::snapshots::CHANGE) => return Err(Errno::EROFS),
            (Node::Live(slot, ino), _) => {
                return self.ioctl_in_view(context, (slot, ino), args, out);
            }
            (Node::Mainline, _) => return self.mainline.ioctl(context, ino, args, out),
            _ => {}
        }
        self.within(node, Errno::ENOTTY, |past, ino| {
            if args.command == crate::report::READ {
                return self.describe_framed(past, ino, args.input, out);
            }
            past.ioctl(&self.mainline.actor(context), ino, args, out)
        })
    }

    fn fallocate(&self, context: &Context<'_>, ino: Ino, args: &Fallocate) -> Answer<()> {
        self.change(ino, |adapter, ino| adapter.fallocate(context, ino, args))
    }

    fn lseek(&self, context: &Context<'_>, ino: Ino, args: &LSeek) -> Answer<u64> {
        match self.node(ino) {
            Node::Mainline => self.mainline.lseek(context, ino, args),
            Node::Live(..) => self.change(ino, |adapter, ino| adapter.lseek(context, ino, args)),
            node => self.within(node, Errno::EINVAL, |past, ino| past.seek(ino, args)),
        }
    }

    fn copy_file_range(
        &self,
        context: &Context<'_>,
        ino: Ino,
        args: &CopyFileRange,
    ) -> Answer<u64> {
        self.check_writable(args.target)?;
        let target = self.node(args.target);
        if self.node(ino).view() != target.view() {
            // The kernel copies by itself then.
            return Err(Errno::EXDEV);
        }
        self.change(ino, |adapter, ino| {
            let args = CopyFileRange {
                target: target.within(args.target),
                ..*args
            };
            adapter.copy_file_range(context, ino, &args)
        })
    }
}
