//! Every way to change a file, while another program fills the page cache with it all the time:
//! after each call has returned, open files, new ones and mappings show its bytes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::fs::{FallocateFlags, OFlags};
use stitch_base::random::Rng;

use crate::harness::context::{Context, Target};
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec};

const PAGE: u64 = 4096;
/// The file is never longer; large ones are plain files from a quarter of it on.
const LEN_MAX: u64 = 64 * PAGE;
const LARGE: &str = "large_files=external:64K";
const ROUNDS: u64 = 1500;

/// The first open of the file. It decides how the kernel reads a plain file with `passthrough`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Writer,
    Reader,
}

/// In the store, in plain files beside it, and in those that the kernel reads itself.
pub(super) fn all_ways_to_look_show_each_change(context: &Context) -> Result<()> {
    check(context, &Spec::new("co-changes", "256M"), First::Writer)?;
    if context.target == Target::Ext4 {
        return Ok(());
    }
    let beside = Spec::new("co-changes-beside", "256M").option(LARGE);
    check(context, &beside, First::Writer)?;
    for (name, first) in [
        ("co-changes-writer", First::Writer),
        ("co-changes-reader", First::Reader),
    ] {
        let spec = Spec::new(name, "256M").option(LARGE).option("passthrough");
        check(context, &spec, first)?;
    }
    Ok(())
}

