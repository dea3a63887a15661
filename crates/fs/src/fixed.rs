//! Files that `chattr` made immutable or append-only: whether a store has any, and what they may be
//! opened for.
//!
//! A front end that asks for every open pays for it. So a mark in the sys tree says that some file
//! was given such a flag, ever. It is committed with the flag. Stores of earlier programs have such
//! files without the mark: it is set when one of them is met.

mod operations;

use crate::inode_flag;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::transaction::Grafts;
use crate::{FsError, FsResult};
use std::collections::HashSet;
use stitch_base::Ino;
use stitch_base::sync::atomic::{AtomicBool, Ordering};
use stitch_db::SpaceClass;
use stitch_format::fs_inode::{FileKind, MetaRow};
use stitch_format::fs_sys::encode_number;

/// The flags that forbid some opens.
const FIXED: u32 = inode_flag::IMMUTABLE | inode_flag::APPEND;
const _: () = assert!(FIXED & !inode_flag::ALL == 0, "rows keep these flags");

/// Reports whether these flags forbid some opens.
pub(crate) const fn is_fixed(iflags: u32) -> bool {
    iflags & FIXED != 0
}

/// The mark.
pub(crate) const MARK: [u8; 8] = encode_number(1);
const _: () = assert!(u64::from_le_bytes(MARK) > 0, "0 is no mark");

/// The immutable and append-only files of trees: the mark, and the rows that have the flags.
#[derive(Clone, Copy)]
pub(crate) struct FixedFiles<'fs> {
    store: &'fs Store,
    is_marked: &'fs AtomicBool,
    /// Directories of a transaction at which clones lie.
    grafts: &'fs Grafts,
}

impl<'fs> FixedFiles<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            is_marked: &fs.fixed,
            grafts: &fs.grafts,
        }
    }

    /// Reports whether some file was ever immutable or append-only, as far as is known.
    pub(crate) fn any(&self) -> bool {
        self.is_marked.load(Ordering::Acquire)
    }

    /// Notes in memory that there is such a file.
    pub(crate) fn mark(&self) {
        self.is_marked.store(true, Ordering::Release);
    }

    /// See [`FileSystem::note_flags`].
    fn note(&self, iflags: u32, is_read_only: bool) {
        if !is_fixed(iflags) || self.is_marked.swap(true, Ordering::AcqRel) {
            return;
        }
        if is_read_only {
            return;
        }
        debug_assert!(self.any(), "it is marked before it is stored");
        let mut batch = self.store.batch();
        batch.put(&self.store.keys.fixed(), &MARK);
        if let Err(error) = self.store.commit(&batch, SpaceClass::Normal) {
            tracing::debug!(%error, "the next life has to meet an immutable file again");
        }
    }

    /// Refuses to remove a tree with an immutable or append-only inode in it, or in a transaction
    /// with a clone. Walks the tree where the store may have one.
    ///
    /// # Errors
    /// [`FsError::Perm`]; [`FsError::Unsupported`] for a clone; those of a read.
    pub(crate) fn check_tree(&self, top: Ino) -> FsResult<()> {
        if !self.any() && self.grafts.is_empty() {
            return Ok(());
        }
        // Deepest first: no more wait than the directories on the way have. Damaged rows may form a
        // ring.
        let (mut waiting, mut seen) = (vec![top], HashSet::from([top]));
        while let Some(dir) = waiting.pop() {
            debug_assert!(dir.0 > 0, "0 is no inode");
            self.grafts.refuse(dir)?;
            let mut scan = self.store.scan(&self.store.keys.dentries(dir))?;
            while let Some((_, row)) = scan.next()? {
                let (kind, iflags) = self.kind_and_flags(row)?;
                if is_fixed(iflags) {
                    return Err(FsError::Perm);
                }
                waiting.extend(kind.filter(|dir| seen.insert(*dir)));
            }
        }
        Ok(())
    }

    /// Returns the number of a directory, and the flags of the inode that a name stands for.
    fn kind_and_flags(&self, row: &[u8]) -> FsResult<(Option<Ino>, u32)> {
        match MetaRow::decode(row)? {
            MetaRow::Inode(head, _) => {
                let is_dir = head.kind == FileKind::Directory;
                Ok((is_dir.then_some(head.ino), head.iflags))
            }
            MetaRow::Link { ino, .. } => {
                let own = self.store.own_row(ino)?;
                Ok((None, own.map_or(0, |(head, _)| head.iflags)))
            }
        }
    }
}

