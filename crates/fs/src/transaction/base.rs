//! What a transaction began with.

use super::TransactionView;
use super::own::BranchTrees;
use crate::system::FileSystem;
use crate::{FsOptions, FsResult};
use stitch_base::sync::Arc;
use stitch_kv::SnapshotEngine;

impl FileSystem {
    /// Opens mainline as it was when a transaction began, for reading: the base of a merge of
    /// contents.
    ///
    /// # Errors
    /// [`crate::FsError::Ended`]; [`crate::FsError::Storage`].
    pub fn open_transaction_base(&self, view: &TransactionView) -> FsResult<Self> {
        self.check_mainline()?;
        let moment = BranchTrees::of(&view.fs)?.moment();
        let past = SnapshotEngine::new(Arc::clone(self.engine()), moment);
        let options = FsOptions {
            read_only: true,
            names_bytes: 0,
            ledger: None,
            external: None,
            ..self.options.clone()
        };
        Self::open_past(Arc::new(past), options)
    }
}
