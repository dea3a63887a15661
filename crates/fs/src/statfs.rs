//! Space and inodes, as `statfs` tells them.

use crate::system::FileSystem;
use crate::{FsResult, StatFs};
use stitch_base::sync::atomic::Ordering;
use stitch_format::fs_key::NAME_BYTES_MAX;

const BLOCK_BYTES: u32 = 4096;
/// What an inode takes at least, for an estimate of how many more fit.
const INODE_BYTES: u64 = 256;

impl FileSystem {
    /// Space and inodes. Inodes have no table that could be full: those left are as many as fit into
    /// the space left.
    ///
    /// # Errors
    /// None yet.
    pub fn stat_fs(&self) -> FsResult<StatFs> {
        let space = self.engine().space();
        let block = u64::from(BLOCK_BYTES);
        let used = self.inode_count.load(Ordering::Relaxed);
        let inodes_free = space.free_bytes / INODE_BYTES;
        Ok(StatFs {
            block_bytes: BLOCK_BYTES,
            blocks: space.total_bytes / block,
            blocks_free: space.free_bytes.min(space.total_bytes) / block,
            inodes: used + inodes_free,
            inodes_free,
            name_bytes_max: u32::try_from(NAME_BYTES_MAX).expect("255"),
        })
    }
}
