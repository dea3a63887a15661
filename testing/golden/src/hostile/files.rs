//! The file system's rows against hostile bytes: each row's decoder and fold, and a whole file
//! system with changed rows, which must be readable or refused, and repairable.

use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{self, AttrDelta, MetaRow, encode_link};
use stitch_format::{fs_back, fs_chunk, fs_key, fs_shared, fs_sys};
use stitch_fs::{
    Caller, DirName, FileKind, FileSystem, FsOptions, NewNode, SeekFor, Taken, WriteOptions,
    XattrMode, fsck,
};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, ModelEngine, TreeInfo, UpsertRegistry,
};

/// Directories and files that a walk of a damaged file system visits at most.
const VISITS_MAX: usize = 200;
/// Rounds of check and repair after which nothing may be left.
const REPAIRS_MAX: usize = 8;

/// Rows of inodes and names, their deltas, and deltas folded over rows.
pub fn fs_row(bytes: &[u8]) {
    let check_row = |bytes: &[u8]| match MetaRow::decode(bytes) {
        Ok(MetaRow::Inode(head, tail)) => {
            let again = [&head.encode()[..], tail].concat();
            assert_eq!(again, bytes, "a row is worth its bytes");
        }
        Ok(MetaRow::Link { ino, kind }) => {
            assert_eq!(
                encode_link(ino, kind)[..],
                *bytes,
                "a row is worth its bytes"
            );
        }
        Err(_) => {}
    };
    check_row(bytes);
    if let Ok(delta) = AttrDelta::decode(bytes) {
        let mut again = Vec::new();
        delta.encode(&mut again);
        assert_eq!(
            AttrDelta::decode(&again),
            Ok(delta),
            "a delta is worth its bytes"
        );
    }
    let cut = bytes
        .first()
        .map_or(0, |&b| usize::from(b) + 1)
        .min(bytes.len());
    let (delta, old) = bytes[..].split_at(cut);
    let delta = delta.get(1..).unwrap_or_default();
    let mut out = Vec::new();
    if fs_inode::fold(Some(old), delta, &mut out) && MetaRow::decode(old).is_ok() {
        assert!(MetaRow::decode(&out).is_ok(), "a fold leaves a row");
        check_row(&out);
    }
    let key = bytes;
    let _ = (fs_key::ino_of(key), fs_key::name_of(key));
    let _ = (fs_key::chunk_of(key), fs_key::orphan_of(key));
    let _ = (fs_key::allocated_of(key), fs_key::back_of(key));
    let _ = fs_sys::AllocatedRow::decode(bytes);
    if let Ok(row) = fs_shared::SharedRow::decode(bytes) {
        assert_eq!(fs_shared::SharedRow::decode(&row.encode()), Ok(row));
    }
    if let Some(place) = fs_back::Place::of_key(key) {
        assert_eq!(fs_back::Place::decode(&place.encode()), Ok(place));
    }
    if let Ok(header) = fs_sys::FsHeader::decode(bytes) {
        assert_eq!(fs_sys::FsHeader::decode(&header.encode()), Ok(header));
    }
    let _ = (fs_back::Place::decode(bytes), fs_sys::decode_number(bytes));
    out.clear();
    fs_sys::fold_add(Some(old), delta, &mut out);
}

/// Deltas of chunks, folded over chunks.
pub fn fs_chunk(bytes: &[u8]) {
    if let Some(delta) = fs_chunk::ChunkDelta::decode(bytes) {
        let mut again = Vec::new();
        delta.encode(&mut again);
        assert_eq!(again, bytes, "a delta is worth its bytes");
    }
    let (old, delta) = bytes.split_at(bytes.len() / 2);
    let mut out = Vec::new();
    if fs_chunk::fold(Some(old), delta, &mut out) {
        let longest = old
            .len()
            .max(usize::try_from(fs_key::CHUNK_BYTES).expect("small"));
        assert!(out.len() <= longest, "a chunk stays a chunk");
    }
}

fn options() -> FsOptions {
    FsOptions {
        clock: Arc::new(ManualClock::default()),
        ..FsOptions::default()
    }
}

pub(super) fn at(parent: Ino, name: &[u8]) -> DirName<'_> {
    DirName::new(parent, name)
}

/// A small file system with something of everything.
fn sample() -> Option<Arc<dyn Engine>> {
    let mut registry = UpsertRegistry::default();
    stitch_fs::register_upserts(&mut registry);
    let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(registry));
    FileSystem::format(&engine, &options(), (0, 0)).ok()?;
    let fs = FileSystem::open(Arc::clone(&engine), options()).ok()?;
    let (root, new) = (
        &Caller::ROOT,
        NewNode {
            perm: 0o755,
            umask: 0,
        },
    );
    let dir = fs.make_dir(root, at(Ino::ROOT, b"dir"), &new).ok()?.ino;
    let file = fs.create(root, at(dir, b"file"), &new).ok()?.ino;
    fs.write(file, 0, &[7; 9000], WriteOptions::default())
        .ok()?;
    fs.link(root, file, at(Ino::ROOT, b"linked")).ok()?;
    fs.set_xattr(root, file, b"user.name", b"value", XattrMode::Set, false)
        .ok()?;
    let small = fs.create(root, at(dir, b"small"), &new).ok()?.ino;
    fs.write(small, 0, b"inline", WriteOptions::default())
        .ok()?;
    fs.make_symlink(root, at(dir, b"symlink"), b"target").ok()?;
    fs.make_node(root, at(dir, b"fifo"), FileKind::Fifo, 0, &new)
        .ok()?;
    fs.make_dir(root, at(dir, b"deeper"), &new).ok()?;
    let gone = fs.create(root, at(dir, b"gone"), &new).ok()?.ino;
    fs.open_handle(gone).ok()?;
    fs.unlink(root, at(dir, b"gone")).ok()?;
    Some(engine)
}

