//! Reading directories.
//!
//! Entries come in the order of their names' hashes, which is the order of their keys. A position
//! is a number of 63 bits that says after which entry a walk goes on:
//!
//! ```text
//! 0: the start    1: after `.`    2: after `..`    hash (59 bits) | rank (4 bits): after that name
//! ```
//!
//! The rank counts the names of one hash in the order of their bytes. So a position needs no memory
//! anywhere and is good for ever, over remounts too: entries that stay are met exactly once,
//! whatever is made and removed meanwhile. (Two names of one hash are met once in 2^59 pairs; only
//! if one of two is removed exactly between two reads that part them could the other be missed. A
//! seventeenth name of one hash could be missed; the hash is seeded, so no program can make them.)
//!
//! Differs: `TableFS` hashes names too, but keeps an open directory's position as a key in memory.

mod operations;

use crate::inode::{Holds, Inode, Tick};
use crate::locator::Locator;
use crate::names::Page;
use crate::namespace::{Dentry, Namespace};
use crate::prefetch::Prefetcher;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::{DirEntry, DirName, FsError, FsResult, Taken};
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;
use stitch_format::fs_key::NAME_HASH_MAX;

const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;
const RANK_BITS: u32 = 4;
const RANK_MAX: u64 = (1 << RANK_BITS) - 1;

/// Consumer of entries.
type Take<'a> = &'a mut dyn FnMut(&DirEntry<'_>) -> Taken;

/// What a walk gives of an entry beyond its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Give {
    Names,
    Attrs,
    /// Attributes, with a lookup counted.
    Lookups,
}

/// Where a walk goes on after a name.
const fn position(hash: u64, rank: u64) -> u64 {
    debug_assert!(hash <= NAME_HASH_MAX, "a position has 63 bits");
    let rank = if rank < RANK_MAX { rank } else { RANK_MAX };
    let position = hash << RANK_BITS | rank;
    debug_assert!(
        position >> RANK_BITS == hash,
        "a position leads back to its hash"
    );
    position
}

/// Reports whether a name of this rank lies before a position. All names after the last rank have
/// its position: a walk that resumes there leaves them out, since it would come back to them for
/// ever.
const fn is_done(rank: u64, done_rank: u64) -> bool {
    rank <= done_rank || done_rank == RANK_MAX
}

/// Reads the entries of directories.
///
/// Invariant: it changes nothing but the access history, what is remembered of names, and lookups
/// of the entries that are taken.
#[derive(Clone, Copy)]
struct DirReader<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    /// Where a serializable transaction notes what it reads.
    reads: Option<&'fs ReadSet>,
    prefetcher: Prefetcher<'fs>,
    names: Namespace<'fs>,
    holds: Holds<'fs>,
}

impl<'fs> DirReader<'fs> {
    fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            reads: fs.reads.as_deref(),
            prefetcher: fs.prefetcher(),
            names: Namespace::of(fs),
            holds: Holds::of(fs),
        }
    }
}

