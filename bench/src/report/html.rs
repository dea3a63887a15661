//! The report as one page that needs nothing else.

use super::plot::{Chart, Line, escape};
use super::table::{columns, legend};
use super::{Phase, Point, Report, Row, Suite, bars};
use crate::fs;
use crate::side::NAMES;
use std::fmt::Write as _;

/// Most points of a line.
const POINTS_MAX: usize = 100;
/// One colour per side of a suite, in the order of its names.
const COLOURS: [&str; 8] = [
    "#d9480f", "#1c7ed6", "#2b8a3e", "#862e9c", "#868e96", "#f08c00", "#0b7285", "#5c940d",
];

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
.wide { overflow-x: auto; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2), td:last-child { text-align: left; }
tr.first td { border-top: 1px solid var(--line); }
tr.ours td { font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; margin-top: 1rem; }
.plots svg { width: 36rem; max-width: 100%; }
svg text { fill: currentColor; } svg .a { font-size: 10.5px; } svg .t { font-size: 12.5px; \
 font-weight: 600; }
svg .g { stroke: var(--line); stroke-width: 1; }
.bars { display: grid; grid-template-columns: max-content max-content 1fr; gap: 1px .8rem; \
 font-size: 12px; max-width: 44rem; margin-bottom: 1rem; }
.bars i { display: block; height: .7rem; margin-top: .25rem; }
.key span { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: 1rem; height: .25rem; margin-right: .35rem; \
 vertical-align: middle; }
";

/// The page.
pub(crate) fn html(report: &Report) -> String {
    let mut out = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    let _ = write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>stitch-bench {}</title>\
         <style>{STYLE}</style><h1>{}, side by side</h1>",
        report.suite.name(),
        match report.suite {
            Suite::Kv => "Key-value stores",
            Suite::Fs => "File systems",
        }
    );
    head(&mut out, report);
    let mut workloads: Vec<&str> = Vec::new();
    for row in &report.summary {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    for workload in workloads {
        let _ = write!(out, "<h2 id=\"{0}\">{0}</h2>", escape(workload));
        let rows = report.summary.iter().filter(|row| row.workload == workload);
        let rows: Vec<&Row> = rows.collect();
        if report.suite == Suite::Fs {
            bars::bars(&mut out, &rows);
        }
        rows_table(&mut out, report.suite, &rows);
        out.push_str("<div class=\"plots\">");
        plots(&mut out, report, workload);
        out.push_str("</div>");
    }
    out.push_str("</html>\n");
    out
}

fn head(out: &mut String, report: &Report) {
    let (machine, scale) = (&report.machine, &report.scale);
    let mib = |bytes: u64| bytes >> 20;
    let counted = if scale.is_on_disks {
        "by a disk of its own"
    } else {
        "for its process"
    };
    let memory = if scale.cgroup {
        "by control group"
    } else {
        "by each side's own options"
    };
    let _ = write!(
        out,
        "<p>{} processors, {} MiB of memory, kernel {}, file system {}; load {} before and {} \
         after. Traffic counted {counted}. Memory per side {} MiB ({memory}), data {} MiB, of small rows {} MiB, {} put(s) a \
         batch, {} repetition(s), {:.0} s in all.</p><p>{}</p>",
        machine.cpus,
        mib(machine.memory_bytes),
        escape(&machine.kernel),
        escape(&machine.file_system),
        escape(&machine.load_before),
        escape(&machine.load_after),
        mib(scale.memory_bytes),
        mib(scale.bytes),
        mib(scale.small_bytes),
        scale.batch,
        scale.repeat,
        report.seconds,
        legend(report.suite),
    );
    out.push_str("<p class=\"key\">");
    let names = NAMES.iter().chain(&fs::side::NAMES);
    for name in names.filter(|name| report.runs.iter().any(|run| run.side == **name)) {
        let colour = colour(name);
        let _ = write!(
            out,
            "<span><i style=\"background:{colour}\"></i>{name}</span>"
        );
    }
    out.push_str("</p>");
    let failed = report.runs.iter().filter_map(|run| {
        let error = run.error.as_ref()?;
        Some(format!("FAILED {} on {}: {error}", run.workload, run.side))
    });
    let skipped = report
        .skipped
        .iter()
        .map(|s| format!("SKIP {}: {}", s.what, s.why));
    for line in failed.chain(skipped) {
        let _ = write!(out, "<p>{}</p>", escape(&line));
    }
}

