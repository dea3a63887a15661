//! A tree, as users have it.

use super::batch::space_of;
use super::{Rows, Snapshot};
use crate::engine::Instance;
use crate::{CommitOptions, Direction, KeyRange, Seqno, StoreError, TreeId};
use crate::{TreeInfo, TreeOptions};
use bytes::Bytes;
use stitch_kv::KvError;

/// A tree of a [`Database`](crate::Database): byte keys in order, each with a value. A handle:
/// cheap to clone, to be shared by threads. Numbers of trees are never used again, so a handle of a
/// tree that was dropped is an error to use, and never another tree; a handle of one store or
/// instance is an error to use with another.
#[derive(Clone)]
pub struct Tree {
    instance: Instance,
    id: TreeId,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tree {}", self.id)
    }
}

impl Tree {
    pub(super) const fn new(instance: Instance, id: TreeId) -> Self {
        Self { instance, id }
    }

    /// Its number in the store.
    #[must_use]
    pub const fn id(&self) -> TreeId {
        self.id
    }

    /// The engine that it is in.
    pub(crate) const fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Its name and options.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it was dropped.
    pub fn info(&self) -> Result<TreeInfo, StoreError> {
        let found = self
            .instance
            .engine
            .trees()
            .into_iter()
            .find(|t| t.id == self.id);
        Ok(found.ok_or(KvError::NoTree(self.id))?)
    }

