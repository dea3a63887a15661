//! Rows of snapshots, moments, policies, clones and transactions against hostile bytes: their
//! decoders, and what a whole store has of them. What is changed is read, used and ended as a mount
//! does it.

use super::files::{at, walk};
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_format::fs_moment::{self, MomentRecord};
use stitch_format::fs_policy::PolicyRow;
use stitch_format::fs_snapshot::SnapshotRecord;
use stitch_format::fs_transaction::TransactionRecord;
use stitch_format::fs_view::ViewRecord;
use stitch_format::send_stream::{self, SEND_HEAD_BYTES, SEND_HEADER_BYTES, SendDecoder, SendHead};
use stitch_format::{FormatError, fs_reads};
use stitch_fs::{
    BeginOptions, Caller, CloneSource, FileSystem, FsResult, Keep, NewNode, PolicyRule,
    RollbackRights, Side, TransactionIsolation, WriteOptions,
};

const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

/// Rows and user bytes of views.
pub fn fs_view(bytes: &[u8]) {
    if let Ok(record) = SnapshotRecord::decode(bytes) {
        assert_eq!(SnapshotRecord::decode(&record.encode()), Ok(record));
    }
    if let Ok(record) = MomentRecord::decode(bytes) {
        assert_eq!(MomentRecord::decode(&record.encode()), Ok(record));
    }
    if let Ok(row) = PolicyRow::decode(bytes) {
        assert_eq!(PolicyRow::decode(&row.encode()), Ok(row));
    }
    if let Ok(record) = ViewRecord::decode(bytes) {
        assert_eq!(ViewRecord::decode(&record.encode()), Ok(record));
    }
    if let Ok(record) = TransactionRecord::decode(bytes) {
        assert_eq!(TransactionRecord::decode(&record.encode()), Ok(record));
    }
    if let Ok(entries) = fs_reads::decode(bytes) {
        for entry in &entries {
            let (start, end) = entry.numbers();
            assert!(start < end, "a group has a number: {entry:?}");
        }
        assert_eq!(
            fs_reads::encode(&entries),
            bytes,
            "a row is worth its bytes"
        );
    }
    if let Some(number) = std::str::from_utf8(bytes)
        .ok()
        .and_then(fs_moment::moment_number)
    {
        assert_eq!(fs_moment::moment_pin(number).as_bytes(), bytes);
    }
}

/// A stream of `stitchfs send`, record by record, with right checksums.
pub fn send_stream(bytes: &[u8]) {
    let Some((head, mut rest)) = bytes.split_first_chunk::<SEND_HEAD_BYTES>() else {
        return;
    };
    let mut head = *head;
    if let Err(FormatError::Checksum { expected, .. }) = SendHead::decode(&head) {
        let place = send_stream::HEAD_TABLE.fields.iter();
        let place = place.clone().find(|field| field.name == "CHECKSUM");
        let at = place.expect("it has one").offset;
        head[at..at + 4].copy_from_slice(&expected.to_le_bytes());
    }
    if let Ok(decoded) = SendHead::decode(&head) {
        assert_eq!(SendHead::decode(&decoded.encode()), Ok(decoded));
    }
    let mut decoder = SendDecoder::new(&head);
    while let Some((header, body)) = rest.split_first_chunk::<SEND_HEADER_BYTES>() {
        let Ok(len) = decoder.body_len(header) else {
            return;
        };
        let Some((body, after)) = body.split_at_checked(len) else {
            return;
        };
        let mut header = *header;
        let tried = decoder.clone().record(&header, body).map(drop);
        if let Err(FormatError::Checksum { expected, .. }) = tried {
            header[SEND_HEADER_BYTES - 4..].copy_from_slice(&expected.to_le_bytes());
        }
        if decoder.record(&header, body).is_err() {
            return;
        }
        rest = after;
    }
}

