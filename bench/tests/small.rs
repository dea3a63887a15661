//! Every workload runs on our side, and what comes out is a whole report.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    let exe = env!("CARGO_BIN_EXE_stitch-bench");
    Command::new(exe).args(args).output().unwrap()
}

fn run(out: &Path, more: &[&str]) -> (Output, Value) {
    let small = [
        "kv",
        "--quick",
        "--sides",
        "stitch",
        "--memory",
        "4M",
        "--bytes",
        "2M",
        "--small-bytes",
        "256K",
        "--gets",
        "50",
        "--cap",
        "20",
        "--json",
        "--out",
    ];
    let args: Vec<&str> = [&small[..], &[out.to_str().unwrap()], more].concat();
    let output = bench(&args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = serde_json::from_slice(&output.stdout);
    let json = json.unwrap_or_else(|error| panic!("{error}: {text}"));
    (output, json)
}

fn out_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn every_workload_runs_on_our_side() {
    let dir = out_dir();
    let (output, report) = run(dir.path(), &[]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty(), "quiet in a pipe");
    assert_eq!(report["format"], 1);
    let listed = String::from_utf8(bench(&["list"]).stdout).unwrap();
    let workloads = listed.split("sides").next().unwrap().lines().skip(1);
    let mut count = 0;
    for line in workloads {
        let name = line.split_whitespace().next().unwrap();
        let runs = report["runs"].as_array().unwrap();
        let run = runs.iter().find(|run| run["workload"] == name);
        let run = run.unwrap_or_else(|| panic!("{name} was not run"));
        check_run(name, run);
        count += 1;
    }
    assert!(count >= 15, "{count} workloads");
    assert!(report["skipped"].as_array().unwrap().is_empty());
    check_figures(&report);
    check_files(dir.path());
}

fn check_run(name: &str, run: &Value) {
    assert!(run["error"].is_null(), "{name}: {run}");
    assert!(run["peak_rss_bytes"].as_u64().unwrap() > 1 << 20, "{name}");
    for phase in run["phases"].as_array().unwrap() {
        let what = format!("{name}: {}", phase["name"]);
        let ops = phase["ops"].as_u64().unwrap();
        let series = phase["series"].as_array().unwrap();
        assert!(phase["seconds"].as_f64().unwrap() >= 0.0, "{what}");
        assert_eq!(ops > 0, !series.is_empty(), "{what}");
        for latency in phase["latencies"].as_object().unwrap().values() {
            let figure = |name: &str| latency[name].as_f64().unwrap();
            let rising = [
                figure("p50_us"),
                figure("p99_us"),
                figure("p999_us"),
                figure("max_us"),
            ];
            assert!(rising[0] > 0.0, "{what}: {rising:?}");
            assert!(rising.is_sorted(), "{what}: {rising:?}");
        }
    }
}

/// What must hold of any store that keeps what it is given.
fn check_figures(report: &Value) {
    let row = |workload: &str, phase: &str| {
        let rows = report["summary"].as_array().unwrap();
        let found = rows
            .iter()
            .find(|r| r["workload"] == workload && r["phase"] == phase);
        found
            .unwrap_or_else(|| panic!("no row for {workload} {phase}"))
            .clone()
    };
    for workload in ["sequential-4k", "random-4k", "append-4k"] {
        let load = row(workload, "load");
        let written = load["write_amplification"].as_f64().unwrap();
        assert!((0.9..30.0).contains(&written), "{workload}: {written}");
        assert!(load["ops_per_s"].as_f64().unwrap() > 0.0);
        assert!(row(workload, "get")["latency"]["count"].as_u64().unwrap() == 50);
    }
    let runs = report["runs"].as_array().unwrap();
    let full = runs.iter().find(|run| run["workload"] == "full").unwrap();
    let share = full["phases"][0]["values"]["utilisation"].as_f64().unwrap();
    assert!((0.3..1.0).contains(&share), "{share}");
}

/// The stored JSON is read back strictly, and the page needs nothing from elsewhere.
fn check_files(dir: &Path) {
    let json = dir.join("kv.json");
    let again = bench(&["report", json.to_str().unwrap()]);
    assert!(
        again.status.success(),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
    let table = String::from_utf8(again.stdout).unwrap();
    assert!(
        table.contains("random-4k") && table.contains("p99.9"),
        "{table}"
    );
    let page = std::fs::read_to_string(dir.join("kv.html")).unwrap();
    assert!(page.matches("<svg").count() >= 3);
    for word in ["http://", "https://", "src=", "NaN"] {
        assert!(!page.contains(word), "{word}");
    }
    let text = std::fs::read_to_string(&json).unwrap();
    let other = text.replacen("\"format\"", "\"colour\": 1, \"format\"", 1);
    std::fs::write(&json, other).unwrap();
    assert!(!bench(&["report", json.to_str().unwrap()]).status.success());
    let left = std::fs::read_dir(dir).unwrap().count();
    assert_eq!(left, 2, "nothing but the two files is left");
}

#[test]
fn what_cannot_run_is_said() {
    let dir = out_dir();
    let args = ["--sides", "stitch,abacus", "--workloads", "fill-seq"];
    let (output, report) = run(dir.path(), &args);
    assert!(output.status.success());
    assert_eq!(report["skipped"][0]["what"], "abacus");
    let alone = bench(&["kv", "--quick", "--sides", "abacus"]);
    assert_eq!(alone.status.code(), Some(2));
    let unknown = bench(&["kv", "--quick", "--workloads", "waltz"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("waltz"));
}
