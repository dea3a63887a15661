//! Valid rows and user bytes of views, and a stream of one.

use stitch_base::Ino;
use stitch_format::fs_moment::{MomentRecord, moment_pin};
use stitch_format::fs_policy::{Keep, PolicyRow};
use stitch_format::fs_reads::{self, ReadEntry, read_of};
use stitch_format::fs_resolution::{Resolution, ResolvedAt, Side};
use stitch_format::fs_snapshot::SnapshotRecord;
use stitch_format::fs_transaction::{
    TransactionIsolation, TransactionLife, TransactionRecord, TransactionState,
};
use stitch_format::fs_view::{ViewRecord, ViewState};
use stitch_format::send_stream::{SendEncoder, SendHead, SendId, SendPosition, SendRecord};

/// One of each.
pub(super) fn rows() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = snapshots().map(|record| record.encode()).into();
    let moment = MomentRecord {
        created_ns: 5,
        keep_s: 3600,
    };
    all.extend([moment.encode().to_vec(), moment_pin(7).into_bytes()]);
    let policy = PolicyRow {
        every_s: 900,
        keep: Keep {
            hourly: 24,
            daily: 7,
            ..Keep::default()
        },
        owner: 1,
        prefix: "auto".to_owned(),
        path: b"a/b".to_vec(),
    };
    let view = ViewRecord {
        state: ViewState::Live,
        owner: 1,
        root: Ino(7),
        home: 2,
        graft: Ino(8),
        created_ns: 5,
        path: b"a/b".to_vec(),
    };
    all.extend([policy.encode(), view.encode()]);
    all.extend(transactions().map(|record| record.encode()));
    let entry = |number, hash, shift, what| ReadEntry {
        number,
        hash,
        shift,
        what,
    };
    let reads = [
        entry(7, 9, 0, read_of::NAMES),
        entry(1, 0, 6, read_of::CONTENTS | read_of::XATTRS),
    ];
    all.push(fs_reads::encode(&reads));
    all
}

fn snapshots() -> [SnapshotRecord; 2] {
    let plain = SnapshotRecord {
        root: Ino(7),
        view: 0,
        created_ns: 5,
        owner: 1,
        is_automatic: false,
        tags: [].into(),
        path: b"a/b".to_vec(),
    };
    let held = SnapshotRecord {
        view: 3,
        is_automatic: true,
        tags: ["a".to_owned(), "b".to_owned()].into(),
        ..plain.clone()
    };
    [plain, held]
}

fn transactions() -> [TransactionRecord; 2] {
    let open = TransactionRecord {
        state: TransactionState::Open,
        life: TransactionLife::Named,
        isolation: TransactionIsolation::Serializable,
        has_reads: true,
        owner: 1,
        created_ns: 5,
        expires_ns: i64::MAX,
        first_ino: 9,
        outer: None,
        name: "work".to_owned(),
        resolutions: Vec::new(),
    };
    let resolution = Resolution {
        side: Side::Theirs,
        seen: [3; 16],
        at: ResolvedAt::Path(b"a/b".to_vec()),
    };
    let record = Resolution {
        at: ResolvedAt::Record {
            tree: "rows".to_owned(),
            key: b"k\0a".to_vec(),
        },
        ..resolution.clone()
    };
    let resolved = TransactionRecord {
        state: TransactionState::Committed(6),
        outer: Some(8),
        resolutions: vec![resolution, record],
        ..open.clone()
    };
    [open, resolved]
}

/// A stream with a record of every kind.
pub(super) fn stream() -> Vec<u8> {
    let head = SendHead {
        snapshot: SendId([1; 16]),
        base: Some(SendId([2; 16])),
        created_ns: 5,
        steps: 9,
        start: SendPosition::default(),
        is_partial: false,
    };
    let head = head.encode();
    let (mut out, mut encoder) = (head.to_vec(), SendEncoder::new(&head));
    for (step, record) in (0..).zip(records()) {
        encoder.record(step, &record, &mut out);
    }
    encoder.end(99, &mut out);
    out
}

fn records() -> Vec<SendRecord<'static>> {
    let path = &b"a/b"[..];
    let (object, offset, len_bytes) = (7, 4096, 9000);
    let (name, value, data) = (&b"user.a"[..], &b"1"[..], &b"contents"[..]);
    let existing = path;
    vec![
        SendRecord::Begin {
            snapshot: b"new",
            base: b"old",
        },
        SendRecord::Detach { path, object },
        SendRecord::Remove { path },
        SendRecord::RemoveDir { path },
        SendRecord::Detached,
        SendRecord::Place { path, object },
        SendRecord::MakeDir { path },
        SendRecord::MakeFile { path },
        SendRecord::MakeSymlink {
            path,
            target: b"target",
        },
        SendRecord::MakeNode {
            path,
            mode: 0o020_600,
            device: 0x0103,
        },
        SendRecord::Link { path, existing },
        SendRecord::Write { path, offset, data },
        SendRecord::Hole {
            path,
            offset,
            len_bytes,
        },
        SendRecord::Size {
            path,
            size: len_bytes,
        },
        SendRecord::Owner {
            path,
            user: 1,
            group: 2,
        },
        SendRecord::SetXattr { path, name, value },
        SendRecord::DropXattr { path, name },
        SendRecord::Attrs {
            path,
            mode: 0o644,
            accessed_ns: 5,
            modified_ns: -6,
        },
    ]
}