/// Refuses what the flags of a file forbid to open it for.
fn check_open(iflags: u32, writes: bool, appends: bool) -> FsResult<()> {
    let is_refused = match iflags & FIXED {
        0 => false,
        inode_flag::APPEND => writes && !appends,
        _ => writes,
    };
    debug_assert!(writes || !is_refused, "all of them can be read");
    if is_refused {
        return Err(FsError::Perm);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, DirName, FsOptions, NewNode};
    use stitch_base::sync::Arc;
    use stitch_kv::Engine;

    fn formatted() -> Arc<dyn Engine> {
        crate::testing::formatted(&FsOptions::default())
    }

    fn open(engine: &Arc<dyn Engine>) -> FileSystem {
        FileSystem::open(Arc::clone(engine), FsOptions::default()).unwrap()
    }

    fn file(fs: &FileSystem) -> Ino {
        let new = NewNode {
            perm: 0o644,
            umask: 0,
        };
        let at = DirName::new(Ino::ROOT, b"file");
        fs.create(&Caller::ROOT, at, &new).unwrap().ino
    }

    fn set(fs: &FileSystem, ino: Ino, flags: u32) {
        fs.set_inode_flags(&Caller::ROOT, ino, flags).unwrap();
    }

    #[test]
    fn the_first_immutable_file_marks_the_store_for_good() {
        let engine = formatted();
        let fs = open(&engine);
        let ino = file(&fs);
        set(&fs, ino, inode_flag::NODUMP);
        assert!(!fs.has_fixed_files());
        set(&fs, ino, inode_flag::APPEND);
        assert!(fs.has_fixed_files());
        set(&fs, ino, 0);
        drop(fs);
        assert!(open(&engine).has_fixed_files());
    }

    #[test]
    fn a_store_of_an_earlier_program_is_marked_when_such_a_file_is_met() {
        let engine = formatted();
        let fs = open(&engine);
        let ino = file(&fs);
        set(&fs, ino, inode_flag::IMMUTABLE);
        let mut batch = fs.store.batch();
        batch.delete(&fs.store.keys.fixed());
        fs.store.commit(&batch, SpaceClass::Normal).unwrap();
        drop(fs);
        let fs = open(&engine);
        assert!(!fs.has_fixed_files());
        let attr = fs.lookup(DirName::new(Ino::ROOT, b"file")).unwrap();
        fs.note_flags(attr.iflags);
        assert!(fs.has_fixed_files());
        drop(fs);
        assert!(open(&engine).has_fixed_files());
    }

    #[test]
    fn fsck_knows_the_mark() {
        let engine = formatted();
        let fs = open(&engine);
        let ino = file(&fs);
        set(&fs, ino, inode_flag::IMMUTABLE);
        fs.forget(ino, 1);
        fs.close().unwrap();
        drop(fs);
        assert_eq!(crate::fsck::check(&engine, &mut |_| {}).unwrap(), []);
    }

    #[test]
    fn opens_are_refused_by_flag_and_access() {
        let engine = formatted();
        let fs = open(&engine);
        let ino = file(&fs);
        let refused = |flags, writes, appends| {
            set(&fs, ino, flags);
            fs.check_open(ino, writes, appends).is_err()
        };
        for (flags, read, write, append) in [
            (0, false, false, false),
            (inode_flag::IMMUTABLE, false, true, true),
            (inode_flag::APPEND, false, true, false),
            (
                inode_flag::APPEND | inode_flag::IMMUTABLE,
                false,
                true,
                true,
            ),
        ] {
            assert_eq!(refused(flags, false, false), read, "{flags}");
            assert_eq!(refused(flags, false, true), read, "{flags}");
            assert_eq!(refused(flags, true, false), write, "{flags}");
            assert_eq!(refused(flags, true, true), append, "{flags}");
        }
    }
}
