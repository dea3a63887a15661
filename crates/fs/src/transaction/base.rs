//! What a transaction began with.

use super::TransactionView;
use super::life::schema_name;
use super::own::BranchTrees;
use crate::FsResult;
use crate::aside::Aside;
use crate::schema::SCHEMA;
use crate::system::FileSystem;
use crate::views::{Standing, ViewSet};
use stitch_base::sync::Arc;
use stitch_kv::SnapshotEngine;

impl FileSystem {
    /// Opens mainline, or the transaction that one began in, as it was then, for reading: the base
    /// of a merge of contents.
    ///
    /// # Errors
    /// [`crate::FsError::Ended`]; [`crate::FsError::Storage`].
    pub fn open_transaction_base(&self, view: &TransactionView) -> FsResult<Self> {
        self.check_mainline()?;
        let moments = BranchTrees::of(&view.fs)?.moments();
        let past = SnapshotEngine::of_trees(Arc::clone(self.engine()), moments);
        let outer = view.outer.as_ref();
        let schema = outer.map_or(SCHEMA.to_owned(), |outer| schema_name(outer.number));
        // The moment is held of the trees that the transaction branched from, not of clones.
        let standing = Standing {
            number: 0,
            views: Arc::new(ViewSet::none()),
            room: Arc::default(),
        };
        Self::open_with(
            Arc::new(past),
            self.options.of_past(),
            &schema,
            standing,
            Aside::default(),
        )
    }
}
