//! The use of space in a store, as commands and daemons tell each other of it.

use crate::{EngineKind, Store, StoreError, set_path};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{
    CloneInfo, FileSystem, FsError, HistoryUsage, SnapshotInfo, SpaceShare, TransactionInfo, Usage,
};
use stitch_fuse::adapter::{number_in_clone, number_in_snapshot, number_within};
use stitch_vt::Watch;

/// Rows of a result that a daemon tells at once: they fit into a reply, with the longest paths.
pub const ROWS_AT_ONCE: usize = 8;

/// Of what the use of space is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageOf {
    /// All snapshots, clones and open transactions, and the history.
    Everything,
    /// All snapshots.
    Snapshots,
    /// The directory that has this inode number in the mount.
    Directory(u64),
}

impl UsageOf {
    /// Returns it as it is told to a daemon.
    pub(crate) fn to_json(self) -> Value {
        let told = match self {
            Self::Everything => json!("everything"),
            Self::Snapshots => json!("snapshots"),
            Self::Directory(number) => json!(number),
        };
        debug_assert_eq!(
            Self::from_json(&told),
            Some(self),
            "the daemon does the same"
        );
        told
    }

    /// Returns it from what a daemon was told; `None` if that makes no sense.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some("everything") => Some(Self::Everything),
            Some("snapshots") => Some(Self::Snapshots),
            Some(_) => None,
            None => value.as_u64().map(Self::Directory),
        }
    }
}

/// Finds out. Without `fs` the file system is opened.
///
/// ```text
/// everything   rows: [{kind, ..., used_bytes}, ...], count,
///              garbage_bytes, space_total_bytes, space_free_bytes
///    snapshot       name, id, path, referenced_bytes
///    clone          number, path, referenced_bytes
///    transaction    name, number, owner
///    history        moments, since_ns
/// directory    referenced_bytes, exclusive_bytes, shared_bytes
/// ```
pub(crate) fn run(
    of: UsageOf,
    store: &Store,
    fs: Option<&Arc<FileSystem>>,
    watch: &mut Watch<'_>,
) -> Result<Value, StoreError> {
    let opened = match fs {
        Some(fs) => Arc::clone(fs),
        None => Arc::new(store.file_system()?),
    };
    if !opened.tells_usage() {
        return Err(StoreError::Lacks {
            path: store.path().to_owned(),
            engine: EngineKind::RocksDb,
            what: "record of the holders of its space",
        });
    }
    let told = match of {
        UsageOf::Everything => holders(&opened, true, watch)?,
        UsageOf::Snapshots => holders(&opened, false, watch)?,
        UsageOf::Directory(number) => directory(&opened, Ino(number), watch)?,
    };
    let space = opened.engine().space();
    let mut out = told.unwrap_or_else(|| json!({}));
    out["space_total_bytes"] = json!(space.total_bytes);
    out["space_free_bytes"] = json!(space.free_bytes);
    Ok(out)
}

/// Tells what snapshots need, and the other holders if `has_others`. `None` if it was ended.
fn holders(
    fs: &FileSystem,
    has_others: bool,
    watch: &mut Watch<'_>,
) -> Result<Option<Value>, FsError> {
    let Some(usage) = fs.usage(watch)? else {
        return Ok(None);
    };
    let mut rows = Vec::new();
    for (info, used) in &usage.snapshots {
        let size = match fs.snapshot_size(&info.name, watch) {
            // It was deleted meanwhile.
            Err(FsError::NotFound) => continue,
            other => other?,
        };
        let Some(size) = size else {
            return Ok(None);
        };
        rows.push(snapshot_row(info, *used, size));
    }
    for (info, used) in usage.clones.iter().filter(|_| has_others) {
        let share = match fs.open_clone(info.number) {
            Err(FsError::NotFound) => continue,
            clone => clone?.fs().directory_space(info.root, watch)?,
        };
        let Some(share) = share else {
            return Ok(None);
        };
        rows.push(clone_row(fs, info, *used, share.referenced_bytes));
    }
    if has_others {
        let transactions = usage.transactions.iter();
        rows.extend(transactions.map(|(info, used)| transaction_row(info, *used)));
        rows.extend(usage.history.iter().map(history_row));
    }
    let garbage = usage.garbage_bytes;
    Ok(Some(
        json!({ "rows": rows, "count": rows.len(), "garbage_bytes": garbage }),
    ))
}

