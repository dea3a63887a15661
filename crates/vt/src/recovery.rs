//! Opening a store.
//!
//! 1. The edits of the live base and its deltas give the version. No table is read.
//! 2. The runs of its tables rebuild the online-map. A byte with two owners is damage.
//! 3. The backup log is replayed into memtables ([`log_replay`]). It ends before a record that no
//!    sync covered and whose values did not reach their zone.
//! 4. Unless the log ends with the mark of a clean close that left nothing behind, what dropped
//!    moments may have left is to be swept for ([`crate::garbage`]).
//! 5. What is too much to hold is written out. Not before: first all that is in use must be known.
//!
//! Tables that were being written when the last life ended are in no version: their space is free.
//! Records of trees that were dropped since are skipped: tree numbers are never reused.

mod log_replay;

use crate::VtError;
use crate::buffer::Buffer;
use crate::dropped::DroppedMoments;
use crate::member::{Member, explain};
use crate::options::{SEALED_COUNT_MAX, VtOptions};
use crate::pins::PinRecords;
use crate::pool::Pool;
use crate::sizing::Sizing;
use crate::store::Store;
use crate::version::{Version, VersionBuilder, extents};
use crate::view::View;
use log_replay::{LogReplay, ReplayedLog};
use std::sync::Arc;
use stitch_base::ErrorKind;
use stitch_format::superblock::{FEATURE_BRANCHES, FEATURE_PINS};
use stitch_format::vt_manifest::VersionEdit;
use stitch_volume::{Opened, Volume};

/// Finds what a volume holds, and writes nothing: nothing may be allocated before all that is
/// in use is known. To be followed by [`begin`].
///
/// # Errors
/// [`VtError`] if what is stored contradicts itself, or cannot be read.
pub(crate) fn prepare(
    opened: Opened,
    options: VtOptions,
    pool: Arc<Pool<Member>>,
) -> Result<Store, VtError> {
    let Opened {
        volume,
        versions,
        log_start,
        ..
    } = opened;
    let (version, pins) = version_of(&versions)?;
    adopt(&volume, &version, &pool)?;
    let sizing = Arc::new(Sizing::new(&volume, &options));
    let view = View {
        buffers: vec![Arc::new(Buffer::empty(&sizing.opened, log_start))],
        version: Arc::new(version),
    };
    let store = Store::new(Arc::clone(&volume), options, sizing, view, log_start, pool);
    store.pins.restore(pins, &store.snapshots);
    store.branches.restore(&store.version(), &store.snapshots);
    store.snapshots.keep_all();
    for tree in store.version().trees.values() {
        store.space.note_tree(&tree.info.options);
    }
    let ReplayedLog { records, is_marked } = LogReplay::new(&store).run(log_start)?;
    if has_lasting_holds(&store) && !(is_marked && volume.log().is_closed_by_last_writer()?) {
        // What was dropped in an earlier life may have left versions.
        let dropped = DroppedMoments::up_to(store.version().last_seqno);
        store.snapshots.note_dropped(dropped);
    }
    skip_seen_seqnos(&store);
    let last_seqno = store.committer.lock().last_seqno;
    debug_assert!(
        last_seqno >= store.version().last_seqno,
        "what is in tables is visible"
    );
    tracing::info!(records, %last_seqno, is_marked, "store found");
    Ok(store)
}

/// Reports whether the store ever had pins or branches.
pub(crate) fn has_lasting_holds(store: &Store) -> bool {
    store.volume.superblock().incompatible & (FEATURE_PINS | FEATURE_BRANCHES) != 0
}

/// Writes out what of the log is too much to hold. From now on space is handed out.
///
/// # Errors
/// [`VtError`]; then the store takes no more writes.
pub(crate) fn begin(store: &Store) -> Result<(), VtError> {
    if !store.volume.is_read_only() {
        // Before a write-out: then the log may lose the record that says so.
        store.absorber.finish_replayed()?;
        while store.views.get().sealed_count() > SEALED_COUNT_MAX {
            match store.member.write_out_one() {
                // They stay in memory and in the log, until something is deleted.
                Err(error) if error.kind() == ErrorKind::NoSpace && !store.gate.is_failed() => {
                    break;
                }
                other => other?,
            };
        }
    }
    store.write_outs.hint_replayed();
    store.versions.fit_cache();
    store.pace.update(&store.views.get(), &store.sizing.opened);
    Ok(())
}

/// Gives out no number of a write that a pin or a branch sees. The log was synced up to there
/// before it was made: it lacks such a write only if the device lost it.
fn skip_seen_seqnos(store: &Store) {
    let seen = store.pins.newest_seqno().max(store.branches.newest_seqno());
    let mut commits = store.committer.lock();
    if commits.last_seqno < seen {
        let found = commits.last_seqno;
        tracing::warn!(%found, %seen, "the log ends before a pin or branch: writes are lost");
        commits.publish(seen, &store.visible);
    }
    debug_assert!(
        commits.last_seqno >= seen,
        "later writes have later numbers"
    );
}

fn version_of(edits: &[Vec<u8>]) -> Result<(Version, PinRecords), VtError> {
    let mut builder = VersionBuilder::new(Version::empty());
    let mut pins = PinRecords::default();
    for (index, bytes) in edits.iter().enumerate() {
        let edit = VersionEdit::decode(bytes).map_err(|source| VtError::Format {
            context: format!("edit {index} of the live version"),
            source,
        })?;
        pins.apply(&edit.pins)?;
        builder.take_over(edit)?;
    }
    let version = builder.finish()?;
    debug_assert!(
        version.temporary.is_empty(),
        "the medium lists no temporary tree"
    );
    pins.check(&version)?;
    debug_assert!(
        version.trees.keys().all(|id| *id < version.next_tree),
        "given out"
    );
    Ok((version, pins))
}

fn adopt(volume: &Volume, version: &Version, pool: &Pool<Member>) -> Result<(), VtError> {
    // All at once, so that each zone is gone through in order, and once.
    let runs = version.tables().flat_map(|(_, t)| extents(&t.meta().runs));
    let wanted = runs.collect::<Vec<_>>();
    let adopted = volume.zones().adopt(&wanted).map_err(VtError::from);
    adopted.map_err(|error| explain(pool, error, volume.name(), &wanted))?;
    debug_assert!(
        wanted.iter().all(|extent| volume.zones().is_live(*extent)),
        "no byte of a table is given out"
    );
    Ok(())
}
