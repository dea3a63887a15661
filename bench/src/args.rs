//! The command line.

use crate::report::{FsScale, Io, Scale};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Compares StitchFS with other stores: same machine, same run, sides alternating.
#[derive(Debug, Parser)]
#[command(name = "stitch-bench", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Workloads of the key-value engine.
    Kv(KvArgs),
    /// Workloads of file systems: our mount and library beside others.
    Fs(FsArgs),
    /// Lists workloads and sides.
    List,
    /// Makes the table and the HTML page again from a JSON file.
    Report {
        /// The file, as `kv` and `fs` write it.
        file: PathBuf,
    },
    /// Runs one step of a workload, read from standard input. For `kv` and `fs`.
    #[command(hide = true)]
    Child,
    /// Serves a mount, read from standard input. For `fs`.
    #[command(hide = true)]
    Serve,
}

#[derive(Debug, Args)]
pub(crate) struct KvArgs {
    /// Small amounts and a time limit: ends within 5 minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Sides, separated by commas; by default all that are built in.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub(crate) sides: Vec<String>,
    /// Workloads, separated by commas; by default all. `random` means `random-4k` and `random-64`.
    #[arg(long, value_delimiter = ',', value_name = "X,Y")]
    pub(crate) workloads: Vec<String>,
    /// Memory of each side: block cache and write buffers together [default: 512M; quick: 16M].
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub(crate) memory: Option<u64>,
    /// User data of workloads with rows of 1 KiB or more [default: 2G; quick: 64M].
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    /// User data of workloads with smaller rows [default: as --bytes; quick: a quarter of it].
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub(crate) small_bytes: Option<u64>,
    /// Point reads after a load [default: 100000; quick: 2000].
    #[arg(long, value_name = "COUNT")]
    pub(crate) gets: Option<u64>,
    /// Puts in one batch.
    #[arg(long, default_value_t = 1, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) batch: u64,
    /// Repetitions; medians are reported [default: 3; quick: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: Option<u32>,
    /// Cut each phase short after so many seconds [default: never; quick: 2].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) cap: Option<f64>,
    /// Wait at most so long for background work after a load; 0: not at all [default: 600; quick:
    /// 2].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) settle: Option<f64>,
    /// Hold every side, with its page cache, to --memory by a control group (root, version 1). What
    /// it may use for itself is half of it then.
    #[arg(long)]
    pub(crate) cgroup: bool,
    /// Give every side a disk of its own, an ext4 on a loop device, and count what the device does
    /// (root). The side `stitch-raw` needs it.
    #[arg(long = "loop")]
    pub(crate) is_on_disks: bool,
    /// How `stitch-raw` reads and writes its device.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) io: Io,
    /// Compactions that `stitch` may run at once: 1 or 2 [default: as the library's].
    #[arg(
        long,
        hide = true,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=2)
    )]
    pub(crate) compactors: Option<u32>,
    /// Folder for `kv.json` and `kv.html`.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Folder for the stores, on the file system to measure [default: the one of --out].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print the JSON instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl KvArgs {
    /// Returns the amounts to run.
    ///
    /// # Errors
    /// An amount that is too small to be meaningful.
    pub(crate) fn scale(&self) -> anyhow::Result<Scale> {
        let quick = |quick: u64, full: u64| if self.quick { quick } else { full };
        let bytes = self.bytes.unwrap_or_else(|| quick(64 * MIB, 2 * GIB));
        let scale = Scale {
            memory_bytes: self.memory.unwrap_or_else(|| quick(16 * MIB, 512 * MIB)),
            bytes,
            small_bytes: self.small_bytes.unwrap_or_else(|| quick(bytes / 4, bytes)),
            gets: self.gets.unwrap_or_else(|| quick(2_000, 100_000)),
            batch: self.batch,
            cap_s: cap_s(self.cap, self.quick)?,
            settle_s: self.settle.unwrap_or(if self.quick { 2.0 } else { 600.0 }),
            repeat: repeats(self.repeat, self.quick),
            is_on_disks: self.is_on_disks,
            io: self.io,
            compactors: self.compactors,
            cgroup: self.cgroup,
            fs: None,
        };
        let least = if self.cgroup { 128 } else { 4 };
        anyhow::ensure!(
            scale.memory_bytes >= least * MIB,
            "--memory is at least 4M, with --cgroup at least 128M"
        );
        let least = scale.bytes.min(scale.small_bytes);
        anyhow::ensure!(
            least >= 64 * KIB,
            "--bytes and --small-bytes are at least 64K"
        );
        let is_sane = (0.0..1e6).contains(&scale.settle_s);
        anyhow::ensure!(is_sane, "--settle is between 0 and 1000000 seconds");
        Ok(scale)
    }
}