fn rows_table(out: &mut String, suite: Suite, rows: &[&Row]) {
    out.push_str("<div class=\"wide\"><table><tr>");
    for column in columns(suite) {
        let _ = write!(out, "<th>{}</th>", column.head);
    }
    out.push_str("</tr>");
    let mut last = "";
    for row in rows {
        let is_first = row.phase != last;
        let first = if is_first { "first" } else { "" };
        let is_ours = row.side == NAMES[0] || row.side.starts_with("stitchfs-");
        let ours = if is_ours { "ours" } else { "" };
        let _ = write!(out, "<tr class=\"{first} {ours}\">");
        for (index, column) in columns(suite).iter().enumerate() {
            let cell = (column.cell)(row);
            let shown = if index == 0 && !is_first { "" } else { &cell };
            let _ = write!(out, "<td>{}</td>", escape(shown));
        }
        out.push_str("</tr>");
        last = &row.phase;
    }
    out.push_str("</table></div>");
}

pub(super) fn colour(side: &str) -> &'static str {
    let place = |names: &[&str]| names.iter().position(|name| *name == side);
    let index = place(&NAMES).or_else(|| place(&fs::side::NAMES));
    COLOURS[index.unwrap_or(0) % COLOURS.len()]
}

fn plots(out: &mut String, report: &Report, workload: &str) {
    match workload {
        "sweep" => return sweep(out, report),
        "recovery" => return recovery(out, report),
        _ => {}
    }
    let mut phases: Vec<&str> = Vec::new();
    for run in report.runs.iter().filter(|run| run.workload == workload) {
        let long = run.phases.iter().filter(|phase| phase.series.len() > 3);
        for phase in long {
            if !phases.contains(&phase.name.as_str()) {
                phases.push(&phase.name);
            }
        }
    }
    for phase in phases {
        over_time(out, report, workload, phase);
    }
}

/// Rate and slowest operation over time, of each side's first repetition.
fn over_time(out: &mut String, report: &Report, workload: &str, name: &str) {
    let first = report
        .runs
        .iter()
        .filter(|run| run.workload == workload && run.repeat == 0);
    let phases: Vec<(&str, &Phase)> = first
        .filter_map(|run| Some((&*run.side, run.phases.iter().find(|p| p.name == name)?)))
        .collect();
    let lines = |figure: &dyn Fn(&[Point]) -> Option<f64>| -> Vec<Line> {
        let line = |(side, phase): &(&str, &Phase)| Line {
            name: (*side).to_owned(),
            colour: colour(side),
            points: joined(&phase.series, figure),
        };
        phases.iter().map(line).collect()
    };
    let chart = |title: &str, y_label: &str, is_log: bool, lines: Vec<Line>| {
        let chart = Chart {
            title,
            x_label: "seconds",
            y_label,
            is_log,
            has_dots: false,
            x_names: Vec::new(),
            lines,
        };
        chart.svg()
    };
    let rates = lines(&mean_rate);
    out.push_str(&chart(
        &format!("{name}: throughput"),
        "operations/s",
        false,
        rates,
    ));
    if phases.iter().any(|(_, phase)| !phase.latencies.is_empty()) {
        let slowest = lines(&slowest_us);
        out.push_str(&chart(
            &format!("{name}: slowest operation"),
            "us",
            true,
            slowest,
        ));
    }
}

/// A series with few enough points to be looked at: neighbours are joined by `figure`.
fn joined(series: &[Point], figure: &dyn Fn(&[Point]) -> Option<f64>) -> Vec<(f64, f64)> {
    let width = series.len().div_ceil(POINTS_MAX).max(1);
    let point = |group: &[Point]| Some((group[group.len() / 2].at_s, figure(group)?));
    series.chunks(width).filter_map(point).collect()
}

