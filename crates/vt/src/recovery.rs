//! Opening a store.
//!
//! 1. The edits of the live base and its deltas give the version. No table is read.
//! 2. The runs of its tables rebuild the online-map. A byte with two owners is damage.
//! 3. The backup log is replayed into memtables; what is too much to hold is written out.
//!
//! Tables that were being written when the last life ended are in no version: their space is free.
//! Records of trees that were dropped since are skipped: tree numbers are never reused.

use crate::VtError;
use crate::buffer::Buffer;
use crate::commit::insert_message;
use crate::memtable::Memtable;
use crate::options::{SEALED_COUNT_MAX, Sizes, VtOptions};
use crate::store::Store;
use crate::version::{Version, VersionBuilder, extents};
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stitch_base::{Lsn, Seqno, TreeId};
use stitch_format::FormatError;
use stitch_format::codec::Reader;
use stitch_format::vt_manifest::VersionEdit;
use stitch_kv::{Message, Messages};
use stitch_volume::{Class, Opened, Volume};

impl Store {
    /// Opens the store that a volume holds.
    ///
    /// # Errors
    /// [`VtError`] if what is stored contradicts itself, or cannot be read.
    pub(crate) fn open(opened: Opened, options: VtOptions) -> Result<Self, VtError> {
        let Opened {
            volume,
            versions,
            log_start,
        } = opened;
        let version = version_of(&versions)?;
        adopt(&volume, &version)?;
        let zones_bytes = volume.zones().usage().total;
        let sizes = Sizes::new(&options, zones_bytes, volume.log().capacity_bytes());
        let view = View {
            buffers: vec![Arc::new(empty_buffer(&sizes, log_start))],
            version: Arc::new(version),
        };
        let store = Self::new(Arc::clone(&volume), options, sizes, view, log_start);
        let records = store.replay(&volume, log_start)?;
        if !volume.is_read_only() {
            while store.views.get().sealed_count() > SEALED_COUNT_MAX {
                store.write_out_one()?;
            }
        }
        store.pace.update(&store.views.get(), &store.sizes);
        let last_seqno = store.committer.lock().last_seqno;
        tracing::info!(records, %last_seqno, "store opened");
        Ok(store)
    }

    /// Replays the backup log. Answers the number of records.
    fn replay(&self, volume: &Volume, log_start: Lsn) -> Result<u64, VtError> {
        let mut records = 0u64;
        let mut at = log_start;
        volume.log().replay(log_start, &mut |end, payload: &[u8]| {
            self.replay_record(at, payload)?;
            at = end;
            records += 1;
            Ok::<(), VtError>(())
        })?;
        Ok(records)
    }

    fn replay_record(&self, at: Lsn, payload: &[u8]) -> Result<(), VtError> {
        let damaged = |source: FormatError| VtError::Format {
            context: format!("backup log record at {at}"),
            source,
        };
        let mut reader = Reader::new("log record", payload);
        let first = Seqno(reader.u64().map_err(damaged)?);
        let bytes = reader.rest();
        self.make_replay_room(at, bytes.len() as u64);
        let view = self.views.get();
        let mut committer = self.committer.lock();
        if first <= committer.last_seqno {
            let what = format!("log record at {at} goes back to write {first}");
            return Err(VtError::Version { what });
        }
        let mut seqno = first;
        let mut trees = BTreeSet::new();
        let mut has_deletes = false;
        for message in Messages::new(bytes) {
            let (tree, message) = message.map_err(damaged)?;
            if tree >= view.version.next_tree {
                let what = format!("log record at {at} is of tree {tree}, which never was");
                return Err(VtError::Version { what });
            }
            if view.version.trees.contains_key(&tree) {
                insert_message(&view.active().memtable, tree, seqno, message);
                trees.insert(tree);
                has_deletes |= matches!(
                    message,
                    Message::Delete { .. } | Message::DeleteRange { .. }
                );
            }
            committer.last_seqno = seqno;
            seqno = seqno.next();
        }
        let last = committer.last_seqno;
        self.visible.store(last.0, Ordering::Release);
        self.note_replayed(view.active(), &trees, bytes.len() as u64, has_deletes, last);
        Ok(())
    }

    /// Space for what is replayed was promised by the last life; it is promised again.
    fn note_replayed(
        &self,
        active: &Buffer,
        trees: &BTreeSet<TreeId>,
        bytes: u64,
        has_deletes: bool,
        last: Seqno,
    ) {
        let overhead = active.new_trees(trees) * crate::buffer::TABLE_OVERHEAD_BYTES;
        let needed = bytes + bytes / 8 + overhead;
        if let Ok(room) = self.volume.space().reserve(needed, Class::Internal) {
            active.add_room(room);
        }
        active.note(trees, needed, has_deletes, last);
    }

    fn make_replay_room(&self, at: Lsn, bytes: u64) {
        let view = self.views.get();
        let memtable = &view.active().memtable;
        let is_full = memtable.bytes() as u64 + bytes > self.sizes.memtable;
        if is_full && !memtable.is_empty() {
            let fresh = Arc::new(empty_buffer(&self.sizes, at));
            self.views.change(|view| view.buffers.insert(0, fresh));
        }
    }
}

fn empty_buffer(sizes: &Sizes, log_start: Lsn) -> Buffer {
    let hint = usize::try_from(sizes.memtable).unwrap_or(usize::MAX);
    Buffer::new(Memtable::new(hint), log_start)
}

fn version_of(edits: &[Vec<u8>]) -> Result<Version, VtError> {
    let mut builder = VersionBuilder::new(Version::empty());
    for (index, bytes) in edits.iter().enumerate() {
        let edit = VersionEdit::decode(bytes).map_err(|source| VtError::Format {
            context: format!("edit {index} of the live version"),
            source,
        })?;
        builder.apply(&edit)?;
    }
    builder.finish()
}

fn adopt(volume: &Volume, version: &Version) -> Result<(), VtError> {
    for (_, table) in version.tables() {
        volume.zones().adopt(&extents(&table.meta().runs))?;
    }
    Ok(())
}
