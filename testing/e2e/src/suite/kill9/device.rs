//! A store on a block device, where large writes are still under way after their calls have
//! returned.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use stitch_base::random::Rng;
use stitch_base::thread;

use super::PATIENCE;
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};

const KILLS: u64 = 3;
const BLOCK_BYTES: usize = 1 << 20;
/// Blocks of a file.
const BLOCKS: u64 = 24;

fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    Rng::new(number).fill(&mut bytes);
    bytes
}

/// File of a block, and where in it.
fn place(number: u64) -> (String, u64) {
    let at = number % BLOCKS * BLOCK_BYTES as u64;
    (format!("f{}", number / BLOCKS), at)
}

/// What the kernel took is there, synced or not.
pub(super) fn killed_on_a_device(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut mount = Mount::create(context, &Spec::new("kill-device", "2G").on_device())?;
    let written = Arc::new(AtomicU64::new(0));
    let mut first = 0;
    for kill in 0..KILLS {
        let writer = {
            let (dir, written) = (mount.dir().to_owned(), Arc::clone(&written));
            thread::spawn("writer", move || write(&dir, &written))?
        };
        context.sleep(Duration::from_millis(30 + rng.below(400)));
        mount.kill()?;
        context.wait_until(PATIENCE, || Ok(writer.is_finished()))?;
        let end = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
        ensure!(end.is_err(), "the writer has noticed nothing");
        mount
            .mount_again()
            .with_context(|| format!("kill {kill}"))?;
        let done = written.load(Ordering::SeqCst);
        for number in first..done {
            compare(mount.dir(), number)
                .with_context(|| format!("kill {kill}: block {number} of {done}"))?;
        }
        println!("      kill {kill}: {} MiB written", done - first);
        first = done;
        mount.unmount()?;
        mount
            .fsck()
            .with_context(|| format!("fsck after kill {kill}"))?;
        mount.mount_again()?;
        for entry in fs::read_dir(mount.dir())? {
            fs::remove_file(entry?.path())?;
        }
    }
    ensure!(first > KILLS, "hardly anything was written");
    mount.unmount()
}

/// Writes blocks from the last on until the daemon is gone.
fn write(dir: &Path, written: &AtomicU64) -> Result<()> {
    loop {
        let number = written.load(Ordering::SeqCst);
        let (name, at) = place(number);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(name))?;
        file.write_all_at(&block(number), at)?;
        written.store(number + 1, Ordering::SeqCst);
    }
}

fn compare(dir: &Path, number: u64) -> Result<()> {
    let (name, at) = place(number);
    let mut found = vec![0; BLOCK_BYTES];
    File::open(dir.join(name))?.read_exact_at(&mut found, at)?;
    ensure!(found == block(number), "is not what was written");
    Ok(())
}
