//! Time to remove a file, by its size (BetrFS paper, section 7.3), with cold caches; and time to
//! replace a small file: write a new one beside it, sync it, rename it over the old one.

use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::measure::Op;
use anyhow::{Result, ensure};

const PIECE_BYTES: u64 = 1 << 20;
/// Sizes are so many doublings of this apart.
const STEP: u32 = 2;
const LEN_BYTES: usize = 4096;

pub(super) fn workloads() -> Vec<FsWorkload> {
    vec![
        FsWorkload::new(
            "delete-sizes",
            "removing a file of 1 MiB, 4 MiB, ... up to --bytes, cold, until sync",
            &[Caches::Warm, Caches::Cold],
            delete,
        ),
        FsWorkload::new(
            "rename-over",
            "a file of 4 KiB written beside another, synced, renamed over it",
            &[Caches::Warm],
            replace,
        ),
    ]
}

fn sizes(bytes_max: u64) -> impl Iterator<Item = u64> {
    let sizes = (0..).map(|power: u32| PIECE_BYTES << (power * STEP));
    sizes.take_while(move |bytes| *bytes <= bytes_max)
}

fn delete(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    let (target, values) = (stage.target(), stage.values());
    let all: Vec<u64> = sizes(stage.scale().bytes).collect();
    for bytes in all {
        let path = format!("file-{bytes}");
        if step == 0 {
            let file = target.open(&path, true)?;
            for piece in 0..bytes / PIECE_BYTES {
                let data = values.value(piece, usize::try_from(PIECE_BYTES)?);
                file.write_at(data, piece * PIECE_BYTES)?;
            }
            continue;
        }
        let found = target.stat(&path)?.map(|stat| stat.size);
        ensure!(found == Some(bytes), "{path} has {found:?} bytes");
        let name = format!("{}M-cold", bytes / PIECE_BYTES);
        stage.phase(&name, 1, Ends::Synced, |record| {
            record.time(Op::Remove, (1, 0), || target.unlink(&path))
        })?;
        ensure!(target.stat(&path)?.is_none(), "{path} is still there");
    }
    target.sync()
}

fn replace(stage: &mut Stage<'_>, _step: u32) -> Result<()> {
    let count = (stage.fs_scale().files / 100).clamp(50, 5_000);
    let (target, values) = (stage.target(), stage.values());
    target.put("file", b"")?;
    let done = stage.phase("replace", count, Ends::Returned, |record| {
        for number in 0..count {
            if record.is_over() {
                return Ok(number);
            }
            let data = values.value(number, LEN_BYTES);
            record.time(Op::Sync, (1, LEN_BYTES as u64), || {
                let file = target.open("file.new", true)?;
                file.write_at(data, 0)?;
                file.sync()?;
                target.rename("file.new", "file")
            })?;
        }
        Ok(count)
    })?;
    let mut found = Vec::new();
    target.read("file", &mut found)?;
    let is_last = values.is_value(done - 1, LEN_BYTES, &found);
    ensure!(is_last, "the file is not the last one");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_four_times_apart() {
        let all: Vec<u64> = sizes(20 << 20).collect();
        assert_eq!(all, [1 << 20, 4 << 20, 16 << 20]);
    }
}