fn check(context: &Context, spec: &Spec, first: First) -> Result<()> {
    let mut mount = match spec.options.iter().any(|option| option == "passthrough") {
        true => super::super::passthrough::mount_with(context, spec)?,
        false => Mount::create(context, spec)?,
    };
    let path = mount.dir().join("file");
    fs::write(&path, vec![1; usize::try_from(LEN_MAX)?])?;
    for seed in context.seed_range(1) {
        let is_over = AtomicBool::new(false);
        let run = std::thread::scope(|scope| {
            let early = match first {
                First::Reader => Some(File::open(&path)?),
                First::Writer => None,
            };
            let mut changed = Changed::open(&path)?;
            let filler = scope.spawn(|| fill_until(&path, &is_over));
            let run = changed.run(&mut Rng::new(seed));
            is_over.store(true, Ordering::Relaxed);
            let filled = filler.join().map_err(|_| anyhow!("the reader panicked"))?;
            drop(early);
            run.and(filled)
        });
        run.with_context(|| format!("{}, replay with: --seed {seed}", spec.name))?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// Reads the file again and again.
pub(super) fn fill_until(path: &Path, is_over: &AtomicBool) -> Result<()> {
    let file = File::open(path)?;
    let mut bytes = vec![0; usize::try_from(LEN_MAX)?];
    while !is_over.load(Ordering::Relaxed) {
        file.read_at(&mut bytes, 0)?;
    }
    Ok(())
}

/// The file, open and mapped in several ways, and what is to be in it.
struct Changed {
    path: PathBuf,
    file: File,
    direct: File,
    reader: File,
    map: Map,
    source: File,
    expected: Vec<u8>,
}

impl Changed {
    fn open(path: &Path) -> Result<Self> {
        let direct = i32::try_from(OFlags::DIRECT.bits())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.open(path)?;
        let source_path = path.with_extension("source");
        let bytes: Vec<u8> = (0..LEN_MAX).map(|at| (at / 100 % 251) as u8).collect();
        fs::write(&source_path, &bytes)?;
        Ok(Self {
            path: path.to_owned(),
            map: Map::new(&file, usize::try_from(LEN_MAX)?, true)?,
            direct: options.custom_flags(direct).open(path)?,
            reader: File::open(path)?,
            source: File::open(source_path)?,
            expected: fs::read(path)?,
            file,
        })
    }

    fn run(&mut self, rng: &mut Rng) -> Result<()> {
        for round in 0..ROUNDS {
            let what = self.change(rng)?;
            self.compare()
                .with_context(|| format!("after round {round}, {what}"))?;
        }
        Ok(())
    }

    /// Changes the file in one of the ways, and the expectation with it.
    fn change(&mut self, rng: &mut Rng) -> Result<String> {
        let len = self.expected.len() as u64;
        let at = rng.below(LEN_MAX - 1);
        let count = 1 + rng.below((LEN_MAX - at).min(5 * PAGE));
        let byte = u8::try_from(1 + rng.below(250))?;
        let bytes = vec![byte; usize::try_from(count)?];
        let name = match rng.below(9) {
            0 => {
                self.file.write_all_at(&bytes, at)?;
                self.put(at, &bytes);
                "write"
            }
            1 => {
                self.write_direct(at / PAGE * PAGE, byte)?;
                "direct write"
            }
            2 => {
                self.copy(rng.below(LEN_MAX - count), at, bytes.len())?;
                "copy"
            }
            3 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, at, count)?;
                self.zero_within(at, count)?;
                "punch"
            }
            4 => {
                rustix::fs::fallocate(&self.file, FallocateFlags::ZERO_RANGE, at, count)?;
                self.put(at, &vec![0; bytes.len()]);
                "zero range"
            }
            5 => {
                let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, at, count)?;
                self.zero_within(at, count)?;
                "zero range, keep size"
            }
            6 => {
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), at, count)?;
                let end = usize::try_from(at + count)?.max(self.expected.len());
                self.expected.resize(end, 0);
                "allocate"
            }
            7 => {
                self.file.set_len(at)?;
                self.expected.resize(usize::try_from(at)?, 0);
                "truncate"
            }
            _ if len > 0 => {
                let at = at % len;
                let count = usize::try_from(count.min(len - at))?;
                self.map.write(usize::try_from(at)?, &bytes[..count])?;
                self.put(at, &bytes[..count]);
                "mapped write"
            }
            _ => "nothing",
        };
        if rng.below(4) == 0 {
            rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(format!("{name} at {at}, {count} bytes of {len}"))
    }

    fn copy(&mut self, from: u64, at: u64, count: usize) -> Result<()> {
        let (mut source_at, mut target_at) = (from, at);
        let (source_at, target_at) = (Some(&mut source_at), Some(&mut target_at));
        let (source, target) = (&self.source, &self.file);
        let copied = rustix::fs::copy_file_range(source, source_at, target, target_at, count)?;
        let mut bytes = vec![0; copied];
        self.source.read_exact_at(&mut bytes, from)?;
        self.put(at, &bytes);
        Ok(())
    }

    fn write_direct(&mut self, at: u64, byte: u8) -> Result<()> {
        let page = usize::try_from(PAGE)?;
        let space = vec![byte; 3 * page];
        let skip = space.as_ptr().align_offset(page);
        let count = page.min(usize::try_from(LEN_MAX - at)?);
        let bytes = &space[skip..skip + count];
        self.direct.write_all_at(bytes, at)?;
        self.put(at, bytes);
        Ok(())
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("the file is short");
        let end = (at + bytes.len()).max(self.expected.len());
        self.expected.resize(end, 0);
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn zero_within(&mut self, at: u64, count: u64) -> Result<()> {
        let end = usize::try_from(at + count)?.min(self.expected.len());
        let at = usize::try_from(at)?.min(end);
        self.expected[at..end].fill(0);
        Ok(())
    }

    fn compare(&self) -> Result<()> {
        let mut bytes = vec![0xff; self.expected.len() + 1];
        let count = self.reader.read_at(&mut bytes, 0)?;
        self.same(&bytes[..count], "an open file")?;
        self.same(&self.map.read(0, self.expected.len())?, "the mapping")?;
        self.same(&fs::read(&self.path)?, "a new open file")
    }

    fn same(&self, seen: &[u8], how: &str) -> Result<()> {
        let expected = &self.expected;
        ensure!(
            seen.len() == expected.len(),
            "{how}: {} bytes, not {}",
            seen.len(),
            expected.len()
        );
        let differs = seen.iter().zip(expected).position(|(a, b)| a != b);
        ensure!(differs.is_none(), "{how}: other bytes at {differs:?}");
        Ok(())
    }
}
