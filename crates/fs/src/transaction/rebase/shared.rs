//! Shared contents of an inode that the transaction decides on.

use super::super::shared::decode;
use super::Trial;
use super::merged::MergedRows;
use crate::locator::Tree;
use crate::{FsError, FsResult};
use bytes::Bytes;
use stitch_base::Ino;

const COPIED_THERE: FsError = FsError::Unresolvable(
    "others have copied the file, and the copy shares its contents; take --theirs",
);

impl Trial<'_> {
    /// Takes the contents that an inode has in the transaction, with the rows that say where they
    /// are. `is_lost`: mainline does not have the inode.
    pub(super) fn take_chunks(
        &self,
        ino: Ino,
        is_lost: bool,
        rows: &mut MergedRows<'_>,
    ) -> FsResult<()> {
        let (trees, keys) = (self.trees, self.store.keys);
        let key = keys.shared(ino);
        let ours = trees.ours(Tree::Sys, &key)?;
        let theirs = decode(trees.theirs(Tree::Sys, &key)?.as_ref());
        let row = decode(ours.as_ref());
        let own = row.as_ref().map_or(ino, |row| row.own);
        debug_assert!(own.0 > 0, "own chunks have a number");
        let contents = keys.contents(own);
        let is_shared = trees.theirs(Tree::Sys, &contents)?.is_some();
        if is_shared && trees.ours(Tree::Sys, &contents)?.is_none() {
            return Err(COPIED_THERE);
        }
        rows.data
            .extend(self.written(&keys.chunks_from(own, 0), is_lost)?);
        if let Some(theirs) = &theirs {
            if theirs.own != own {
                let gone = self.written(&keys.chunks_from(theirs.own, 0), false)?;
                rows.data.extend(gone);
            }
            if let Some(number) = theirs.contents {
                rows.sys
                    .insert(keys.contents_user(number, ino).to_vec(), None);
            }
        }
        if let Some(number) = row.and_then(|row| row.contents) {
            let end = trees.ours(Tree::Sys, &keys.contents(number))?;
            let chunks = self.written(&keys.chunks_from(number, 0), false)?;
            rows.data.extend(chunks);
            rows.sys.insert(keys.contents(number).to_vec(), end);
            let user = keys.contents_user(number, ino).to_vec();
            rows.sys.insert(user, Some(Bytes::new()));
        }
        if ours.is_some() || theirs.is_some() {
            rows.sys.insert(key.to_vec(), ours);
        }
        Ok(())
    }
}
