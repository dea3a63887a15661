//! Every workload of file systems runs, and every side that can be had here; each workload compares
//! what it reads with what it wrote.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn bench(args: &[&str]) -> Output {
    let exe = env!("CARGO_BIN_EXE_stitch-bench");
    Command::new(exe).args(args).output().unwrap()
}

/// Reports whether this process can mount; prints the reason for skipping a test if not.
fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        #[expect(
            clippy::print_stderr,
            reason = "the output of a test run shows skipped tests"
        )]
        {
            eprintln!("SKIP: not root, or /dev/fuse is missing");
        }
    }
    can
}

/// Held while the kernel's switch for FUSE over `io_uring` is turned: tests take turns.
fn turn() -> File {
    let path = std::env::temp_dir().join("stitchfs-enable-uring.lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap();
    lock.lock().unwrap();
    lock
}

fn listed(suite: &str, what: &str) -> Vec<String> {
    let text = String::from_utf8(bench(&["list"]).stdout).unwrap();
    let part = text.split(&format!("{what} of {suite}:\n")).nth(1).unwrap();
    let lines = part.lines().take_while(|line| line.starts_with(' '));
    lines
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

fn run(out: &Path, more: &[&str]) -> Value {
    let small = [
        "fs",
        "--quick",
        "--files",
        "200",
        "--bytes",
        "2M",
        "--tree-files",
        "60",
        "--disk",
        "400M",
        "--enable-uring",
        "--json",
        "--out",
    ];
    let args: Vec<&str> = [&small[..], &[out.to_str().unwrap()], more].concat();
    let output = bench(&args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = serde_json::from_slice(&output.stdout);
    let report: Value = json.unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(output.status.success(), "{text}");
    report
}

/// The sides that every workload runs on: ours, and a file system of the kernel.
const SIDES: [&str; 2] = ["stitchfs-uring", "ext4"];
/// The workloads that run on every side: the shortest, and those that do something else on each.
const WORKLOADS: [&str; 4] = ["meta-1", "append-fsync", "snapshots", "transactions"];

#[test]
fn every_workload_runs() {
    if !can_mount() {
        return;
    }
    let _turn = turn();
    let workloads = listed("fs", "workloads");
    check_runs(&SIDES.map(str::to_owned), &workloads);
}

#[test]
fn every_side_runs() {
    if !can_mount() {
        return;
    }
    let _turn = turn();
    let sides = listed("fs", "sides");
    check_runs(&sides, &WORKLOADS.map(str::to_owned));
}

/// Runs each of these workloads on each of these sides.
fn check_runs(sides: &[String], workloads: &[String]) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (some_sides, some_workloads) = (sides.join(","), workloads.join(","));
    let chosen = ["--sides", &some_sides, "--workloads", &some_workloads];
    let report = run(dir.path(), &chosen);
    assert_eq!(report["suite"], "fs");
    let skipped = report["skipped"].as_array().unwrap();
    let is_skipped = |what: &str| skipped.iter().any(|entry| entry["what"] == what);
    for side in sides {
        for workload in workloads {
            let what = format!("{workload} on {side}");
            let runs = report["runs"].as_array().unwrap();
            let is_it = |run: &&Value| run["workload"] == **workload && run["side"] == **side;
            match runs.iter().find(is_it) {
                Some(run) => check_run(&what, run),
                None => assert!(is_skipped(&what) || is_skipped(side), "{what} was not run"),
            }
        }
    }
    check_left(dir.path());
}

fn check_run(what: &str, run: &Value) {
    assert!(run["error"].is_null(), "{what}: {run}");
    let side = run["side"].as_str().unwrap();
    let is_served = side == "juicefs" || side.contains('-') && !side.ends_with("-library");
    let peak_bytes = run["daemon_peak_bytes"].as_u64();
    assert_eq!(peak_bytes.is_some(), is_served, "{what}");
    assert!(peak_bytes.is_none_or(|bytes| bytes > 1 << 20), "{what}");
    let phases = run["phases"].as_array().unwrap();
    assert!(!phases.is_empty(), "{what}");
    for phase in phases {
        assert!(phase["ops"].as_u64().unwrap() > 0, "{what}: {phase}");
        assert!(phase["seconds"].as_f64().unwrap() > 0.0, "{what}: {phase}");
    }
}

/// Nothing is left but the two files, which hold the same.
fn check_left(dir: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()), "a mount was left");
    let json = dir.join("fs.json");
    let again = bench(&["report", json.to_str().unwrap()]);
    let table = String::from_utf8(again.stdout).unwrap();
    for head in ["of floor", "of pass", "daemon"] {
        assert!(table.contains(head), "{head}: {table}");
    }
    let page = std::fs::read_to_string(dir.join("fs.html")).unwrap();
    assert!(page.contains("class=\"bars\""));
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 2);
}

