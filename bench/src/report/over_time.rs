//! Rates and latencies over time.

use super::html::colour;
use super::plot::{Chart, Line};
use super::{Phase, Point, Run};

/// A phase with fewer points is too short to be drawn.
pub(super) const POINTS_MIN: usize = 4;
/// What puts are to stay under: 999 in 1,000 of them, and all.
const MARKS_US: [(f64, &str); 2] = [(50e3, "50 ms"), (250e3, "250 ms")];

/// All phases of a workload that took long enough.
pub(super) fn over_time(out: &mut String, runs: &[Run], workload: &str) {
    let mut names: Vec<&str> = Vec::new();
    for run in runs.iter().filter(|run| run.workload == workload) {
        let is_long = |phase: &&Phase| phase.series.len() >= POINTS_MIN;
        for phase in run.phases.iter().filter(is_long) {
            if !names.contains(&phase.name.as_str()) {
                names.push(&phase.name);
            }
        }
    }
    for name in names {
        let found = of_phase(runs, workload, name);
        out.push_str(&rates(name, &found));
        if found.iter().any(|(_, phase)| !phase.latencies.is_empty()) {
            out.push_str(&latencies(name, &found));
        }
    }
}

/// The phase of this name in all repetitions, with their sides.
fn of_phase<'a>(runs: &'a [Run], workload: &str, name: &str) -> Vec<(&'a Run, &'a Phase)> {
    let runs = runs.iter().filter(|run| run.workload == workload);
    let phase = |run: &'a Run| Some((run, run.phases.iter().find(|p| p.name == name)?));
    runs.filter_map(phase).collect()
}

/// Of each side's first repetition.
fn rates(name: &str, found: &[(&Run, &Phase)]) -> String {
    let first = found.iter().filter(|(run, _)| run.repeat == 0);
    let lines = first.map(|(run, phase)| Line {
        name: run.side.clone(),
        colour: colour(&run.side),
        is_dashed: false,
        points: points(&phase.series, |point| Some(point.ops_per_s)),
    });
    let title = format!("{name}: throughput");
    chart(&title, "operations/s", false, lines.collect()).svg()
}

/// Of each side's repetition with the slowest operation.
fn latencies(name: &str, found: &[(&Run, &Phase)]) -> String {
    let mut lines = Vec::new();
    for (run, phase) in slowest(found) {
        let line = |what: &str, is_dashed: bool, figure: fn(&Point) -> f64| Line {
            name: format!("{} {what}", run.side),
            colour: colour(&run.side),
            is_dashed,
            // Nothing where no operation ended.
            points: points(&phase.series, |point| {
                Some(figure(point)).filter(|us| *us > 0.0)
            }),
        };
        lines.push(line("p99.9", false, |point| point.p999_us));
        lines.push(line("slowest", true, |point| point.max_us));
    }
    let title = format!("{name}: latency, p99.9 (solid) and slowest (dashed)");
    let mut chart = chart(&title, "us", true, lines);
    let is_put = |(_, phase): &(&Run, &Phase)| phase.latencies.contains_key("put");
    if found.iter().any(is_put) {
        chart.marks = MARKS_US.to_vec();
    }
    chart.svg()
}

/// For each side the repetition whose slowest operation was the slowest.
fn slowest<'a>(found: &[(&'a Run, &'a Phase)]) -> Vec<(&'a Run, &'a Phase)> {
    let max_us = |phase: &Phase| phase.series.iter().map(|p| p.max_us).fold(0.0, f64::max);
    let mut of_sides: Vec<(&Run, &Phase)> = Vec::new();
    for (run, phase) in found {
        match of_sides
            .iter_mut()
            .find(|(other, _)| other.side == run.side)
        {
            Some(other) if max_us(other.1) < max_us(phase) => *other = (run, phase),
            Some(_) => {}
            None => of_sides.push((run, phase)),
        }
    }
    of_sides
}

fn chart<'a>(title: &'a str, y_label: &'a str, is_log: bool, lines: Vec<Line>) -> Chart<'a> {
    Chart {
        title,
        x_label: "seconds",
        y_label,
        is_log,
        has_dots: false,
        x_names: Vec::new(),
        marks: Vec::new(),
        lines,
    }
}

fn points(series: &[Point], figure: impl Fn(&Point) -> Option<f64>) -> Vec<(f64, f64)> {
    let place = |point: &Point| Some((point.at_s, figure(point)?));
    series.iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Latency;
    use std::collections::BTreeMap;

    fn run(side: &str, repeat: u32) -> Run {
        Run::new("w", side, repeat)
    }

    fn phase(op: &str, max_us: f64) -> Phase {
        let point = |index: u32| Point {
            at_s: f64::from(index),
            ops_per_s: 10.0,
            mean_us: 1.0,
            p999_us: f64::from(index % 2),
            max_us: max_us * f64::from(index % 2),
        };
        let latency = Latency {
            count: 1,
            mean_us: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
            p999_us: 1.0,
            max_us,
        };
        Phase {
            series: (0..8).map(point).collect(),
            latencies: BTreeMap::from([(op.to_owned(), latency)]),
            ..Phase::default()
        }
    }

    #[test]
    fn each_side_has_its_slowest_repetition_with_both_lines() {
        let (runs, phases) = (
            [run("stitch", 0), run("stitch", 1), run("rocksdb", 0)],
            [phase("put", 3.0), phase("put", 9e3), phase("put", 5.0)],
        );
        let found: Vec<(&Run, &Phase)> = runs.iter().zip(&phases).collect();
        let chosen = slowest(&found);
        let repeats: Vec<u32> = chosen.iter().map(|(run, _)| run.repeat).collect();
        assert_eq!(repeats, [1, 0]);
        let svg = latencies("load", &found);
        for line in [
            "stitch p99.9",
            "stitch slowest",
            "rocksdb p99.9",
            "rocksdb slowest",
        ] {
            assert_eq!(svg.matches(&format!("<title>{line}<")).count(), 1, "{line}");
        }
        assert_eq!(svg.matches("stroke-dasharray").count(), 2);
        assert!(svg.contains(">50 ms<") && svg.contains(">250 ms<"), "{svg}");
    }

    #[test]
    fn each_long_phase_is_drawn_and_no_short_one() {
        let named = |name: &str, points: usize| {
            let mut phase = phase("write", 3.0);
            phase.series.truncate(points);
            let name = name.to_owned();
            Phase { name, ..phase }
        };
        let mut mount = run("stitchfs-uring", 0);
        mount.phases = vec![named("create", POINTS_MIN), named("sync", POINTS_MIN - 1)];
        let mut out = String::new();
        over_time(&mut out, &[mount], "w");
        assert_eq!(out.matches("create: throughput</text>").count(), 1, "{out}");
        assert_eq!(out.matches("create: latency").count(), 2, "{out}");
        assert!(!out.contains("sync: "), "{out}");
    }

    #[test]
    fn only_puts_have_marks() {
        let (run, phase) = (run("stitch", 0), phase("get", 1.0));
        assert!(!latencies("get", &[(&run, &phase)]).contains("50 ms"));
    }

    #[test]
    fn where_nothing_ended_nothing_is_drawn() {
        let series = phase("put", 2.0).series;
        let ended = |point: &Point| Some(point.max_us).filter(|us| *us > 0.0);
        assert_eq!(points(&series, ended).len(), 4);
        assert_eq!(points(&series, |point| Some(point.ops_per_s)).len(), 8);
    }
}
