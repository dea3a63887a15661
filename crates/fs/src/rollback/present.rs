//! The file system that a rollback changes.

use crate::back::NumberLookup;
use crate::change::Changes;
use crate::data::ExtentRows;
use crate::events::Untold;
use crate::inode::Holds;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::views::Standing;
use stitch_base::sync::Mutex;
use stitch_format::fs_sys::FsHeader;

/// What a rollback reads and changes.
#[derive(Clone, Copy)]
pub(super) struct Present<'fs> {
    pub(super) store: &'fs Store,
    pub(super) residents: &'fs Residents,
    /// As it is stored.
    pub(super) header: &'fs Mutex<FsHeader>,
    /// Clones lie at directories of it.
    pub(super) standing: &'fs Standing,
    /// Keeps what the kernel has to drop after a rollback that failed.
    pub(super) untold: &'fs Untold,
    pub(super) extents: ExtentRows<'fs>,
    pub(super) holds: Holds<'fs>,
    /// Which inodes have names elsewhere.
    pub(super) numbers: NumberLookup<'fs>,
    pub(super) changes: Changes<'fs>,
    /// A batch is committed when it has this many bytes.
    pub(super) batch_bytes: u64,
}

/// A batch is committed when it has this share of the engine's limit.
const BATCH_SHARE: u64 = 2;
const _: () = assert!(BATCH_SHARE > 1, "a batch takes a row more than its share");

impl<'fs> Present<'fs> {
    pub(super) fn of(fs: &'fs FileSystem) -> Self {
        let most = fs.engine().limits().batch_bytes_max / BATCH_SHARE;
        debug_assert!(most > 0, "a batch takes something");
        let asked = fs.options.rollback_batch_bytes.unwrap_or(most);
        Self {
            store: &fs.store,
            residents: &fs.residents,
            header: &fs.header,
            standing: &fs.standing,
            untold: &fs.untold,
            extents: ExtentRows::of(fs),
            holds: Holds::of(fs),
            numbers: NumberLookup::of(fs),
            changes: Changes::of(fs),
            batch_bytes: asked.min(most),
        }
    }
}
