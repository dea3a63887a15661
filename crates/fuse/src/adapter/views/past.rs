//! Requests in a snapshot: what is read. All numbers that go out are composite. A clone that lies
//! in the snapshot is a part of it, with a file system of its own.

use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::{DirName, FileKind, FsError, FsResult, SnapshotPart, Taken};

use super::super::{OrErrno as _, atomic, convert, flags, refused, xattr};
use super::node::ControlDir;
use super::table::Past;
use crate::adapter::convert::Owner;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::args::{Ioctl, LSeek, Read};
use crate::wire::codec::Sink;
use crate::wire::reply::{
    self, AttrReply, DirPlusSink, DirSink, Entry, FOREVER, Lookup, StatxReply,
};

/// The attribute whose size the kernel asks for before it lets a program write.
const CAPABILITY: &[u8] = b"security.capability";
/// Bits of the mode that group and others have.
const NOT_OWNER: u32 = 0o077;

impl Past {
    /// Reports whether an inode is the directory that the snapshot is of.
    pub(super) fn is_root(&self, number: Ino) -> bool {
        number == self.view().info().root
    }

    /// Returns the file system that an inode is in, and its number there.
    pub(super) fn part(&self, number: Ino) -> Answer<(SnapshotPart, Ino)> {
        self.view().part(number).or_errno()
    }

    /// Returns the composite number of an inode.
    fn number(&self, part: &SnapshotPart, ino: Ino) -> Ino {
        self.slot().number(part.number(ino))
    }

    /// Returns attributes as the kernel is told them. Only the owner may enter the directory of a
    /// private snapshot: no other user could have passed the directories above it.
    fn attr_of(&self, part: &SnapshotPart, attr: &stitch_fs::Attr) -> reply::Attr {
        let mut told = convert::attr(attr);
        told.ino = self.number(part, attr.ino);
        if self.is_root(part.number(attr.ino)) && self.view().is_private() {
            told.mode &= !NOT_OWNER;
            told.uid = self.view().info().owner;
        }
        told
    }

    fn entry(&self, part: &SnapshotPart, attr: &stitch_fs::Attr, entry_ttl: Duration) -> Entry {
        Entry {
            ino: self.number(part, attr.ino),
            generation: self.generation(),
            attr: self.attr_of(part, attr),
            entry_ttl,
            attr_ttl: FOREVER,
        }
    }

    /// Looks up the snapshot's directory. The name stands for no time: the snapshot may be deleted.
    pub(super) fn lookup_root(&self) -> Answer<Lookup> {
        let (part, ino) = self.part(self.view().info().root)?;
        debug_assert_eq!(ino, part.root(), "the snapshot's directory");
        let attr = look_up_root(&part).or_errno()?;
        self.count_lookups(1);
        Ok(Lookup::Found(self.entry(&part, &attr, Duration::ZERO)))
    }

    /// Looks up the directory of the clone that lies at a directory of mainline.
    pub(super) fn lookup_clone(&self, graft: Ino) -> Answer<Lookup> {
        let (part, _) = self.part(self.view().info().root)?;
        let clone = self.view().clone_in(&part, graft).or_errno()?;
        let clone = clone.ok_or(Errno::ESTALE)?;
        let attr = look_up_root(&clone).or_errno()?;
        self.count_lookups(1);
        Ok(Lookup::Found(self.entry(&clone, &attr, FOREVER)))
    }

    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let (part, parent) = self.part(parent)?;
        let found = match name {
            b"." => part.fs().look_up_number_below(part.root(), parent),
            // What is above the directory is in no snapshot.
            b".." if parent == part.root() => Err(FsError::Stale(parent)),
            _ => part.fs().lookup(DirName::new(parent, name)),
        };
        match found {
            Ok(attr) => {
                let (part, attr) = self.enter_clone(part, attr).or_errno()?;
                self.count_lookups(1);
                Ok(Lookup::Found(self.entry(&part, &attr, FOREVER)))
            }
            Err(FsError::NotFound) => Ok(Lookup::Missing { ttl: FOREVER }),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Returns the directory of the clone that lies where a lookup has led, if one does.
    fn enter_clone(
        &self,
        part: SnapshotPart,
        attr: stitch_fs::Attr,
    ) -> FsResult<(SnapshotPart, stitch_fs::Attr)> {
        match self.view().clone_in(&part, attr.ino) {
            Ok(None) => Ok((part, attr)),
            Ok(Some(clone)) => {
                part.fs().forget(attr.ino, 1);
                let root = look_up_root(&clone)?;
                Ok((clone, root))
            }
            Err(error) => {
                part.fs().forget(attr.ino, 1);
                Err(error)
            }
        }
    }

    pub(super) fn getattr(&self, ino: Ino) -> Answer<AttrReply> {
        let (part, ino) = self.part(ino)?;
        let attr = part.fs().get_attr(ino).or_errno()?;
        Ok(AttrReply {
            attr: self.attr_of(&part, &attr),
            ttl: FOREVER,
        })
    }

    pub(super) fn statx(&self, ino: Ino) -> Answer<StatxReply> {
        let (part, ino) = self.part(ino)?;
        let attr = part.fs().get_attr(ino).or_errno()?;
        Ok(StatxReply {
            attr: self.attr_of(&part, &attr),
            ttl: FOREVER,
            attributes: flags::statx_of(attr.iflags),
            attributes_mask: flags::statx_of(stitch_fs::inode_flag::ALL),
        })
    }

    pub(super) fn access(&self, context: &Context<'_>, ino: Ino, mask: u32) -> Answer<()> {
        let owner = Owner::new(context);
        let (part, ino) = self.part(ino)?;
        part.fs().access(&owner.caller(), ino, mask).or_errno()
    }

    pub(super) fn readlink(&self, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let (part, ino) = self.part(ino)?;
        let target = part.fs().read_link(ino).or_errno()?;
        if out.put(&target) {
            Ok(())
        } else {
            Err(Errno::ENAMETOOLONG)
        }
    }

    pub(super) fn read(&self, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let (part, ino) = self.part(ino)?;
        let len = out.room();
        let read = out.append(|bytes| part.fs().read(ino, args.offset, len, bytes));
        read.or_errno()?;
        Ok(())
    }

    pub(super) fn seek(&self, ino: Ino, args: &LSeek) -> Answer<u64> {
        let (part, ino) = self.part(ino)?;
        let what = convert::seek_for(args.whence)?;
        part.fs().seek(ino, args.offset, what).or_errno()
    }

    /// Returns an entry of a directory as it is listed: of a clone, with the number of its own
    /// directory. Reports whether it is one. Above the snapshot's directory is that of all
    /// snapshots.
    fn dir_entry<'a>(
        &self,
        (part, dir): (&SnapshotPart, Ino),
        entry: &stitch_fs::DirEntry<'a>,
    ) -> (reply::DirEntry<'a>, bool) {
        let mut listed = convert::dir_entry(entry);
        listed.ino = self.number(part, entry.ino);
        if entry.name == b".." && self.is_root(part.number(dir)) {
            listed.ino = ControlDir::Snapshots.number();
        }
        let is_dots = matches!(entry.name, b"." | b"..");
        if is_dots || entry.kind != FileKind::Directory || part.fs().clone_at(entry.ino).is_none() {
            return (listed, false);
        }
        if let Some(root) = self.view().number_of_clone(part, entry.ino) {
            listed.ino = self.slot().number(root);
        }
        (listed, true)
    }

