//! Where point reads get the blocks of tables from.

use super::Table;
use super::block::{DataBlock, IndexBlock, Root};
use super::blocks::LeafPlace;
use super::leaves::Seen;
use super::loader::{DataRef, Loader};
use crate::VtError;
use std::sync::Arc;

/// A source of blocks for point reads.
pub(crate) trait BlockSource {
    /// Why there is no block.
    type Error: From<VtError>;

    /// Returns the root of a table.
    fn root(&mut self, table: &Table, seen: &mut Seen) -> Result<Arc<Root>, Self::Error>;

    /// Returns an index block of the loader's table.
    fn leaf(
        &mut self,
        loader: &Loader,
        place: &LeafPlace<'_>,
        seen: &mut Seen,
    ) -> Result<Arc<IndexBlock>, Self::Error>;

    /// Reports whether more of an index is prefetched that a lookup waited for.
    fn prefetches_index(&mut self) -> bool;

    /// Returns a data block or value block.
    fn data(&mut self, loader: &Loader, data: &DataRef) -> Result<Arc<DataBlock>, Self::Error>;
}

/// Reads each block that is not in the cache when it is asked for.
#[derive(Debug)]
pub(crate) struct OneByOne;

impl BlockSource for OneByOne {
    type Error = VtError;

    #[inline]
    fn root(&mut self, table: &Table, seen: &mut Seen) -> Result<Arc<Root>, VtError> {
        let root = table.root(&mut seen.hits)?;
        debug_assert_eq!(root.root.id, table.meta.id, "a root is one of its table");
        Ok(root)
    }

    #[inline]
    fn leaf(
        &mut self,
        loader: &Loader,
        place: &LeafPlace<'_>,
        seen: &mut Seen,
    ) -> Result<Arc<IndexBlock>, VtError> {
        debug_assert!(
            place.at < place.leaves.len(),
            "the root has the index block"
        );
        loader.leaf(place.root, place.leaves, place.at, place.reader, seen)
    }

    fn prefetches_index(&mut self) -> bool {
        true
    }

    #[inline]
    fn data(&mut self, loader: &Loader, data: &DataRef) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(data.block.len_bytes > 0, "a block has a length");
        let block = loader.data(data)?;
        debug_assert!(
            data.is_of(&block),
            "the block is the one that is referenced"
        );
        Ok(block)
    }
}