#[derive(Debug, Args)]
pub(crate) struct FsArgs {
    /// Small amounts and a time limit: ends within 10 minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Sides, separated by commas; by default all that can run here.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub(crate) sides: Vec<String>,
    /// Workloads, separated by commas; by default all but the very long ones, which are to be named
    /// in full. `meta` means `meta-1` and `meta-2`.
    #[arg(long, value_delimiter = ',', value_name = "X,Y")]
    pub(crate) workloads: Vec<String>,
    /// Memory of the store that is mounted or opened; with --cgroup twice that, and of every side
    /// [default: 512M; quick: 128M].
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub(crate) memory: Option<u64>,
    /// Empty files of `tree-random`; other workloads have a share of it [default: 1000000; quick:
    /// 20000].
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u64).range(100..=100_000_000)
    )]
    pub(crate) files: Option<u64>,
    /// Size of the large file of `large-file` and `micro-4k` [default: 1G; quick: 128M].
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    /// A tarball of a source tree; by default one of the shape of the kernel's is made.
    #[arg(long, value_name = "FILE")]
    pub(crate) tree: Option<PathBuf>,
    /// Files of the source tree that is made [default: 47000; quick: 3000].
    #[arg(long, value_name = "COUNT")]
    pub(crate) tree_files: Option<u64>,
    /// Repetitions; medians are reported [default: 3; quick: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: Option<u32>,
    /// Cut phases of single operations short after so many seconds [default: never; quick: 2].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) cap: Option<f64>,
    /// Hold every side, with its daemon and its page cache, to --memory by a control group (root,
    /// version 1).
    #[arg(long)]
    pub(crate) cgroup: bool,
    /// Switch FUSE over `io_uring` on for the run, and back as it was. Other mounts that are made
    /// meanwhile have it too.
    #[arg(long)]
    pub(crate) enable_uring: bool,
    /// Size of the disk that every side is given [default: as much as the workloads need].
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub(crate) disk: Option<u64>,
    /// Folder for `fs.json` and `fs.html`.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Folder for the disk image [default: the one of --out]. One on a tmpfs (/dev/shm) leaves out
    /// what the host's disk does; the image takes memory of the size of --disk then.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print the JSON instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl FsArgs {
    /// Returns the amounts to run.
    ///
    /// # Errors
    /// An amount that is too small to be meaningful.
    pub(crate) fn scale(&self) -> anyhow::Result<Scale> {
        let quick = |quick: u64, full: u64| if self.quick { quick } else { full };
        let bytes = self.bytes.unwrap_or_else(|| quick(128 * MIB, GIB));
        anyhow::ensure!(bytes >= MIB, "--bytes is at least 1M");
        let memory_bytes = self.memory.unwrap_or_else(|| quick(128 * MIB, 512 * MIB));
        let least = if self.cgroup { 128 } else { 64 };
        anyhow::ensure!(
            memory_bytes >= least * MIB,
            "--memory is at least 64M, with --cgroup at least 128M"
        );
        Ok(Scale {
            memory_bytes,
            bytes,
            small_bytes: bytes,
            gets: 0,
            batch: 1,
            cap_s: cap_s(self.cap, self.quick)?,
            settle_s: 0.0,
            repeat: repeats(self.repeat, self.quick),
            is_on_disks: true,
            cgroup: self.cgroup,
            io: Io::Auto,
            compactors: None,
            fs: Some(FsScale {
                files: self.files.unwrap_or_else(|| quick(20_000, 1_000_000)),
                tree_files: self.tree_files.unwrap_or_else(|| quick(3_000, 47_000)),
                tree: self.tree.clone(),
            }),
        })
    }
}

/// Seconds after which a phase is cut short, checked.
fn cap_s(asked: Option<f64>, is_quick: bool) -> anyhow::Result<Option<f64>> {
    let is_sane = asked.is_none_or(|cap| (0.01..1e6).contains(&cap));
    anyhow::ensure!(is_sane, "--cap is between 0.01 and 1000000 seconds");
    Ok(asked.or(is_quick.then_some(2.0)))
}

fn repeats(asked: Option<u32>, is_quick: bool) -> u32 {
    asked.unwrap_or(if is_quick { 1 } else { 3 })
}

/// Reads `64K`, `512M`, `2G` or plain bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.trim_end_matches(['B', 'b', 'i']) {
        digits if digits.ends_with(|c: char| c.is_ascii_digit()) => (digits, 1),
        with_unit => {
            let unit = match with_unit.chars().last().map(|c| c.to_ascii_uppercase()) {
                Some('K') => KIB,
                Some('M') => MIB,
                Some('G') => GIB,
                _ => return Err("expected a size such as 64K, 512M or 2G".to_owned()),
            };
            (&with_unit[..with_unit.len() - 1], unit)
        }
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("512M"), Ok(512 * MIB));
        assert_eq!(size("2GiB"), Ok(2 * GIB));
        assert_eq!(size("100"), Ok(100));
        assert!(size("M").is_err());
        assert!(size("12X").is_err());
        assert!(size("99999999999G").is_err());
    }
}
