//! The result of a run, as it is stored: every field has its place here, and a file with another
//! field, or without one, is refused.

mod bars;
mod figures;
mod html;
mod over_time;
mod plot;
mod summary;
mod table;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) use html::html;
pub(crate) use summary::summarise;
pub(crate) use table::table;

/// Raised when a field changes its meaning, comes or goes.
pub(crate) const FORMAT: u32 = 3;

/// Everything about one run of the command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// What was measured.
    #[serde(default)]
    pub(crate) suite: Suite,
    /// When it began, in seconds since 1970.
    pub(crate) started_unix_s: i64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The arguments it was given; none of files that are older than this field.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// How much of everything was asked for.
    pub(crate) scale: Scale,
    /// One entry per workload, side and repetition.
    pub(crate) runs: Vec<Run>,
    /// Medians of the repetitions.
    pub(crate) summary: Vec<Row>,
    /// What was not run, and why.
    pub(crate) skipped: Vec<Skipped>,
}

/// What a run of the command measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Suite {
    /// Key-value stores.
    #[default]
    Kv,
    /// File systems.
    Fs,
}

impl Suite {
    /// Its command, and the name of its files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Fs => "fs",
        }
    }
}

/// The machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// Processors.
    pub(crate) cpus: u64,
    /// What they call themselves; empty in files that are older than this field.
    #[serde(default)]
    pub(crate) processor: String,
    /// Memory.
    pub(crate) memory_bytes: u64,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Type of the file system below, as a number that `statfs` gives.
    pub(crate) file_system: String,
    /// Load averages when it began: what else the machine was doing.
    pub(crate) load_before: String,
    /// The same when it ended.
    pub(crate) load_after: String,
}

/// How much of everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
    /// Block cache and memtables together; with `cgroup` twice that, and the limit of everything.
    pub(crate) memory_bytes: u64,
    /// User data of workloads with rows of 1 KiB and more.
    pub(crate) bytes: u64,
    /// User data of workloads with smaller rows.
    pub(crate) small_bytes: u64,
    /// Point reads after a load.
    pub(crate) gets: u64,
    /// Puts in one batch.
    pub(crate) batch: u64,
    /// A phase is cut short after this.
    pub(crate) cap_s: Option<f64>,
    /// Longest wait for background work after a load.
    pub(crate) settle_s: f64,
    /// Repetitions.
    pub(crate) repeat: u32,
    /// Whether every side has a disk of its own, whose counters are reported.
    pub(crate) is_on_disks: bool,
    /// Whether a control group limits the memory of every side to `memory_bytes`.
    pub(crate) cgroup: bool,
    /// The way of `stitch-raw` to its device.
    #[serde(default)]
    pub(crate) io: Io,
    /// Compactions that our side may run at once, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compactors: Option<u32>,
    /// Counts that only file systems have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fs: Option<FsScale>,
}

/// How much of what file systems are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FsScale {
    /// Empty files of `tree-random`; others take a share of it.
    pub(crate) files: u64,
    /// Files of the generated source tree.
    pub(crate) tree_files: u64,
    /// A tarball instead of the generated one.
    pub(crate) tree: Option<std::path::PathBuf>,
}

/// How a block device is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Io {
    /// The best that there is.
    #[default]
    Auto,
    /// Through the page cache.
    Buffered,
    /// Past it.
    Direct,
    /// Past it, several reads at a time.
    Ring,
}

/// One workload on one side, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// The workload.
    pub(crate) workload: String,
    /// The side.
    pub(crate) side: String,
    /// Repetition, from 0.
    pub(crate) repeat: u32,
    /// What was measured, in order.
    pub(crate) phases: Vec<Phase>,
    /// Most memory that the process had resident.
    pub(crate) peak_rss_bytes: u64,
    /// Most memory that the daemon of the mount had resident, if it has one.
    #[serde(default)]
    pub(crate) daemon_peak_bytes: Option<u64>,
    /// Why it ended early.
    pub(crate) error: Option<String>,
}

impl Run {
    /// One of which nothing was measured yet.
    pub(crate) fn new(workload: &str, side: &str, repeat: u32) -> Self {
        Self {
            workload: workload.to_owned(),
            side: side.to_owned(),
            repeat,
            phases: Vec::new(),
            peak_rss_bytes: 0,
            daemon_peak_bytes: None,
            error: None,
        }
    }
}

/// One phase of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Phase {
    /// Its name: `load`, `scan`, `get`, ...
    pub(crate) name: String,
    /// Operations done.
    pub(crate) ops: u64,
    /// Bytes of keys and values in them.
    pub(crate) user_bytes: u64,
    /// From the first operation to the end of the last; with a sync at the end for writes.
    pub(crate) seconds: f64,
    /// Time of background work afterwards.
    pub(crate) settle_s: f64,
    /// It was cut short, or background work was.
    pub(crate) is_cut: bool,
    /// Bytes written to storage, until background work was done.
    pub(crate) device_write_bytes: u64,
    /// Bytes read from storage, until background work was done.
    pub(crate) device_read_bytes: u64,
    /// Space in use afterwards, after phases that write.
    pub(crate) space_bytes: Option<u64>,
    /// Keys and values that can be read afterwards, in bytes.
    pub(crate) live_bytes: u64,
    /// Latencies by kind of operation.
    pub(crate) latencies: BTreeMap<String, Latency>,
    /// What happened when.
    pub(crate) series: Vec<Point>,
    /// The engine's own counters: what they grew by. Only ours has them.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Further figures: `open_s` is how long the store took to open before, others are the
    /// workload's.
    pub(crate) values: BTreeMap<String, f64>,
}

