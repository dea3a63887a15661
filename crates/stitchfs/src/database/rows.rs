//! A scan, as users have it.

use crate::StoreError;
use stitch_kv::{Entry, Scan};

/// Keys and values of a range in order, as of the moment when the scan began, or of a snapshot.
///
/// As an iterator it gives copies; [`Self::next_row`] lends each row without one.
pub struct Rows<'a> {
    scan: Box<dyn Scan + 'a>,
    is_over: bool,
}

impl std::fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl<'a> Rows<'a> {
    pub(super) fn new(scan: Box<dyn Scan + 'a>) -> Self {
        Self {
            scan,
            is_over: false,
        }
    }

    /// The next key and value, until the next call; `None` at the end.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) or [`ErrorKind::Io`](crate::ErrorKind::Io)
    /// where a block cannot be read; the scan is over then. One that begins behind the damage goes
    /// on.
    ///
    /// ```
    /// # use stitchfs::{Database, Direction, KeyRange, StoreOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// # let tree = db.create_tree("t", &TreeOptions::default())?;
    /// # tree.put(b"a", b"1")?;
    /// let mut rows = tree.scan(KeyRange::all(), Direction::Forward)?;
    /// let mut bytes = 0;
    /// while let Some((key, value)) = rows.next_row()? {
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 2);
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn next_row(&mut self) -> Result<Option<Entry<'_>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        match self.scan.next() {
            Ok(Some(row)) => Ok(Some(row)),
            Ok(None) => {
                self.is_over = true;
                Ok(None)
            }
            Err(error) => {
                self.is_over = true;
                Err(error.into())
            }
        }
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.next_row().transpose()?;
        Some(row.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }
}
