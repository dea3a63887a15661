//! The plots of a workload: what happened over time, or the figure of a paper that it repeats.

use super::html::{COLOURS, colour};
use super::over_time;
use super::plot::{Chart, Line};
use super::{Report, Row};

/// A kind of phase of the sweep: its name, and what its line looks like.
type PhaseKind = (&'static str, &'static str);
const LOAD: PhaseKind = ("load", COLOURS[0]);
const SCAN: PhaseKind = ("scan", COLOURS[1]);
const GET: PhaseKind = ("get", COLOURS[2]);

/// Adds the plots of a workload.
pub(super) fn figures(out: &mut String, report: &Report, workload: &str) {
    match workload {
        "sweep" => sweep(out, report),
        "recovery" => recovery(out, report),
        "versions" => versions(out, report),
        "sync-sizes" => sync_sizes(out, report),
        _ => over_time::over_time(out, &report.runs, workload),
    }
}

/// Rates and bytes written by threshold, as figures 5 and 6 of the VT-tree paper.
fn sweep(out: &mut String, report: &Report) {
    let written = |row: &Row| row.write_amplification;
    let charts = [
        sweep_chart(
            report,
            "insert (orange) and scan (blue)",
            "MB/s",
            &[LOAD, SCAN],
            &|row| Some(row.mb_per_s),
        ),
        sweep_chart(report, "bytes written per byte", "ratio", &[LOAD], &written),
        sweep_chart(report, "cold gets", "gets/s", &[GET], &|row| {
            Some(row.ops_per_s)
        }),
    ];
    out.extend(charts);
}

fn sweep_chart(
    report: &Report,
    title: &str,
    y_label: &str,
    kinds: &[PhaseKind],
    figure: &dyn Fn(&Row) -> Option<f64>,
) -> String {
    let of = |kind: &'static str| rows_of(report, "sweep", kind);
    let names = of(kinds[0].0).into_iter().map(|row| {
        let name = row.phase.split_once(' ').map_or("", |(_, f)| f);
        name.to_owned()
    });
    let chart = Chart {
        title,
        x_label: "stitching threshold",
        y_label,
        is_log: false,
        has_dots: true,
        x_names: placed(names),
        marks: Vec::new(),
        lines: kinds
            .iter()
            .map(|(kind, colour)| Line {
                name: (*kind).to_owned(),
                colour,
                is_dashed: false,
                points: placed_figures(of(kind).into_iter().map(figure)),
            })
            .collect(),
    };
    chart.svg()
}

/// The rows of a workload whose phases' names begin so, in their order.
fn rows_of<'a>(report: &'a Report, workload: &str, phases: &str) -> Vec<&'a Row> {
    let rows = report.summary.iter();
    rows.filter(|row| row.workload == workload && row.phase.starts_with(phases))
        .collect()
}

/// With places in a plot: 0, 1, ...
fn placed<T>(names: impl Iterator<Item = T>) -> Vec<(f64, T)> {
    (0..).map(f64::from).zip(names).collect::<Vec<(f64, T)>>()
}

/// The same of figures; where one is missing, so is its point.
fn placed_figures(figures: impl Iterator<Item = Option<f64>>) -> Vec<(f64, f64)> {
    let all = placed(figures).into_iter();
    all.filter_map(|(place, figure)| Some((place, figure?)))
        .collect()
}

/// Time to open by bytes put before the kill.
#[expect(clippy::cast_precision_loss, reason = "places in a plot")]
fn recovery(out: &mut String, report: &Report) {
    let first = report
        .runs
        .iter()
        .filter(|run| run.workload == "recovery" && run.repeat == 0);
    let lines = first.map(|run| {
        let opens = run.phases.iter().filter(|p| p.name.starts_with("open"));
        let points = opens.filter_map(|phase| {
            let open_s = phase.values.get("open_s")?;
            Some((phase.live_bytes as f64 / 1e6, open_s * 1e3))
        });
        dotted(&run.side, points.collect())
    });
    let chart = Chart {
        title: "opening after a kill",
        x_label: "MB put before",
        y_label: "ms",
        is_log: true,
        has_dots: true,
        x_names: Vec::new(),
        marks: Vec::new(),
        lines: lines.collect(),
    };
    out.push_str(&chart.svg());
}

/// Time to open by length of the version log, as figure 17 of the LDS paper.
fn versions(out: &mut String, report: &Report) {
    let line = |side: &str, rows: &[&Row]| {
        let point = |row: &&Row| {
            let bytes = row.values.get("version_bytes")?;
            Some((bytes / 1e6, row.values.get("open_s")? * 1e3))
        };
        dotted(side, rows.iter().filter_map(point).collect())
    };
    let chart = Chart {
        title: "opening, warm, by versions in the log",
        x_label: "MB of versions",
        y_label: "ms",
        is_log: false,
        has_dots: true,
        x_names: Vec::new(),
        marks: Vec::new(),
        lines: by_side(&rows_of(report, "versions", "open"), line),
    };
    out.push_str(&chart.svg());
}

/// Bytes written and rate by length of a synced record, as figure 19 of the LDS paper.
fn sync_sizes(out: &mut String, report: &Report) {
    let rows = rows_of(report, "sync-sizes", "row-");
    let mut sizes: Vec<&str> = Vec::new();
    for row in &rows {
        if !sizes.contains(&row.phase.as_str()) {
            sizes.push(&row.phase);
        }
    }
    let chart = |title: &str, y_label: &str, figure: &dyn Fn(&Row) -> Option<f64>| {
        let line = |side: &str, rows: &[&Row]| {
            let of_size = |size: &&str| rows.iter().find(|row| row.phase == *size);
            let figures = sizes
                .iter()
                .map(|size| of_size(size).and_then(|row| figure(row)));
            dotted(side, placed_figures(figures))
        };
        let chart = Chart {
            title,
            x_label: "bytes of a record",
            y_label,
            is_log: true,
            has_dots: true,
            x_names: placed(
                sizes
                    .iter()
                    .map(|size| size.trim_start_matches("row-").to_owned()),
            ),
            marks: Vec::new(),
            lines: by_side(&rows, line),
        };
        chart.svg()
    };
    let written = |row: &Row| row.write_amplification;
    out.push_str(&chart(
        "synced puts: bytes written per byte",
        "ratio",
        &written,
    ));
    let rate = |row: &Row| Some(row.ops_per_s);
    out.push_str(&chart("synced puts: rate", "puts/s", &rate));
}

/// A line for each side.
fn by_side(rows: &[&Row], line: impl Fn(&str, &[&Row]) -> Line) -> Vec<Line> {
    let mut sides: Vec<&str> = Vec::new();
    for row in rows {
        if !sides.contains(&row.side.as_str()) {
            sides.push(&row.side);
        }
    }
    let of_side = |side: &str| {
        let rows = rows.iter().copied().filter(|row| row.side == side);
        line(side, &rows.collect::<Vec<&Row>>())
    };
    sides.into_iter().map(of_side).collect()
}

fn dotted(side: &str, points: Vec<(f64, f64)>) -> Line {
    Line {
        name: side.to_owned(),
        colour: colour(side),
        is_dashed: false,
        points,
    }
}
