//! A scan of the model engine: looks up the next visible key at every step, so that it holds no
//! lock between steps.

use super::rows::Rows;
use crate::{Direction, Entry, KeyRange, KvError, Scan, Snapshot};
use bytes::Bytes;
use std::ops::Bound;
use stitch_base::sync::{Arc, RwLock};

/// A scan under way. Keeps the tree's rows alive, should the tree be dropped meanwhile.
pub(super) struct ModelScan {
    rows: Arc<RwLock<Rows>>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    direction: Direction,
    snapshot: Snapshot,
    current: (Vec<u8>, Bytes),
}

impl ModelScan {
    pub(super) fn new(
        rows: Arc<RwLock<Rows>>,
        range: KeyRange<'_>,
        direction: Direction,
        snapshot: Snapshot,
    ) -> Self {
        let end = range.end.map(<[u8]>::to_vec);
        Self {
            rows,
            start: Bound::Included(range.start.to_vec()),
            end: end.map_or(Bound::Unbounded, Bound::Excluded),
            direction,
            snapshot,
            current: (Vec::new(), Bytes::new()),
        }
    }
}

impl Scan for ModelScan {
    fn next(&mut self) -> Result<Option<Entry<'_>>, KvError> {
        let bounds = (
            self.start.as_ref().map(Vec::as_slice),
            self.end.as_ref().map(Vec::as_slice),
        );
        let seqno = self.snapshot.seqno();
        let found = self.rows.read().first(bounds, self.direction, seqno);
        let Some((key, value)) = found else {
            return Ok(None);
        };
        match self.direction {
            Direction::Forward => self.start = Bound::Excluded(key.clone()),
            Direction::Backward => self.end = Bound::Excluded(key.clone()),
        }
        self.current = (key, value);
        Ok(Some((&self.current.0, &self.current.1)))
    }
}
