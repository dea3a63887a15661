//! What changes of a file that shares contents cost, beside those of another file, on the VT-tree.

#[path = "common/vt_store.rs"]
mod vt_store;

use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_fs::{
    Caller, DirName, FileSystem, FsOptions, NewNode, RollbackRights, WriteOptions, register_upserts,
};
use stitch_kv::{UpsertRegistry, counters};
use vt_store::VtStore;

const SUPER: Caller<'static> = Caller::ROOT;
const FILE_BYTES: u64 = 4 << 20;
/// From so many bytes on a batch goes to its zone at once.
const RUN_BYTES: u64 = 64 << 10;

/// Counts of one change.
#[derive(Clone, Copy, Debug)]
struct Cost {
    commits: u64,
    /// Point reads and scans.
    reads: u64,
    messages: u64,
    put_bytes: u64,
    log_bytes: u64,
}

/// A file of its own, and a copy with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    Copy,
    Source,
}

struct Bed {
    fs: FileSystem,
    dir: Ino,
    file: Ino,
    /// The other file, in the root.
    source: Ino,
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

impl Bed {
    /// A directory with a file of a kind. `batch_bytes` is that of rollbacks.
    fn new(kind: Kind, batch_bytes: Option<u64>) -> Self {
        let mut upserts = UpsertRegistry::default();
        register_upserts(&mut upserts);
        let store = VtStore::new(upserts);
        let options = || FsOptions {
            clock: Arc::new(ManualClock::default()),
            confirm_names: false,
            rollback_batch_bytes: batch_bytes,
            ..FsOptions::default()
        };
        FileSystem::format(&store.engine(), &options(), (0, 0)).expect("formats");
        let fs = FileSystem::open(store.engine(), options()).expect("opens");
        let made = fs.make_dir(&SUPER, at(Ino::ROOT, "dir"), &NewNode::default());
        let dir = made.expect("it is made").ino;
        let create = |parent| {
            let made = fs.create(&SUPER, at(parent, "file"), &NewNode::default());
            made.expect("it is made").ino
        };
        let (file, other) = (create(dir), create(Ino::ROOT));
        let written = if kind == Kind::Copy { other } else { file };
        let bed = Self {
            fs,
            dir,
            file,
            source: other,
        };
        bed.write(written, (0, FILE_BYTES), 7);
        if kind != Kind::Own {
            let copy = if kind == Kind::Copy { file } else { other };
            let copied = bed.fs.copy_range((written, 0), (copy, 0), FILE_BYTES);
            assert_eq!(copied.expect("it is copied"), FILE_BYTES);
        }
        bed
    }

    fn write(&self, ino: Ino, (offset, len): (u64, u64), byte: u8) {
        let bytes = vec![byte; usize::try_from(len).expect("it fits in memory")];
        let written = self.fs.write(ino, offset, &bytes, WriteOptions::default());
        written.expect("it is written");
    }

    fn cost(&self, run: impl FnOnce()) -> Cost {
        let read = || {
            let counters = self.fs.engine().counters();
            [
                counters.get(counters::COMMITS),
                counters.get(counters::GETS) + counters.get(counters::SCANS),
                counters.get(counters::PUT_MESSAGES),
                counters.get(counters::PUT_BYTES),
                counters.get(counters::LOG_BYTES),
            ]
        };
        let before = read();
        run();
        let after = read();
        let [commits, reads, messages, put_bytes, log_bytes] =
            std::array::from_fn(|index| after[index] - before[index]);
        Cost {
            commits,
            reads,
            messages,
            put_bytes,
            log_bytes,
        }
    }
}

/// The first write of a range, and the same write again.
fn costs_of_writes(kind: Kind, len: u64) -> [Cost; 2] {
    let bed = Bed::new(kind, None);
    [(); 2].map(|()| bed.cost(|| bed.write(bed.file, (1 << 20, len), 9)))
}

/// The row of the extents is read once, and put if it changes.
#[test]
fn a_write_to_a_shared_file_reads_and_puts_one_row_more() {
    for len in [4 << 10, 60 << 10, 64 << 10, 96 << 10, 1 << 20] {
        let own = costs_of_writes(Kind::Own, len);
        for kind in [Kind::Copy, Kind::Source] {
            let shared = costs_of_writes(kind, len);
            for (index, (own, shared)) in own.iter().zip(&shared).enumerate() {
                let more = |of: fn(&Cost) -> u64| of(shared) - of(own);
                let rows = u64::from(index == 0);
                let what = format!("{len} bytes, {kind:?}: {own:?}, {shared:?}");
                assert_eq!(more(|cost| cost.commits), 0, "{what}");
                assert_eq!(more(|cost| cost.reads), 1, "{what}");
                assert_eq!(more(|cost| cost.messages), rows, "{what}");
                assert!(more(|cost| cost.put_bytes) <= 80 * rows, "{what}");
            }
        }
    }
}

/// What the snapshot has of shared contents is shared again, whatever the batches are.
#[test]
fn a_rollback_of_a_shared_file_writes_rows_and_no_chunk() {
    for batch_bytes in [16 << 10, 1 << 20] {
        for kind in [Kind::Copy, Kind::Source] {
            let bed = Bed::new(kind, Some(batch_bytes));
            let made = bed.fs.snapshots().create(bed.dir, "mon");
            made.expect("it is created");
            bed.write(bed.file, (1 << 20, 4096), 9);
            let cost = bed.cost(|| {
                let done = bed.fs.roll_back("mon", bed.dir, RollbackRights::default());
                done.expect("it is rolled back");
            });
            let what = format!("batches of {batch_bytes}, {kind:?}: {cost:?}");
            assert!(cost.put_bytes < 1_000 && cost.reads <= 40, "{what}");
            assert!(cost.log_bytes < 8_192 && cost.commits == 1, "{what}");
            let mut bytes = Vec::new();
            let len = usize::try_from(FILE_BYTES).expect("it fits in memory");
            bed.fs.read(bed.file, 0, len, &mut bytes).expect("reads");
            assert!(bytes == vec![7; len], "{what}");
        }
    }
}

/// Batches of a rollback that are shorter than a run have their chunks in the log, whatever the
/// file is, until a write stream takes them.
#[test]
fn a_rollback_to_what_no_file_shares_any_more_writes_its_chunks_once() {
    for batch_bytes in [16 << 10, 60 << 10, 90 << 10, 1 << 20] {
        let bed = Bed::new(Kind::Copy, Some(batch_bytes));
        let made = bed.fs.snapshots().create(bed.dir, "mon");
        made.expect("it is created");
        let removed = bed.fs.unlink(&SUPER, at(Ino::ROOT, "file"));
        removed.expect("it is removed");
        bed.fs.forget(bed.source, 1);
        bed.write(bed.file, (0, FILE_BYTES), 9);
        bed.fs.reclaim().expect("it is reclaimed");
        let cost = bed.cost(|| {
            let done = bed.fs.roll_back("mon", bed.dir, RollbackRights::default());
            done.expect("it is rolled back");
        });
        let what = format!("batches of {batch_bytes}: {cost:?}");
        let rows = FILE_BYTES / 4096 * 16 + 1_000 + cost.commits * 100;
        let bytes = FILE_BYTES..=FILE_BYTES + rows;
        assert!(bytes.contains(&cost.put_bytes), "{what}");
        assert!(cost.reads <= 40, "{what}");
        let until_stream = if batch_bytes < RUN_BYTES {
            2 * RUN_BYTES
        } else {
            0
        };
        let log_max = 80_000 + until_stream;
        assert!(cost.log_bytes <= log_max, "{what}");
    }
}
