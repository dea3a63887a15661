//! JuiceFS as a side: its metadata in SQLite, its data in a folder, both on an ext4 on the side's
//! disk.
//!
//! Everything is as JuiceFS has it by default, but for what would not be a file system's own work:
//! nothing goes to the trash, and metadata is not backed up every hour. It keeps what it caches in
//! memory, within the sum that the side is given: a cache on the disk would hold the data twice.

use crate::disk::output;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "juicefs";
/// Its least buffer.
const BUFFER_MIB_MIN: u64 = 32;

/// Why it cannot be run; `None` if it can.
pub(super) fn why_not() -> Option<String> {
    let version = output(Command::new(PROGRAM).arg("version"));
    version.err().map(|error| format!("{error:#}"))
}

fn meta_url(below: &Path) -> String {
    format!("sqlite3://{}", below.join("meta.db").display())
}

/// Makes an empty volume in a folder.
pub(super) fn make(below: &Path) -> Result<()> {
    let mut run = Command::new(PROGRAM);
    run.args(["--quiet", "format", &meta_url(below), "bench"]);
    run.args(["--storage", "file", "--trash-days", "0", "--bucket"]);
    // With a `/` at the end it is a folder; without, the beginning of names.
    output(run.arg(below.join("data").join(""))).map(drop)
}

/// The command that mounts the volume of a folder and serves it until it is unmounted.
pub(super) fn mount_command(below: &Path, at: &Path, memory_bytes: u64) -> Vec<String> {
    let memory_mib = memory_bytes >> 20;
    let buffer_mib = (memory_mib / 2).max(BUFFER_MIB_MIN);
    let cache_mib = memory_mib.saturating_sub(buffer_mib).max(1);
    let words = [
        PROGRAM,
        "--quiet",
        "mount",
        "--no-usage-report",
        "--no-agent",
        "--no-syslog",
        "--backup-meta",
        "0",
        "--metrics",
        "127.0.0.1:0",
        "--cache-dir",
        "memory",
        "--cache-size",
        &cache_mib.to_string(),
        "--buffer-size",
        &buffer_mib.to_string(),
        &meta_url(below),
        &at.display().to_string(),
    ];
    words.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_and_cache_have_the_memory_that_it_is_given() {
        let words = mount_command(Path::new("/below"), Path::new("/mnt"), 512 << 20);
        let after = |name: &str| {
            let at = words.iter().position(|word| word == name).unwrap();
            words[at + 1].clone()
        };
        assert_eq!(after("--buffer-size"), "256");
        assert_eq!(after("--cache-size"), "256");
        let ends: Vec<&str> = words.iter().rev().take(2).map(String::as_str).collect();
        assert_eq!(ends, ["/mnt", "sqlite3:///below/meta.db"]);
    }
}
