//! A view: what a user of a schema reads and writes through.

use crate::{Changes, DbError, Dictionary};
use bytes::Bytes;
use stitch_base::Seqno;
use stitch_base::sync::Arc;
use stitch_kv::{CommitOptions, Direction, Engine, KeyRange, ReadHint, Scan, Snapshot};

/// The present, which can be read and written, or one moment, which can be read. Cheap to clone.
#[derive(Clone)]
pub struct View {
    engine: Arc<dyn Engine>,
    at: Option<Snapshot>,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl View {
    pub(crate) const fn new(engine: Arc<dyn Engine>, at: Option<Snapshot>) -> Self {
        Self { engine, at }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`DbError::Kv`].
    pub fn get(&self, dictionary: Dictionary, key: &[u8]) -> Result<Option<Bytes>, DbError> {
        Ok(self.engine.get(dictionary.tree(), key, self.at.as_ref())?)
    }

    /// Returns the values of several keys, in the order of `keys`, all of one moment.
    ///
    /// # Errors
    /// [`DbError::Kv`].
    ///
    /// # Cost
    /// That of [`Engine::get_many`].
    pub fn get_many(
        &self,
        dictionary: Dictionary,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Bytes>>, DbError> {
        let (tree, at) = (dictionary.tree(), self.at.as_ref());
        Ok(self.engine.get_many(tree, keys, at)?)
    }

    /// Walks a range in order. A walk of the present sees what was there when it began.
    ///
    /// # Errors
    /// [`DbError::Kv`].
    pub fn scan(
        &self,
        dictionary: Dictionary,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Box<dyn Scan + '_>, DbError> {
        let at = self.at.as_ref();
        Ok(self.engine.scan(dictionary.tree(), range, direction, at)?)
    }

    /// Scans upward like [`Self::scan`], for a caller that will read all of a bounded range.
    ///
    /// # Errors
    /// [`DbError::Kv`].
    pub fn scan_whole(
        &self,
        dictionary: Dictionary,
        range: KeyRange<'_>,
    ) -> Result<Box<dyn Scan + '_>, DbError> {
        let at = self.at.as_ref();
        Ok(self.engine.scan_whole(dictionary.tree(), range, at)?)
    }

    /// Prefetches a range of about a megabyte that a [`Self::scan_whole`] will soon read; see
    /// [`Engine::read_ahead`].
    pub fn read_ahead(&self, dictionary: Dictionary, hint: &ReadHint<'_>) -> bool {
        self.engine.read_ahead(dictionary.tree(), hint)
    }

    /// Applies changes, whole or not at all.
    ///
    /// # Errors
    /// [`DbError::ReadOnlyView`] at a moment of the past; [`DbError::Kv`].
    ///
    /// # Durability
    /// As of [`Engine::commit`].
    pub fn commit(&self, changes: &Changes, options: CommitOptions) -> Result<Seqno, DbError> {
        if self.at.is_some() {
            return Err(DbError::ReadOnlyView);
        }
        Ok(self.engine.commit(changes.batch(), options)?)
    }

    /// The moment that it shows; `None` is the present.
    #[must_use]
    pub fn seqno(&self) -> Option<Seqno> {
        self.at.as_ref().map(Snapshot::seqno)
    }

    /// The moment that it holds; `None` is the present.
    #[must_use]
    pub const fn held(&self) -> Option<&Snapshot> {
        self.at.as_ref()
    }

    /// This view's moment, held open: of the present, a new moment.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let at = self.at.clone();
        let at = at.unwrap_or_else(|| self.engine.snapshot());
        Self::new(Arc::clone(&self.engine), Some(at))
    }
}
