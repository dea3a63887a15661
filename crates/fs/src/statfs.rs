//! Space and inodes, as `statfs` tells them.

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
        // What is beside the store is there beside its space; what more there could be, only if
        // large files go there.
        let room = if self.externals.takes_more() {
            self.externals.files()?.free_bytes()?
        } else {
            0
        };
        let total_bytes = space.total_bytes + self.externals.bytes() + room;
        let free_bytes = space.free_bytes.min(space.total_bytes) + room;
        let block = u64::from(BLOCK_BYTES);
        let used = self.residents.inode_count();
        let inodes_free = space.free_bytes / INODE_BYTES;
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
