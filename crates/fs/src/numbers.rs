//! Numbers of new inodes.
//!
//! One counter, stored in mainline's sys tree, numbers the inodes of mainline and of its
//! transactions. So what a transaction made keeps its number when it is committed. Numbers of
//! aborted transactions are lost.

use crate::rows::RowBatch;
use crate::schema::{FIRST_INO, Store};
use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_base::sync::Mutex;
use stitch_format::fs_key::INO_MAX;
use stitch_format::fs_sys::encode_number;

/// Numbers reserved at a time.
const RESERVED: u64 = 4096;
const _: () = assert!(RESERVED > 0, "a reservation has numbers");

/// The counter, in memory and in mainline's trees.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Mainline's trees, also where a transaction takes numbers.
    store: Store,
    reserved: Mutex<Reserved>,
}

/// Numbers that are reserved and were not given to an inode.
#[derive(Debug)]
struct Reserved {
    next: u64,
    end: u64,
}

impl Reserved {
    /// Checks that numbers that are reserved are in order, and that readers take all of them.
    fn check(&self) {
        debug_assert!(self.next <= self.end, "numbers are reserved first");
        debug_assert!(self.next >= FIRST_INO, "smaller numbers are kept");
        debug_assert!(self.end <= INO_MAX, "no row has a larger number");
    }
}

impl Numbers {
    /// The counter of a file system whose stored number is `next`.
    pub(crate) fn new(store: &Store, next: u64) -> Self {
        debug_assert!((FIRST_INO..=INO_MAX).contains(&next), "checked at open");
        Self {
            store: store.clone(),
            reserved: Mutex::new(Reserved { next, end: next }),
        }
    }

    /// Returns a number that no inode ever had. `commit` applies a change of mainline's trees.
    pub(crate) fn take(&self, commit: impl FnOnce(&RowBatch<'_>) -> FsResult<()>) -> FsResult<Ino> {
        let mut reserved = self.reserved.lock();
        reserved.check();
        if reserved.next == reserved.end {
            let end = reserved.end + RESERVED;
            if end > INO_MAX {
                return Err(FsError::NoSpace);
            }
            commit(&self.stored(end))?;
            reserved.end = end;
        }
        let ino = Ino(reserved.next);
        reserved.next += 1;
        reserved.check();
        debug_assert!(ino.0 < reserved.end, "it was reserved");
        Ok(ino)
    }

    /// Gives back the numbers that are reserved. `commit` is as of [`Self::take`].
    pub(crate) fn give_back(
        &self,
        commit: impl FnOnce(&RowBatch<'_>) -> FsResult<()>,
    ) -> FsResult<()> {
        let mut reserved = self.reserved.lock();
        reserved.check();
        match commit(&self.stored(reserved.next)) {
            Ok(()) => reserved.end = reserved.next,
            // The numbers that were reserved are skipped by the next life.
            Err(FsError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn stored(&self, next: u64) -> RowBatch<'static> {
        debug_assert!(
            (FIRST_INO..=INO_MAX).contains(&next),
            "the next open takes it"
        );
        let mut batch = self.store.batch();
        batch.put(&self.store.keys.next_ino(), &encode_number(next));
        batch
    }

    /// Returns the number that the next inode gets, or a smaller one.
    pub(crate) fn next(&self) -> u64 {
        self.reserved.lock().next
    }
}
