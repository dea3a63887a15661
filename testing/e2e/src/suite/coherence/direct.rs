//! Asynchronous direct writes beside buffered readers.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;

use crate::harness::context::{Context, Target};
use crate::harness::mount::{Mount, Spec};

const LEN: usize = 640 << 10;
const ALIGN: usize = 4096;
const ROUNDS: u32 = 400;
/// Such a file is a plain one.
const LARGE: &str = "large_files=external:64K";

/// After each write that was completed, a buffered read returns its bytes, though another
/// program fills the page cache all the time. In the store, in plain files beside it, and in those
/// that the kernel reads itself.
pub(super) fn readers_see_direct_writes(context: &Context) -> Result<()> {
    check(Mount::create(context, &Spec::new("co-direct", "128M"))?)?;
    if context.target == Target::Ext4 {
        return Ok(());
    }
    let beside = Spec::new("co-direct-beside", "128M").option(LARGE);
    check(Mount::create(context, &beside)?)?;
    let lent = Spec::new("co-direct-lent", "128M").option(LARGE);
    check(super::super::passthrough::mount_with(
        context,
        &lent.option("passthrough"),
    )?)
}

fn check(mut mount: Mount<'_>) -> Result<()> {
    let path = mount.dir().join("file");
    fs::write(&path, vec![0; LEN])?;
    let is_over = AtomicBool::new(false);
    // The reader is first, so that the kernel reads a plain file itself where it can.
    let file = File::open(&path)?;
    let written = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_until(&file, &is_over));
        let written = write_and_read_back(&path);
        is_over.store(true, Ordering::Relaxed);
        let read = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        written.and(read)
    });
    drop(file);
    written.with_context(|| mount.dir().display().to_string())?;
    mount.unmount()?;
    mount.fsck()
}

fn read_until(file: &File, is_over: &AtomicBool) -> Result<()> {
    let mut bytes = vec![0; LEN];
    while !is_over.load(Ordering::Relaxed) {
        file.read_exact_at(&mut bytes, 0)?;
    }
    Ok(())
}

fn write_and_read_back(path: &Path) -> Result<()> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).context("flags of open")?;
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    let buffered = File::open(path)?;
    let mut ring = IoUring::new(4)?;
    let mut space = vec![0; LEN + ALIGN];
    let skip = space.as_ptr().align_offset(ALIGN);
    let mut seen = vec![0; LEN];
    for round in 1..=ROUNDS {
        let byte = u8::try_from(round % 251 + 1)?;
        let bytes = &mut space[skip..skip + LEN];
        bytes.fill(byte);
        write_direct(&mut ring, &direct, bytes)?;
        buffered.read_exact_at(&mut seen, 0)?;
        if let Some(at) = seen.iter().position(|&found| found != byte) {
            let found = seen[at];
            return Err(anyhow!(
                "round {round}: {found} at {at}, {byte} was written"
            ));
        }
    }
    Ok(())
}

/// Writes by `io_uring`, so that the kernel treats the write as asynchronous, and waits for its
/// end.
fn write_direct(ring: &mut IoUring, file: &File, bytes: &[u8]) -> Result<()> {
    let len = u32::try_from(bytes.len())?;
    let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), len)
        .offset(0)
        .build();
    #[expect(unsafe_code, reason = "io_uring has no safe wrapper")]
    // SAFETY: the bytes and the descriptor live until the completion, which is waited for here.
    unsafe { ring.submission().push(&entry) }?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().context("a completion")?.result();
    ensure!(result == i32::try_from(len)?, "written: {result}");
    Ok(())
}
