//! Snapshots that the store keeps under a name.

use super::{Database, Snapshot};
use crate::{Seqno, StoreError};
use stitch_format::db_names::{PIN_PREFIX, SPILL_PREFIX};
use stitch_kv::{KvError, TreeInfo};

/// A snapshot that is kept in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSnapshot {
    /// Its name.
    pub name: String,
    /// The last write that it sees.
    pub seqno: Seqno,
}

impl Database {
    /// Keeps this moment of all trees of records, and of branches of them, in the store under a
    /// name, until [`Self::drop_snapshot`], also while no process has the store open. Replaced
    /// contents of files take no space for it. Snapshots of directories have names of their own,
    /// and keep no records.
    ///
    /// A tree that is dropped later is kept for it, but is found by a handle that was had before
    /// alone.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is one of this name,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name that is empty or longer than
    /// 252 bytes, [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if the store lists no more,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) with the RocksDB engine.
    ///
    /// # Durability
    /// On the medium when this returns, with every commit that it sees.
    ///
    /// # Cost
    /// One sync of the log and one record; nothing is copied. What only it sees takes space.
    ///
    /// ```
    /// use stitchfs::{Database, StoreOptions, TreeOptions};
    /// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
    /// let rates = db.create_tree("rates", &TreeOptions::default())?;
    /// rates.put(b"EUR", b"1.08")?;
    /// db.create_snapshot("2026-11-26")?;
    /// rates.put(b"EUR", b"1.10")?;
    ///
    /// let then = db.open_snapshot("2026-11-26")?;
    /// assert_eq!(rates.get_at(&then, b"EUR")?.as_deref(), Some(&b"1.08"[..]));
    /// // What would have become of it?
    /// let branch = db.create_branch("what-if", &[rates], Some(&then))?;
    /// assert_eq!(branch.tree("rates").unwrap().get(b"EUR")?.as_deref(), Some(&b"1.08"[..]));
    /// db.drop_snapshot("2026-11-26")?;
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    pub fn create_snapshot(&self, name: &str) -> Result<Snapshot, StoreError> {
        if name.is_empty() {
            return Err(KvError::Invalid("the name of a snapshot is empty".into()).into());
        }
        let engine = &self.instance.engine;
        let made = engine.create_pin_of(&pin_name(name), b"", &is_held);
        made.map_err(|error| about(name, error))?;
        self.open_snapshot(name)
    }

    /// Returns the snapshots that are kept, in the order of their creation.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) with the RocksDB engine.
    pub fn snapshots(&self) -> Result<Vec<NamedSnapshot>, StoreError> {
        let named = |pin: stitch_kv::PinInfo| {
            let name = pin.name.strip_prefix(PIN_PREFIX)?.to_owned();
            let seqno = pin.seqno;
            Some(NamedSnapshot { name, seqno })
        };
        let pins = self.instance.engine.pins()?.into_iter();
        Ok(pins.filter_map(named).collect())
    }

    /// Returns the snapshot that is kept under a name. It can be read when the name is dropped,
    /// until its last handle is.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none of this name.
    pub fn open_snapshot(&self, name: &str) -> Result<Snapshot, StoreError> {
        let moment = self.instance.engine.open_pin(&pin_name(name));
        let moment = moment.map_err(|error| about(name, error))?;
        Ok(Snapshot::of(moment, &self.instance))
    }

    /// Keeps a snapshot no more. The space of what only it saw comes back in the background.
    ///
    /// # Errors
    /// As [`Self::open_snapshot`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn drop_snapshot(&self, name: &str) -> Result<(), StoreError> {
        let dropped = self.instance.engine.drop_pin(&pin_name(name));
        dropped.map_err(|error| about(name, error))
    }
}

/// Reports whether a snapshot holds a tree: one of records, or of a branch of these.
fn is_held(tree: &TreeInfo) -> bool {
    let is_spilled = tree.branch.is_some() && tree.name.starts_with(SPILL_PREFIX);
    !stitch_fs::is_file_system_tree(&tree.name) && !is_spilled
}

fn pin_name(name: &str) -> String {
    format!("{PIN_PREFIX}{name}")
}

/// The error of a call about the snapshot of this name.
fn about(name: &str, error: KvError) -> StoreError {
    let what = format!("snapshot named {name:?}");
    match error {
        KvError::PinNotFound(_) => StoreError::Missing { what },
        KvError::PinExists(_) => StoreError::Exists {
            what: format!("a {what}"),
        },
        other => other.into(),
    }
}
