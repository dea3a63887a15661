//! Random opens, closes, reads, writes, cuts, mappings and removals of a few files, on a mount and
//! in a plain directory: each is to answer the same.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use stitch_base::random::Rng;

use crate::harness::context::Context;
use crate::harness::map::Map;

const SEEDS: u64 = 4;
const OPS: u64 = 4000;
const FILES: u64 = 3;
const OPEN_MAX: usize = 8;
/// Twice what makes a file large, and more.
const LEN_MAX: u64 = 200_000;

/// The same file, open in both places.
struct Pair {
    mounted: File,
    plain: File,
    is_writable: bool,
}

pub(super) fn open_files_do_what_their_twins_do(context: &Context) -> Result<()> {
    let mut mount = super::mount(context, "pt-random")?;
    let plain = context.dir("pt-random-plain")?;
    for seed in context.seed_range(SEEDS) {
        let ops = context.ops.unwrap_or(OPS);
        run((mount.dir(), &plain), seed, ops)
            .with_context(|| format!("replay with: --seed {seed}"))?;
    }
    let stats = mount.stats()?;
    let opens = stats.get("fuse.requests.open")?;
    println!(
        "      {opens} opens, {} reads",
        stats.get("fuse.requests.read")?
    );
    fs::remove_dir_all(&plain)?;
    mount.unmount()?;
    mount.fsck()
}

fn run((mounted, plain): (&Path, &Path), seed: u64, ops: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut open: Vec<Pair> = Vec::new();
    for op in 0..ops {
        let name = format!("file{}", rng.below(FILES));
        let done = step((mounted, plain), &name, &mut open, &mut rng);
        done.with_context(|| format!("operation {op} of {name}"))?;
    }
    drop(open);
    for number in 0..FILES {
        let name = format!("file{number}");
        let (one, two) = (fs::read(mounted.join(&name)), fs::read(plain.join(&name)));
        ensure!(one.ok() == two.ok(), "{name} differs at the end");
    }
    Ok(())
}

/// One operation, of a file by its name or of one that is open.
fn step(
    (mounted, plain): (&Path, &Path),
    name: &str,
    open: &mut Vec<Pair>,
    rng: &mut Rng,
) -> Result<()> {
    let both = [mounted.join(name), plain.join(name)];
    let chosen = |rng: &mut Rng, open: &[Pair]| {
        (!open.is_empty()).then(|| usize::try_from(rng.below(open.len() as u64)).expect("few"))
    };
    match rng.below(12) {
        0 | 1 if open.len() < OPEN_MAX => {
            let kind = rng.below(8);
            let mut options = OpenOptions::new();
            options.read(kind != 1).write(kind < 4).create(kind < 4);
            options.truncate(kind == 3).append(kind == 2);
            let [one, two] = [&both[0], &both[1]].map(|path| options.open(path));
            match (one, two) {
                (Ok(mounted), Ok(plain)) => open.push(Pair {
                    mounted,
                    plain,
                    is_writable: kind < 4,
                }),
                (Err(one), Err(two)) => ensure!(one.kind() == two.kind(), "{one}, not {two}"),
                (one, two) => ensure!(false, "opened: {one:?}, not {two:?}"),
            }
        }
        2 | 3 => {
            if let Some(at) = chosen(rng, open) {
                open.swap_remove(at);
            }
        }
        4 => {
            let len = rng.below(LEN_MAX);
            let len = if rng.one_in(4) { 0 } else { len };
            let [one, two] = [&both[0], &both[1]].map(|path| {
                let file = OpenOptions::new().write(true).open(path);
                file.and_then(|file| file.set_len(len))
                    .map_err(|e| e.kind())
            });
            ensure!(one == two, "cut by name: {one:?}, not {two:?}");
        }
        5 if rng.one_in(4) => {
            let [one, two] =
                [&both[0], &both[1]].map(|path| fs::remove_file(path).map_err(|e| e.kind()));
            ensure!(one == two, "removed: {one:?}, not {two:?}");
        }
        _ => {
            if let Some(at) = chosen(rng, open) {
                use_open(&open[at], rng)?;
            }
        }
    }
    Ok(())
}

/// One operation of a file that is open.
fn use_open(pair: &Pair, rng: &mut Rng) -> Result<()> {
    let offset = rng.below(LEN_MAX);
    let len = usize::try_from(1 + rng.below(40_000)).expect("few");
    match rng.below(8) {
        0 | 1 if pair.is_writable => {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            let [one, two] = both(pair, |file| file.write_at(&bytes, offset));
            ensure!(one == two, "written: {one:?}, not {two:?}");
        }
        2 if pair.is_writable => {
            let [one, two] = both(pair, |file| file.set_len(offset));
            ensure!(one == two, "cut: {one:?}, not {two:?}");
        }
        3 if pair.is_writable => {
            let [one, two] = both(pair, File::sync_all);
            ensure!(one == two, "synced: {one:?}, not {two:?}");
        }
        4 => map(pair, rng)?,
        _ => {
            let read = |file: &File| {
                let mut bytes = vec![0; len];
                let count = file.read_at(&mut bytes, offset)?;
                bytes.truncate(count);
                Ok(bytes)
            };
            let [one, two] = both(pair, read);
            ensure!(one == two, "other bytes at {offset}");
        }
    }
    let [one, two] = both(pair, |file| Ok(file.metadata()?.size()));
    ensure!(one == two, "{one:?} bytes, not {two:?}");
    Ok(())
}

fn both<T>(
    pair: &Pair,
    act: impl Fn(&File) -> std::io::Result<T>,
) -> [Result<T, std::io::ErrorKind>; 2] {
    [&pair.mounted, &pair.plain].map(|file| act(file).map_err(|e| e.kind()))
}

/// Reads a mapping of the whole file, and writes through it.
fn map(pair: &Pair, rng: &mut Rng) -> Result<()> {
    let size = usize::try_from(pair.plain.metadata()?.size())?;
    if size == 0 {
        return Ok(());
    }
    let is_read = both(pair, |file| file.read_at(&mut [0], 0));
    if is_read[1].is_err() {
        // Open for writing only.
        ensure!(is_read[0] == is_read[1], "{:?}", is_read[0]);
        return Ok(());
    }
    let is_writable = pair.is_writable && rng.one_in(2);
    let offset = usize::try_from(rng.below(size as u64))?;
    let len = (size - offset).min(10_000);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    let mut seen = Vec::new();
    for file in [&pair.mounted, &pair.plain] {
        let map = Map::new(file, size, is_writable)?;
        seen.push(map.read(0, size)?);
        if is_writable {
            map.write(offset, &bytes)?;
            // Where the cache is the kernel's, others see it from here on.
            map.sync()?;
        }
    }
    ensure!(seen[0] == seen[1], "other bytes are mapped");
    Ok(())
}