    /// Gives the tree other options: size of blocks, stitching threshold, compression. They hold
    /// for what is written from now on, also by compactions that begin now.
    ///
    /// # Errors
    /// As [`Database::create_tree`](crate::Database::create_tree).
    ///
    /// # Durability
    /// On the medium when this returns.
    ///
    /// ```
    /// # use stitchfs::{Compression, Database, StoreOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// # let tree = db.create_tree("events", &TreeOptions::default())?;
    /// // Load as fast as it goes: what does not overlap is never copied.
    /// let options = tree.info()?.options;
    /// tree.set_options(&TreeOptions { stitch_bytes: 0, ..options.clone() })?;
    /// // ... and for scans from now on.
    /// tree.set_options(&TreeOptions {
    ///     stitch_bytes: 1 << 20,
    ///     compression: Compression::Zstd,
    ///     ..options
    /// })?;
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn set_options(&self, options: &TreeOptions) -> Result<(), StoreError> {
        Ok(self.instance.engine.alter_tree(self.id, options)?)
    }

    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the tree was dropped,
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) or [`ErrorKind::Io`](crate::ErrorKind::Io)
    /// where the block cannot be read.
    ///
    /// # Cost
    /// At most one data block read for a key that is there, where indexes are cached; hardly ever
    /// one for a key that is not (0.8 % a table). The value is a part of the cached block, not a
    /// copy.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.instance.engine.get(self.id, key, None)?)
    }

    /// As [`Self::get`], at a snapshot of the same store.
    ///
    /// # Errors
    /// As [`Self::get`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a snapshot of
    /// another store or instance.
    pub fn get_at(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let at = snapshot.moment_for(&self.instance)?;
        Ok(self.instance.engine.get(self.id, key, Some(at))?)
    }

    /// Returns the values of several keys, in the order of `keys`, all as of one moment: now.
    ///
    /// # Errors
    /// As [`Self::get`].
    ///
    /// # Cost
    /// At most that of a [`Self::get`] for each key. They are looked up in their order, so that a
    /// block that several of them are in is read once.
    ///
    /// ```
    /// # use stitchfs::{Database, StoreOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// # let tree = db.create_tree("t", &TreeOptions::default())?;
    /// tree.put(b"a", b"1")?;
    /// tree.put(b"b", b"2")?;
    /// let values = tree.get_many(&[b"b", b"x", b"a"])?;
    /// assert_eq!(values[0].as_deref(), Some(&b"2"[..]));
    /// assert_eq!(values[1], None);
    /// assert_eq!(values[2].as_deref(), Some(&b"1"[..]));
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>, StoreError> {
        Ok(self.instance.engine.get_many(self.id, keys, None)?)
    }

    /// As [`Self::get_many`], at a snapshot of the same store.
    ///
    /// # Errors
    /// As [`Self::get_at`].
    pub fn get_many_at(
        &self,
        snapshot: &Snapshot,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let at = snapshot.moment_for(&self.instance)?;
        Ok(self.instance.engine.get_many(self.id, keys, Some(at))?)
    }

    /// The rows of a range in order, as of now.
    ///
    /// # Errors
    /// As [`Self::get`].
    ///
    /// # Cost
    /// Blocks are read as the scan comes to them, ahead where it goes on for long. What a range
    /// delete hides is passed over, not read.
    ///
    /// ```
    /// use stitchfs::{Direction, KeyRange};
    /// # use stitchfs::{Database, StoreOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// # let tree = db.create_tree("t", &TreeOptions::default())?;
    /// for day in ["2026-11-19", "2026-11-20", "2026-11-21"] {
    ///     tree.put(day.as_bytes(), b"...")?;
    /// }
    /// // The newest first, from a day on, that day included.
    /// let rows = tree.scan(KeyRange::from(b"2026-11-20"), Direction::Backward)?;
    /// let days = rows.map(|row| Ok(row?.0));
    /// let days = days.collect::<Result<Vec<Vec<u8>>, stitchfs::StoreError>>()?;
    /// assert_eq!(days, [b"2026-11-21", b"2026-11-20"]);
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn scan(&self, range: KeyRange<'_>, direction: Direction) -> Result<Rows<'_>, StoreError> {
        Ok(Rows::new(
            self.instance.engine.scan(self.id, range, direction, None)?,
        ))
    }

    /// As [`Self::scan`], at a snapshot of the same store.
    ///
    /// # Errors
    /// As [`Self::get_at`].
    pub fn scan_at(
        &self,
        snapshot: &Snapshot,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'_>, StoreError> {
        let at = snapshot.moment_for(&self.instance)?;
        let scan = self
            .instance
            .engine
            .scan(self.id, range, direction, Some(at))?;
        Ok(Rows::new(scan))
    }

    /// The rows whose keys begin with `prefix`, as of now.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn scan_prefix(&self, prefix: &[u8], direction: Direction) -> Result<Rows<'_>, StoreError> {
        let end = stitch_kv::prefix_end(prefix);
        let range = KeyRange {
            start: prefix,
            end: end.as_deref(),
        };
        self.scan(range, direction)
    }

    /// Sets a key. A batch of one; several in one [`Batch`](crate::Batch) cost less.
    ///
    /// # Errors
    /// As [`Database::commit`](crate::Database::commit).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Seqno, StoreError> {
        self.commit(|batch| batch.put(self.id, key, value))
    }

    /// Removes a key, present or not.
    ///
    /// # Errors
    /// As [`Database::commit`](crate::Database::commit).
    pub fn delete(&self, key: &[u8]) -> Result<Seqno, StoreError> {
        self.commit(|batch| batch.delete(self.id, key))
    }

    /// Removes every key in `[start, end)`.
    ///
    /// # Errors
    /// As [`Database::commit`](crate::Database::commit).
    ///
    /// # Cost
    /// That of one message, however many keys there are; their space comes back in the background.
    pub fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<Seqno, StoreError> {
        self.commit(|batch| batch.delete_range(self.id, start, end))
    }

    /// Folds `delta` into the key's value by a function of [`StoreOptions::upserts`], without
    /// reading the value now.
    ///
    /// [`StoreOptions::upserts`]: crate::StoreOptions::upserts
    ///
    /// # Errors
    /// As [`Database::commit`](crate::Database::commit).
    ///
    /// # Cost
    /// That of a put of the delta. The fold is done when the key is read, and once for all when a
    /// compaction meets value and delta.
    ///
    /// ```
    /// use stitchfs::{Database, StoreOptions, TreeOptions, UpsertRegistry, upsert_fn};
    /// const COUNT: u32 = 1024;
    /// let mut upserts = UpsertRegistry::default();
    /// upserts.register(upsert_fn(COUNT, "count", |_key, old, delta| {
    ///     let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    ///     let sum = number(old.unwrap_or_default()).wrapping_add(number(delta));
    ///     Some(sum.to_le_bytes().to_vec())
    /// }));
    /// let options = StoreOptions { upserts, ..StoreOptions::default() };
    /// let db = Database::in_memory(16 << 20, &options)?;
    /// let visits = db.create_tree("visits", &TreeOptions::default())?;
    /// for _ in 0..3 {
    ///     visits.upsert(b"/index.html", COUNT, &1u64.to_le_bytes())?;
    /// }
    /// assert_eq!(visits.get(b"/index.html")?.as_deref(), Some(&3u64.to_le_bytes()[..]));
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn upsert(&self, key: &[u8], function: u32, delta: &[u8]) -> Result<Seqno, StoreError> {
        self.commit(|batch| batch.upsert(self.id, key, function, delta))
    }

    fn commit(&self, fill: impl FnOnce(&mut stitch_kv::Batch<'_>)) -> Result<Seqno, StoreError> {
        let mut batch = stitch_kv::Batch::new();
        fill(&mut batch);
        let options = CommitOptions {
            sync: false,
            space: space_of(&batch),
        };
        Ok(self.instance.engine.commit(&batch, options)?)
    }
}
