//! `ci`: everything, on a fresh machine, within 45 minutes on two cores.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::steps::{Counts, Outcome, Steps, counting, plain_counts, succeeds};
use crate::{check, sim, tools};

/// Time limit of the simulation in seconds.
const SIM_SECONDS: &str = "240";

/// The mounted tests and their time limits in seconds.
const SUITES: [(&str, u64); 20] = [
    ("users", 120),
    ("requests", 120),
    ("rmtree", 180),
    ("snapshots", 180),
    ("send", 120),
    ("handles", 120),
    ("coherence", 60),
    ("differential", 150),
    ("pjdfstest", 120),
    ("fsx", 600),
    ("enospc", 300),
    ("faults", 60),
    ("amplification", 300),
    ("memory", 300),
    ("kill9", 480),
    ("restart", 180),
    ("passthrough", 180),
    ("rocksdb", 300),
    ("serve", 180),
    ("realwork", 1500),
];

/// The suites that run once more with `io_uring`: short ones that depend on the transport. A suite,
/// its time limit in seconds, and more arguments.
const RING_SUITES: [(&str, u64, &[&str]); 13] = [
    ("users", 120, &[]),
    ("requests", 120, &[]),
    ("rmtree", 180, &[]),
    ("snapshots", 180, &[]),
    ("handles", 120, &[]),
    ("coherence", 60, &[]),
    ("differential", 150, &["--seeds", "1"]),
    ("pjdfstest", 120, &[]),
    ("fsx", 300, &["--seeds", "1", "--ops", "20000"]),
    (
        "enospc",
        120,
        &["large-files", "smallest-store", "host", "host-lent"],
    ),
    ("faults", 60, &[]),
    ("kill9", 180, &["commits", "beside", "lent"]),
    ("passthrough", 180, &[]),
];

/// Runs every step. Returns whether all passed.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut steps = Steps::new();
    steps.run("install tools", || {
        tools::install(root)?;
        Ok(Outcome::Ran(Counts::default()))
    });
    check::add_lints(&mut steps, root);
    check::add_tests(&mut steps, root);
    check::add_interleavings(&mut steps, root);
    check::add_rocksdb(&mut steps, root);
    check::add_docs(&mut steps, root);
    steps.command("build", &mut build(root));
    steps.run("simulation", || {
        counting(
            &mut sim::command(root, &["--seconds", SIM_SECONDS]),
            plain_counts,
        )
    });
    for (suite, seconds) in SUITES {
        steps.run(suite, || run_suite(root, suite, seconds, &[]));
    }
    for (suite, seconds, more) in RING_SUITES {
        let more = [&["--transport", "uring"], more].concat();
        let name = format!("{suite} by io_uring");
        steps.run(&name, || run_suite(root, suite, seconds, &more));
    }
    Ok(steps.finish())
}

/// Returns the command that builds the programs of the mounted tests, with the RocksDB engine if
/// its library is installed.
fn build(root: &Path) -> Command {
    let mut command = check::cargo(root);
    command.args([
        "build",
        "--quiet",
        "--release",
        "-p",
        "stitchfs",
        "-p",
        "stitch-e2e",
    ]);
    if check::has_rocksdb() {
        command.args(["--features", "stitchfs/rocksdb"]);
    }
    command
}

/// Returns the driver of the mounted tests.
fn driver(root: &Path) -> Command {
    let mut command = Command::new(root.join("target/release/stitch-e2e"));
    command
        .current_dir(root)
        .env("STITCHFS", root.join("target/release/stitchfs"))
        .env("STITCH_TOOLS", tools::bin_dir(root));
    command
}

fn run_suite(root: &Path, suite: &str, seconds: u64, more: &[&str]) -> Result<Outcome> {
    if let Some(reason) = why_not_mounted() {
        return Ok(Outcome::Skipped(reason));
    }
    let mut command = driver(root);
    command.args(["run", suite, "--again", "--seconds", &seconds.to_string()]);
    command.args(more);
    counting(&mut command, plain_counts)
}

/// Returns the reason that mounted tests cannot run here, if any.
fn why_not_mounted() -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        return Some("no /dev/fuse".to_owned());
    }
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    (!is_root).then(|| "not root".to_owned())
}

/// Builds and runs the driver of the mounted tests with these arguments. Returns whether they
/// passed.
pub(crate) fn run_e2e(root: &Path, args: &[&str]) -> Result<bool> {
    ensure!(succeeds(&mut build(root))?, "the build failed");
    succeeds(driver(root).args(args))
}
