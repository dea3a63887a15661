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
    assert_eq!(report["format"], 3);
    let listed = String::from_utf8(bench(&["list"]).stdout).unwrap();
    let workloads = listed.split("sides").next().unwrap().lines().skip(1);
    let mut count = 0;
    for line in workloads.filter(|line| !line.ends_with("(servers only)")) {
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
        for point in series {
            let figure = |name: &str| point[name].as_f64().unwrap();
            assert!(figure("p999_us") <= figure("max_us"), "{what}: {point}");
        }
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
    for threads in [1, 2, 4, 8] {
        for beside in ["", "-writing"] {
            let gets = row("readers", &format!("get-{threads}{beside}"));
            assert!(gets["ops_per_s"].as_f64().unwrap() > 0.0);
        }
    }
    let phases = [
        ("policy-meta", ["make", "mix", "stat", "scan", "rest"]),
        (
            "policy-data",
            ["write", "overwrite", "read", "delete", "rest"],
        ),
    ];
    for (workload, phases) in phases {
        for policy in ["leveled", "lazy", "tiered", "narrow", "wide"] {
            let row = |phase: &str| row(workload, &format!("{phase} {policy}"));
            let put = row(phases[0])["values"]["put_x"].as_f64().unwrap();
            assert!((0.5..30.0).contains(&put), "{workload} {policy}: {put}");
            let mixed = &row(phases[1])["latency"];
            assert!(mixed["count"].as_u64().unwrap() > 0, "{policy}");
            assert!(phases.iter().all(|phase| row(phase)["runs"] == 1));
        }
    }
    let runs = report["runs"].as_array().unwrap();
    let full = runs.iter().find(|run| run["workload"] == "full").unwrap();
    let phases = full["phases"].as_array().unwrap();
    let figure = |phase: &str, figure: &str| {
        let found = phases.iter().find(|p| p["name"] == phase);
        found.unwrap()["values"][figure].as_f64().unwrap()
    };
    let share = figure("fill", "utilisation");
    assert!((0.3..1.0).contains(&share), "{share}");
    let share = figure("fill-90", "full");
    assert!((0.9..0.91).contains(&share), "{share}");
    assert!(figure("overwrite-90", "refused").abs() < 0.5);
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
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    check_plots(&page, &report);
    assert!(table.contains("memory") && page.contains("<th>memory</th>"));
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

/// Every workload has its plots: those of a paper's figure, or rate and latency of each phase that
/// was long enough.
fn check_plots(page: &str, report: &Value) {
    let section = |workload: &str| {
        let head = format!("<h2 id=\"{workload}\">");
        let after = page
            .split_once(&head)
            .unwrap_or_else(|| panic!("no {head}"));
        after.1.split("<h2 ").next().unwrap().to_owned()
    };
    let figures: [(&str, &[&str], usize); 4] = [
        (
            "sweep",
            &[
                "insert (orange) and scan (blue)",
                "bytes written per byte",
                "cold gets",
            ],
            4 * 7,
        ),
        ("recovery", &["opening after a kill"], 5),
        ("versions", &["opening, warm, by versions in the log"], 2),
        (
            "sync-sizes",
            &["synced puts: bytes written per byte", "synced puts: rate"],
            2 * 6,
        ),
    ];
    for (workload, titles, dots) in figures {
        let section = section(workload);
        for title in titles {
            assert!(has_chart(&section, title), "{workload}: {title}");
        }
        assert_eq!(section.matches("<svg").count(), titles.len(), "{workload}");
        assert_eq!(section.matches("<circle").count(), dots, "{workload}");
    }
    assert!(section("sweep").contains(">f=inf<"));
    let drawn: usize = report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| {
            let workload = run["workload"].as_str().unwrap();
            let is_figure = figures.iter().any(|figure| figure.0 == workload);
            if is_figure {
                0
            } else {
                check_over_time(&section(workload), run)
            }
        })
        .sum();
    // The synced puts alone take as long as that.
    assert!(drawn >= 1, "no phase was long enough");
}

/// Returns the number of phases with enough points to be drawn.
fn check_over_time(section: &str, run: &Value) -> usize {
    let mut drawn = 0;
    for phase in run["phases"].as_array().unwrap() {
        if phase["series"].as_array().unwrap().len() < 4 {
            continue;
        }
        drawn += 1;
        let name = phase["name"].as_str().unwrap();
        assert!(has_chart(section, &format!("{name}: throughput")), "{name}");
        if phase["latencies"].as_object().unwrap().is_empty() {
            continue;
        }
        let title = format!("{name}: latency, p99.9 (solid) and slowest (dashed)");
        let chart = chart(section, &title).unwrap_or_else(|| panic!("{title}"));
        for line in ["<title>stitch p99.9<", "<title>stitch slowest<"] {
            assert!(chart.contains(line), "{title}: {line}");
        }
        let is_marked = chart.contains(">50 ms<") && chart.contains(">250 ms<");
        assert_eq!(is_marked, !phase["latencies"]["put"].is_null(), "{title}");
    }
    drawn
}

fn has_chart(section: &str, title: &str) -> bool {
    chart(section, title).is_some()
}

/// The chart of this name, if there is one.
fn chart<'a>(section: &'a str, title: &str) -> Option<&'a str> {
    let label = format!("aria-label=\"{title}\"");
    section
        .split("<svg ")
        .skip(1)
        .find(|chart| chart.contains(&label))
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

#[test]
fn servers_are_measured_or_left_out_with_the_reason() {
    let dir = out_dir();
    let sides = ["--sides", "redis,stitch-resp", "--workloads", "resp"];
    let listed = String::from_utf8(bench(&["list"]).stdout).unwrap();
    let is_there = |side: &str| {
        let line = listed
            .lines()
            .find(|line| line.split_whitespace().next() == Some(side));
        line.unwrap().ends_with("built in")
    };
    if !is_there("redis") && !is_there("stitch-resp") {
        let none = bench(&[&["kv", "--quick"], &sides[..]].concat());
        let text = String::from_utf8(none.stderr).unwrap();
        assert!(text.contains("no side can run"), "{text}");
        return;
    }
    let (output, report) = run(dir.path(), &sides);
    assert!(output.status.success(), "{report}");
    for side in ["redis", "stitch-resp"]
        .into_iter()
        .filter(|side| is_there(side))
    {
        let runs = report["runs"].as_array().unwrap();
        let run = runs.iter().find(|run| run["side"] == side).unwrap();
        let phases = run["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 12, "{side}");
        for phase in phases {
            assert!(
                phase["values"]["rps"].as_f64().unwrap() > 0.0,
                "{side}: {phase}"
            );
        }
    }
}
