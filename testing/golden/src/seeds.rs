//! Valid records of every kind, for mutation and as a fuzzer's first corpus.

mod tables;
mod views;

use crate::hostile::SALT;
use stitch_base::{Generation, Ino, Lsn, PinId, Seqno, TableId, TreeId};
use stitch_device::{Device, MemDevice};
use stitch_filter::{Precision, QuotientFilter};
use stitch_format::batch::{Message, put_message};
use stitch_format::block::{self, BlockHeader, BlockKind};
use stitch_format::fs_chunk::ChunkDelta;
use stitch_format::fs_inode::{AttrDelta, FileKind, InodeHead, encode_link};
use stitch_format::fs_sys::FsHeader;
use stitch_format::log_record::short::ShortRecord;
use stitch_format::log_record::{self, RecordHeader, RecordKind, VersionPage};
use stitch_format::logged_commit::{self, LoggedRun};
use stitch_format::superblock::{self, Areas, COPIES, Closed, Superblock, VERSION};
use stitch_format::table::Table;
use stitch_format::version_object::{self, ObjectHeader, ObjectKind};
use stitch_format::vt_manifest::{
    BranchRecord, PinChanges, PinRecord, Run, TableMeta, TreeRecord, VersionEdit,
};

/// Valid bytes for the entry of this name.
///
/// # Panics
/// If there is no such entry.
#[must_use]
pub fn of(name: &str) -> Vec<Vec<u8>> {
    match name {
        "batch" => vec![batch()],
        "block" => BlockKind::ALL.into_iter().map(block).collect(),
        "filter" => [Precision::Normal, Precision::High]
            .iter()
            .flat_map(|precision| [0, 1, 100].map(|keys| filter(keys, *precision)))
            .collect(),
        "fs_chunk" => fs_chunks(),
        "fs_row" => fs_rows(),
        "fs_rows" => [16, 32, 64, 192].map(|len| (0..len).collect()).to_vec(),
        "fs_view" => views::rows(),
        "fuse_request" => fuse_requests(),
        "log_record" => vec![
            log_record(RecordKind::Data),
            log_record(RecordKind::Skip),
            short_log_record(Lsn(512), Generation(3)),
        ],
        "logged_commit" => vec![logged_commit()],
        "send_stream" => vec![views::stream()],
        "superblock" => COPIES
            .into_iter()
            .map(|at| superblock().encode(at)[..512].to_vec())
            .collect(),
        "version_object" => vec![
            version_object(ObjectKind::Base),
            version_object(ObjectKind::WrapLeft),
        ],
        "vt_data" => tables::data(),
        "vt_index" => vec![tables::index()],
        "vt_manifest" => {
            let altered = VersionEdit {
                altered_trees: vt_manifest().new_trees,
                ..vt_manifest()
            };
            let pinned = VersionEdit {
                pins: pins(),
                ..vt_manifest()
            };
            let mut scoped = pinned.clone();
            scoped.pins.new[0].trees = Some(vec![TreeId(1)]);
            let mut branched = vt_manifest();
            branched.new_trees.extend(branch());
            [
                vt_manifest(),
                altered,
                pinned,
                scoped,
                branched,
                VersionEdit::default(),
            ]
            .map(|edit| edit.encode())
            .to_vec()
        }
        "vt_range_deletes" => vec![tables::range_deletes()],
        "vt_root" => tables::roots(),
        "volume" => vec![volume()],
        "volume_patched" => [12, 12, 24, 48, 192].map(|len| (0..len).collect()).to_vec(),
        "whole" => [8, 16, 32, 64].map(|len| (0..len).collect()).to_vec(),
        other => panic!("there are no seeds for {other}"),
    }
}

fn logged_commit() -> Vec<u8> {
    let mut out = logged_commit::head(Seqno(300)).to_vec();
    out.extend_from_slice(&batch());
    let run = LoggedRun {
        tree: TreeId(200),
        count: 300,
        index: &tables::index(),
    };
    run.put(&mut out);
    out.extend_from_slice(&batch());
    out
}

fn batch() -> Vec<u8> {
    let mut out = Vec::new();
    let messages = [
        Message::Put {
            key: b"key",
            value: b"value",
        },
        Message::Delete { key: b"gone" },
        Message::DeleteRange {
            start: b"a",
            end: b"b",
        },
        Message::Upsert {
            key: b"key",
            function: 300,
            delta: b"delta",
        },
    ];
    for message in messages {
        put_message(&mut out, TreeId(200), message);
    }
    out
}