fn snapshot_row(info: &SnapshotInfo, used: u64, size: u64) -> Value {
    let mut row = json!({
        "kind": "snapshot",
        "name": info.name,
        "id": info.id.0,
        "used_bytes": used,
        "referenced_bytes": size,
    });
    set_path(&mut row, "path", &path(info.path.clone()));
    row
}

fn clone_row(fs: &FileSystem, info: &CloneInfo, used: u64, size: u64) -> Value {
    let mut row = json!({
        "kind": "clone",
        "number": info.number,
        "used_bytes": used,
        "referenced_bytes": size,
    });
    if let Some(bytes) = fs.clone_path(info) {
        set_path(&mut row, "path", &path(bytes));
    }
    row
}

/// What one sees in a transaction is the whole file system, so that is not told.
fn transaction_row(info: &TransactionInfo, used: u64) -> Value {
    json!({
        "kind": "transaction",
        "name": info.name,
        "number": info.number,
        "owner": info.owner,
        "used_bytes": used,
    })
}

fn history_row(history: &HistoryUsage) -> Value {
    json!({
        "kind": "history",
        "moments": history.moments,
        "since_ns": history.since.0,
        "used_bytes": history.bytes,
    })
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// What a directory needs, in whichever file system of the mount it is. `None` if it was ended. Of
/// one that is the directory of a snapshot or a clone, exclusive is what the removal of that gives
/// back.
pub(crate) fn directory(
    fs: &FileSystem,
    number: Ino,
    watch: &mut Watch<'_>,
) -> Result<Option<Value>, FsError> {
    let within = number_within(number);
    if within == number {
        return Ok(fs.directory_space(number, watch)?.map(share_json));
    }
    let snapshots = fs.snapshots().list()?;
    let mut snapshots = snapshots.iter();
    if let Some(info) = snapshots.find(|info| number_in_snapshot(info.id, within) == number) {
        let view = fs.snapshots().open(&info.name)?;
        let (part, dir) = view.part(within)?;
        let share = part.fs().directory_space(dir, watch)?;
        let alone = |usage: &Usage| {
            let found = usage
                .snapshots
                .iter()
                .find(|(found, _)| found.id == info.id);
            found.map(|(_, bytes)| *bytes)
        };
        return as_a_whole(fs, share, within == info.root, &alone, watch);
    }
    let clones = fs.clones();
    let found = clones
        .iter()
        .find(|info| number_in_clone(info.number, within) == number);
    let info = found.ok_or(FsError::NotFound)?;
    let share = fs
        .open_clone(info.number)?
        .fs()
        .directory_space(within, watch)?;
    let alone = |usage: &Usage| {
        let found = usage
            .clones
            .iter()
            .find(|(found, _)| found.number == info.number);
        found.map(|(_, bytes)| *bytes)
    };
    as_a_whole(fs, share, within == info.root, &alone, watch)
}

/// Of a snapshot or a clone as a whole, takes what it alone needs as exclusive.
fn as_a_whole(
    fs: &FileSystem,
    share: Option<SpaceShare>,
    is_whole: bool,
    alone: &dyn Fn(&Usage) -> Option<u64>,
    watch: &mut Watch<'_>,
) -> Result<Option<Value>, FsError> {
    let Some(share) = share else {
        return Ok(None);
    };
    let mut out = share_json(share);
    if is_whole {
        let Some(usage) = fs.usage(watch)? else {
            return Ok(None);
        };
        let exclusive = alone(&usage).ok_or(FsError::NotFound)?;
        out["exclusive_bytes"] = json!(exclusive);
        out["shared_bytes"] = json!(share.referenced_bytes.saturating_sub(exclusive));
    }
    Ok(Some(out))
}

fn share_json(share: SpaceShare) -> Value {
    json!({
        "referenced_bytes": share.referenced_bytes,
        "exclusive_bytes": share.exclusive_bytes,
        "shared_bytes": share.shared_bytes(),
    })
}
