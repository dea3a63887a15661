//! Which file systems can have snapshots and clones made.
//!
//! | refused | snapshot | clone | with |
//! |---|---|---|---|
//! | an engine without pins | x | | `Unsupported` |
//! | an engine without branch trees | | x | `Unsupported` |
//! | a transaction: it ends, and its trees with it | x | x | `Unsupported` |
//! | large files beside the store: they are written in place | x | x | `Unsupported` |
//! | a handle of a clone: the pin would show mainline | x | | `Unsupported` |
//! | numbers of inodes that leave no room for those of views | x | x | `NumbersTooLarge` |
//!
//! A clone is refused where its home is, or its source. Snapshots of directories in clones are
//! asked of mainline ([`crate::Snapshots::create_in`]).

use crate::numbers::Numbers;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::sync::Mutex;
use stitch_format::fs_sys::FsHeader;
use stitch_kv::Engine;

/// Bits of the inode numbers of a file system that takes snapshots: a front end numbers the inodes
/// of all views with what is left of 64.
pub const VIEW_INO_BITS: u32 = 44;
/// The largest number that the next inode may have when a view is made. A process would have to
/// make half of all numbers before one is larger than [`VIEW_INO_BITS`].
const NEXT_INO_MAX: u64 = 1 << (VIEW_INO_BITS - 1);

/// What decides whether views of a file system can be made.
#[derive(Clone, Copy)]
pub(crate) struct ViewLimits<'fs> {
    engine: &'fs dyn Engine,
    /// As it is stored.
    header: &'fs Mutex<FsHeader>,
    numbers: &'fs Numbers,
    is_transaction: bool,
    is_clone: bool,
}

impl<'fs> ViewLimits<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        debug_assert!(
            fs.branch.is_none() || fs.view_number() == 0,
            "no transaction is of a clone"
        );
        Self {
            engine: fs.engine().as_ref(),
            header: &fs.header,
            numbers: &fs.numbers,
            is_transaction: fs.branch.is_some(),
            is_clone: fs.view_number() != 0,
        }
    }

    /// Refuses where inode numbers are so large that they cannot be numbers of views as well.
    ///
    /// # Errors
    /// [`FsError::NumbersTooLarge`].
    pub(crate) fn check_numbers(self) -> FsResult<()> {
        const { assert!(NEXT_INO_MAX < 1 << VIEW_INO_BITS, "half of all numbers") };
        match self.numbers.next() <= NEXT_INO_MAX {
            true => Ok(()),
            false => Err(FsError::NumbersTooLarge),
        }
    }

    /// Reports whether the engine can keep snapshots of such a file system, and inode numbers leave
    /// room.
    pub(crate) fn may_take_snapshots(self) -> bool {
        let has_pins = !self.is_transaction && self.engine.capabilities().pins;
        has_pins && self.check_numbers().is_ok()
    }

    /// Refuses where no pin can show the file system.
    ///
    /// # Errors
    /// Those of the table.
    pub(crate) fn check_takes_snapshots(self) -> FsResult<()> {
        let has_pins = self.engine.capabilities().pins;
        if self.is_clone || !has_pins || !self.is_plain() {
            return Err(FsError::Unsupported);
        }
        self.check_numbers()
    }

    /// Refuses where no clone can be made in the file system.
    ///
    /// # Errors
    /// Those of the table.
    pub(crate) fn check_takes_clones(self) -> FsResult<()> {
        match self.engine.capabilities().branches {
            true => self.check_can_be_cloned(),
            false => Err(FsError::Unsupported),
        }
    }

    /// Refuses a file system that cannot be the source of a clone.
    ///
    /// # Errors
    /// Those of the table.
    pub(crate) fn check_can_be_cloned(self) -> FsResult<()> {
        match self.is_plain() {
            true => self.check_numbers(),
            false => Err(FsError::Unsupported),
        }
    }

    /// Reports whether all of the file system is in trees that last.
    fn is_plain(self) -> bool {
        !self.is_transaction && !self.header.lock().has_external
    }
}