/// Makes some of each: snapshots, one of which is held, a policy, a moment, a clone, a clone of it,
/// and transactions that are open, in conflict, resolved and committed.
pub(super) fn plant_views(fs: &FileSystem) -> FsResult<()> {
    let root = &Caller::ROOT;
    let dir = fs.make_dir(root, at(Ino::ROOT, b"views"), &NEW)?.ino;
    let file = fs.create(root, at(dir, b"file"), &NEW)?.ino;
    fs.write(file, 0, &[7; 9000], WriteOptions::default())?;
    fs.snapshots().create(dir, "held")?;
    fs.snapshots().hold("held", "tag")?;
    fs.snapshots().create(Ino::ROOT, "root")?;
    let rule = PolicyRule {
        every_s: 900,
        keep: Keep {
            last: 1,
            hourly: 2,
            ..Keep::default()
        },
        prefix: "auto".to_owned(),
    };
    fs.policies().set(dir, &rule)?;
    fs.policies().run()?;
    fs.history().run()?;
    let source = CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let clone = fs.make_clone(root, &source, at(Ino::ROOT, b"clone"))?;
    let view = fs.open_clone(clone.number)?;
    fs.snapshots().create_in(&view, dir, "in clone")?;
    fs.policies().set_in(&view, dir, &rule)?;
    view.fs().create(root, at(dir, b"own"), &NEW)?;
    drop(view);
    for (name, isolation) in [
        ("open", TransactionIsolation::Snapshot),
        ("conflict", TransactionIsolation::Snapshot),
        ("done", TransactionIsolation::Serializable),
    ] {
        let options = BeginOptions {
            isolation,
            expires: Some(Timestamp(1 << 40)),
            ..BeginOptions::default()
        };
        let view = fs.transactions().begin(name, &options)?;
        let inner = view.fs();
        let inside = inner.lookup(at(Ino::ROOT, b"views"))?.ino;
        let there = inner.lookup(at(inside, b"file"))?.ino;
        inner.write(there, 100, name.as_bytes(), WriteOptions::default())?;
        inner.create(root, at(inside, name.as_bytes()), &NEW)?;
        match name {
            "conflict" => {
                fs.write(file, 100, b"mainline", WriteOptions::default())?;
                fs.transactions()
                    .resolve(&view, b"views/file", Side::Theirs)?;
            }
            "done" => drop(fs.transactions().commit(&view)?),
            _ => {}
        }
    }
    fs.sync()
}

/// Reads all views.
pub(super) fn read_views(fs: &FileSystem) {
    let mut visits = 0;
    walk(fs, Ino::ROOT, &mut visits);
    for info in fs.snapshots().list().unwrap_or_default() {
        if let Ok(view) = fs.snapshots().open(&info.name) {
            walk(view.fs(), info.root, &mut visits);
        }
    }
    for moment in fs.history().moments().unwrap_or_default() {
        let _ = (
            moment.name(),
            fs.history().has_changed(Ino::ROOT, moment.id, None),
        );
        if let Ok(view) = fs.history().open(moment.id) {
            walk(view.fs(), Ino::ROOT, &mut visits);
        }
    }
    for info in fs.clones() {
        if let Ok(view) = fs.open_clone(info.number) {
            walk(view.fs(), info.root, &mut visits);
        }
        let _ = fs.clone_path(&info);
    }
    let _ = (fs.policies().list(), fs.transactions().list());
    let _ = fs.usage(&mut |_, _| true);
}

/// Does what a mount does with views, and ends them.
pub(super) fn use_views(fs: &FileSystem) {
    let root = &Caller::ROOT;
    for info in fs.transactions().list().unwrap_or_default() {
        let Ok(view) = fs.transactions().open(&info.name) else {
            continue;
        };
        let _ = (view.changes(), fs.transactions().conflicts(&view));
        let _ = fs.transactions().resolve(&view, b"", Side::Ours);
        let _ = fs.transactions().expire(info.number, Some(Timestamp(5)));
        if fs.transactions().commit(&view).is_err() {
            let _ = fs.transactions().rebase(&view);
            drop(view);
            let _ = fs.transactions().abort(&info.name);
        }
    }
    let _ = (fs.policies().run(), fs.history().run());
    if let Ok(dir) = fs.lookup(at(Ino::ROOT, b"views")) {
        let _ = fs.roll_back("held", dir.ino, RollbackRights::ALL);
        let _ = fs.policies().delete(dir.ino);
        for moment in fs.history().moments().unwrap_or_default() {
            let _ = fs.roll_back_to_moment(moment.id, dir.ino, RollbackRights::ALL);
        }
    }
    for info in fs.clones() {
        if let Ok(view) = fs.open_clone(info.number) {
            let _ = fs.roll_back_in(&view, "in clone", info.root, RollbackRights::ALL);
            let _ = fs.policies().delete_in(info.number, info.root);
        }
    }
    let _ = fs.snapshots().release("held", "tag");
    for info in fs.snapshots().list().unwrap_or_default() {
        let _ = fs.snapshots().delete(&info.name);
    }
    let _ = fs.remove_dir(root, at(Ino::ROOT, b"clone"));
    let _ = (fs.reclaim(), fs.sync());
}
