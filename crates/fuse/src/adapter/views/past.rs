//! Requests in a snapshot: what is read. All numbers that go out are composite.

use std::time::Duration;

use stitch_base::Ino;
use stitch_fs::{DirName, FsError, Taken};

use super::super::{OrErrno as _, convert, flags, refused, xattr};
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
    pub(super) fn is_root(&self, ino: Ino) -> bool {
        ino == self.view().info().root
    }

    /// Returns attributes as the kernel is told them. Of a private snapshot the directory is its
    /// owner's alone, since nobody else could have passed the directories above it.
    fn attr_of(&self, attr: &stitch_fs::Attr) -> reply::Attr {
        let mut told = convert::attr(attr);
        told.ino = self.slot().number(attr.ino);
        if self.is_root(attr.ino) && self.view().is_private() {
            told.mode &= !NOT_OWNER;
            told.uid = self.view().info().owner;
        }
        told
    }

    fn entry(&self, attr: &stitch_fs::Attr, entry_ttl: Duration) -> Entry {
        Entry {
            ino: self.slot().number(attr.ino),
            generation: self.generation(),
            attr: self.attr_of(attr),
            entry_ttl,
            attr_ttl: FOREVER,
        }
    }

    /// Looks up the snapshot's directory. The name stands for no time: the snapshot may be deleted.
    pub(super) fn lookup_root(&self) -> Answer<Lookup> {
        let root = DirName::new(self.view().info().root, b".");
        let attr = self.fs().lookup(root).or_errno()?;
        self.count_lookups(1);
        Ok(Lookup::Found(self.entry(&attr, Duration::ZERO)))
    }

    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let found = match name {
            b"." => self.fs().look_up_number(parent),
            // What is above the directory is in no snapshot.
            b".." if self.is_root(parent) => Err(FsError::Stale(parent)),
            _ => self.fs().lookup(DirName::new(parent, name)),
        };
        match found {
            Ok(attr) => {
                self.count_lookups(1);
                Ok(Lookup::Found(self.entry(&attr, FOREVER)))
            }
            Err(FsError::NotFound) => Ok(Lookup::Missing { ttl: FOREVER }),
            Err(error) => Err(refused(&error)),
        }
    }

    pub(super) fn getattr(&self, ino: Ino) -> Answer<AttrReply> {
        let attr = self.fs().get_attr(ino).or_errno()?;
        Ok(AttrReply {
            attr: self.attr_of(&attr),
            ttl: FOREVER,
        })
    }

    pub(super) fn statx(&self, ino: Ino) -> Answer<StatxReply> {
        let attr = self.fs().get_attr(ino).or_errno()?;
        Ok(StatxReply {
            attr: self.attr_of(&attr),
            ttl: FOREVER,
            attributes: flags::statx_of(attr.iflags),
            attributes_mask: flags::statx_of(stitch_fs::inode_flag::ALL),
        })
    }

    pub(super) fn access(&self, context: &Context<'_>, ino: Ino, mask: u32) -> Answer<()> {
        let owner = Owner::new(context);
        self.fs().access(&owner.caller(), ino, mask).or_errno()
    }

    pub(super) fn readlink(&self, ino: Ino, out: &mut Sink<'_>) -> Answer<()> {
        let target = self.fs().read_link(ino).or_errno()?;
        if out.put(&target) {
            Ok(())
        } else {
            Err(Errno::ENAMETOOLONG)
        }
    }

    pub(super) fn read(&self, ino: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        let len = out.room();
        let read = out.append(|bytes| self.fs().read(ino, args.offset, len, bytes));
        read.or_errno()?;
        Ok(())
    }

    pub(super) fn seek(&self, ino: Ino, args: &LSeek) -> Answer<u64> {
        let what = convert::seek_for(args.whence)?;
        self.fs().seek(ino, args.offset, what).or_errno()
    }

    /// Returns an entry of a directory as it is listed. Above the snapshot's directory is that of
    /// all snapshots.
    fn dir_entry<'a>(&self, dir: Ino, entry: &stitch_fs::DirEntry<'a>) -> reply::DirEntry<'a> {
        let mut listed = convert::dir_entry(entry);
        listed.ino = match entry.name {
            b".." if self.is_root(dir) => ControlDir::Snapshots.number(),
            _ => self.slot().number(entry.ino),
        };
        listed
    }

    pub(super) fn readdir(&self, ino: Ino, args: &Read, out: &mut DirSink<'_>) -> Answer<()> {
        let mut take = |entry: &stitch_fs::DirEntry<'_>| match out.push(&self.dir_entry(ino, entry))
        {
            true => Taken::More,
            false => Taken::Full,
        };
        self.fs().read_dir(ino, args.offset, &mut take).or_errno()
    }

    pub(super) fn readdirplus(
        &self,
        ino: Ino,
        args: &Read,
        out: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        let mut take = |entry: &stitch_fs::DirEntry<'_>| {
            let looked_up = entry.attr.as_ref().map(|attr| self.entry(attr, FOREVER));
            if !out.push(&self.dir_entry(ino, entry), looked_up.as_ref()) {
                return Taken::Full;
            }
            self.count_lookups(u64::from(looked_up.is_some()));
            Taken::More
        };
        let read = self.fs().read_dir_plus(ino, args.offset, &mut take);
        read.or_errno()
    }

    pub(super) fn getxattr(
        &self,
        actor: &Owner,
        ino: Ino,
        name: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<()> {
        let value = self.fs().get_xattr(&actor.caller(), ino, name).or_errno()?;
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
        match self.fs().get_xattr(&caller.caller(), ino, name) {
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
        let names = xattr::names(self.fs(), context, ino)?;
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
        flags::serve(self.fs(), actor, ino, args, out)
    }
}