#[expect(clippy::cast_precision_loss, reason = "few points")]
fn mean_rate(group: &[Point]) -> Option<f64> {
    let sum: f64 = group.iter().map(|point| point.ops_per_s).sum();
    Some(sum / group.len() as f64)
}

/// Nothing where no operation ended.
fn slowest_us(group: &[Point]) -> Option<f64> {
    let slowest = group.iter().map(|point| point.max_us).fold(0.0, f64::max);
    (slowest > 0.0).then_some(slowest)
}

/// Insert and scan rate by threshold, as figure 6 of the VT-tree paper.
#[expect(clippy::cast_precision_loss, reason = "places in a plot")]
fn sweep(out: &mut String, report: &Report) {
    let of = |kind: &'static str| {
        let rows = report.summary.iter();
        rows.filter(move |row| is_sweep(row, kind))
    };
    let names = |row: &Row| row.phase.split_once(' ').map_or("", |(_, f)| f).to_owned();
    let lines = [
        ("load", COLOURS[0]),
        ("scan", COLOURS[1]),
        ("get", COLOURS[2]),
    ];
    let chart = |title: &str, y_label: &str, figure: &dyn Fn(&Row) -> f64, kinds: &[usize]| {
        let line = |index: &usize| Line {
            name: lines[*index].0.to_owned(),
            colour: lines[*index].1,
            points: of(lines[*index].0)
                .enumerate()
                .map(|(place, row)| (place as f64, figure(row)))
                .collect(),
        };
        let chart = Chart {
            title,
            x_label: "stitching threshold",
            y_label,
            is_log: false,
            has_dots: true,
            x_names: of("load")
                .enumerate()
                .map(|(i, row)| (i as f64, names(row)))
                .collect(),
            lines: kinds.iter().map(line).collect(),
        };
        chart.svg()
    };
    out.push_str(&chart(
        "insert (orange) and scan (blue)",
        "MB/s",
        &|r| r.mb_per_s,
        &[0, 1],
    ));
    let written = |row: &Row| row.write_amplification.unwrap_or(0.0);
    out.push_str(&chart("bytes written per byte", "ratio", &written, &[0]));
}

fn is_sweep(row: &Row, kind: &str) -> bool {
    row.workload == "sweep" && row.phase.starts_with(kind)
}

/// Time to open by bytes put before the kill.
#[expect(clippy::cast_precision_loss, reason = "places in a plot")]
fn recovery(out: &mut String, report: &Report) {
    let first = report
        .runs
        .iter()
        .filter(|run| run.workload == "recovery" && run.repeat == 0);
    let lines = first.map(|run| Line {
        name: run.side.clone(),
        colour: colour(&run.side),
        points: run
            .phases
            .iter()
            .filter_map(|phase| {
                let open_s = phase
                    .values
                    .get("open_s")
                    .filter(|_| phase.name.starts_with("open"))?;
                Some((phase.live_bytes as f64 / 1e6, open_s * 1e3))
            })
            .collect(),
    });
    let chart = Chart {
        title: "opening after a kill",
        x_label: "MB put before",
        y_label: "ms",
        is_log: true,
        has_dots: true,
        x_names: Vec::new(),
        lines: lines.collect(),
    };
    out.push_str(&chart.svg());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(len: u32) -> Vec<Point> {
        let point = |index: u32| Point {
            at_s: f64::from(index),
            ops_per_s: 10.0,
            mean_us: 1.0,
            max_us: f64::from(index % 2),
        };
        (0..len).map(point).collect()
    }

    #[test]
    fn long_series_are_joined_and_short_ones_kept() {
        for (len, points) in [(0, 0), (7, 7), (100, 100), (400, 100), (399, 100)] {
            let line = joined(&series(len), &mean_rate);
            assert_eq!(line.len(), points, "{len}");
            assert!(line.iter().all(|(_, rate)| (rate - 10.0).abs() < 1e-9));
        }
    }

    #[test]
    fn where_nothing_ended_nothing_is_drawn() {
        assert_eq!(joined(&series(8), &slowest_us).len(), 4);
        assert_eq!(joined(&series(200), &slowest_us).len(), 100);
    }
}