impl DirReader<'_> {
    /// Hands entries to `take`. Reports whether the directory has a name: of one that was removed
    /// there are none.
    fn walk(&self, ino: Ino, offset: u64, take: Take<'_>, give: Give) -> FsResult<bool> {
        let dir = self.residents.inodes.get_dir(ino)?;
        if offset >> RANK_BITS > NAME_HASH_MAX {
            return Err(FsError::Invalid("no position of a directory"));
        }
        let Some(parent) = dir.parent() else {
            // It was removed: not even `.` is left.
            return Ok(false);
        };
        self.names.refuse_graft(ino)?;
        if let Some(reads) = self.reads {
            reads.note_list(ino)?;
        }
        if offset == 0 {
            self.prefetcher.dir_listed(&dir);
        }
        {
            let _names = self.residents.locks.dir_read(ino);
            if take_dots(ino, parent, offset, take) == Taken::More {
                self.walk_names(&dir, offset, take, give)?;
            }
        }
        Ok(true)
    }

    fn walk_names(&self, dir: &Inode, offset: u64, take: Take<'_>, give: Give) -> FsResult<()> {
        let ino = dir.head.ino;
        let (from_hash, done_rank) = (offset >> RANK_BITS, offset & RANK_MAX);
        debug_assert!(
            from_hash <= NAME_HASH_MAX,
            "the caller has checked the position"
        );
        let moment = self.residents.inodes.moment();
        let names = self.store.keys.dentries_from(ino, from_hash.max(1));
        let mut scan = self.store.scan(&names)?;
        let (mut last_hash, mut rank) = (0, 0);
        let mut page = Page::new(&self.residents.names, ino, from_hash);
        while let Some((key, row)) = scan.next()? {
            let Some((hash, name)) = Locator::name_of(key) else {
                return Err(FsError::Corrupt(format!(
                    "directory {ino} has a row without name"
                )));
            };
            if hash > NAME_HASH_MAX {
                return Err(FsError::Corrupt(format!(
                    "directory {ino} has a name with a hash of {hash}"
                )));
            }
            debug_assert!(hash >= last_hash, "entries come in the order of their keys");
            rank = if hash == last_hash { rank + 1 } else { 0 };
            last_hash = hash;
            page.add(hash);
            if hash == from_hash && is_done(rank, done_rank) {
                continue;
            }
            let dentry = Dentry::decode_head(row)?;
            let at = DirName::new(ino, name);
            let entry = DirEntry {
                ino: dentry.ino,
                kind: dentry.kind,
                name,
                offset: position(hash, rank),
                attr: None,
            };
            debug_assert!(
                entry.offset > offset,
                "a walk comes further with each entry"
            );
            if self.hand_over(at, &dentry, entry, moment, (take, give))? == Taken::Full {
                page.end_at(&self.residents.names, ino, hash);
                return Ok(());
            }
        }
        page.end_whole(&self.residents.names, ino);
        Ok(())
    }

    fn hand_over(
        &self,
        at: DirName<'_>,
        dentry: &Dentry,
        entry: DirEntry<'_>,
        moment: Tick,
        (take, give): (Take<'_>, Give),
    ) -> FsResult<Taken> {
        debug_assert_eq!(dentry.ino, entry.ino, "the entry of the name");
        let attr = match give {
            Give::Names => return Ok(take(&entry)),
            Give::Attrs => self.names.attr_of(at, dentry)?,
            Give::Lookups => self.names.learn(at, dentry, moment)?,
        };
        debug_assert_eq!(
            attr.ino, dentry.ino,
            "names do not change in a locked directory"
        );
        let taken = take(&DirEntry {
            attr: Some(attr),
            ..entry
        });
        if taken == Taken::Full && give == Give::Lookups {
            self.holds.forget(dentry.ino);
        }
        Ok(taken)
    }
}

fn take_dots(ino: Ino, parent: Ino, offset: u64, take: Take<'_>) -> Taken {
    debug_assert!(
        ino != parent || ino == Ino::ROOT,
        "the root alone is in itself"
    );
    let dots: [(u64, &[u8], Ino); 2] = [(AFTER_DOT, b".", ino), (AFTER_DOT_DOT, b"..", parent)];
    for (after, name, ino) in dots {
        if offset >= after {
            continue;
        }
        let entry = DirEntry {
            ino,
            kind: FileKind::Directory,
            name,
            offset: after,
            attr: None,
        };
        if take(&entry) == Taken::Full {
            return Taken::Full;
        }
    }
    Taken::More
}

/// A position in a directory is never one of the first two.
const _: () = assert!(position(1, 0) > AFTER_DOT_DOT);
const _: () = assert!(AFTER_DOT < AFTER_DOT_DOT, "`.` comes first");
const _: () = assert!(position(NAME_HASH_MAX, RANK_MAX) <= i64::MAX as u64);
