//! 4 KiB appended and synced, by one and by eight threads, each with a file of its own.

use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::measure::{Op, by_threads};
use anyhow::{Result, ensure};

const LEN_BYTES: usize = 4096;
const THREADS: [u64; 2] = [1, 8];

pub(super) fn workload() -> FsWorkload {
    FsWorkload::new(
        "append-fsync",
        "4 KiB appended and synced, by 1 and by 8 threads",
        &[Caches::Warm],
        run,
    )
}

fn run(stage: &mut Stage<'_>, _step: u32) -> Result<()> {
    let each = (stage.fs_scale().files / 100).clamp(50, 5_000);
    for threads in THREADS {
        let (target, values) = (stage.target(), stage.values().clone());
        let name = format!("threads-{threads}");
        stage.phase(&name, threads * each, Ends::Returned, |record| {
            by_threads(record, threads, |thread, record| {
                let path = format!("log-{threads}-{thread}");
                let file = target.open(&path, true)?;
                let mut offset = 0;
                for number in 0..each {
                    if record.is_over() {
                        break;
                    }
                    let data = values.value(number, LEN_BYTES);
                    record.time(Op::Sync, (1, LEN_BYTES as u64), || {
                        file.write_at(data, offset)?;
                        file.sync()
                    })?;
                    offset += LEN_BYTES as u64;
                }
                let size = target.stat(&path)?.map(|stat| stat.size);
                ensure!(size == Some(offset), "{path} has {size:?} bytes");
                Ok(())
            })
        })?;
    }
    Ok(())
}
