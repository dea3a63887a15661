//! Changes of contents: what all of them have in common.
//!
//! 1. *Lock* the inode; of a copy both.
//! 2. *Check* its kind and flags, the size, and that no other process has an atomic write of it.
//! 3. *Prepare*, in batches of their own: contents leave the store where they get too long for it,
//!    and a file with very many extents of shared contents copies some.
//! 4. *Stage* one change: chunks or the plain file, extents, the row of shared contents, the row of
//!    the inode, and the events ([`Staged`]).
//! 5. *Commit* it with all locks held. A long operation goes on at 4.
//!
//! | operation | chunks | size | space |
//! |---|---|---|---|
//! | write (`write.rs`) | put, patched | grows | normal; allocated where all was |
//! | new size (`resize.rs`) | deleted, the last one cut | set | reserve if it gives space back |
//! | `fallocate` (`allocate.rs`, `allocated.rs`) | zeroed, deleted | grows, or stays | set aside |
//! | copy (`copy.rs`, `share.rs`) | shared, or read and put | grows | normal |
//! | commit of an atomic write (`atomic.rs`) | all of these | set | as of a write |
//!
//! Invariant: what is not in the fields of [`ContentChanges`] is changed by a [`Change`] alone, but
//! for bytes of a plain file ([`crate::external`]): those are written before the change is
//! committed, and are not of the file until then.

use super::shared::Sharing;
use super::{ExtentRows, FileContents, Staged};
use crate::change::{Change, Changes};
use crate::contents::Contents;
use crate::inode::{Inode, Inodes};
use crate::lock::Locks;
use crate::shared::SharedContents;
use crate::system::FileSystem;
use crate::{ClearSetId, FsResult};
use stitch_format::fs_inode::FileKind;
use stitch_kv::Engine;

/// What operations that change contents work on.
#[derive(Clone, Copy)]
pub(crate) struct ContentChanges<'fs> {
    pub(super) contents: FileContents<'fs>,
    pub(super) extents: ExtentRows<'fs>,
    pub(super) sharing: SharedContents<'fs>,
    pub(super) changes: Changes<'fs>,
    /// Its limits bound a batch.
    pub(super) engine: &'fs dyn Engine,
}

impl<'fs> ContentChanges<'fs> {
    /// Changes of contents that the kernel, or a user of the library, asks for.
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            contents: FileContents::of(fs),
            extents: ExtentRows::of(fs),
            sharing: SharedContents::of(fs),
            changes: Changes::of(fs),
            engine: fs.engine().as_ref(),
        }
    }

    pub(super) const fn inodes(&self) -> &'fs Inodes {
        &self.contents.residents.inodes
    }

    pub(super) const fn locks(&self) -> &'fs Locks {
        &self.contents.residents.locks
    }

    /// Longest batch of the engine, in bytes.
    pub(super) fn batch_bytes_max(&self) -> u64 {
        let bytes = self.engine.limits().batch_bytes_max;
        debug_assert!(bytes > 0, "a batch takes a change");
        bytes
    }

    /// Begins a change of an inode.
    pub(crate) fn stage(&self, inode: Inode) -> FsResult<Staged> {
        let head = inode.head;
        let sharing = match Contents::of_inode(&head) {
            Some(Contents::Shared) => {
                let row = self.contents.store.shared_row(head.ino)?;
                let before = Some(row.clone());
                Some(Sharing { before, row })
            }
            _ => None,
        };
        Ok(Staged {
            inode,
            head,
            tail: None,
            sharing,
        })
    }

    /// Stages what every change of contents does to attributes: times, set-id bits, capabilities.
    pub(super) fn stage_modified(
        &self,
        change: &mut Change<'_>,
        staged: &mut Staged,
        clear_setid: ClearSetId,
    ) {
        debug_assert_eq!(
            staged.head.kind,
            FileKind::Regular,
            "files alone have contents"
        );
        let now = self.changes.now();
        staged.head.mtime = now;
        staged.head.ctime = now;
        staged.head.perm = clear_setid.apply(staged.head.perm);
        debug_assert!(staged.head.perm <= 0o7777, "the kind is not among the bits");
        change.drop_capabilities(&mut staged.head);
    }
}
