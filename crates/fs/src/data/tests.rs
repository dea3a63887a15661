use crate::external::{External, MemFiles};
use crate::testing::formatted;
use crate::{Caller, DirName, FallocateMode, FileSystem, FsOptions, NewNode, WriteOptions};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_db::SpaceClass;
use stitch_format::fs_inode::row_flag;

/// A write that leaves a hole before it.
const FAR: u64 = 1 << 20;

fn open(from_bytes: Option<u64>) -> FileSystem {
    let options = FsOptions {
        external: Some(External {
            files: Arc::new(MemFiles::new()),
            from_bytes,
            is_synchronous: false,
        }),
        ..FsOptions::default()
    };
    let engine = formatted(&options);
    FileSystem::open(engine, options).expect("it was formatted")
}

fn make(fs: &FileSystem, name: &[u8], size: u64) -> Ino {
    let new = NewNode::default();
    let made = fs.create(&Caller::ROOT, DirName::new(Ino::ROOT, name), &new);
    let ino = made.expect("a new name").ino;
    if size > 0 {
        fs.write(ino, size - 1, b"x", WriteOptions::default())
            .expect("there is room");
    }
    ino
}

/// Writes a row that counts more chunks than a file can have, and reads it.
fn damage(fs: &FileSystem, name: &[u8], ino: Ino) {
    let mut head = fs.residents.inodes.head(ino).expect("known");
    head.flags |= row_flag::HOLES;
    if head.size == 0 {
        head.flags &= !row_flag::INLINE;
    }
    head.chunks = u64::MAX;
    let mut batch = fs.store.batch();
    let key = fs.store.keys.dentry(Ino::ROOT, name);
    batch.put(&key, head.encode().as_slice());
    fs.store
        .commit(&batch, SpaceClass::Normal)
        .expect("there is room");
    fs.forget(ino, 1);
    let found = fs.lookup(DirName::new(Ino::ROOT, name)).expect("a name");
    assert_eq!(found.ino, ino);
    let read = fs.residents.inodes.head(ino).expect("known");
    assert_eq!(read.chunks, u64::MAX);
}

fn chunks_of(fs: &FileSystem, ino: Ino) -> u64 {
    fs.residents.inodes.head(ino).expect("known").chunks
}

#[test]
fn a_write_counts_from_a_damaged_count() {
    let fs = open(None);
    let ino = make(&fs, b"file", FAR);
    damage(&fs, b"file", ino);
    fs.write(ino, 8192, b"x", WriteOptions::default())
        .expect("there is room");
    assert_eq!(chunks_of(&fs, ino), FAR / 4096);
}

#[test]
fn an_allocation_counts_from_a_damaged_count() {
    let fs = open(None);
    let ino = make(&fs, b"file", FAR);
    damage(&fs, b"file", ino);
    let mode = FallocateMode::Allocate { keep_size: false };
    fs.fallocate(ino, mode, 0, 8192).expect("there is room");
    let count = chunks_of(&fs, ino);
    assert!((2..=FAR / 4096).contains(&count), "{count}");
    damage(&fs, b"file", ino);
    fs.fallocate(ino, mode, 16384, 8192).expect("there is room");
}

#[test]
fn an_external_file_counts_from_a_damaged_count() {
    let fs = open(Some(8192));
    let ino = make(&fs, b"file", FAR);
    damage(&fs, b"file", ino);
    let mode = FallocateMode::Allocate { keep_size: false };
    fs.fallocate(ino, mode, 0, 8192).expect("there is room");
    assert_eq!(chunks_of(&fs, ino), FAR / 4096);
}

#[test]
fn a_copy_counts_from_a_damaged_count() {
    let fs = open(None);
    let source = make(&fs, b"source", FAR);
    let target = make(&fs, b"target", 0);
    damage(&fs, b"target", target);
    let copied = fs.copy_range((source, 0), (target, 0), FAR);
    assert_eq!(copied.expect("there is room"), FAR);
    assert_eq!(chunks_of(&fs, target), FAR / 4096);
}