/// Latencies of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latency {
    /// How many.
    pub(crate) count: u64,
    /// Mean.
    pub(crate) mean_us: f64,
    /// Median.
    pub(crate) p50_us: f64,
    /// 99 in 100 took at most this.
    pub(crate) p99_us: f64,
    /// 999 in 1,000 took at most this.
    pub(crate) p999_us: f64,
    /// The slowest.
    pub(crate) max_us: f64,
}

/// A moment of a phase.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Point {
    /// Seconds since the phase began.
    pub(crate) at_s: f64,
    /// Operations per second about then.
    pub(crate) ops_per_s: f64,
    /// Mean latency of those that were timed; 0 if none was.
    pub(crate) mean_us: f64,
    /// 999 in 1,000 of them took at most this; the figure is at most an eighth too high.
    pub(crate) p999_us: f64,
    /// The slowest of them.
    pub(crate) max_us: f64,
}

/// The median of a phase's repetitions on one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The workload.
    pub(crate) workload: String,
    /// The phase.
    pub(crate) phase: String,
    /// The side.
    pub(crate) side: String,
    /// Repetitions that got this far.
    pub(crate) runs: u64,
    /// Operations per second.
    pub(crate) ops_per_s: f64,
    /// Difference between the fastest and the slowest repetition, over the median.
    pub(crate) spread: f64,
    /// User data, in MB (10^6 bytes) per second.
    pub(crate) mb_per_s: f64,
    /// Our rate over this side's.
    pub(crate) ours_over: Option<f64>,
    /// This side's rate over that of ext4: the median of the repetitions' ratios, as the two that
    /// follow.
    #[serde(default)]
    pub(crate) of_ext4: Option<f64>,
    /// The first and the last quarter of these ratios are at most and at least this.
    #[serde(default)]
    pub(crate) of_ext4_quartiles: Option<[f64; 2]>,
    /// A mount's rate over that of the file system that does nothing, by the same transport.
    #[serde(default)]
    pub(crate) of_floor: Option<f64>,
    /// A mount's rate over that of the file system that hands every request on to ext4, by the same
    /// transport.
    #[serde(default)]
    pub(crate) of_passthrough: Option<f64>,
    /// Bytes written to storage per user byte, in phases that write.
    pub(crate) write_amplification: Option<f64>,
    /// Bytes read from storage per user byte.
    pub(crate) read_amplification: f64,
    /// Space in use per live byte.
    pub(crate) space_amplification: Option<f64>,
    /// Latencies of the phase's first kind of operation, in the order of [`Phase::latencies`].
    pub(crate) latency: Option<Latency>,
    /// Time of background work after the phase.
    pub(crate) settle_s: f64,
    /// Further figures, as in [`Phase::values`].
    pub(crate) values: BTreeMap<String, f64>,
    /// Most memory that the process had resident.
    pub(crate) peak_rss_bytes: u64,
    /// Most memory that the daemon of the mount had resident in any phase of the workload.
    #[serde(default)]
    pub(crate) daemon_peak_bytes: Option<u64>,
    /// At least one repetition was cut short.
    pub(crate) is_cut: bool,
}

/// What was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Skipped {
    /// A side, a workload, or both.
    pub(crate) what: String,
    /// Why.
    pub(crate) why: String,
}

impl Scale {
    /// For tests.
    #[cfg(test)]
    pub(crate) const fn tiny() -> Self {
        Self {
            memory_bytes: 4 << 20,
            bytes: 1 << 20,
            small_bytes: 256 << 10,
            gets: 100,
            batch: 1,
            cap_s: None,
            settle_s: 1.0,
            repeat: 1,
            is_on_disks: false,
            io: Io::Auto,
            compactors: None,
            cgroup: false,
            fs: None,
        }
    }

    /// Block cache and memtables together. In a control group, half of it is left for the page
    /// cache and for the program.
    pub(crate) const fn budget_bytes(&self) -> u64 {
        if self.cgroup {
            self.memory_bytes / 2
        } else {
            self.memory_bytes
        }
    }

    /// Size of one write buffer, the same on all sides that have one. They have two.
    pub(crate) const fn write_buffer_bytes(&self) -> u64 {
        let eighth = self.budget_bytes() / 8;
        if eighth < 64 << 10 { 64 << 10 } else { eighth }
    }

    /// What is left for the block cache beside two write buffers.
    #[cfg(feature = "peers")]
    pub(crate) const fn cache_bytes(&self) -> u64 {
        self.budget_bytes() - 2 * self.write_buffer_bytes()
    }
}