#[test]
fn a_daemon_in_a_control_group_serves() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let more = [
        "--sides",
        "stitchfs-dev,null-dev",
        "--workloads",
        "meta-1",
        "--cgroup",
    ];
    let report = run(dir.path(), &more);
    assert_eq!(report["runs"].as_array().unwrap().len(), 2);
    assert!(report["runs"][0]["error"].is_null(), "{report}");
}

/// What takes long.
const LONG: [&str; 4] = ["--sides", "stitchfs-dev", "--workloads", "tree-random"];

/// A run, in the middle of it.
struct Running {
    child: Child,
    dir: tempfile::TempDir,
}

impl Running {
    fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let exe = env!("CARGO_BIN_EXE_stitch-bench");
        let child = Command::new(exe)
            .args(["fs", "--quick", "--files", "50000", "--disk", "400M"])
            .args(more)
            .args(["--json", "--out"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut running = Self { child, dir };
        while !running.is_mounted() {
            let ended = running.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it mounted");
        }
        running
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.contains(self.dir.path().to_str().unwrap())
    }

    /// Waits until there is something in the mount: then it is served, and being used.
    fn wait_until_used(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let dir = self.dir.path().to_str().unwrap();
        let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let point = points.find(|point| point.starts_with(dir)).unwrap();
        while std::fs::read_dir(point).is_ok_and(|mut names| names.next().is_none()) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it was used");
        }
    }

    fn end(&mut self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        self.child.wait().unwrap();
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path()).unwrap().count()
    }
}

/// All processes share the kernel's switch: a run that may turn it on does so before each mount.
#[test]
fn a_switch_that_another_process_turned_off_is_turned_on_again() {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    if !can_mount() || !Path::new(SWITCH).exists() {
        return;
    }
    let _turn = turn();
    let was = std::fs::read(SWITCH).unwrap();
    let sides = ["--enable-uring", "--sides", "null-uring"];
    let workloads = ["--workloads", "append-fsync,rename-over,meta-1"];
    let mut running = Running::start(&[&sides[..], &workloads].concat());
    // Not in the moment of a mount.
    running.wait_until_used();
    std::fs::write(SWITCH, b"N").unwrap();
    let status = running.child.wait().unwrap();
    std::fs::write(SWITCH, was).unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let mut running = Running::start(&LONG);
    running.end(Signal::INT);
    assert!(!running.is_mounted());
    assert_eq!(running.files(), 2);
}

#[test]
fn what_a_killed_run_left_the_next_one_takes_down() {
    if !can_mount() {
        return;
    }
    let mut running = Running::start(&LONG);
    // Not in the moment of a mount: a daemon that cannot tell that it serves takes its mount down.
    running.wait_until_used();
    running.end(Signal::KILL);
    assert!(running.is_mounted());
    let next = ["--sides", "null-dev", "--workloads", "append-fsync"];
    run(running.dir.path(), &next);
    assert!(!running.is_mounted());
    assert_eq!(running.files(), 2);
}