fn rows(engine: &dyn Engine, tree: &TreeInfo) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let scan = engine.scan(tree.id, KeyRange::all(), Direction::Forward, None);
    let mut scan = scan.expect("the model scans");
    while let Some((key, value)) = scan.next().expect("the model scans") {
        rows.push((key.to_vec(), value.to_vec()));
    }
    rows
}

/// A file system with changed rows: each six bytes and their tail are a change. Read, then checked
/// and repaired until nothing is left.
pub fn fs_rows(bytes: &[u8]) {
    let Some(engine) = sample() else {
        return;
    };
    for change in bytes.chunks(16).take(12) {
        damage(&*engine, change);
    }
    if let Ok(fs) = FileSystem::open(Arc::clone(&engine), options()) {
        let mut visits = 0;
        walk(&fs, Ino::ROOT, &mut visits);
    }
    repair(&engine);
}

fn damage(engine: &dyn Engine, change: &[u8]) {
    let [kind, tree, row, at, other, ..] = *change else {
        return;
    };
    let trees = engine.trees();
    let tree = &trees[usize::from(tree) % trees.len()];
    let rows = rows(engine, tree);
    let tail = &change[5..];
    let mut batch = Batch::new();
    let Some((key, value)) = rows.get(usize::from(row) % rows.len().max(1)) else {
        batch.put(tree.id, tail, tail);
        let _ = engine.commit(&batch, CommitOptions::default());
        return;
    };
    let (mut new_key, mut new_value) = (key.clone(), value.clone());
    match kind % 6 {
        0 => batch.delete(tree.id, key),
        1 => new_value = rows[usize::from(other) % rows.len()].1.clone(),
        2 => patch(&mut new_key, at, tail),
        3 => new_value.truncate(usize::from(at)),
        4 => patch(&mut new_value, at, &tail[..tail.len().min(1)]),
        _ => patch(&mut new_value, at, tail),
    }
    if kind % 6 != 0 && !new_key.is_empty() {
        batch.put(tree.id, &new_key, &new_value);
    }
    let _ = engine.commit(&batch, CommitOptions::default());
}

fn patch(target: &mut [u8], at: u8, bytes: &[u8]) {
    let len = target.len();
    if len > 0 {
        let start = usize::from(at) % len;
        let end = (start + bytes.len()).min(len);
        target[start..end].copy_from_slice(&bytes[..end - start]);
    }
}

/// Reads what can be read. Damage may make directories contain themselves.
pub(super) fn walk(fs: &FileSystem, ino: Ino, visits: &mut usize) {
    *visits += 1;
    if *visits > VISITS_MAX {
        return;
    }
    let mut names = Vec::new();
    let _ = fs.read_dir(ino, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        if names.len() < VISITS_MAX {
            Taken::More
        } else {
            Taken::Full
        }
    });
    let _ = fs.read_dir_plus(ino, 0, &mut |_| Taken::Full);
    let mut out = Vec::new();
    let size = fs.get_attr(ino).map_or(0, |attr| attr.size);
    for offset in [0, size / 2, size.saturating_sub(5_000), u64::MAX] {
        let _ = fs.read(ino, offset, 20_000, &mut out);
        let _ = (
            fs.seek(ino, offset, SeekFor::Data),
            fs.seek(ino, offset, SeekFor::Hole),
        );
    }
    let _ = (fs.read_link(ino), fs.list_xattr(&Caller::ROOT, ino));
    let _ = fs.get_xattr(&Caller::ROOT, ino, b"user.name");
    for name in names
        .iter()
        .filter(|name| !matches!(&name[..], b"." | b".."))
    {
        if let Ok(attr) = fs.lookup(DirName::new(ino, name)) {
            walk(fs, attr.ino, visits);
            fs.forget(attr.ino, 1);
        }
    }
}

fn repair(engine: &Arc<dyn Engine>) {
    for _ in 0..REPAIRS_MAX {
        // What has no header, or a newer one, is not repaired.
        let Ok(issues) = fsck::check(engine, &mut |_| {}) else {
            return;
        };
        if issues.is_empty() {
            let fs = FileSystem::open(Arc::clone(engine), options());
            let fs = fs.expect("a file system without issues opens");
            fs.reclaim().expect("a file system without issues reclaims");
            return;
        }
        let is_lost = |issue: &fsck::Issue| matches!(issue, fsck::Issue::NoHeader { .. });
        if issues.iter().any(is_lost) {
            return;
        }
        fsck::repair(engine, &issues).expect("what is found is repaired");
    }
    let left = fsck::check(engine, &mut |_| {});
    panic!("after {REPAIRS_MAX} repairs: {left:?}");
}