fn block(kind: BlockKind) -> Vec<u8> {
    let payload = b"what a table keeps";
    let mut out = vec![0; 512];
    out[block::HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
    let header = BlockHeader {
        kind,
        flags: 0,
        addr: 4096,
        generation: Generation(3),
        payload_len: u32::try_from(payload.len()).expect("short"),
    };
    block::seal(&mut out, SALT, &header);
    out
}

fn filter(keys: u64, precision: Precision) -> Vec<u8> {
    let mut hashes = (0..keys)
        .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    let mut out = Vec::new();
    QuotientFilter::build(&mut hashes, precision, &mut out);
    out
}

fn fs_chunks() -> Vec<Vec<u8>> {
    let deltas = [
        ChunkDelta::Patch {
            offset: 4000,
            bytes: b"bytes",
        },
        ChunkDelta::Cut { len: 100 },
        ChunkDelta::Zero {
            start: 10,
            end: 4096,
        },
    ];
    deltas
        .iter()
        .map(|delta| {
            let mut out = vec![b'c'; 5];
            delta.encode(&mut out);
            out
        })
        .collect()
}

fn fs_rows() -> Vec<Vec<u8>> {
    let head = InodeHead {
        ino: Ino(7),
        kind: FileKind::Regular,
        perm: 0o644,
        flags: 0,
        uid: 1,
        gid: 2,
        nlink: 1,
        size: 6,
        atime: 1,
        mtime: 2,
        ctime: 3,
        btime: 4,
        rdev: 0,
        iflags: 0,
        chunks: 0,
    };
    let row = [&head.encode()[..], b"inline"].concat();
    let changed = InodeHead {
        size: 9,
        mtime: 8,
        nlink: 2,
        perm: 0o600,
        ..head
    };
    let mut delta = vec![0];
    AttrDelta::between(&head, &changed).encode(&mut delta);
    delta[0] = u8::try_from(delta.len() - 1).expect("short");
    let folded = [&delta[..], &row].concat();
    vec![
        row,
        delta[1..].to_vec(),
        folded,
        encode_link(Ino(7), FileKind::Fifo).to_vec(),
        header(false).encode(),
        header(true).encode(),
    ]
}

fn header(has_back_rows: bool) -> FsHeader {
    FsHeader {
        name_seed: 7,
        created_ns: 8,
        has_external: true,
        has_back_rows,
        has_allocated: has_back_rows,
        rolls_back: false,
        has_views: false,
        has_transactions: has_back_rows,
        has_policies: has_back_rows,
        has_shared: has_back_rows,
        rolls_back_clone: false,
        has_clone_policies: has_back_rows,
    }
}

/// One of every operation number, with a body of names and numbers.
fn fuse_requests() -> Vec<Vec<u8>> {
    let request = |opcode: u32| {
        let mut out = Vec::new();
        let body: &[u8] = &[&[0u8; 40][..], b"name\0other\0"].concat();
        out.extend_from_slice(&u32::try_from(40 + body.len()).expect("short").to_le_bytes());
        out.extend_from_slice(&opcode.to_le_bytes());
        out.extend_from_slice(&7u64.to_le_bytes());
        out.extend_from_slice(&1u64.to_le_bytes());
        out.extend_from_slice(&[0; 16]);
        out.extend_from_slice(body);
        out
    };
    (1..56).map(request).collect()
}

fn log_record(kind: RecordKind) -> Vec<u8> {
    let payload = b"a batch";
    let pieces: &[&[u8]] = if kind == RecordKind::Data {
        &[payload]
    } else {
        &[]
    };
    let header = RecordHeader {
        kind,
        payload_len: u32::try_from(payload.len()).expect("short"),
        lsn: Lsn(512),
        generation: Generation(3),
        durable: Lsn(512),
        versions: VersionPage(1),
    };
    let mut out = header.encode(SALT, pieces).to_vec();
    out.extend_from_slice(payload);
    out
}

fn short_log_record(lsn: Lsn, generation: Generation) -> Vec<u8> {
    let payload = b"a batch";
    let record = ShortRecord {
        lsn,
        generation,
        payload_len: u16::try_from(payload.len()).expect("short"),
    };
    [&record.encode(SALT, &[payload])[..], payload].concat()
}

fn areas() -> Areas {
    Areas {
        device_bytes: 8192 + (64 << 10) + (64 << 10) + (128 << 10),
        zone_bytes: 64 << 10,
        version_log_at: 8192,
        version_log_bytes: 64 << 10,
        backup_log_at: 8192 + (64 << 10),
        backup_log_bytes: 64 << 10,
        zones_at: 8192 + (128 << 10),
        zones_bytes: 128 << 10,
    }
}

fn superblock() -> Superblock {
    Superblock {
        version: VERSION,
        readable: VERSION,
        generation: Generation(2),
        uuid: *b"sixteen bytes...",
        label: "label".to_owned(),
        areas: areas(),
        compatible: 0,
        read_only: 0,
        incompatible: 0,
        salt: SALT,
        closed: Closed::default(),
        instances: Vec::new(),
    }
}

fn version_header(kind: ObjectKind, payload_len: u32) -> ObjectHeader {
    ObjectHeader {
        kind,
        payload_len,
        previous: 0,
        position: 0,
        serial: u64::from(payload_len > 0),
        log_start: Lsn(0),
        target: 0,
        generation: Generation(0),
        log_generation: Generation(0),
        log_durable: Lsn(0),
    }
}

fn version_object(kind: ObjectKind) -> Vec<u8> {
    let payload: &[u8] = if kind == ObjectKind::Base {
        b"a version"
    } else {
        b""
    };
    let len = u32::try_from(payload.len()).expect("short");
    version_header(kind, len).encode(SALT, payload).0[..512].to_vec()
}

fn vt_manifest() -> VersionEdit {
    let table = TableMeta {
        id: TableId(7),
        tree: TreeId(1),
        smallest: b"a".to_vec(),
        largest: b"z".to_vec(),
        largest_excluded: false,
        entry_count: 100,
        delete_count: 3,
        range_delete_count: 1,
        data_bytes: 4096,
        value_bytes: 512,
        min_seqno: Seqno(1),
        max_seqno: Seqno(9),
        shift: 0,
        root_addr: 4096,
        root_bytes: 512,
        runs: vec![Run {
            addr: 4096,
            len_bytes: 8192,
        }],
    };
    let tree = TreeRecord {
        id: TreeId(1),
        name: "meta".to_owned(),
        block_bytes: 16 << 10,
        stitch_bytes: 64 << 10,
        compression: 1,
        value_block_bytes: 2048,
        branch: None,
        branch_ranges: None,
    };
    VersionEdit {
        last_seqno: Seqno(9),
        next_table: TableId(8),
        next_tree: TreeId(2),
        dropped_trees: vec![TreeId(5)],
        new_trees: vec![tree],
        altered_trees: Vec::new(),
        pins: PinChanges::default(),
        removed: vec![TableId(3)],
        moved: vec![(TableId(4), 2)],
        added: vec![(1, std::sync::Arc::new(table))],
    }
}

/// A branch of the first tree.
fn branch() -> Option<TreeRecord> {
    let parent = vt_manifest().new_trees.pop()?;
    Some(TreeRecord {
        id: TreeId(2),
        name: "branch".to_owned(),
        branch: Some(BranchRecord {
            parent: parent.id,
            seqno: Seqno(9),
        }),
        branch_ranges: Some(vec![
            (b"a".to_vec(), Some(b"c".to_vec())),
            (b"d".to_vec(), None),
        ]),
        ..parent
    })
}

fn pins() -> PinChanges {
    PinChanges {
        last: PinId(4),
        dropped: vec![PinId(1)],
        hidden: vec![(TreeId(1), PinId(4))],
        new: vec![PinRecord {
            id: PinId(4),
            name: "pin".to_owned(),
            seqno: Seqno(9),
            next_tree: TreeId(2),
            user: b"user".to_vec(),
            trees: None,
            ranges: Vec::new(),
        }],
        altered: vec![(PinId(2), b"other".to_vec())],
        narrowed: Vec::new(),
    }
}

/// Where the records of the seed volume stand, and their layouts.
#[must_use]
pub fn volume_records() -> Vec<(usize, &'static Table)> {
    let at = |offset: u64| usize::try_from(offset).expect("small");
    vec![
        (at(COPIES[0]), &superblock::TABLE),
        (at(COPIES[1]), &superblock::TABLE),
        (at(areas().version_log_at), &version_object::TABLE),
        (at(areas().backup_log_at), &log_record::TABLE),
    ]
}

/// A small volume with a long and a short record in its log.
fn volume() -> Vec<u8> {
    let areas = areas();
    let device = MemDevice::new(areas.device_bytes);
    let put = |at: u64, bytes: &[u8]| device.write_at(at, &[bytes]).expect("in memory");
    put(
        areas.version_log_at,
        &version_header(ObjectKind::Base, 0).encode(SALT, &[]).0,
    );
    let superblock = superblock();
    COPIES
        .into_iter()
        .for_each(|at| put(at, &superblock.encode(at)));
    let header = RecordHeader {
        kind: RecordKind::Data,
        payload_len: 7,
        lsn: Lsn(0),
        generation: Generation(1),
        durable: Lsn(0),
        versions: VersionPage(1),
    };
    put(areas.backup_log_at, &header.encode(SALT, &[b"a batch"]));
    put(
        areas.backup_log_at + log_record::HEADER_BYTES as u64,
        b"a batch",
    );
    put(
        areas.backup_log_at + header.end().0,
        &short_log_record(header.end(), header.generation),
    );
    let mut image = vec![0; usize::try_from(areas.device_bytes).expect("small")];
    device.read_at(0, &mut image).expect("in memory");
    image
}
