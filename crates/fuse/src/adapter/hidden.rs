//! `.stitchfs` in the root directory: a directory that can be reached by its name and is not
//! listed, so that `rm -rf`, `tar` and `find` never meet it. It has symbolic links to what the
//! daemon serves beside files. A name of a file system comes before it.
//!
//! ```text
//! MNT/.stitchfs/            inode 2^63, mode 0500, of the user who mounted
//! MNT/.stitchfs/kv.sock     inode 2^63 + 1, a link to the socket on which keys are served
//! ```
//!
//! No inode of a file system has such a number. Nothing in it can be changed, and the kernel may
//! forget it and ask again.

use super::Adapter;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::wire::reply::{
    Attr, AttrReply, DirEntry, DirPlusSink, DirSink, Entry, FOREVER, FileKind, Lookup, StatxReply,
};
use stitch_base::Ino;
use stitch_base::clock::Timestamp;

const NAME: &[u8] = b".stitchfs";
const DIR: Ino = Ino(1 << 63);
const LINK: Ino = Ino((1 << 63) + 1);
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

/// A link in the hidden directory.
#[derive(Clone, Debug)]
pub struct HiddenLink {
    /// Its name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub target: Vec<u8>,
    /// Owner of directory and link.
    pub uid: u32,
    /// Group of both.
    pub gid: u32,
}

impl HiddenLink {
    fn attr(&self, ino: Ino) -> Attr {
        let is_dir = ino == DIR;
        Attr {
            ino,
            size: if is_dir { 0 } else { self.target.len() as u64 },
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
            mode: if is_dir {
                S_IFDIR | 0o500
            } else {
                S_IFLNK | 0o777
            },
            nlink: if is_dir { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
        }
    }

    fn entry(&self, ino: Ino) -> Entry {
        Entry {
            ino,
            generation: 0,
            attr: self.attr(ino),
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
        }
    }

    /// The entries of the directory from `offset` on.
    fn list(&self, offset: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let entry = |ino, next_offset, kind, name| DirEntry {
            ino,
            next_offset,
            kind,
            name,
        };
        let all = [
            entry(DIR, 1, FileKind::Directory, &b"."[..]),
            entry(Ino::ROOT, 2, FileKind::Directory, b".."),
            entry(LINK, 3, FileKind::Symlink, &self.name),
        ];
        all.into_iter()
            .filter(move |entry| entry.next_offset > offset)
    }
}

/// Reports whether an inode is the hidden directory or in it.
pub(super) const fn is_hidden(ino: Ino) -> bool {
    ino.0 >> 63 == 1
}

impl Adapter {
    /// Adds the hidden directory, with this link.
    #[must_use]
    pub fn with_hidden_link(mut self, link: HiddenLink) -> Self {
        self.hidden = Some(link);
        self
    }

    /// Looks a name up that the file system does not have.
    pub(super) fn find_hidden(&self, parent: Ino, name: &[u8]) -> Option<Lookup> {
        let link = self.hidden.as_ref()?;
        let ino = match parent {
            Ino::ROOT if name == NAME => DIR,
            DIR if name == link.name => LINK,
            DIR if name == b"." => DIR,
            _ => return None,
        };
        Some(Lookup::Found(link.entry(ino)))
    }

    fn hidden(&self, ino: Ino) -> Answer<&HiddenLink> {
        let link = self.hidden.as_ref().filter(|_| ino == DIR || ino == LINK);
        link.ok_or(Errno::ESTALE)
    }

    pub(super) fn hidden_attr(&self, ino: Ino) -> Answer<AttrReply> {
        let attr = self.hidden(ino)?.attr(ino);
        Ok(AttrReply { attr, ttl: FOREVER })
    }

    pub(super) fn hidden_statx(&self, ino: Ino) -> Answer<StatxReply> {
        let attr = self.hidden(ino)?.attr(ino);
        Ok(StatxReply {
            attr,
            ttl: FOREVER,
            attributes: 0,
            attributes_mask: 0,
        })
    }

    pub(super) fn hidden_target(&self, ino: Ino) -> Answer<&[u8]> {
        match self.hidden(ino)? {
            link if ino == LINK => Ok(&link.target),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn list_hidden(&self, offset: u64, out: &mut DirSink<'_>) -> Answer<()> {
        let _is_all = self.hidden(DIR)?.list(offset).all(|entry| out.push(&entry));
        Ok(())
    }

    pub(super) fn list_hidden_plus(&self, offset: u64, out: &mut DirPlusSink<'_>) -> Answer<()> {
        // Without attributes: the kernel looks up what it wants to know.
        let mut listed = self.hidden(DIR)?.list(offset);
        let _is_all = listed.all(|entry| out.push(&entry, None));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> HiddenLink {
        HiddenLink {
            name: b"kv.sock".to_vec(),
            target: b"/run/x".to_vec(),
            uid: 7,
            gid: 8,
        }
    }

    #[test]
    fn the_directory_is_its_owners_and_has_one_link() {
        let link = link();
        let (dir, leaf) = (link.attr(DIR), link.attr(LINK));
        assert_eq!(
            (dir.mode, dir.nlink, dir.uid, dir.gid),
            (0o040_500, 2, 7, 8)
        );
        assert_eq!((leaf.mode, leaf.nlink, leaf.size), (0o120_777, 1, 6));
        assert!(is_hidden(DIR) && is_hidden(LINK));
        assert!(!is_hidden(Ino::ROOT) && !is_hidden(Ino(u64::MAX >> 1)));
    }

    #[test]
    fn a_listing_goes_on_where_it_stopped() {
        let link = link();
        let names = |offset| -> Vec<&[u8]> { link.list(offset).map(|entry| entry.name).collect() };
        assert_eq!(names(0), [&b"."[..], b"..", b"kv.sock"]);
        assert_eq!(names(2), [b"kv.sock"]);
        assert!(names(3).is_empty());
    }
}
