//! `ci`: everything, on a fresh machine, within 45 minutes on two cores.
//!
//! 1. Tools, lints, tests and documentation, one after the other: cargo keeps both cores busy.
//! 2. The programs of the mounted tests and of the simulation, built with the profile `ci`.
//! 3. The simulation and most mounted suites in two lanes, side by side: a suite waits for the
//!    kernel, for the device and for daemons that start and end, more than it computes.
//! 4. The suites that share something with others, one after the other ([`ALONE`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::lanes::Task;
use crate::steps::{Counts, Outcome, Steps, counting, plain_counts, succeeds};
use crate::{check, tools};

/// Arguments of the simulation: one thread, beside the mounted suites of the other lane.
const SIMULATION: [&str; 4] = ["--jobs", "1", "--seconds", "240"];

/// A mounted suite in one run of it.
struct Suite {
    name: &'static str,
    /// Its time limit.
    seconds: u64,
    /// More arguments: other cases or sizes than all of them.
    more: &'static [&'static str],
}

const fn suite(name: &'static str, seconds: u64) -> Suite {
    part_of(name, seconds, &[])
}

const fn part_of(name: &'static str, seconds: u64, more: &'static [&'static str]) -> Suite {
    Suite {
        name,
        seconds,
        more,
    }
}

/// The suites that run side by side with others, the longest first.
const BESIDE: [Suite; 16] = [
    suite("realwork", 1800),
    part_of("fsx", 900, &["--seeds", "2"]),
    suite("kill9", 720),
    suite("enospc", 480),
    suite("restart", 240),
    suite("rocksdb", 300),
    suite("differential", 240),
    suite("passthrough", 240),
    suite("clones", 240),
    suite("rollback", 240),
    suite("history", 240),
    suite("send", 240),
    suite("rmtree", 240),
    suite("serve", 240),
    suite("sqlite", 240),
    suite("faults", 120),
];

/// The suites that run once more with `io_uring`, side by side with others: short ones that depend
/// on the transport.
const BESIDE_BY_RING: [Suite; 11] = [
    part_of("fsx", 300, &["--seeds", "1", "--ops", "20000"]),
    part_of("kill9", 240, &["commits", "beside", "lent"]),
    suite("passthrough", 240),
    suite("clones", 240),
    suite("rollback", 240),
    suite("history", 240),
    suite("rmtree", 240),
    suite("sqlite", 240),
    part_of("differential", 240, &["--seeds", "1"]),
    part_of(
        "enospc",
        180,
        &["large-files", "smallest-store", "host", "host-lent"],
    ),
    suite("faults", 120),
];

/// The suites that run alone. `handles` has the kernel drop the inodes of all file systems;
/// `requests`, `coherence`, `memory` and `amplification` count what that and a neighbour's load
/// would change. `users` and `pjdfstest` make the same link in `/sbin`, and users. `snapshots`,
/// `txn`, `isolation` and `txn-kv` run commands in mount namespaces, which hold the mounts of all
/// others as they are.
const ALONE: [Suite; 11] = [
    suite("snapshots", 240),
    suite("txn", 240),
    suite("isolation", 120),
    suite("txn-kv", 240),
    suite("users", 120),
    suite("requests", 120),
    suite("handles", 120),
    suite("coherence", 60),
    suite("pjdfstest", 240),
    suite("amplification", 300),
    suite("memory", 300),
];

/// The suites that run alone and once more with `io_uring`: of `txn` and `txn-kv` the cases in
/// which requests are under way when something ends.
const ALONE_BY_RING: [Suite; 8] = [
    suite("snapshots", 240),
    part_of("txn", 120, &["run", "killed", "daemon", "named", "nested"]),
    part_of("txn-kv", 120, &["kill9"]),
    suite("users", 120),
    suite("requests", 120),
    suite("handles", 120),
    suite("coherence", 60),
    suite("pjdfstest", 240),
];

/// The name and the option of the second transport.
const RING: (&str, &[&str]) = (" by io_uring", &["--transport", "uring"]);

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
    check::add_docs(&mut steps, root);
    steps.command("build", &mut build(root));
    let mut beside = vec![simulation(root)];
    if let Some(reason) = why_not_mounted() {
        steps.run("mounted tests", || Ok(Outcome::Skipped(reason)));
        steps.side_by_side(beside)?;
        return Ok(steps.finish());
    }
    beside.extend(tasks(root, &BESIDE, &BESIDE_BY_RING));
    steps.side_by_side(beside)?;
    for mut task in tasks(root, &ALONE, &ALONE_BY_RING) {
        steps.run(&task.name, || counting(&mut task.command, plain_counts));
    }
    Ok(steps.finish())
}

/// Returns the simulation as a task.
fn simulation(root: &Path) -> Task {
    let mut command = Command::new(built(root, "stitch-sim"));
    command.current_dir(root).args(SIMULATION);
    Task {
        name: "simulation".to_owned(),
        command,
    }
}

/// Returns the runs of `suites`, then those of `by_ring` with `io_uring`.
fn tasks(root: &Path, suites: &[Suite], by_ring: &[Suite]) -> Vec<Task> {
    let (name, option) = RING;
    let first = suites.iter().map(|suite| task(root, suite, "", &[]));
    let second = by_ring.iter().map(|suite| task(root, suite, name, option));
    first.chain(second).collect()
}

fn task(root: &Path, suite: &Suite, transport: &str, option: &[&str]) -> Task {
    let mut command = driver(root);
    let seconds = suite.seconds.to_string();
    command.args(["run", suite.name, "--again", "--seconds", &seconds]);
    command.args(option).args(suite.more);
    Task {
        name: format!("{}{transport}", suite.name),
        command,
    }
}

/// Returns the command that builds the programs of the mounted tests and of the simulation, with
/// the RocksDB engine: its library is loaded at run time.
fn build(root: &Path) -> Command {
    let mut command = check::cargo(root);
    command.args(["build", "--quiet", "--profile", "ci"]);
    command.args(["-p", "stitchfs", "-p", "stitch-e2e", "-p", "stitch-sim"]);
    command.args(["--features", "stitchfs/rocksdb"]);
    command
}

/// Returns the path of a program that [`build`] makes.
fn built(root: &Path, program: &str) -> PathBuf {
    root.join("target/ci").join(program)
}

/// Returns the driver of the mounted tests.
fn driver(root: &Path) -> Command {
    let mut command = Command::new(built(root, "stitch-e2e"));
    command
        .current_dir(root)
        .env("STITCHFS", built(root, "stitchfs"))
        .env("STITCH_TOOLS", tools::bin_dir(root));
    command
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_suite_runs_both_beside_others_and_alone() {
        let is_alone = |suite: &&Suite| ALONE.iter().any(|alone| alone.name == suite.name);
        assert_eq!(BESIDE.iter().filter(is_alone).count(), 0);
        assert_eq!(BESIDE_BY_RING.iter().filter(is_alone).count(), 0);
        assert_eq!(
            ALONE_BY_RING.iter().filter(is_alone).count(),
            ALONE_BY_RING.len()
        );
    }

    #[test]
    fn a_task_names_its_suite_transport_and_cases() {
        let runs = tasks(
            Path::new("/root"),
            &[suite("users", 7)],
            &BESIDE_BY_RING[1..2],
        );
        let names: Vec<&str> = runs.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names, ["users", "kill9 by io_uring"]);
        let arguments: Vec<_> = runs[1].command.get_args().collect();
        let expected = "run kill9 --again --seconds 240 --transport uring commits beside lent";
        assert_eq!(arguments, expected.split(' ').collect::<Vec<_>>());
    }
}
