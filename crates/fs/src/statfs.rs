//! Space and inodes, as `statfs` tells them.

use crate::external::Externals;
use crate::system::FileSystem;
use crate::{FsResult, StatFs};
use stitch_format::fs_key::NAME_BYTES_MAX;

const BLOCK_BYTES: u32 = 4096;
/// What an inode takes at least, for an estimate of how many more fit.
const INODE_BYTES: u64 = 256;

impl FileSystem {
    /// Space and inodes. Inodes have no table that could be full: those left are as many as fit
    /// into the space left.
    ///
    /// # Errors
    /// [`crate::FsError::External`] if the host does not say what it has.
    pub fn stat_fs(&self) -> FsResult<StatFs> {
        let space = self.engine().space();
        let (beside_bytes, room) = self.externals.space()?;
        let total_bytes = space.total_bytes + beside_bytes + room;
        let free_bytes = space.free_bytes.min(space.total_bytes) + room;
        let block = u64::from(BLOCK_BYTES);
        let used = self.residents.inode_count();
        let inodes_free = space.free_bytes / INODE_BYTES;
        debug_assert!(free_bytes <= total_bytes, "no more is free than there is");
        Ok(StatFs {
            block_bytes: BLOCK_BYTES,
            blocks: total_bytes / block,
            blocks_free: free_bytes / block,
            inodes: used + inodes_free,
            inodes_free,
            name_bytes_max: u32::try_from(NAME_BYTES_MAX).expect("255"),
        })
    }
}

impl Externals {
    /// Returns the bytes of plain files that the engine's space does not have, and how many more
    /// there could be: none, unless large files go there.
    fn space(&self) -> FsResult<(u64, u64)> {
        let files = self.is_there().then(|| self.files());
        let files = files.transpose()?;
        if files.is_some_and(|files| files.shares_engine_space()) {
            return Ok((0, 0));
        }
        let takes_more = self.takes_more();
        let room = match files.filter(|_| takes_more) {
            Some(files) => files.free_bytes()?,
            None => 0,
        };
        Ok((self.bytes(), room))
    }
}
