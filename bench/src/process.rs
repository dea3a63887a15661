//! What the kernel counts about this process, and the page cache.

use anyhow::{Context as _, Result, ensure};
use rustix::fs::Advice;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};

/// Bytes that this process caused to be read from and written to storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Read from storage, also ahead of need.
    pub(crate) read_bytes: u64,
    /// Reads of a disk, after neighbours were joined; 0 where they are not counted.
    pub(crate) reads: u64,
    /// Pages made dirty and not thrown away before they were written.
    pub(crate) write_bytes: u64,
}

/// The source of counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meter {
    /// The kernel, what this process does.
    Process,
    /// The kernel, what a disk does that only this side uses: its `stat` file, and a folder on it.
    Disk(PathBuf, PathBuf),
    /// The kernel, what a device did so far: its `stat` file. Nothing is written back for it.
    Device(PathBuf),
}

/// Unit of a disk's counters.
const SECTOR_BYTES: u64 = 512;

impl Meter {
    /// Everything so far. A disk is first given what the page cache still holds for it.
    pub(crate) fn read(&self) -> Result<Traffic> {
        match self {
            Self::Process => Traffic::of_process(),
            Self::Device(stat) => Traffic::of_disk(&fs::read_to_string(stat)?),
            Self::Disk(stat, folder) => {
                let folder = File::open(folder)?;
                // A raw device has no file system to sync, and no page cache of ours.
                if folder.metadata()?.is_dir() {
                    rustix::fs::syncfs(&folder)?;
                }
                Traffic::of_disk(&fs::read_to_string(stat)?)
            }
        }
    }
}

impl Traffic {
    /// Of a disk: reads, reads joined, sectors read, time; the same for writes; and more.
    fn of_disk(text: &str) -> Result<Self> {
        let fields: Vec<u64> = text
            .split_whitespace()
            .filter_map(|f| f.parse().ok())
            .collect();
        ensure!(fields.len() > 6, "a disk has no counters: {text:?}");
        Ok(Self {
            read_bytes: fields[2] * SECTOR_BYTES,
            reads: fields[0],
            write_bytes: fields[6] * SECTOR_BYTES,
        })
    }

    /// Of this process since it began.
    fn of_process() -> Result<Self> {
        let text = fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
        let written = field(&text, "write_bytes:");
        Ok(Self {
            read_bytes: field(&text, "read_bytes:"),
            reads: 0,
            write_bytes: written.saturating_sub(field(&text, "cancelled_write_bytes:")),
        })
    }

    /// Since an earlier moment.
    pub(crate) const fn since(self, earlier: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            reads: self.reads.saturating_sub(earlier.reads),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
        }
    }
}

/// What comes after a label at the start of a line.
pub(crate) fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(label))
}

/// The number after a label at the start of a line; 0 without one.
pub(crate) fn field(text: &str, label: &str) -> u64 {
    let number = after(text, label).and_then(|value| value.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// Most memory that this process ever had resident, in bytes.
pub(crate) fn peak_rss_bytes() -> u64 {
    peak_rss_bytes_of(std::process::id())
}

/// Resets the peak of this process's memory to its current value. Returns false if the kernel does
/// not support it.
pub(crate) fn reset_peak_rss() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Most memory that another process ever had resident, in bytes; 0 if it is gone.
pub(crate) fn peak_rss_bytes_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "VmHWM:") * 1024
}

/// The sum of [`peak_rss_bytes_of`] over a group of processes.
pub(crate) fn peak_rss_bytes_of_group(group: u32) -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_in = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        group_of(&stat) == Some(group)
    };
    pids.filter(is_in).map(peak_rss_bytes_of).sum()
}

/// The group of a process, as its `stat` says. The name before it is in brackets and may hold
/// anything.
fn group_of(stat: &str) -> Option<u32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(2)?.parse().ok()
}

/// Processor time of this process, in clock ticks.
fn cpu_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before it is in brackets and may hold anything.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let tick = |index: usize| after.split_whitespace().nth(index)?.parse::<u64>().ok();
    tick(11).unwrap_or(0) + tick(12).unwrap_or(0)
}

