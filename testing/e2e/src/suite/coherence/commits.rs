//! Commits of transactions, while other programs read the file in mainline all the time: after a
//! commit has returned, open files, new ones and mappings of mainline show what it changed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use stitch_base::random::Rng;

use super::changes::fill_until;
use crate::harness::context::Context;
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::text;
use crate::harness::views;

const PAGE: usize = 4096;
/// Length of the file at the beginning, and the most that it has.
const LEN: usize = 32 * PAGE;
const LEN_MAX: usize = 64 * PAGE;
const ROUNDS: u64 = 12;

pub(super) fn each_commit_is_seen(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    // A read must not be a change that the commit meets.
    let spec = Spec::new("co-commits", "256M").option("noatime");
    let mut mount = Mount::create(context, &spec)?;
    let path = mount.dir().join("file");
    fs::write(&path, vec![1; LEN])?;
    for seed in context.seed_range(1) {
        let is_over = AtomicBool::new(false);
        let run = std::thread::scope(|scope| {
            let filler = scope.spawn(|| fill_until(&path, &is_over));
            let run = commits(context, &mount, &path, &mut Rng::new(seed));
            is_over.store(true, Ordering::Relaxed);
            let filled = filler.join().map_err(|_| anyhow!("the reader panicked"))?;
            run.and(filled)
        });
        run.with_context(|| format!("replay with: --seed {seed}"))?;
    }
    mount.unmount()?;
    mount.fsck()
}

fn commits(context: &Context, mount: &Mount<'_>, path: &Path, rng: &mut Rng) -> Result<()> {
    let reader = File::open(path)?;
    let map = Map::new(&reader, LEN_MAX, false)?;
    let mut expected = fs::read(path)?;
    let dir = text(mount.dir());
    for round in 0..ROUNDS {
        let view = views::begin(context, mount)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(view.join("file"))?;
        let what = change(&file, rng, &mut expected)?;
        // What is written through a mapping that stays is committed, too.
        let mapped = Map::new(&file, expected.len(), true)?;
        let at = rng.below(expected.len() as u64 - 8);
        let at = usize::try_from(at)?;
        mapped.write(at, &round.to_le_bytes())?;
        expected[at..at + 8].copy_from_slice(&round.to_le_bytes());
        command_of(context, &["txn", "commit", "t", &dir])?;
        compare(&reader, &map, path, &expected)
            .with_context(|| format!("after round {round}: {what}, mapped at {at}"))?;
    }
    Ok(())
}

/// Changes the file of the transaction, and the expectation with it.
fn change(file: &File, rng: &mut Rng, expected: &mut Vec<u8>) -> Result<String> {
    let at = usize::try_from(rng.below(LEN_MAX as u64 - PAGE as u64))?;
    Ok(match rng.below(3) {
        0 => {
            let len = at.max(PAGE);
            file.set_len(len as u64)?;
            expected.resize(len, 0);
            format!("cut or grown to {len}")
        }
        _ => {
            let bytes = vec![u8::try_from(rng.below(255))?; PAGE];
            file.write_all_at(&bytes, at as u64)?;
            let end = (at + PAGE).max(expected.len());
            expected.resize(end, 0);
            expected[at..at + PAGE].copy_from_slice(&bytes);
            format!("written at {at}")
        }
    })
}

fn compare(reader: &File, map: &Map, path: &Path, expected: &[u8]) -> Result<()> {
    let mut bytes = vec![0xff; expected.len() + 1];
    let count = reader.read_at(&mut bytes, 0)?;
    same(&bytes[..count], expected, "an open file")?;
    ensure!(
        reader.metadata()?.len() == expected.len() as u64,
        "its length"
    );
    same(&map.read(0, expected.len())?, expected, "a mapping")?;
    same(&fs::read(path)?, expected, "a new open file")
}

fn same(seen: &[u8], expected: &[u8], how: &str) -> Result<()> {
    let (len, wanted) = (seen.len(), expected.len());
    ensure!(len == wanted, "{how}: {len} bytes, not {wanted}");
    let differs = seen.iter().zip(expected).position(|(a, b)| a != b);
    ensure!(differs.is_none(), "{how}: other bytes at {differs:?}");
    Ok(())
}
