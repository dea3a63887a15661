//! What a rollback reads and writes of a large file, on the VT-tree.

#[path = "common/vt_bed.rs"]
mod vt_bed;
#[path = "common/vt_store.rs"]
mod vt_store;

use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_fs::{Caller, DirName, FileSystem, NewNode, RollbackRights, WriteOptions};
use stitch_kv::counters;
use vt_bed::Bed;

const SUPER: Caller<'static> = Caller::ROOT;
const FILE_BYTES: u64 = 16 << 20;
const CHUNK_BYTES: u64 = 4096;

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

fn find(fs: &FileSystem, parent: Ino, name: &str) -> Ino {
    fs.lookup(at(parent, name)).expect("it is there").ino
}

fn write(fs: &FileSystem, ino: Ino, offset: u64, bytes: &[u8]) {
    let written = fs.write(ino, offset, bytes, WriteOptions::default());
    written.expect("it is written");
}

/// Bytes read from the device, point reads and scans, and bytes committed.
#[derive(Debug)]
struct Cost {
    read_bytes: u64,
    reads: u64,
    put_bytes: u64,
}

/// Creates a snapshot of a directory with a large file, writes some chunks of the file, and rolls
/// the directory back. Nothing is cached before.
fn cost_of(chunks: &[u64]) -> Cost {
    // All is done within one tick of the clock.
    let bed = Bed::new(ManualClock::default());
    let fs = bed.open();
    let made = fs.make_dir(&SUPER, at(Ino::ROOT, "dir"), &NewNode::default());
    let dir = made.expect("it is made").ino;
    let made = fs.create(&SUPER, at(dir, "large"), &NewNode::default());
    let file = made.expect("it is made").ino;
    let before: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 512) as u8 | 1).collect();
    write(&fs, file, 0, &before);
    fs.snapshots().create(dir, "mon").expect("it is created");
    for chunk in chunks {
        write(
            &fs,
            file,
            chunk * CHUNK_BYTES,
            &[0xee; CHUNK_BYTES as usize],
        );
    }
    Bed::close(fs);

    let fs = bed.open();
    let dir = find(&fs, Ino::ROOT, "dir");
    let read = || {
        let counters = fs.engine().counters();
        [
            counters.get("device.read_bytes"),
            counters.get(counters::GETS) + counters.get(counters::SCANS),
            counters.get(counters::PUT_BYTES),
        ]
    };
    let counted = read();
    fs.roll_back("mon", dir, RollbackRights::default())
        .expect("it is rolled back");
    let after = read();
    let [read_bytes, reads, put_bytes] = std::array::from_fn(|index| after[index] - counted[index]);
    let file = find(&fs, dir, "large");
    let mut found = Vec::new();
    let len = usize::try_from(FILE_BYTES).expect("it fits in memory");
    fs.read(file, 0, len, &mut found).expect("it is read");
    assert!(found == before, "all of it is as it was");
    Cost {
        read_bytes,
        reads,
        put_bytes,
    }
}

/// A file that was written in the tick of the snapshot may have changed after it.
#[test]
fn of_a_large_file_the_chunks_that_were_written_are_read() {
    for chunks in [&[][..], &[7], &[7, 8, 1000, 4000]] {
        let cost = cost_of(chunks);
        let count = chunks.len() as u64;
        let (reads_max, bytes_max) = (40 + 8 * count, (count + 1) * 5_000);
        assert!(
            cost.read_bytes < FILE_BYTES / 8
                && cost.reads <= reads_max
                && cost.put_bytes <= bytes_max,
            "{count} chunks: {cost:?}"
        );
    }
}
