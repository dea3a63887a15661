//! Atomic writes of files: all of their changes or none, whatever a crash leaves.

use super::ops::{FsOp, What, bytes, pick, small};
use super::tree::{Tree, with_path};
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_fs::{
    AtomicWriter, Caller, ClearSetId, FallocateMode, FileKind, FileSystem, FsResult, WriteOptions,
    Writer,
};

const PAGE: u64 = 4096;
/// Pages in which the writes of one operation lie. All of it fits a batch of the smallest store.
const PAGES: u64 = 12;
const WRITES_MAX: u64 = 6;
const WRITER: AtomicWriter = AtomicWriter {
    process: 7,
    thread: 7,
};

/// An atomic write of a file.
#[derive(Clone, Debug)]
pub struct StagedWrites {
    /// The file.
    pub path: String,
    /// Offset, length and seed of the bytes of each write.
    pub writes: Vec<(u64, usize, u64)>,
    /// Size that it sets after the first write.
    pub size: Option<u64>,
    /// It is committed, and not given up.
    pub is_committed: bool,
}

/// An atomic write of a file, if there is one, or an allocation of what the next one writes.
pub(super) fn generate(tree: &Tree, at: u64, rng: &mut Rng) -> Option<FsOp> {
    let files = tree.iter();
    let files = files.filter(|(_, node)| node.attr.kind == FileKind::Regular);
    let files: Vec<&String> = files.map(|(path, _)| path).collect();
    if files.is_empty() {
        return None;
    }
    let path = pick(&files, rng).clone();
    let what = match rng.one_in(5) {
        true => What::Fallocate {
            path,
            mode: FallocateMode::Allocate {
                keep_size: rng.one_in(2),
            },
            offset: rng.below(PAGES) * PAGE,
            len: (1 + rng.below(PAGES)) * PAGE,
        },
        false => What::AtomicWrite(staged(path, rng)),
    };
    Some(FsOp { at, what })
}

fn staged(path: String, rng: &mut Rng) -> StagedWrites {
    let count = 1 + rng.below(WRITES_MAX);
    let writes = (0..count).map(|_| match rng.one_in(3) {
        true => {
            let offset = rng.below(PAGES * PAGE);
            (offset, 1 + small(rng, 6000), rng.next_u64())
        }
        false => (rng.below(PAGES) * PAGE, 4096, rng.next_u64()),
    });
    StagedWrites {
        path,
        writes: writes.collect(),
        size: rng.one_in(4).then(|| rng.below(PAGES * PAGE)),
        is_committed: !rng.one_in(6),
    }
}

/// Does an atomic write. None is open afterwards.
pub(super) fn run(fs: &FileSystem, staged: &StagedWrites) -> FsResult<()> {
    with_path(fs, &staged.path, |ino| {
        fs.start_atomic_write(&Caller::ROOT, ino, WRITER)?;
        let done = write_all(fs, ino, staged).and_then(|()| match staged.is_committed {
            true => fs.commit_atomic_write(ino, WRITER.process).map(drop),
            false => Ok(()),
        });
        fs.end_atomic_write(ino);
        fs.remove_atomic_write(ino);
        done
    })
}

fn write_all(fs: &FileSystem, ino: Ino, staged: &StagedWrites) -> FsResult<()> {
    let writer = Writer::Process(WRITER.process);
    for (number, &(offset, len, seed)) in staged.writes.iter().enumerate() {
        let options = WriteOptions::default();
        fs.write_by(writer, ino, offset, &bytes(len, seed), options)?;
        if number == 0
            && let Some(size) = staged.size
        {
            fs.resize_staged(ino, WRITER.process, size, ClearSetId::None)?;
        }
    }
    Ok(())
}