    pub(super) fn readdir(&self, ino: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        let (part, ino) = self.part(ino)?;
        let mut take = |entry: &stitch_fs::DirEntry<'_>| match out
            .push(&self.dir_entry((&part, ino), entry).0)
        {
            true => Taken::More,
            false => Taken::Full,
        };
        part.fs().read_dir(ino, args.offset, &mut take).or_errno()
    }

    pub(super) fn readdirplus(
        &self,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        let (part, ino) = self.part(ino)?;
        let mut grafts = Vec::new();
        let mut take = |entry: &stitch_fs::DirEntry<'_>| {
            let (listed, is_clone) = self.dir_entry((&part, ino), entry);
            // The kernel looks up a clone by its name.
            let attr = entry.attr.as_ref().filter(|_| !is_clone);
            let looked_up = attr.map(|attr| self.entry(&part, attr, FOREVER));
            if !out.push(&listed, looked_up.as_ref()) {
                return Taken::Full;
            }
            if is_clone && entry.attr.is_some() {
                grafts.push(entry.ino);
            }
            self.count_lookups(u64::from(looked_up.is_some()));
            Taken::More
        };
        let read = part.fs().read_dir_plus(ino, args.offset, &mut take);
        for graft in grafts {
            part.fs().forget(graft, 1);
        }
        read.or_errno()
    }

    pub(super) fn getxattr(
        &self,
        actor: &Owner,
        ino: Ino,
        name: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<()> {
        let (part, ino) = self.part(ino)?;
        let value = part.fs().get_xattr(&actor.caller(), ino, name).or_errno()?;
        if out.put(&value) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }

    /// Returns the size of an attribute where the kernel asks for the size alone.
    ///
    /// Without OPEN the kernel lets programs write to its cache, and the refusal of the WRITE comes
    /// too late for them. But before each write(2) it asks how long the file capabilities are. If
    /// there are some it removes them, which is refused with `EROFS`, and so write(2) fails at
    /// once.
    pub(super) fn probed_size(&self, ino: Ino, name: &[u8]) -> Option<u32> {
        if name != CAPABILITY {
            return None;
        }
        let caller = Owner::ROOT;
        let (part, ino) = self.part(ino).ok()?;
        match part.fs().get_xattr(&caller.caller(), ino, name) {
            Err(FsError::NoData) => Some(1),
            _ => None,
        }
    }

    pub(super) fn listxattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        out: &mut Sink<'_>,
    ) -> Answer<()> {
        let (part, ino) = self.part(ino)?;
        let names = xattr::names(part.fs(), context, ino)?;
        if out.put(&names) {
            Ok(())
        } else {
            Err(Errno::E2BIG)
        }
    }

    pub(super) fn ioctl(
        &self,
        actor: &Owner,
        ino: Ino,
        args: &Ioctl<'_>,
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        if atomic::is_change(args.command) {
            return Err(Errno::EROFS);
        }
        let (part, ino) = self.part(ino)?;
        flags::serve(part.fs(), actor, ino, args, out)
    }
}

/// Looks up the directory of a part.
fn look_up_root(part: &SnapshotPart) -> FsResult<stitch_fs::Attr> {
    part.fs().lookup(DirName::new(part.root(), b"."))
}