/// Waits until this process neither computes nor writes: its background work is done. Returns how
/// long it was busy, and whether it became idle before `most`.
pub(crate) fn settle(clock: &SystemClock, most: Duration) -> Result<(Duration, bool)> {
    const WINDOW: Duration = Duration::from_millis(100);
    const QUIET_WINDOWS: u32 = 2;
    let start = clock.monotonic();
    let (mut quiet, mut busy_until) = (0, start);
    let mut last = (Traffic::of_process()?.write_bytes, cpu_ticks());
    while quiet < QUIET_WINDOWS {
        if clock.monotonic() - start > most {
            return Ok((clock.monotonic() - start, false));
        }
        clock.sleep(WINDOW);
        let now = (Traffic::of_process()?.write_bytes, cpu_ticks());
        if now.0 == last.0 && now.1 <= last.1 + 1 {
            quiet += 1;
        } else {
            quiet = 0;
            busy_until = clock.monotonic();
        }
        last = now;
    }
    Ok((busy_until - start, true))
}

/// Makes every file below `path`, or the device there, durable and drops it from the page cache.
pub(crate) fn evict(path: &Path) -> Result<()> {
    let evict_one = |file_path: &Path| {
        let file = File::open(file_path)?;
        rustix::fs::fdatasync(&file)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        Ok(())
    };
    if path.is_dir() {
        for_each_file(path, &mut |file_path| evict_one(file_path))
    } else {
        evict_one(path)
    }
}

/// Bytes that the files below `path` take on their file system.
pub(crate) fn allocated_bytes(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut total = 0;
    for_each_file(path, &mut |file_path| {
        // A background thread may remove it between the listing and the look.
        total += fs::metadata(file_path).map_or(0, |metadata| metadata.blocks() * 512);
        Ok(())
    })?;
    Ok(total)
}

fn for_each_file(path: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            for_each_file(&entry.path(), visit)?;
        } else if kind.is_file() {
            visit(&entry.path()).with_context(|| entry.path().display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::process::CommandExt as _;
    use std::process::Stdio;

    #[test]
    fn what_is_written_is_counted() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let before = Meter::Process.read().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), vec![1; 1 << 20]).unwrap();
        evict(dir.path()).unwrap();
        let traffic = Meter::Process.read().unwrap().since(before);
        assert!(traffic.write_bytes >= 1 << 20, "{traffic:?}");
        assert!(allocated_bytes(dir.path()).unwrap() >= 1 << 20);
    }

    #[test]
    fn sectors_of_a_disk_are_counted() {
        let text = "    10    0     80    1    20    0    160    2    0    3    4\n";
        let traffic = Traffic::of_disk(text).unwrap();
        assert_eq!((traffic.read_bytes, traffic.write_bytes), (40960, 81920));
        assert_eq!(traffic.reads, 10);
        assert!(Traffic::of_disk("1 2 3").is_err());
    }

    #[test]
    fn a_label_is_found_at_the_start_of_a_line_only() {
        let text = "cancelled_write_bytes: 4\nwrite_bytes: 12\nVmHWM:\t 7 kB\n";
        assert_eq!(field(text, "write_bytes:"), 12);
        assert_eq!(field(text, "VmHWM:"), 7);
        assert_eq!(field(text, "none:"), 0);
    }

    #[test]
    fn a_group_has_the_memory_of_all_that_are_in_it() {
        assert_eq!(group_of("7 (a) b) S 1 42 42 0"), Some(42));
        let mut run = std::process::Command::new("sh");
        // The first waits for the second, which ends with its input.
        run.args(["-c", "cat; true"]).process_group(0);
        let mut child = run
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"x").unwrap();
        let mut byte = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        let (one, all) = (
            peak_rss_bytes_of(child.id()),
            peak_rss_bytes_of_group(child.id()),
        );
        drop(input);
        child.wait().unwrap();
        assert!(one > 0 && all > one, "{all} of {one}");
    }

    #[test]
    fn the_peak_is_counted_anew() {
        let held = vec![1u8; 64 << 20];
        assert!(std::hint::black_box(&held).iter().all(|byte| *byte == 1));
        let before = peak_rss_bytes();
        assert!(before >= 64 << 20, "{before}");
        drop(held);
        // The allocator gives it back after a while, and when it is asked for more.
        let clock = SystemClock::default();
        let falls = |_| {
            clock.sleep(Duration::from_millis(50));
            drop(std::hint::black_box(vec![0u8; 4 << 20]));
            !reset_peak_rss() || peak_rss_bytes() + (32 << 20) < before
        };
        assert!((0..200).any(falls), "no lower peak than {before}");
    }

    #[test]
    fn a_process_at_rest_settles() {
        let (_, at_rest) = settle(&SystemClock::default(), Duration::ZERO).unwrap();
        assert!(!at_rest);
        assert!(peak_rss_bytes() > 0);
    }
}
